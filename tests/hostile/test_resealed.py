"""Files with a valid hash and wicked content: each is refused, and the error names the file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from spikestill.common.environment import environment
from spikestill.common.errors import UserError, restoring
from spikestill.common.provenance import Provenance
from spikestill.common.tensors import optimizer_tensors, restore_optimizer
from spikestill.common.training import check_arrays, check_counters, going_on_from
from spikestill.configs.control import ControlConfig
from spikestill.configs.environment import EnvironmentConfig
from spikestill.configs.fixed_point import FixedPointConfig
from spikestill.configs.pipeline import InspectConfig, ReportConfig
from spikestill.configs.play import ReplayConfig
from spikestill.curve_charts import distilling, teaching
from spikestill.inspection import run as inspect
from spikestill.pipeline import State
from spikestill.report import run as report
from spikestill.runtime.replay import run as replay
from spikestill.runtime.trace import AgentTrace, PlayTrace, load, save
from spikestill.teacher.atari.replay import Replay as AtariReplay
from spikestill.teacher.control import fixed_ddpg, fixed_file
from spikestill.teacher.control.agent_file import save_agent
from spikestill.teacher.control.fixed_learner import FixedLearner
from spikestill.teacher.control.policy import load_policy
from spikestill.teacher.control.replay import Replay
from tests.hostile import damage

TASK = "cartpole_swingup"
PROVENANCE = Provenance.of({}, 0)

# --- agents in fixed point


def fixed_parts():
    state = fixed_ddpg.initial_state(FixedPointConfig(hidden=(4, 3)), 5, 1, 0)
    return fixed_ddpg.to_arrays(state)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("config.hidden", [4096] * 500, "actor.weight_N is int32"),
        ("config.hidden", [4.0, 3], r"option hidden is \(4\.0, 3\), int wanted"),
        ("config.variant", 3, "variant is 3; known"),
        ("config.noise", "nan", "option noise is nan"),
        ("observation_size", 2**40, r"observation_size is 1099511627776, a whole number 1\.\.65536 wanted"),
        ("action_size", -1, r"action_size is -1, a whole number 1\.\.65536 wanted"),
        ("updates", 10**40, r"updates is 1000.*, a whole number 0\.\.4611686018427387903 wanted"),
        ("seed", None, r"seed is None, a whole number 0\.\."),
        ("drawn", 0.5, r"drawn is 0\.5, a whole number 0\.\."),
        ("powers", [1], r"powers are \[1\], two of them wanted"),
        ("powers", [2**40, 1], r"powers\.0 is 1099511627776, a whole number 0\.\.1073741824 wanted"),
        ("saturated", {}, "saturated is {}, counts of .* wanted"),
        ("saturated", [], r"saturated is \[\], counts of .* wanted"),
    ],
)
def test_a_fixed_point_agent_of_wicked_values_is_refused(tmp_path, name, value, message):
    arrays, plain = fixed_parts()
    place = plain["config"] if name.startswith("config.") else plain
    place[name.removeprefix("config.")] = value
    with (
        pytest.raises(UserError, match=rf"^agent\.safetensors: .*{message}"),
        restoring(Path("agent.safetensors"), ""),
    ):
        fixed_ddpg.from_arrays(arrays, plain)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("actor.m_N", np.zeros(3, np.int32), r"actor\.m_N is int32 \(3,\)"),
        ("actor.m_N", np.zeros(0, np.float32), r"actor\.m_N is float32"),
        ("critic.v_N", np.full(47, -1, np.int32), r"critic\.v_N holds values below 0"),
        ("actor.range_L2", np.array([[3, 1]] * 3), "end is before its beginning"),
        ("actor.range_L2", np.array([[0, 2**40]] * 3), "more than 32 bits"),
    ],
)
def test_a_fixed_point_agent_of_wicked_arrays_is_refused(name, array, message):
    arrays, plain = fixed_parts()
    assert array.shape == arrays[name].shape or "is" in message
    with pytest.raises((UserError, ValueError), match=message):
        fixed_ddpg.from_arrays({**arrays, name: array}, plain)


def test_a_fixed_point_agent_is_read_as_it_was_written():
    arrays, plain = fixed_parts()
    again, _ = fixed_ddpg.to_arrays(fixed_ddpg.from_arrays(arrays, json.loads(json.dumps(plain))))
    assert all(np.array_equal(array, arrays[name]) for name, array in again.items())


def test_a_fixed_point_training_refuses_an_agent_of_other_sizes():
    config = ControlConfig(
        environment=EnvironmentConfig(game=TASK),
        algorithm="ddpg",
        precision="fixar",
        hidden=(4, 3),
        batch_size=64,
    )
    mine, other = FixedLearner(config, 5, 1, 0), FixedLearner(config, 6, 1, 0)
    mine.restore(mine.arrays())
    with pytest.raises(ValueError, match="its agent has the observation_size 6, the training 5"):
        mine.restore(other.arrays())


def test_the_file_of_a_fixed_point_agent_is_named(tmp_path):
    path = tmp_path / "agent.safetensors"
    state = fixed_ddpg.initial_state(FixedPointConfig(hidden=(4, 3)), 5, 1, 0)
    fixed_file.save(path, dataclasses.replace(state, updates=-1), TASK, PROVENANCE)
    with pytest.raises(UserError, match=r"agent\.safetensors: .*updates is -1, a whole number 0\.\."):
        fixed_file.read(path)


# --- agents in floating point


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"precision": "fp17"}, "unknown precision 'fp17'"),
        ({"precision": "e9m4"}, "2..8 and 1..10 can be emulated"),
        ({"log_std": (float("nan"), 2.0)}, "not finite and in order"),
        ({"log_std": (2.0, -5.0)}, "not finite and in order"),
        ({"algorithm": "td9"}, "algorithm 'td9'"),
    ],
)
def test_a_control_agent_of_wicked_options_is_refused(tmp_path, change, message):
    spec = environment(TASK)
    weights = {"actor.0.weight": np.zeros((5, 2), np.float32), "actor.0.bias": np.zeros(2, np.float32)}
    options = {"algorithm": "sac", "precision": "fp32", "log_std": (-5.0, 2.0)}
    path = tmp_path / "agent.safetensors"
    save_agent(path, weights, spec, **options, provenance=PROVENANCE)
    load_policy(path, spec)
    save_agent(path, weights, spec, **(options | change), provenance=PROVENANCE)
    with pytest.raises(UserError, match=rf"agent\.safetensors: .*{message}"):
        load_policy(path, spec)


# --- checkpoints


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step", -1), ("step", 1.0), ("step", True), ("step", None), ("step", 10**40), ("step", "3"), ("step", []),
        ("returns", {}), ("returns", ["x"]), ("returns", [float("nan")]), ("returns", 3),
        ("report", []), ("report", {"loss": None}), ("score", 3), ("score", float("inf")),
    ],
)  # fmt: skip
def test_counters_of_another_form_are_refused(name, value):
    like = {"step": 0, "returns": [], "report": {}, "score": 0.5}
    good = {
        "step": 3,
        "returns": [1.5, -3],
        "report": {"loss": 0.5},
        "score": -1.0,
        "more": "of a later version",
    }
    check_counters(good, like)
    with pytest.raises(ValueError, match=f"{name} is"):
        check_counters({**good, name: value}, like)
    with pytest.raises(KeyError):
        check_counters({key: each for key, each in good.items() if key != name}, like)


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_arrays_of_another_form_are_refused(kind):
    like = {"weight": kind([1.0, 2.0])}
    check_arrays({"weight": kind([3.0, 4.0]), "more": kind([1])}, like)
    for wrong in (
        kind([1, 2]),
        kind([1.0]),
        kind([[1.0, 2.0]]),
        kind([1.0, float("nan")]),
        kind([1.0, float("inf")]),
    ):
        with pytest.raises(ValueError, match=r"weight (is|holds)"):
            check_arrays({"weight": wrong}, like)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("optimizer.0.exp_avg", torch.zeros(3)), ("optimizer.0.exp_avg", torch.full((2,), torch.nan)),
        ("optimizer.0.exp_avg_sq", torch.full((2,), -1.0)), ("optimizer.0.step", torch.zeros(2)),
        ("optimizer.0.exp_avg", torch.zeros(2, dtype=torch.int64)), ("optimizer.1.step", torch.tensor(1.0)),
        ("optimizer.x.step", torch.tensor(1.0)), ("optimizer.0.other", torch.zeros(2)), ("optimizer.0", torch.zeros(2)),
    ],
)  # fmt: skip
def test_moments_of_another_form_are_refused(name, value):
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight])
    weight.grad = torch.ones(2)
    optimizer.step()
    good = optimizer_tensors(optimizer)
    restore_optimizer(optimizer, good)
    with pytest.raises((ValueError, LookupError)):
        restore_optimizer(optimizer, {**good, name: value})


@pytest.mark.parametrize("place", [[0, 0, 8], [9, 0, 8], [3, 8, 8], [3, -1, 8], [3, 3, 9], [3, 3]])
def test_a_control_replay_of_wicked_places_is_refused(place):
    replay = Replay(8, 2, 1)
    obs, one = np.ones((3, 2)), np.ones(3)
    replay.add(obs, one[:, None], one, one, obs, np.ones(3, np.bool_))
    good = replay.state()
    replay.set_state(good)
    with pytest.raises(ValueError):  # noqa: PT011
        replay.set_state({**good, "place": np.array(place)})
    with pytest.raises(ValueError, match="obs"):
        replay.set_state({**good, "obs": good["obs"][:1]})


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("scalars", np.array([-1.0, 1.0])), ("scalars", np.array([np.inf, 1.0])), ("scalars", np.array([1.5, 1.0])),
        ("scalars", np.array([4.0, 0.0])), ("leaves", np.full(4, -1.0)), ("leaves", np.zeros(10**5)),
        ("leaves", np.full(4, np.nan)), ("frames", np.zeros((1, 2, 3), np.uint8)), ("reward", np.zeros(1)),
    ],
)  # fmt: skip
def test_an_atari_replay_of_wicked_arrays_is_refused(name, array):
    replay = AtariReplay(64, 2, 3, 0.99, 0.5)
    good = replay.state()
    replay.set_state(good)
    with pytest.raises((ValueError, OverflowError)):
        replay.set_state({**good, name: array})


def test_what_fails_later_names_the_file_that_a_training_went_on_from():
    with (
        pytest.raises(
            UserError, match=r"loss nan is not finite; it went on from old\.safetensors\. Lower it"
        ),
        going_on_from(Path("old.safetensors")),
    ):
        raise UserError("loss nan is not finite", "lower it")
    with pytest.raises(UserError, match=r"^loss nan$"), going_on_from(None):
        raise UserError("loss nan")


# --- traces


def agent_trace() -> AgentTrace:
    return AgentTrace(
        "random", None, ((1, 2, 8),), np.zeros(4, np.int32), np.array([0, 1, 2, 3]), np.zeros(4), np.array([0, 2]),
        np.array([1, 3]), np.array([1, 2]), np.zeros((2, 6)), np.zeros(2, np.uint8), np.zeros((1, 2), np.uint8),
    )  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"reward": np.zeros(3)}, {"reward": np.zeros((4, 2))}, {"game": np.zeros(4)}, {"number": np.array([2, 2])},
        {"number": np.array([-1, 2])}, {"frame": np.array([1, 4])}, {"chosen": np.zeros(1)}, {"scores": np.zeros(2)},
        {"kept": np.zeros(3, np.uint8)}, {"spikes": np.zeros((1, 3), np.uint8)}, {"spikes": np.zeros((3, 2), np.uint8)},
        {"spikes": np.zeros(2, np.uint8)}, {"shapes": ((1, 2, 10**9),)}, {"shapes": ((-1, -2, 8),)},
        {"shapes": ((1, 2),)},
        {"leader": 0}, {"leader": 7}, {"leader": "x"}, {"action": np.array([0.0, np.nan, 0.0, 0.0])},
    ],
)  # fmt: skip
def test_a_trace_whose_arrays_do_not_go_together_is_refused(tmp_path, change):
    path, whole = tmp_path / "trace.h5", agent_trace()
    save(path, PlayTrace(EnvironmentConfig(game="pong"), 0, (whole,)), PROVENANCE)
    assert np.array_equal(load(path).agents[0].action, whole.action)
    wicked = dataclasses.replace(whole, **change)
    save(path, PlayTrace(EnvironmentConfig(game="pong"), 0, (wicked,)), PROVENANCE)
    with pytest.raises(UserError, match=r"trace\.h5: not a readable trace"):
        load(path)


@pytest.mark.parametrize(
    "action", [np.array([0, 1, 2, 6]), np.array([0, -1, 2, 3]), np.zeros((4, 1), np.float32)]
)
def test_actions_that_the_game_does_not_have_are_not_played(tmp_path, action):
    path, wicked = tmp_path / "trace.h5", dataclasses.replace(agent_trace(), action=action)
    save(path, PlayTrace(EnvironmentConfig(game="pong"), 0, (wicked,)), PROVENANCE)
    with pytest.raises(UserError, match=r"trace\.h5: its content does not fit: .*its actions are"):
        replay(ReplayConfig(trace=path), tmp_path)


# --- what stages said of themselves

EVALUATE = {
    "agent": "random",
    "epsilon": 0.05,
    "episodes": 2,
    "mean": -20.5,
    "ci95": [-21, -20],
    "returns": [-21, -20],
}
PLAY = {
    "agent": "random", "frame_skip": 4, "seconds": 1.0, "ticks": 60, "lost_s": 0.0, "decisions": 15, "misses": 0,
    "games": 1, "score": -3.0, "latency_ms": {"p50": 1.0, "p99": 5.0, "max": 5.5},
    "histogram": {"edges_ms": [0.5, 1.0, 8.0], "counts": [3, 12]},
}  # fmt: skip
VERIFY = {"rungs": [{"name": "pytorch", "frames": 4}]}


@pytest.mark.parametrize(
    ("name", "whole", "change"),
    [
        ("evaluate", EVALUATE, {"agent": "nobody"}), ("evaluate", EVALUATE, {"agent": 3}),
        ("evaluate", EVALUATE, {"mean": "x"}), ("evaluate", EVALUATE, {"mean": float("nan")}),
        ("evaluate", EVALUATE, {"mean": 10**40}), ("evaluate", EVALUATE, {"ci95": [1]}),
        ("evaluate", EVALUATE, {"returns": 3}), ("evaluate", EVALUATE, {"teacher": []}),
        ("evaluate", EVALUATE, {"random": {"mean": 1.0}}), ("evaluate", EVALUATE, {"percent_of_margin": "9 %"}),
        ("evaluate", EVALUATE, {"episodes": 2.5}), ("evaluate", EVALUATE, {"epsilon": None}),
        ("play", PLAY, {"latency_ms": {"p99": -1.0}}), ("play", PLAY, {"latency_ms": 3}),
        ("play", PLAY, {"histogram": {"edges_ms": [0.0, 1.0], "counts": [1]}}),
        ("play", PLAY, {"histogram": {"edges_ms": [2.0, 1.0], "counts": [1]}}),
        ("play", PLAY, {"histogram": {"edges_ms": [1.0], "counts": []}}), ("play", PLAY, {"frame_skip": 0}),
        ("play", PLAY, {"score": None}), ("play", PLAY, {"lost_s": None}), ("play", PLAY, {"misses": -1}),
        ("verify", VERIFY, {"rungs": [{"name": 3, "frames": 4}]}), ("verify", VERIFY, {"rungs": {}}),
        ("verify", VERIFY, {"rungs": [{"name": "x\n" * 9, "frames": 1}]}),
    ],
)  # fmt: skip
def test_a_report_trusts_no_summary(tmp_path, name, whole, change):
    (tmp_path / f"{name}.json").write_text(json.dumps(whole))
    report(ReportConfig(folder=tmp_path), tmp_path)
    (tmp_path / f"{name}.json").write_text(json.dumps(whole | change))
    with pytest.raises(UserError, match=rf"{name}\.json: "):
        report(ReportConfig(folder=tmp_path), tmp_path)


@pytest.mark.parametrize(
    "line", ["{}", "[]", '{"samples": "x"}', '{"samples": 1, "agreement": 1, "loss": NaN}', "{\n{}"]
)
def test_a_report_trusts_no_curve(tmp_path, line):
    path = tmp_path / "distill.jsonl"
    path.write_text('{"samples": 8, "agreement": 0.5, "loss": 0.1}\n')
    assert len(distilling(path)) == 2
    path.write_text(line + "\n")
    with pytest.raises(UserError, match=r"distill\.jsonl: its content does not fit"):
        distilling(path)


@pytest.mark.parametrize(
    "line", ["{}", "[]", '{"step": "x", "mean_return_100": 1}', '{"step": 8, "mean_return_100": NaN}', "{\n{}"]
)  # fmt: skip
def test_a_report_trusts_no_teachers_curve(tmp_path, line):
    path = tmp_path / "teach.jsonl"
    for whole in ('{"step": 4, "mean_return_100": 0.5}', '{"step": 4, "seed": 0, "mean_return": 0.5}'):
        path.write_text(whole + "\n")
        assert len(teaching(path).charts) == 1
        path.write_text(f"{whole}\n{line}\n")
        with pytest.raises(UserError, match=r"teach\.jsonl: its content does not fit"):
            teaching(path)


# --- what a pipeline remembers

STATE = {
    "schema": "spikestill.pipeline", "version": 1, "game": "pong",
    "stages": {"record": {"key": "0" * 64, "finished": True, "seconds": 1.5, "artefact": "buffer.h5", "summary": {}}},
    "hashes": {"buffer.h5": [192, 1_700_000_000, "0" * 64]},
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "spikestill.student"}, {"version": 2}, {"version": None}, {"game": 3}, {"stages": []},
        {"stages": {"record": 3}}, {"stages": None}, {"hashes": {"buffer.h5": [1, 2]}}, {"hashes": [[1]]},
        {"hashes": {"buffer.h5": 3}}, {"game": ["pong"]},
    ],
)  # fmt: skip
def test_a_pipeline_trusts_no_state(tmp_path, change):
    path = tmp_path / "pipeline.json"
    path.write_text(json.dumps(STATE))
    assert State(tmp_path).game == "pong"
    path.write_text(json.dumps(STATE | change))
    with pytest.raises(UserError, match=r"pipeline\.json: "):
        State(tmp_path)


def refusal(read: Callable[[], object]) -> str | None:
    """Return how ``read`` is refused, None where it is not."""
    try:
        read()
    except UserError as error:
        return str(error)
    return None


def test_whatever_a_state_says_it_is_read_or_refused_by_name(tmp_path):
    path, refused = tmp_path / "pipeline.json", 0
    for seed in range(300):
        path.write_bytes(damage.document(json.dumps(STATE).encode(), np.random.default_rng(seed)))
        told = refusal(lambda: State(tmp_path))
        refused += told is not None
        assert told is None or "pipeline.json: " in told
    assert 50 < refused < 300


@pytest.mark.parametrize("name", ["pipeline", "evaluate", "play"])
@pytest.mark.parametrize("value", ["9" * 5000, "[" * 100_000, '"\\ud800"', "NaN", "1e999", ""])
def test_documents_with_odd_values_are_refused_by_name(tmp_path, name, value):
    path = tmp_path / f"{name}.json"
    path.write_text(f'{{"schema": "spikestill.{name}", "version": {value}}}')
    told = refusal(
        lambda: State(tmp_path) if name == "pipeline" else inspect(InspectConfig(path=path), tmp_path)
    )
    assert told is not None
    assert f"{name}.json: " in told
