"""Parallelised Q-learning beside its mathematics written anew, and its trainings."""

from __future__ import annotations

import dataclasses
import typing

import numpy as np
import pytest
import torch

from spikestill.common.environment import environment
from spikestill.common.errors import UserError
from spikestill.common.provenance import Provenance
from spikestill.configs import loading
from spikestill.configs.control import ControlConfig
from spikestill.configs.environment import EnvironmentConfig
from spikestill.configs.options import unused_newer
from spikestill.configs.teach import TeachConfig
from spikestill.runtime.teachers import make_fixed, make_onnx
from spikestill.teacher.atari import q_network
from spikestill.teacher.atari.rollout_learner import RolloutLearner, lambda_returns
from spikestill.teacher.atari.teach import Training, run
from spikestill.teacher.checkpoint import read_teacher, save_teacher
from spikestill.teacher.policy import load_teacher
from spikestill.verbs import CONTROL_ALGORITHMS, VERBS, by_environment
from tests.teacher.noise import ACTIONS, noise_replay
from tests.teacher.test_learner import network
from tests.teacher.test_teach import TINY, assert_resumes_exactly

SMALL = TeachConfig(
    environment=EnvironmentConfig(game="breakout"), algorithm="pqn", steps=320, num_envs=4, rollout_steps=8, epochs=2,
    batch_size=16, replay_start=64, epsilon_steps=150, segment_steps=50, threads=2, layer_norm=True,
    center_pixels=False, averaging=0.9, precision="fp32", device="cpu",
)  # fmt: skip


def forward_view(reward, done, valid, best, discount, decay, t):
    """Return the lambda-return of step ``t`` of one stream as the mixture of n-step returns that Peng 1994 defines."""
    mixture, n, weight = 0.0, 0, 1.0
    gained, scale = 0.0, 1.0
    while True:
        gained += scale * float(reward[t + n])
        scale *= discount
        ended = bool(done[t + n])
        n += 1
        n_step_return = gained + (0.0 if ended else scale * float(best[t + n]))
        last = ended or t + n == len(reward) or not valid[t + n]
        mixture += weight * (1.0 if last else 1.0 - decay) * n_step_return
        weight *= decay
        if last:
            return mixture


@pytest.mark.parametrize("decay", [0.0, 0.65, 1.0])
def test_lambda_returns_are_the_mixture_of_n_step_returns(decay):
    rng = np.random.default_rng(0)
    shape = (12, 40)
    reward = rng.integers(-1, 2, shape).astype(np.float32)
    done, valid = rng.random(shape) < 0.1, rng.random(shape) < 0.9
    best = rng.normal(size=(13, 40)).astype(np.float32)
    found = lambda_returns(reward, done, valid, best, 0.9, decay)
    wanted = [
        [
            forward_view(reward[:, e], done[:, e], valid[:, e], best[:, e], 0.9, decay, t)
            for e in range(shape[1])
        ]
        for t in range(shape[0])
    ]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def random_weights(seed: int) -> q_network.Weights:
    """Return weights whose gains and shifts are not those of the beginning."""
    generator = torch.Generator().manual_seed(seed)
    weights = q_network.initial_weights(ACTIONS, generator, layer_norm=True)
    for name, weight in weights.items():
        if name.endswith((".gain", ".shift")):
            weight += 0.3 * torch.randn(weight.shape, generator=generator)
    return weights


@pytest.mark.parametrize("target", ["double", "advantage"])
def test_a_round_regresses_every_step_of_the_newest_rollout_on_its_lambda_return(target):
    replay = noise_replay(np.random.default_rng(3), n_step=1, discount=0.9, ends=0.2)
    replay.valid[94, 1] = replay.valid[97, 2] = False
    # The newest row has no successor yet: rows 91 to 98 are the rollout, and 30 of their 32 steps were played.
    config = dataclasses.replace(
        SMALL, epochs=1, batch_size=24, discount=0.9, averaging=0.0, max_gradient_norm=0.0, target=target,
        gap_weight=0.7,
    )  # fmt: skip
    learner = RolloutLearner(config, ACTIONS, replay, threads=2)
    learner.begin_with(random_weights(5))
    net = network(learner.master)

    def q(row: int, env: int) -> torch.Tensor:
        stack = replay.stacks(np.array([row]), np.array([env]))
        return net(torch.from_numpy(stack).permute(0, 3, 1, 2).double() / 255)[0]

    rows = np.arange(91, 99)
    with torch.no_grad():
        best = np.array([[float(q(row, env).max()) for env in range(4)] for row in range(91, 100)])
    loss, errors = torch.zeros(()).double(), []
    for t, row in enumerate(rows):
        for env in range(4):
            if not replay.valid[row, env]:
                continue
            wanted = forward_view(
                replay.reward[rows, env], replay.done[rows, env], replay.valid[rows, env], best[:, env],
                0.9, config.trace_decay, t,
            )  # fmt: skip
            taken = q(row, env)[int(replay.action[row, env])]
            if target == "advantage":  # Bellemare 2016, equation 9
                wanted -= 0.7 * (best[t, env] - taken.item())
            error = taken - wanted
            loss = loss + (0.5 * error**2 if abs(error.item()) <= 1 else error.abs() - 0.5) / 30
            errors.append(error.item())
    loss.backward()
    before = {name: weight.clone() for name, weight in learner.master.items()}
    (report,) = learner.learn(np.random.default_rng(0), 1, 0.0, 1e-3)
    assert len(errors) == 30
    np.testing.assert_allclose(np.sort(report.error), np.sort(errors), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(report.loss, loss.item(), rtol=1e-5)
    # Adam's first step (Kingma 2015): m / (sqrt(v) + eps) = g / (|g| + eps).
    for (name, weight), parameter in zip(learner.master.items(), net.parameters(), strict=True):
        assert parameter.grad is not None
        moved = (weight - before[name]).double()
        wanted_move = -1e-3 * parameter.grad / (parameter.grad.abs() + config.optimizer_epsilon)
        clear = parameter.grad.abs() > 1e-4 * parameter.grad.abs().max()
        np.testing.assert_allclose(moved[clear], wanted_move[clear], rtol=2e-2, atol=1e-6, err_msg=name)
    learner.close()


def test_rollouts_follow_each_other_and_an_epoch_takes_every_step():
    training = Training(SMALL)
    replay = training.replay
    taken: list[int] = []
    learner = training.learner
    assert isinstance(learner, RolloutLearner)
    while training.step < SMALL.steps:
        newest = replay.written - 1
        valid = int(replay.valid[np.arange(newest - 8, newest) % replay.length].sum())
        reports = training.round()
        if reports:
            taken += range(newest - SMALL.rollout_steps, newest)
            sizes = [len(report.error) for report in reports]
            assert len(sizes) == 2 * max(1, valid // SMALL.batch_size)
            assert sum(sizes) == 2 * valid
            assert max(sizes) - min(sizes) <= 1
    assert len(taken) == len(set(taken))
    # A closed segment's last observation, on which nothing was done, pushes one step out of the next rollout.
    assert training.actor.segment == 1
    assert len(set(range(taken[0], taken[-1] + 1)) - set(taken)) == 1
    training.close()


@pytest.mark.parametrize("point", [pytest.param(96, marks=pytest.mark.slow), 256])
def test_stopping_and_resuming_equals_never_having_stopped(tmp_path, point):
    """The segment of 50 steps of 4 games ends between the two."""
    assert_resumes_exactly(SMALL, point, tmp_path / "c")


def test_a_teacher_with_layer_norm_is_played_gone_on_with_and_read_by_onnx(tmp_path):
    path = run(SMALL, tmp_path / "run").artefact
    stacks = np.random.default_rng(0).integers(0, 256, (3, 4, 84, 84), np.uint8)
    played = load_teacher(path).q_values(stacks)
    weights, game, actions, _ = read_teacher(path)
    assert (game, actions) == ("breakout", 4)
    assert q_network.is_normalised(weights)
    with pytest.raises(UserError, match="a network with layer norm, and the training's is one without"):
        Training(dataclasses.replace(TINY, initial=path))
    with pytest.raises(
        UserError, match=r"teacher.safetensors: a network with layer norm divides by a deviation"
    ):
        make_fixed({"teacher": path}, environment("breakout"))
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    agent = make_onnx({"teacher": path}, environment("breakout"))
    np.testing.assert_allclose(agent.act({"stack": stacks}).scores, played, rtol=1e-3, atol=1e-4)


def test_a_damaged_layer_norm_is_named(tmp_path):
    weights = random_weights(0)
    weights["conv2.gain"] = weights["conv2.gain"][:-1]
    save_teacher(tmp_path / "t", weights, "pong", ACTIONS, Provenance.of(SMALL, 0))
    with pytest.raises(UserError, match=r"conv2.gain is \(63,\), shape \(64,\) wanted"):
        read_teacher(tmp_path / "t")
    del weights["conv1.gain"]
    save_teacher(tmp_path / "t", weights, "pong", ACTIONS, Provenance.of(SMALL, 0))
    with pytest.raises(UserError, match=r"holds conv1.shift, which no nature network has"):
        read_teacher(tmp_path / "t")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_step": 5}, "n_step is 5, and algorithm pqn does not read it"),
        ({"target": "munchausen"}, "target munchausen with algorithm pqn, whose returns take the greatest"),
        ({"batch_size": 64}, "batch_size 64 is more than a rollout of 8 steps"),
        ({"replay_start": 32}, "replay_start 32 begins to learn before a rollout of 32 steps"),
        ({"replay_start": 33, "steps": 60}, "a round is 32 steps, and replay_start 33 is past after 64"),
    ],
)
def test_options_that_pqn_cannot_use_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(SMALL, **options)


def test_double_dqn_refuses_the_options_of_pqn():
    with pytest.raises(UserError, match=r"trace_decay is 0\.5, and algorithm ddqn does not read it"):
        TeachConfig(trace_decay=0.5)


def test_options_that_came_later_are_no_part_of_what_trainings_are_known_by():
    assert unused_newer(TeachConfig()) == {
        "algorithm",
        "rollout_steps",
        "epochs",
        "trace_decay",
        "layer_norm",
    }


@pytest.mark.parametrize(
    ("words", "config"),
    [
        (("pong", "--algorithm", "pqn"), "configs.teach:TeachConfig"),
        (("pong", "--algorithm", "dqn"), "configs.teach:TeachConfig"),
        (("--config", "teach-pqn"), "configs.teach:TeachConfig"),
        (("pong", "--algorithm", "sac"), "configs.control:ControlConfig"),
        (("--config", "teach-sac-small"), "configs.control:ControlConfig"),
    ],
)
def test_the_command_takes_the_options_of_the_algorithm(words, config):
    assert by_environment(VERBS["teach"], words).config == f"spikestill.{config}"


def test_the_algorithms_of_control_are_those_that_it_has():
    hints = typing.get_type_hints(ControlConfig)
    assert typing.get_args(hints["algorithm"]) == CONTROL_ALGORITHMS


def test_pqn_has_layer_norm_unless_told_otherwise():
    small = {"algorithm": "pqn", "num_envs": 4}
    assert TeachConfig(**small).normalised
    assert not TeachConfig(**small, layer_norm=False).normalised
    assert not TeachConfig().normalised


def test_the_recipe_has_the_published_rollouts_and_returns():
    """Gallici 2025, table of the Atari experiments."""
    made = loading.load(TeachConfig, loading.find_recipe("teach-pqn"), {})
    assert (made.algorithm, made.normalised, made.num_envs, made.rollout_steps) == ("pqn", True, 128, 32)
    assert (made.epochs, made.batch_size, made.trace_decay, made.discount) == (2, 128, 0.65, 0.99)
    assert (made.learning_rate, made.max_gradient_norm) == (2.5e-4, 10.0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_round_on_a_gpu_is_the_hosts():
    """The first one: then games may go on differently where two Q-values are close."""
    made = []
    for device in ("cpu", "cuda"):
        training = Training(dataclasses.replace(SMALL, device=device))
        start = {name: weight.cpu().clone() for name, weight in training.learner.master.items()}
        while not training.learner.updates:
            training.round()
        made.append({name: weight.cpu() - start[name] for name, weight in training.learner.master.items()})
        training.close()
    for name, moved in made[0].items():
        assert moved.norm() > 0, name
        assert (made[1][name] - moved).norm() < 0.1 * moved.norm(), name
