import contextlib
import dataclasses
import json
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from spikestill.cli import main
from spikestill.common.artefacts import TEACHER
from spikestill.common.environment import Field, environment, register
from spikestill.common.errors import UserError
from spikestill.common.precision.names import vanishes
from spikestill.common.precision.rounding import number_format
from spikestill.common.provenance import Provenance
from spikestill.common.tensors import read_tensors, write_tensors
from spikestill.configs.control import ControlConfig, MethodsConfig
from spikestill.configs.environment import EnvironmentConfig
from spikestill.teacher.control import fixed_file, teach
from spikestill.teacher.control.agent_file import read_agent, save_agent
from spikestill.teacher.control.learner import DivergedError, FloatLearner
from spikestill.teacher.control.policy import load_policy
from spikestill.teacher.control.replay import Replay
from spikestill.teacher.control.simulator import choose_gl
from tests.teacher.control.agents import BOXED, OFF, PIXELLED, numbers
from tests.teacher.control.agents import config_of as control

pytestmark = pytest.mark.skipif(
    find_spec("mujoco") is None or find_spec("dm_control") is None,
    reason="the MuJoCo simulators are not installed: make install, or pip install 'spikestill[control]'",
)


PIXELS = {"precision": "fp16", "filters": 2, "features": 4, "std_added": 1e-4, "steps": 80, "seed_steps": 40}
DRAWN = pytest.mark.skipif(not choose_gl(), reason="no OpenGL library: apt-get install libosmesa6")
FIXAR = {"algorithm": "ddpg", "precision": "fixar", "quantisation_delay": 200}


def config_of(game="cartpole_swingup", **options):
    small = {
        "steps": 400, "seed_steps": 100, "hidden": (24, 24), "batch_size": 16, "replay_capacity": 5000,
        "evaluation_period": 400, "evaluation_games": 1, "num_envs": 2, "threads": 2,
    }  # fmt: skip
    return ControlConfig(environment=EnvironmentConfig(game=game), **(small | options))


NOISY = {"algorithm": "ddpg", "target_noise": 0.2, "hidden": (64, 64), "batch_size": 64}


@pytest.fixture
def every_agent_spread(monkeypatch):
    """Agents as small as those of these tests would take one thread."""
    monkeypatch.setattr(teach, "WORTH_SPREADING", 0.0)


def state_of(path):
    tensors, _ = read_tensors(path, teach.SCHEMA, "")
    return tensors


@pytest.mark.parametrize(
    ("game", "options"),
    [
        ("reacher_easy", {"precision": "fp16"}),
        pytest.param("swimmer", FIXAR, marks=pytest.mark.slow),
        ("hopper", {**FIXAR, "quantisation_delay": 1}),
        ("hopper", {"algorithm": "ddpg", "twin_critics": True, "target_noise": 0.2, "actor_period": 2}),
        pytest.param("cartpole_swingup_pixels", PIXELS, marks=[DRAWN, pytest.mark.slow]),
    ],
)
def test_stopping_and_resuming_equals_never_having_stopped(tmp_path, game, options):
    whole = config_of(game, **options)
    assert teach.run(whole, tmp_path / "whole").finished
    half = dataclasses.replace(whole, steps=whole.steps * 5 // 8)
    teach.run(half, tmp_path / "half")
    result = teach.run(whole, tmp_path / "half", resume=True)
    assert result.finished
    ours, theirs = (state_of(tmp_path / name / teach.CHECKPOINT) for name in ("half", "whole"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    lines = [json.loads(line) for line in (tmp_path / "half" / "teach.jsonl").read_text().splitlines()]
    whole_lines = [json.loads(line) for line in (tmp_path / "whole" / "teach.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == whole.steps
    assert lines[-1]["returns"] == whole_lines[-1]["returns"]
    names = [tmp_path / "whole" / name for name in (TEACHER, teach.CHECKPOINT)]
    before = [path.read_bytes() for path in names]
    assert teach.run(whole, tmp_path / "whole", resume=True).finished
    assert [path.read_bytes() for path in names] == before
    if options.get("quantisation_delay") == 1:
        # The range was closed after one batch. Counts go on; the evaluation that ``half`` has more adds nothing.
        assert lines[-1]["saturated_acting"] == whole_lines[-1]["saturated_acting"] > 0


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"precision": "fp16"}, id="sac-fp16"),
        pytest.param({"algorithm": "ddpg"}, id="ddpg", marks=pytest.mark.slow),
        pytest.param(FIXAR | {"quantisation_delay": 20, "steps": 200}, id="fixar"),
    ],
)
def test_a_seed_trained_beside_others_is_bit_for_bit_what_it_is_alone(tmp_path, options, every_agent_spread):
    options = {"hidden": (64, 48), "batch_size": 64} | options
    teach.run(config_of(seeds=3, **options), tmp_path / "three")
    together = state_of(tmp_path / "three" / teach.CHECKPOINT)
    teach.run(config_of(seed=1, **options), tmp_path / "alone")
    alone = state_of(tmp_path / "alone" / teach.CHECKPOINT)
    assert all(torch.equal(tensor, together["1" + name[1:]]) for name, tensor in alone.items())
    files = [tmp_path / "three" / f"seed-{index}" / "teacher.safetensors" for index in (1, 2)]
    spec = environment("cartpole_swingup")
    observations = spec.make(None, 1, 0).reset(np.array([0]))
    one, two = (load_policy(path, spec).act(observations).action for path in files)
    assert not np.array_equal(one, two)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"algorithm": "ddpg", "hidden": (400, 300), "batch_size": 64}, marks=pytest.mark.slow),
        {"algorithm": "ddpg", "twin_critics": True, "actor_period": 2, "batch_size": 15, "precision": "fp16"},
        {"algorithm": "ddpg", "hidden": (40,), "batch_size": 1},
        FIXAR | {"hidden": (400, 300), "batch_size": 64, "steps": 160, "quantisation_delay": 20},
    ],
    ids=["sac", "ddpg", "td3-fp16", "ddpg-one", "fixar"],
)
def test_the_number_of_threads_changes_nothing(tmp_path, options, every_agent_spread):
    for threads in (1, 2):
        teach.run(config_of(threads=threads, **options), tmp_path / str(threads))
    one, two = (state_of(tmp_path / name / teach.CHECKPOINT) for name in ("1", "2"))
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (NOISY, (False, 1)),
        (NOISY | {"seeds": 3}, (False, 1)),
        (NOISY | {"target_noise": 0.0}, (True, 1)),
        (NOISY | {"target_noise": 0.0, "seeds": 3}, (False, 2)),
        ({"hidden": (256, 256), "batch_size": 256}, (True, 1)),
        ({"hidden": (256, 256), "batch_size": 256, "seeds": 3}, (False, 2)),
        ({"hidden": (256, 256), "batch_size": 256, "threads": 1}, (False, 1)),
        ({"algorithm": "ddpg", "hidden": (400, 300), "batch_size": 64}, (True, 1)),
        (FIXAR | {"hidden": (24, 24), "batch_size": 16, "seeds": 2}, (False, 2)),
        ({"game": "cartpole_swingup_pixels", "precision": "fp16"}, (True, 1)),
    ],
)
def test_a_small_agent_is_spread_over_threads_where_they_need_no_interpreter(options, wanted):
    assert teach.spread(config_of(**options)) == wanted


def test_naive_fp16_names_the_format_the_operation_and_what_is_off(tmp_path):
    config = config_of(precision="fp16", methods=MethodsConfig(**OFF))
    with pytest.raises(
        UserError,
        match=r"cartpole_swingup, seed 0, step .*fp16 does not hold.*optimiser step.*off: hadam, softplus_fix",
    ):
        teach.run(config, tmp_path)


def one_transition(reward):
    """Return a replay of one transition of reacher_easy."""
    replay, obs, action, one = Replay(100, 6, 2), np.ones((1, 6)), np.ones((1, 2)), np.ones(1)
    replay.add(obs, action, reward * one, one, obs, one.astype(bool))
    return replay


@pytest.mark.parametrize(
    ("precision", "methods", "reward", "message"),
    [
        ("fp16", {"normal_fix": False}, 1e5, "first in: target of the critic;.*normal_fix"),
        ("fp32", {"loss_scaling": "compound"}, np.inf, "first in: .*Train in another --run_dir with a lower"),
    ],
)
def test_a_loss_that_overflows_in_every_update_is_given_up(precision, methods, reward, message):
    config = config_of("reacher_easy", precision=precision, methods=MethodsConfig(**methods))
    learner, rng = FloatLearner(config, 6, 2, seed=0), np.random.default_rng(0)
    batch = one_transition(reward)  # a return that the format cannot hold, whatever the loss's scale

    def train():
        for _ in range(200):
            learner.update(batch.sample(rng, 16), rng)

    with pytest.raises(
        UserError,
        match=rf"update 100: {precision} .*the critics overflow in every update, {message}",
    ):
        train()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"actions in fp32 are not finite, first in: [\w ,]+\. Train in another --run_dir with a lower"),
        (
            {"precision": "fp16", "methods": MethodsConfig(normal_fix=False)},
            r"fp16 are not finite, first in: .*; methods that are off: normal_fix\. Train in another --run_dir with "
            r"what is off turned on \(--methods.normal_fix=true\), or with --precision fp32",
        ),
    ],
)
def test_actions_that_are_not_finite_name_the_operation_and_what_is_off(options, message):
    learner = FloatLearner(config_of("reacher_easy", **options), 6, 2, seed=0)
    obs = np.ones((1, 6), np.float32)
    learner.act(obs, None)
    learner.state.actor.p_NP[...] = np.nan
    with pytest.raises(DivergedError, match=message):
        learner.act(obs, np.random.default_rng(0))


def test_an_fp32_training_that_diverges_ends_with_a_remedy():
    """Its updates are not checked: what it does is."""
    learner, rng = (
        FloatLearner(config_of("reacher_easy", learning_rate=1e3), 6, 2, seed=0),
        np.random.default_rng(0),
    )
    batch = one_transition(1e30)

    def train():
        for _ in range(500):
            learner.update(batch.sample(rng, 16), rng)
            learner.act(np.ones((1, 6), np.float32), rng)

    with pytest.raises(
        DivergedError, match=r"update \d+: the actor's actions in fp32 are not finite, first in: "
    ):
        train()


def test_a_simulation_that_diverges_ends_the_training_with_its_step_and_a_remedy(tmp_path, monkeypatch):
    advance = teach.Training.advance

    def broken(training, until):
        if training.step == 200:
            training.envs.tasks[1].simulator.data.qvel[:] = np.nan
        advance(training, until if training.step >= 200 else min(until, 200))

    monkeypatch.setattr(teach.Training, "advance", broken)
    with pytest.raises(
        UserError, match=r"step 200: half_cheetah: environment 1 gave .* not finite in step"
    ) as told:
        teach.run(config_of("half_cheetah", algorithm="ddpg", evaluation_period=200), tmp_path)
    assert str(told.value.remedy).startswith(
        "train in another --run_dir with a lower --learning_rate or another --seed"
    )


def test_seeds_beside_one_that_diverges_train_on_to_the_same_step_and_all_that_diverged_are_told():
    with contextlib.closing(
        teach.Trainings(config_of("reacher_easy", precision="fp16", seeds=3))
    ) as trainings:
        trainings.advance(200)
        for training in trainings.each[::2]:
            learner: Any = training.learner
            learner.state.actor.p_NP[...] = np.nan
        with pytest.raises(DivergedError) as caught:
            trainings.advance(300)
    assert {seed: text[:11] for seed, text in caught.value.seeds.items()} == {
        0: "update 100:",
        2: "update 100:",
    }
    assert [training.step for training in trainings.each] == [200, 300, 200]


def test_a_checkpoint_of_another_format_is_refused(tmp_path):
    teach.run(config_of(steps=120), tmp_path)
    with pytest.raises(UserError, match=r"precision 'fp32', now it is 'fp16'"):
        teach.run(config_of(precision="fp16"), tmp_path, resume=True)


def test_an_atari_game_has_no_numbers_as_actions():
    with pytest.raises(UserError, match="pong has named actions, sac learns tasks whose actions are numbers"):
        ControlConfig(environment=EnvironmentConfig(game="pong"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"algorithm": "ddpg"},
            r"seen as pixels, from which sac learns.* ddpg and fp32. Give --algorithm sac",
        ),
        ({"precision": "fixar"}, r"in floating point; here are sac and fixar"),
        ({"precision": "fp8-e4m3"}, r"fp8-e4m3 rounds 1e-05 to 0"),
        ({"precision": "e3m4"}, r"e3m4 rounds 1e-05 to 0"),
    ],
)
def test_what_does_not_learn_from_pictures_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        ControlConfig(environment=EnvironmentConfig(game="cheetah_run_pixels"), **options)


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp8-e5m2", "fp8-e4m3", "e3m4", "e6m2"])
def test_a_number_vanishes_where_rounding_makes_it_0(name):
    form = number_format(name)
    for value in (1e-9, 1e-7, 3e-8, 1e-5, 7.6e-6, 1e-3, 2.0**-10, 2.0**-17):
        assert vanishes(value, name) == (float(form.round(value)) == 0.0), value


def test_pictures_of_another_shape_are_refused():
    field = Field("frame", (64, 64, 3), "uint8", 0, 255)
    register(dataclasses.replace(BOXED, name="other_pictures_test", fields=(field,)))
    with pytest.raises(UserError, match=r"seen as frame, sac does not.*one uint8 field \(3, 3, 84, 84\)"):
        ControlConfig(environment=EnvironmentConfig(game="other_pictures_test"))


@DRAWN
def test_an_agent_from_pixels_plays_what_it_learned(tmp_path):
    config = config_of("cartpole_swingup_pixels", **PIXELS)
    teach.run(config, tmp_path)
    spec, training = (
        environment(config.environment.game),
        teach.Trainings(config, tmp_path / teach.CHECKPOINT),
    )
    agent = load_policy(tmp_path / "teacher.safetensors", spec)
    envs = spec.make(None, 3, 0)
    observations = envs.reset(np.arange(3))
    for _ in range(3):
        decision = agent.act(observations)
        mean = training.each[0].learner.act(observations["pixels"], None)
        np.testing.assert_allclose(decision.action, mean, atol=2e-3)
        assert decision.scores.shape == (3, 3)
        envs.send(decision.action)
        observations = envs.receive().observations
    alone = agent.act({"pixels": observations["pixels"][1:2]})
    assert np.array_equal(alone.action[0], agent.act(observations).action[1])
    training.close()
    envs.close()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda net, tensors: net["encoder"].update(filters=10**9), "filters is 1000000000"),
        (lambda net, tensors: net["encoder"].update(features=True), "features is True"),
        (lambda net, tensors: net["encoder"].pop("tanh"), "tanh"),
        (lambda net, tensors: net.pop("encoder"), "63504 inputs wanted"),
        (lambda net, tensors: tensors.pop("encoder.2.bias"), "encoder.2.bias"),
        (lambda net, tensors: tensors["actor.head.gain"].fill_(float("nan")), "actor.head.gain is .* finite"),
    ],
)
def test_a_damaged_agent_from_pixels_is_refused(tmp_path, damage, message):
    small = {"filters": 2, "features": 4, "hidden": (8,)}
    learner = FloatLearner(control(game="pixelled_test", precision="fp16", methods={}, **small), 0, 2, 0)
    path = tmp_path / "agent.safetensors"
    learner.save(path, PIXELLED, Provenance.of(learner.config, 0))
    read_agent(path).check(path, PIXELLED)
    tensors, metadata = read_tensors(path, "spikestill.control-agent", "")
    net = json.loads(metadata["net"])
    damage(net, tensors)
    write_tensors(
        path,
        tensors,
        "spikestill.control-agent",
        Provenance.from_json(metadata["provenance"]),
        net=json.dumps(net),
    )
    with pytest.raises(UserError, match=message):
        read_agent(path)


def test_an_encoder_and_what_is_seen_must_fit(tmp_path):
    """A file whose fields say pixels although it has no encoder, and the reverse."""
    path = tmp_path / "agent.safetensors"
    for game, spec in (("pixelled_test", BOXED), ("boxed_test", PIXELLED)):
        encoder = {"filters": 2, "features": 4} if game == "pixelled_test" else {}
        config = control(game=game, precision="fp16", methods={}, hidden=(8,), **encoder)
        learner = FloatLearner(config, 5, 2, 0)
        learner.save(path, spec, Provenance.of(config, 0))
        with pytest.raises(UserError, match=r"encoder of pixels|inputs wanted"):
            read_agent(path).check(path, spec)


def test_a_stuck_actor_that_steps_every_other_time_is_explained():
    config = control(algorithm="sac", precision="fp16", methods={}, actor_period=2)
    learner = FloatLearner(config, 5, 2, 0)
    learner.state.actor.scale = 2.0**200
    rng = np.random.default_rng(0)

    def train():
        for _ in range(300):
            learner.update(numbers(rng)[0], rng)

    with pytest.raises(UserError, match="the actor overflow in every update, first in: matrix product, back"):
        train()


@pytest.mark.slow
def test_a_training_that_no_loss_scale_helps_is_given_up_though_it_steps_now_and_then():
    """In fp8-e4m3 the gradient of the log density is beyond 448 in some updates, and the scale fell to 0 for them."""
    learner = FloatLearner(control(algorithm="sac", precision="fp8-e4m3", methods={}), 5, 2, 0)
    rng = np.random.default_rng(0)
    learner.update(numbers(rng)[0], rng)
    learner.state.critics.scale = 1e4 * 2.0**-99
    skipped = learner.state.critics.skipped
    batch = numbers(rng)[0]
    with pytest.raises(
        DivergedError,
        match=rf"critics overflowed in {skipped + 1} of 2 updates, whatever the loss's scale, first in: .*"
        r"methods that are off: none. Train in another --run_dir with a format that reaches further",
    ):
        learner.update(batch._replace(reward_B=np.full(16, 1000.0)), rng)


def test_the_command_picks_the_options_of_the_environment(tmp_path, capsys):
    assert main(["teach", "cheetah_run", "--algorithm", "sac", "--precision", "fp16", "--print_config"]) == 0
    assert "algorithm: sac" in capsys.readouterr().out
    assert main(["teach", "pong", "--print_config"]) == 0
    assert "epsilon_steps" in capsys.readouterr().out
    assert main(["teach", "cheetah-run", "--help"]) == 0
    assert "softplus" in capsys.readouterr().out
    assert main(["teach", "--precision", "fp17", "hopper"]) == 2
    assert "unknown precision 'fp17'" in capsys.readouterr().err
    assert main(["teach", "chetah_run"]) == 2
    assert "Did you mean 'cheetah_run'?" in capsys.readouterr().err


def test_an_agent_s_file_comes_back_as_it_was_and_refuses_another_task(tmp_path):
    config = config_of()
    training = teach.Training(config, 0)
    learner: Any = training.learner
    path, weights = tmp_path / "teacher.safetensors", learner.weights()
    provenance = teach.Provenance.of(config, 0)
    bounds = (-5.0, 2.0)
    for broken in ({}, {"actor.1.bias": np.full(24, np.nan, np.float32)}):
        save_agent(
            path, weights | broken, training.spec, algorithm="sac", precision="fp32", log_std=bounds,
            provenance=provenance,
        )  # fmt: skip
        if broken:
            with pytest.raises(UserError, match=r"actor.1 holds NaN"):
                read_agent(path)
            continue
        found = read_agent(path)
        assert np.array_equal(found.actor[2][0], weights["actor.2.weight"])
        assert (found.algorithm, found.fields) == ("sac", (("position", 3), ("velocity", 2)))
        with pytest.raises(UserError, match="plays cartpole_swingup, not hopper"):
            found.check(path, teach.environment("hopper"))


@pytest.mark.parametrize(
    "game", ["reacher_easy", pytest.param("cartpole_swingup_pixels", marks=[DRAWN, pytest.mark.slow])]
)
def test_what_a_gpu_trained_goes_on_on_the_processor(tmp_path, game, monkeypatch, capsys):
    """The device's operations run on the processor here, where no GPU is needed to have them."""
    monkeypatch.setattr("spikestill.teacher.control.learner.compute_device", lambda _: torch.device("cpu"))
    options = PIXELS if game.endswith("pixels") else {"precision": "fp16"}
    whole = config_of(game, **options)
    half = dataclasses.replace(whole, steps=whole.steps * 5 // 8, device="cuda")
    assert teach.run(half, tmp_path).finished
    saved = state_of(tmp_path / teach.CHECKPOINT)
    # The host's own numbers, in the host's type.
    assert saved["0.learner.critics.p"].dtype == torch.float32
    assert torch.equal(saved["0.learner.critics.p"], saved["0.learner.critics.p"].half().float())
    capsys.readouterr()
    result = teach.run(whole, tmp_path, resume=True)
    assert result.finished
    assert "teach: fp16 is emulated on this processor: every operation's result is" in capsys.readouterr().err
    assert load_policy(tmp_path / "teacher.safetensors", environment(game)) is not None


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_sac_learns_to_swing_a_pole_up(tmp_path, device):
    config = config_of(
        device=device,
        seed=2, steps=5000, seed_steps=500, num_envs=4, hidden=(64, 64), batch_size=64, learning_rate=2e-3,
        update_period=2,
        evaluation_period=5000, evaluation_games=5, target_period=1, target_rate=0.01, precision="fp16",
    )  # fmt: skip
    before = teach.run(dataclasses.replace(config, steps=4), tmp_path / "untrained").summary["mean_return"]
    after = teach.run(config, tmp_path / "trained").summary["mean_return"]
    # Random play scores 14 to 50 in a game of cartpole_swingup, whose best is 1,000.
    assert after > 120
    assert after > 3 * before


def test_fixed_point_is_plain_ddpg_and_says_so():
    with pytest.raises(UserError, match=r"precision fixar with algorithm sac: fixed point is plain DDPG"):
        config_of(precision="fixar")
    with pytest.raises(UserError, match=r"fixed32 with batch_size 48"):
        config_of("hopper", **FIXAR | {"precision": "fixed32", "batch_size": 48})
    with pytest.raises(UserError, match=r"fixar with batch_size 8192: .*a power of two up to 4096"):
        config_of("hopper", **FIXAR | {"batch_size": 8192})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"twin_critics": True},
            r"twin_critics is True, and algorithm sac does not read it\. Omit --twin_critics",
        ),
        ({"target_noise": 0.2}, r"target_noise is 0.2, and algorithm sac"),
        ({"exploration": 0.2}, r"exploration is 0.2, and algorithm sac"),
        ({"algorithm": "ddpg", "log_std_low": -6.0}, r"log_std_low is -6.0, and algorithm ddpg"),
        ({"second_moment": "root"}, r"second_moment is root, and precision fp32 does not read it"),
        ({"precision": "fp16", "rounding": "stochastic"}, r"rounding is stochastic, and precision fp16"),
        (
            FIXAR | {"methods": MethodsConfig(hadam=True)},
            r"methods.hadam is True, and precision fixar.*--methods.hadam",
        ),
        ({"filters": 16}, r"filters is 16, and cartpole_swingup, which is seen as numbers, does not read it"),
        ({"precision": "fp16", "crop": 3}, r"crop is 3, and cartpole_swingup.*Omit --crop"),
        (
            {"precision": "fp16", "methods": MethodsConfig(feature_limit=True)},
            r"methods.feature_limit is True, and cartpole_swingup.*Omit --methods.feature_limit",
        ),
        (
            {"methods": MethodsConfig(loss_scale=500.0)},
            r"methods.loss_scale is 500.0, and precision fp32 without loss scaling",
        ),
        (
            {"precision": "fp16", "methods": MethodsConfig(loss_scaling="none", loss_scale_period=7)},
            r"methods.loss_scale_period is 7, and precision fp16 without loss scaling",
        ),
    ],
)
def test_an_option_that_nothing_would_read_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        config_of(**options)


@pytest.mark.parametrize("option", [{"frame_skip": 2}, {"sticky": 0.25}, {"noop_max": 3}])
def test_what_only_atari_games_read_is_refused_for_a_control_task_and_not_in_its_help(option, capsys):
    (name,) = option
    with pytest.raises(UserError, match=rf"{name} is .*cheetah_run does not read it.*Omit --{name}"):
        EnvironmentConfig(game="cheetah_run", **option)
    EnvironmentConfig(game="pong", **option)
    for verb in ("teach", "play", "evaluate", "record"):
        assert main([verb, "cheetah_run", f"--{name}", str(option[name])]) != 0
        assert "cheetah_run does not read it: that is for Atari games" in capsys.readouterr().err
        assert main([verb, "cheetah_run", "--help"]) == 0
        assert f".{name}" not in capsys.readouterr().out
        assert main([verb, "pong", "--help"]) == 0
        assert f"--environment.{name}" in capsys.readouterr().out


def test_a_fixed_point_agent_is_taught_plays_and_is_inspected(tmp_path, capsys):
    teach.run(config_of("swimmer", steps=300, **FIXAR), tmp_path)
    spec = teach.environment("swimmer")
    policy = load_policy(tmp_path / "teacher.safetensors", spec)
    observations = spec.make(None, 2, 0).reset(np.arange(2))
    spec.actions.check(policy.act(observations).action)
    assert main(["inspect", str(tmp_path / "teacher.safetensors"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert shown["precision"] == "fixar"
    assert shown["weight_format"] == "Q(32, 24)"
    weights = fixed_file.read(tmp_path / "teacher.safetensors").state.critic.weight_N
    critic = shown["tensors"][1]
    assert (critic["min"], critic["max"]) == (weights.min() / 2**24, weights.max() / 2**24)
    with pytest.raises(UserError, match="plays swimmer, not hopper"):
        load_policy(tmp_path / "teacher.safetensors", teach.environment("hopper"))


def test_an_update_that_was_left_out_for_its_infinite_loss_does_not_stop_a_resumption(tmp_path):
    config = config_of("reacher_easy", precision="fp16", steps=150)
    teach.run(config, tmp_path)
    path = tmp_path / teach.CHECKPOINT
    tensors, metadata = read_tensors(path, teach.SCHEMA, "")
    counters = json.loads(metadata["counters"])
    for given, refused in ((float("inf"), False), ("inf", True)):
        counters["seeds"][0]["report"]["loss"] = given
        write_tensors(
            path, tensors, teach.SCHEMA, Provenance.from_json(metadata["provenance"]),
            config=metadata["config"], counters=json.dumps(counters),
        )  # fmt: skip
        with pytest.raises(UserError, match="report is") if refused else contextlib.nullcontext():
            teach.Trainings(config, path).close()
