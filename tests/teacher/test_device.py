"""The replay and the learner of a GPU, run on the CPU and held to those of the host; captured only where CUDA is."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spikestill.common.provenance import Provenance
from spikestill.configs.environment import EnvironmentConfig
from spikestill.configs.teach import TeachConfig
from spikestill.teacher.atari.device_learner import DeviceLearner
from spikestill.teacher.atari.device_replay import DeviceReplay
from spikestill.teacher.atari.host_learner import HostLearner
from spikestill.teacher.atari.learner import DivergedError
from spikestill.teacher.atari.replay import PIXELS, Replay
from spikestill.teacher.atari.teach import Training

CPU = torch.device("cpu")
ACTIONS = 4
CONFIG = TeachConfig(
    environment=EnvironmentConfig(game="breakout"), num_envs=4, update_period=1, batch_size=16, replay_capacity=400,
    replay_start=13, precision="fp32", device="cpu", threads=1,
)  # fmt: skip


class Uniform:
    """A generator whose strata are given and whose permutation is none, so that both replays draw the same."""

    def __init__(self, uniform: np.ndarray) -> None:
        self.uniform = uniform

    def random(self, size: object) -> np.ndarray:
        return self.uniform.reshape(size)

    def permutation(self, leaves: np.ndarray) -> np.ndarray:
        return leaves


def filled(steps: int, alpha: float, n_step: int = 3, seed: int = 0) -> tuple[Replay, DeviceReplay]:
    """Return a host's and a device's replay that were told the same."""
    rng = np.random.default_rng(seed)
    host = Replay(CONFIG.replay_capacity, 4, n_step, 0.99, alpha)
    device = DeviceReplay(CONFIG.replay_capacity, 4, n_step, 0.99, alpha, CPU)
    for _ in range(steps):
        valid = rng.random(4) < 0.9
        step = (
            rng.integers(0, 256, (4, PIXELS), np.uint8), rng.integers(0, ACTIONS, 4),
            rng.integers(-1, 2, 4).astype(np.float32), valid & (rng.random(4) < 0.1), valid, rng.random(4) < 0.1,
        )  # fmt: skip
        host.append(*step)
        device.append(*step)
    return host, device


def same_draw(host: Replay, device: DeviceReplay, size: int, beta: float, seed: int):
    uniform = np.random.default_rng(seed).random(size)
    device.sum_up()
    drawn = device.draw(torch.from_numpy(uniform), torch.tensor(beta, dtype=torch.float64))
    return host.sample(Uniform(uniform), size, beta), drawn


@settings(max_examples=15, deadline=None)
@given(
    steps=st.integers(8, 230), alpha=st.sampled_from([0.0, 0.5, 1.0]), n_step=st.integers(1, 5), seed=st.integers(0, 99)
)  # fmt: skip
def test_both_replays_draw_and_gather_the_same(steps, alpha, n_step, seed):
    host, device = filled(steps, alpha, n_step, seed)
    for number in range(3):
        batch, drawn = same_draw(host, device, 32, 0.4, seed + number)
        for name in ("time", "env", "time_next", "action", "reward", "discount"):
            np.testing.assert_array_equal(getattr(drawn, name).numpy(), getattr(batch, name), err_msg=name)
        np.testing.assert_allclose(drawn.weight.numpy(), batch.weight, rtol=1e-6)
        for time in (batch.time, batch.time_next):
            stacks = device.stacks(torch.from_numpy(time), drawn.env)
            assert stacks.is_contiguous(memory_format=torch.channels_last)
            np.testing.assert_array_equal(stacks.permute(0, 2, 3, 1).numpy(), host.stacks(time, batch.env))
        # Priorities by slot, so that a slot drawn twice gets the same from both.
        error = (batch.time * 4 + batch.env).astype(np.float32) % 7
        host.set_priorities(batch, error)
        device.set_priorities(drawn.leaves, torch.from_numpy(error))
        np.testing.assert_allclose(
            device.priority.numpy(), host.tree[len(host.tree) // 2 :][: len(device.priority)], rtol=1e-12
        )
    assert float(device.max_priority) == host.max_priority


def test_only_slots_with_a_priority_are_drawn_to_the_last_bit_of_the_total():
    _, device = filled(60, 0.5)
    top = np.full(64, np.nextafter(1.0, 0.0))
    device.sum_up()
    for uniform in (np.zeros(64), top):
        drawn = device.draw(torch.from_numpy(uniform), torch.tensor(1.0, dtype=torch.float64))
        assert (device.priority[drawn.leaves] > 0).all()


def test_a_slot_without_priority_that_a_parallel_sum_finds_teaches_nothing_and_stays_undrawable():
    _, device = filled(60, 0.5)
    slot = int(torch.nonzero(device.priority == 0)[0])
    device.sum_up()
    device.running[slot:] += 0.1 * device.running[-1]  # as if rounding had given it a share
    uniform = torch.linspace(0, 0.99, 64, dtype=torch.float64)
    drawn = device.draw(uniform, torch.tensor(1.0, dtype=torch.float64))
    found = drawn.leaves == slot
    assert found.any()
    assert (drawn.weight[found] == 0).all()
    assert drawn.weight.max() == 1
    device.set_priorities(drawn.leaves, torch.ones(64))
    assert device.priority[slot] == 0
    assert (device.priority[drawn.leaves[~found]] > 0).all()


def test_a_device_replay_is_restored_whole():
    _, device = filled(150, 0.5)
    other = DeviceReplay(CONFIG.replay_capacity, 4, 3, 0.99, 0.5, CPU)
    other.set_state({name: array.copy() for name, array in device.state().items()})
    for name, value in vars(device).items():
        if name != "running":
            assert (
                torch.equal(value, getattr(other, name))
                if torch.is_tensor(value)
                else value == getattr(other, name)
            )
    host, _ = filled(150, 0.5)
    for name, array in host.state().items():
        np.testing.assert_array_equal(array[: len(device.state()[name])], device.state()[name], err_msg=name)
    back = Replay(CONFIG.replay_capacity, 4, 3, 0.99, 0.5)
    for source in (device, host):
        back.set_state(source.state())
        other.set_state(back.state())
        np.testing.assert_array_equal(back.tree, host.tree)
        assert torch.equal(other.priority, device.priority)
    assert device.mean_pixel() == other.mean_pixel() == pytest.approx(127.5, abs=1.0)


OPTIONS: list[dict[str, object]] = [
    {}, {"optimizer": "rmsprop", "learning_rate": 1e-3, "max_gradient_norm": 0.0},
    {"priority_exponent": 0.0, "layer_norm": True},
    {"flat_masters": True, "averaging": 0.9, "dueling": True, "head_learning_rate_factor": 0.5},
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS)
def test_both_learners_learn_the_same(options):
    config = dataclasses.replace(CONFIG, **options)
    host_replay, device_replay = filled(90, config.priority_exponent)
    host = HostLearner(config, ACTIONS, host_replay, 1)
    device = DeviceLearner(config, ACTIONS, device_replay)
    uniform = np.random.default_rng(3).random((4, 16))
    reports = []
    for number in range(4):
        reports += host.learn(Uniform(uniform[number]), 1, 0.4, 1e-3)
    assert device.uniform.shape == (4, 16)
    found = device.learn(Uniform(uniform), 4, 0.4, 1e-3)
    assert device.updates == host.updates == 4
    for one, other in zip(reports, found, strict=True):
        assert (other.loss, other.q, other.gradient_norm) == pytest.approx(
            (one.loss, one.q, one.gradient_norm), 1e-3
        )
    start = HostLearner(config, ACTIONS, host_replay, 1)
    for name, weight in host.master.items():
        moved = float((weight - start.master[name]).abs().max())
        assert moved > 1e-4
        torch.testing.assert_close(device.master[name], weight, rtol=0, atol=0.02 * moved)
        torch.testing.assert_close(device.working[name].detach(), device.master[name], rtol=0, atol=0)
    for learner in (host, start, device):
        learner.close()


@pytest.mark.parametrize(
    ("precision", "options"), [("fp16", OPTIONS[0]), ("fp16", OPTIONS[1]), ("fp16-master", OPTIONS[3])]
)
def test_both_learners_skip_what_overflows_and_rescale_the_same(precision, options):
    config = dataclasses.replace(
        CONFIG, precision=precision, loss_scale=2.0**22, loss_scale_period=3, averaging=0.9
    )
    config = dataclasses.replace(config, **options)
    host_replay, device_replay = filled(90, config.priority_exponent)
    host = HostLearner(config, ACTIONS, host_replay, 1)
    device = DeviceLearner(config, ACTIONS, device_replay)
    start = {name: weight.clone() for name, weight in device.master.items()}
    rounds, skipped = np.random.default_rng(3).random((5, 4, 16)), []
    for uniform in rounds:
        before = {name: value.copy() for name, value in device_replay.state().items()}
        wanted = [host.learn(Uniform(each), 1, 0.4, 1e-3)[0] for each in uniform]
        found = device.learn(Uniform(uniform), 4, 0.4, 1e-3)
        assert [each.skipped for each in found] == [each.skipped for each in wanted]
        for one, other in zip(wanted, found, strict=True):
            assert one.skipped or other.gradient_norm == pytest.approx(one.gradient_norm, 0.1)
        skipped += [each.skipped for each in found]
        assert (device.scale.value, device.scale.good) == (host.scale.value, host.scale.good)
        assert device.updates == host.updates
        if all(skipped):
            assert all(torch.equal(weight, start[name]) for name, weight in device.master.items())
            assert all(torch.equal(weight, start[name]) for name, weight in device.mean.items())
            for name, value in device_replay.state().items():
                np.testing.assert_array_equal(value, before[name], err_msg=name)
    assert skipped[:4] == [True] * 4
    assert 4 < sum(skipped) < 16
    # The scale has doubled where it held for three updates, and been halved again.
    assert any(skipped[first] and not skipped[first - 1] for first in range(1, len(skipped)))
    for theirs, ours in ((device.master, host.master), (device.mean, host.mean)):
        for name, weight in ours.items():
            moved = (weight - start[name]).norm()
            assert moved > 1e-4
            assert (theirs[name] - weight).norm() < 0.3 * moved, name
    np.testing.assert_allclose(
        device_replay.priority.numpy(),
        host_replay.tree[len(host_replay.tree) // 2 :][: len(device_replay.priority)], rtol=0.05, atol=0.02,
    )  # fmt: skip
    for learner in (host, device):
        learner.close()


def learnt(
    config: TeachConfig, rounds: int, *, interrupted: bool
) -> tuple[DeviceLearner, np.random.Generator]:
    """Return a learner and its generator after a round and, resumed in between or not, ``rounds`` more."""
    _, replay = filled(90, 0.5)
    learner, rng = DeviceLearner(config, ACTIONS, replay), np.random.default_rng(0)
    learner.learn(rng, 4, 0.4, 1e-3)
    if interrupted:
        state, old = learner.state(), replay.state()
        _, replay = filled(8, 0.5)
        learner = DeviceLearner(config, ACTIONS, replay)
        learner.set_state(state)
        replay.set_state({name: array.copy() for name, array in old.items()})
    learner.refresh_target()
    for _ in range(rounds):
        learner.learn(rng, 4, 0.4, 1e-3)
    return learner, rng


def test_a_device_learner_resumes_at_its_loss_scale():
    config = dataclasses.replace(CONFIG, precision="fp16", loss_scale=2.0**22, loss_scale_period=3)
    found = [learnt(config, 5, interrupted=each)[0].state() for each in (False, True)]
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items())


def test_the_weights_that_act_stay_while_the_others_learn():
    _, replay = filled(90, 0.5)
    learner = DeviceLearner(CONFIG, ACTIONS, replay)
    shown = learner.acting_weights()
    before = {name: weight.clone() for name, weight in shown.items()}
    learner.learn(np.random.default_rng(0), 4, 0.4, 1e-3)
    assert all(torch.equal(weight, before[name]) for name, weight in shown.items())
    assert not torch.equal(learner.acting_weights()["conv1.weight"], before["conv1.weight"])
    learner.close()


def test_a_device_learner_resumes_exactly_and_tells_of_divergence():
    whole, _ = learnt(CONFIG, 1, interrupted=False)
    learner, rng = learnt(CONFIG, 1, interrupted=True)
    resumed = learner.state()
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in whole.state().items())
    learner.replay.reward.fill_(float("nan"))
    with pytest.raises(DivergedError, match="update 8: loss nan"):
        learner.learn(rng, 4, 0.4, 1e-3)


@pytest.mark.slow
def test_a_training_on_a_device_resumes_exactly(tmp_path):
    config = dataclasses.replace(
        CONFIG,
        steps=192,
        num_envs=8,
        update_period=4,
        replay_capacity=800,
        replay_start=96,
        target_period=100,
    )

    def made() -> Training:
        training = Training(config)
        training.learner.close()
        training.replay = DeviceReplay(config.replay_capacity, 8, config.n_step, 0.99, 0.5, CPU)
        training.learner = DeviceLearner(config, training.actor.actions, training.replay)
        return training

    whole, first = made(), made()
    while whole.step < config.steps:
        whole.round()
    while first.step < 136:
        first.round()
    first.save(tmp_path / "checkpoint", Provenance.of(config, 0))
    second = made()
    second.restore(tmp_path / "checkpoint")
    while second.step < config.steps:
        second.round()
    assert second.learner.updates == whole.learner.updates == (192 - 96) // 4
    for one, other in ((whole.learner, second.learner), (whole.replay, second.replay)):
        found, wanted = other.state(), one.state()
        for name, value in wanted.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)
    assert len(whole.learner.dead_units(np.random.default_rng(0))) == 4
    for training in (whole, first, second):
        training.close()


CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@CUDA
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp8", "fp16", "fp16-master"])
@pytest.mark.parametrize("options", OPTIONS)
def test_the_captured_graph_does_what_its_update_does(precision, options):
    torch.backends.cudnn.deterministic = True
    config = dataclasses.replace(
        CONFIG,
        device="cuda",
        precision=precision,
        num_envs=16,
        update_period=4,
        replay_start=64,
        replay_capacity=1600,
        **options,
    )
    found, reports = [], []
    for graphed in (True, False):
        rng = np.random.default_rng(0)
        replay = DeviceReplay(1600, 16, 3, 0.99, config.priority_exponent, torch.device("cuda"))
        learner = DeviceLearner(config, ACTIONS, replay)
        if not graphed:
            learner._one = learner._update  # type: ignore[method-assign]
        for number in range(40):
            replay.append(
                rng.integers(0, 256, (16, PIXELS), np.uint8), rng.integers(0, ACTIONS, 16),
                rng.integers(-1, 2, 16).astype(np.float32), rng.random(16) < 0.1, np.ones(16, bool), np.zeros(16, bool),
            )  # fmt: skip
            if number == 20:
                learner.center(127.0)
            if number > 20:
                # What changes from round to round must not be frozen in the graph.
                reports += learner.learn(rng, 4, number / 40, 1e-3 / number)
                shown = learner.acting_weights()
                torch.testing.assert_close(shown["conv1.weight"], learner.working["conv1.weight"].detach())
            if number % 10 == 0:
                learner.refresh_target()
        assert (learner.graph is not None) == graphed
        found.append(learner.state())
    for one, other in zip(reports[: len(reports) // 2], reports[len(reports) // 2 :], strict=True):
        assert other.loss == pytest.approx(one.loss, rel=0.05)
    for name, tensor in found[0].items():
        torch.testing.assert_close(found[1][name], tensor, rtol=0.05, atol=2e-4, msg=name)


@pytest.mark.gpu
@CUDA
def test_a_training_runs_on_a_gpu_and_goes_on(tmp_path):
    config = dataclasses.replace(
        CONFIG, device="cuda", precision="bf16", num_envs=8, update_period=4, replay_start=96, replay_capacity=800,
        epsilon_steps=50, target_period=100,
    )  # fmt: skip
    first = Training(config)
    assert isinstance(first.learner, DeviceLearner)
    while first.step < 480:
        assert all(np.isfinite(report.loss) for report in first.round())
    first.save(tmp_path / "checkpoint", Provenance.of(config, 0))
    second = Training(config)
    second.restore(tmp_path / "checkpoint")
    np.testing.assert_array_equal(second.actor.observation, first.actor.observation)
    for training in (first, second):
        for _ in range(20):
            training.round()
        assert training.learner.updates == (640 - 96) // 4
        training.close()


@pytest.mark.gpu
@CUDA
@pytest.mark.parametrize("precision", ["fp16", "fp16-master"])
def test_formats_that_skip_updates_do_so_within_the_graph(precision):
    config = dataclasses.replace(
        CONFIG, device="cuda", precision=precision, num_envs=8, update_period=4, replay_start=96, replay_capacity=800,
        loss_scale=2.0**40,
    )  # fmt: skip
    training = Training(config)
    assert isinstance(training.learner, DeviceLearner)
    reports = [report for _ in range(60) for report in training.round()]
    assert any(report.skipped for report in reports)
    assert not reports[-1].skipped
    assert np.isfinite(reports[-1].loss)
    training.close()
