import contextlib
import json
from importlib.util import find_spec
from typing import Any

import av
import numpy as np
import pytest

from spikestill import publish, publish_control, shelf
from spikestill.cli import main
from spikestill.common.environment import environment
from spikestill.common.precision import fixed_reference
from spikestill.common.provenance import file_sha256
from spikestill.configs.environment import EnvironmentConfig
from spikestill.configs.play import PlayConfig
from spikestill.dataset.format import BufferFile
from spikestill.run_folder import game_of
from spikestill.runtime.agents import agent_files, open_agent
from spikestill.runtime.clock import MonotonicClock
from spikestill.runtime.crew import make_sessions, opened, scene_of
from spikestill.runtime.frame_ring import frame_dtype
from spikestill.runtime.onlooker import fill
from spikestill.runtime.session import Tick
from spikestill.runtime.worker import Answer
from spikestill.teacher.control import fixed_ddpg, fixed_file, fixed_network, networks, teach
from spikestill.teacher.control.play import joined, within
from spikestill.teacher.control.simulator import Simulator
from spikestill.teacher.evaluation import evaluate
from tests.teacher.control.test_teach import DRAWN, config_of

pytestmark = pytest.mark.skipif(
    find_spec("mujoco") is None or find_spec("dm_control") is None,
    reason="the MuJoCo simulators are not installed: make install, or pip install 'spikestill[control]'",
)
OPTIONS = {"precision": "fp16", "steps": 200, "evaluation_period": 10_000}


FIXED = {
    "algorithm": "ddpg", "precision": "fixar", "quantisation_delay": 60, "steps": 200, "evaluation_period": 10_000,
}  # fmt: skip


@pytest.fixture(scope="module")
def fixed(tmp_path_factory):
    """A run folder with an agent of reacher_easy in integers alone, 16 bits wide by now."""
    folder = tmp_path_factory.mktemp("control") / "fixed"
    teach.run(config_of("reacher_easy", **FIXED), folder)
    return folder


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """A run folder with an agent of reacher_easy that has hardly learned."""
    folder = tmp_path_factory.mktemp("control") / "run"
    teach.run(config_of("reacher_easy", **OPTIONS), folder)
    return folder


def test_an_agent_plays_the_mean_action_of_its_training_row_by_row(taught):
    spec = environment("reacher_easy")
    files = agent_files("teacher", spec.name, {"teacher": taught / "teacher.safetensors"})
    agent = open_agent("teacher", spec, files)
    envs = spec.make(None, 3, 0)
    observations = envs.reset(np.arange(3))
    decision = agent.act(observations)
    trainings = teach.Trainings(config_of("reacher_easy", **OPTIONS), taught / teach.CHECKPOINT)
    mean = trainings.each[0].learner.act(joined(observations), None)
    np.testing.assert_allclose(decision.action, mean, atol=2e-3)
    assert decision.scores.shape == (3, 5)
    assert decision.value is not None
    assert np.array_equal(decision.value, decision.scores[:, 4])
    learner: Any = trainings.each[0].learner
    o, critics = learner.o, learner.state.critics.p_NP
    nets = [networks.layers(each, (8, 24, 24, 1)) for each in critics]
    x = o.joined(o.array(joined(observations)), o.array(decision.action))
    values = np.min([networks.forward(o, net, x)[-1][:, 0] for net in nets], axis=0)
    np.testing.assert_allclose(decision.scores[:, 4], values, atol=2e-3)
    for row in range(3):
        alone = agent.act({name: values[row : row + 1] for name, values in observations.items()})
        assert np.array_equal(alone.action[0], decision.action[row])


def test_scores_do_not_depend_on_how_many_games_are_played_at_a_time(taught):
    agent = open_agent("teacher", environment("reacher_easy"), {"teacher": taught / "teacher.safetensors"})
    options = config_of("reacher_easy").environment
    one, two = (
        evaluate(lambda obs: agent.act(obs).action, options, episodes=2, epsilon=0.1, seed=5, num_envs=count)
        for count in (1, 2)
    )
    assert one == two
    assert one.frames == 2000


def test_an_agent_in_fixed_point_plays_the_integers_that_were_trained(fixed):
    path = fixed / "teacher.safetensors"
    spec = environment("reacher_easy")
    agent = open_agent("teacher", spec, {"teacher": path})
    envs = spec.make(None, 3, 0)
    observations = envs.reset(np.arange(3))
    state = fixed_file.read(path).state
    assert state.quantised
    _, action = fixed_ddpg.act(state, joined(observations), False, fixed_reference)
    decision = agent.act(observations)
    np.testing.assert_array_equal(decision.action, within(spec.actions, action))
    value = fixed_ddpg.values(state, joined(observations), action, fixed_reference)
    np.testing.assert_array_equal(decision.scores, np.concatenate([decision.action, value[:, None]], axis=1))
    np.testing.assert_array_equal(decision.value, value)
    far = {name: values + 1e4 for name, values in observations.items()}
    after, _ = fixed_ddpg.act(state, joined(far), False, fixed_reference)
    assert agent.act(far).saturated == after.saturated["acting"] - state.saturated["acting"] > 0
    # The critic in float64, as if its 16-bit activations were exact.
    word = state.formats.word(state.formats.weight)
    x = np.concatenate([joined(observations), action], axis=1).astype(np.float64)
    for index, (weight, bias) in enumerate(
        fixed_network.layers(state.critic.weight_N, state.sizes("critic"))
    ):
        x = x @ word.real(weight).T + word.real(bias)
        x = np.maximum(x, 0.0) if index < 2 else x
    np.testing.assert_allclose(value, x[:, 0], atol=1e-2)


@pytest.mark.parametrize("folder", ["taught", "fixed"])
def test_every_command_takes_the_agent_that_teach_left(folder, request, capsys):
    taught = request.getfixturevalue(folder)
    where = ["--run_dir", str(taught), "--json"]

    def told(*words):
        assert main([*words, *where]) == 0
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    scored = told("evaluate", "reacher_easy", "--episodes", "1")
    assert {"mean", "ci95", "random"} <= scored.keys()
    assert (scored["usual_episodes"], scored["epsilon"]) == (10, 0.0)  # as both papers
    played = told("play", "reacher_easy", "--seconds", "0.5", "--view", "none")
    assert played["rate_hz"] == 50.0
    assert played["decisions"] > 0
    assert told("record", "reacher_easy", "--frames", "100", "--num_envs", "2")["finished"]
    # The folder knows its task: the options are those of control.
    assert told("evaluate", "--episodes", "1")["usual_episodes"] == 10
    trace = str(taught / "trace.h5")
    assert told("play", "--seconds", "0.2", "--view", "none", "--trace", trace)["rate_hz"] == 50.0
    again = told("replay", trace, "--teacher", str(taught / "teacher.safetensors"))
    assert again["same"]
    assert again["decisions"] > 0
    assert told("compare", trace, "--other", trace)["same"]
    assert main(["report", str(taught)]) == 0
    page = (taught / "report.html").read_text()
    assert "from random starts, with the mean action" in page
    assert "simulation steps in each" in page
    assert "no-op" not in page
    capsys.readouterr()
    assert main(["inspect", str(taught / "teacher.safetensors"), "--json"]) == 0
    contents = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert contents["environment"] == game_of(taught) == "reacher_easy"
    assert contents.get("headroom") == (0 if folder == "fixed" else None)
    assert main(["teach", "pong", "--run_dir", str(taught), "--resume"]) == 2
    assert "has files of reacher_easy, and a teacher of pong is asked for" in capsys.readouterr().err
    assert main(["inspect", str(taught / teach.CHECKPOINT), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["step"] == 200
    assert main(["evaluate", "hopper", "--teacher", str(taught / "teacher.safetensors")]) == 1
    assert "plays reacher_easy, not hopper" in capsys.readouterr().err


@pytest.mark.parametrize("folder", ["taught", "fixed"])
def test_a_record_holds_states_actions_and_values(folder, request, tmp_path):
    teacher, spec = request.getfixturevalue(folder) / "teacher.safetensors", environment("reacher_easy")
    path = tmp_path / "buffer.h5"
    options = ["--frames", "200", "--num_envs", "2", "--epsilon", "0.1", "--teacher", str(teacher)]
    assert main(["record", "reacher_easy", *options, "--run_dir", str(tmp_path)]) == 0
    with BufferFile(path) as buffer:
        header, steps = buffer.header, buffer.steps
    size = spec.actions.shape[0]
    assert (header.game, header.box, header.fields) == ("reacher_easy", spec.actions, spec.fields)
    assert header.scores == (2 * size + 1 if folder == "taught" else size + 1)
    agent = open_agent("teacher", spec, {"teacher": teacher})
    rows, streams = steps.valid.shape
    seen = {name: values.reshape(rows * streams, -1) for name, values in steps.observations.items()}
    decision = agent.act(seen)
    scores, action = (each.reshape(rows * streams, -1) for each in (steps.q_values, steps.action))
    assert np.array_equal(scores, decision.scores)
    assert decision.value is not None
    assert np.array_equal(scores[:, -1], decision.value)
    assert len(np.unique(decision.value)) > 100
    # Every tenth action is a random one.
    own = (action == decision.action).all(axis=1)
    assert 0.8 < own.mean() < 1.0


@pytest.mark.parametrize("folder", ["taught", "fixed"])
def test_what_looks_on_is_told_the_numbers_their_bounds_and_the_value(folder, request):
    teacher = request.getfixturevalue(folder) / "teacher.safetensors"
    config = PlayConfig(environment=EnvironmentConfig(game="reacher_easy"), teacher=teacher, view="none")
    with contextlib.ExitStack() as stack:
        agent = stack.enter_context(opened(config, "teacher"))
        sessions = make_sessions(config, [agent], MonotonicClock(), stack, drawn=False)
        scene = scene_of(sessions)
        assert scene.bounds == ((-1.0, 1.0),) * 2
        frame = np.zeros(1, frame_dtype(1, 0, 18, sessions[0].game.screen_shape))[0]
        decision = agent.act(environment("reacher_easy").make(None, 1, 0).reset(np.array([0])))
        tick = Tick(0, 0, decision.action[0], 0.0, 0.0, False, False, Answer(1, decision, {}, 0.0, 0.001))
        fill(frame["sessions"][0], sessions[0], tick)
    part = frame["sessions"][0]
    np.testing.assert_allclose(scene.bars(part), (decision.action[0] + 1) / 2)
    assert float(part["value"]) == decision.scores[0, -1]
    assert scene.value(part) == f"value {decision.scores[0, -1]:.4g}"


@pytest.mark.parametrize("folder", ["taught", "fixed"])
def test_an_agent_goes_into_the_zoo_with_its_card(folder, request, tmp_path, monkeypatch):
    source = request.getfixturevalue(folder) / "teacher.safetensors"
    monkeypatch.setattr(publish, "ROOT", tmp_path)
    arguments = ["publish", "reacher_easy", "--teacher", str(source), "--episodes", "2"]
    monkeypatch.setattr("sys.argv", arguments)
    publish.main()
    card = json.loads((tmp_path / "reacher_easy" / "teacher.json").read_text())
    assert (
        card["sha256"]
        == file_sha256(tmp_path / "reacher_easy" / "teacher.safetensors")
        == file_sha256(source)
    )
    assert (card["kind"], card["episodes"], card["training_steps"]) == ("control agent", 2, 200)
    assert (card["algorithm"], card["precision"]) in (("sac", "fp16"), ("ddpg", "fixar"))
    assert card["epsilon"] == 0.0
    assert 0 <= card["ci95"][0] <= card["mean"] <= card["ci95"][1]
    (told,) = shelf.rows("reacher_easy", "teacher.safetensors", tmp_path)
    assert (told["kind"], told["score"]) == ("control agent", card["mean"])
    monkeypatch.setattr("sys.argv", ["publish", "hopper", *arguments[2:]])
    with pytest.raises(SystemExit, match="plays reacher_easy, not hopper"):
        publish.main()
    assert not (tmp_path / "hopper").exists()


def test_the_curve_of_a_later_seed_is_its_own(tmp_path):
    teach.run(config_of("reacher_easy", seeds=2, **OPTIONS), tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "teach.jsonl").read_text().splitlines()]
    for seed, path in enumerate((tmp_path, tmp_path / "seed-1")):
        found = publish_control.training(path / "teacher.safetensors", 0)
        wanted = [line["mean_return"] for line in lines if line["seed"] == seed]
        assert [point["mean_return"] for point in found["curve"]] == wanted
        assert found["seed"] == seed


def recording(taught, tmp_path, seconds=0.3):
    words = [
        "play",
        "reacher_easy",
        "--seconds",
        str(seconds),
        "--view",
        "none",
        "--record",
        str(tmp_path / "play.gif"),
    ]
    return main([*words, "--run_dir", str(taught)])


def test_a_video_of_what_cannot_be_drawn_is_refused_with_what_to_do(taught, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MUJOCO_GL", "disable")
    assert recording(taught, tmp_path) == 1
    told = capsys.readouterr().err
    assert "--record: reacher_easy cannot be drawn" in told
    assert "MUJOCO_GL=" in told
    assert "without --record it plays on unseen" in told.lower()
    assert not (tmp_path / "play.gif").exists()


@DRAWN
def test_a_video_shows_the_body_move(taught, tmp_path, capsys):
    assert recording(taught, tmp_path, seconds=1.5) == 0
    assert "black" not in capsys.readouterr().out
    with av.open(str(tmp_path / "play.gif")) as container:
        frames = [frame.to_ndarray(format="rgb24").astype(int) for frame in container.decode(video=0)]
    assert len(frames) >= 3
    pictures = [frame[: len(frame) // 2] for frame in frames]  # the panel is below
    assert all(picture.std() > 10 for picture in pictures)
    assert (pictures[1] != pictures[-1]).any()


@DRAWN
def test_a_video_that_turned_black_says_so(taught, tmp_path, monkeypatch, capsys):
    draw, drawn = Simulator._draw, []

    def losing_its_display(self, *rest):
        drawn.append(rest)
        if len(drawn) > 1:
            raise OSError("the display is gone")
        return draw(self, *rest)

    monkeypatch.setattr(Simulator, "_draw", losing_its_display)
    assert recording(taught, tmp_path) == 0
    told = capsys.readouterr()
    assert "reacher_easy plays on unseen: the display is gone" in told.err
    assert "play.gif, all black: the game could not be drawn." in " ".join(told.out.split())
