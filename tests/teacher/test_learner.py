"""One whole update beside the same mathematics written anew with ``torch.nn`` in fp64."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from spikestill.teacher.atari import q_network
from spikestill.teacher.atari.device_learner import DeviceLearner
from spikestill.teacher.atari.device_replay import DeviceReplay
from spikestill.teacher.atari.host_learner import HostLearner
from spikestill.teacher.atari.learner import Learner
from spikestill.teacher.atari.replay import Batch, Replay
from tests.teacher.noise import ACTIONS, noise_replay
from tests.teacher.test_teach import TINY


class FeatureNorm(nn.LayerNorm):
    """PyTorch's layer norm over the features of each place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise (B, C) or (B, C, H, W) over C."""
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


def network(weights: dict[str, torch.Tensor]) -> nn.Sequential:
    """Return the Nature network (Mnih 2015, Methods) with these weights and their layer norm, if any, in fp64."""

    def active(features: int) -> nn.Sequential:
        return nn.Sequential(*[FeatureNorm(features)] * q_network.is_normalised(weights), nn.ReLU())

    made = nn.Sequential(
        nn.Conv2d(4, 32, 8, 4), active(32), nn.Conv2d(32, 64, 4, 2), active(64), nn.Conv2d(64, 64, 3, 1), active(64),
        nn.Flatten(), nn.Linear(3136, 512), active(512), nn.Linear(512, ACTIONS),
    ).double()  # fmt: skip
    with torch.no_grad():
        for parameter, weight in zip(made.parameters(), weights.values(), strict=True):
            parameter.copy_(weight)
    return made


def replay_and_batch() -> tuple[Replay, Batch]:
    """Return noise whose returns are of every kind: clipped errors and small ones, ended and not, weighted."""
    rng = np.random.default_rng(3)
    replay = noise_replay(rng, n_step=2, discount=0.9, ends=0.2)
    batch = replay.sample(np.random.default_rng(4), 32, 0.0)
    return replay, dataclasses.replace(batch, weight=rng.uniform(0.1, 1.0, 32).astype(np.float32))


def test_an_update_is_double_dqn_on_prioritised_n_step_returns():
    replay, batch = replay_and_batch()
    config = dataclasses.replace(TINY, precision="fp32", batch_size=32, max_gradient_norm=0.0)
    learner = HostLearner(config, ACTIONS, replay, threads=2)
    target = q_network.initial_weights(ACTIONS, torch.Generator().manual_seed(7))
    learner.target = learner._working_copy(target, requires_grad=False)
    online, evaluating = network(learner.master), network(target)
    s_tm1 = torch.from_numpy(replay.stacks(batch.time, batch.env)).permute(0, 3, 1, 2).double() / 255
    s_t = torch.from_numpy(replay.stacks(batch.time_next, batch.env)).permute(0, 3, 1, 2).double() / 255
    assert 0 < np.count_nonzero(batch.discount == 0) < 32
    error, loss, rows = torch.zeros(32).double(), torch.zeros(()).double(), []
    for i in range(32):  # one transition at a time, by the equations
        q_online, q_target = online(s_t[i : i + 1])[0], evaluating(s_t[i : i + 1])[0]
        best = int(q_online.argmax())
        rows.append(int(q_target.argmax()) != best)
        wanted = float(batch.reward[i]) + float(batch.discount[i]) * q_target[best].detach()
        error_i = online(s_tm1[i : i + 1])[0, int(batch.action[i])] - wanted
        huber = 0.5 * error_i**2 if abs(error_i.item()) <= 1 else error_i.abs() - 0.5
        loss = loss + float(batch.weight[i]) * huber / 32
        error[i] = error_i.detach()
    assert sum(rows) > 4, "the target network must prefer other actions, or a mistake would not show"
    assert (error.abs() > 1).any()
    assert (error.abs() < 1).any()
    loss.backward()
    found, _, shares = learner.gradients(batch)
    np.testing.assert_allclose(torch.cat([share[2] for share in shares]).numpy(), error, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(float(sum(share[1] for share in shares)), loss.item(), rtol=1e-5)
    for (name, gradient), parameter in zip(found.items(), online.parameters(), strict=True):
        assert parameter.grad is not None
        scale = float(parameter.grad.abs().max())
        np.testing.assert_allclose(
            gradient.numpy(), parameter.grad.numpy(), rtol=1e-3, atol=1e-5 * scale, err_msg=name
        )
    # Adam's first step (Kingma 2015): m / (sqrt(v) + eps) = g / (|g| + eps).
    before = {name: weight.clone() for name, weight in learner.master.items()}
    learner.update(batch, 1e-3)
    for (name, weight), gradient in zip(learner.master.items(), found.values(), strict=True):
        wanted_step = -1e-3 * gradient / (gradient.abs() + config.optimizer_epsilon)
        np.testing.assert_allclose((weight - before[name]).numpy(), wanted_step.numpy(), rtol=1e-3, atol=1e-7)
    learner.close()


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("rule", ["munchausen", "advantage"])
def test_the_errors_of_a_gap_widening_rule_are_those_of_its_equation(rule, where):
    """In fp64, one transition at a time; the device's learner on the CPU."""
    replay, batch = replay_and_batch()
    config = dataclasses.replace(
        TINY, precision="fp32", batch_size=32, target=rule, gap_weight=0.7, entropy_temperature=0.05
    )
    if where == "host":
        learner: Learner = HostLearner(config, ACTIONS, replay, threads=1)
    else:
        held = DeviceReplay(400, 4, 2, 0.9, 0.0, torch.device("cpu"))
        learner = DeviceLearner(config, ACTIONS, held)
    target = q_network.initial_weights(ACTIONS, torch.Generator().manual_seed(7))
    target["head.weight"] *= 8.0  # gaps of several temperatures
    learner.target = learner._working_copy(target, requires_grad=False)
    online, evaluating = network(learner.master), network(target)
    stacks = [
        torch.from_numpy(replay.stacks(time, batch.env)).permute(0, 3, 1, 2)
        for time in (batch.time, batch.time_next)
    ]
    s_tm1, s_t = (stack.double() / 255 for stack in stacks)
    expected = []
    for i in range(32):
        before, after = evaluating(s_tm1[i : i + 1])[0], evaluating(s_t[i : i + 1])[0]
        action, reward, discount = int(batch.action[i]), float(batch.reward[i]), float(batch.discount[i])
        if rule == "munchausen":
            log_before = before[action] - 0.05 * torch.logsumexp(before / 0.05, dim=0)
            wanted = reward + 0.7 * max(-1.0, min(0.0, log_before.item()))
            # The soft value is tau ln sum exp (q / tau).
            wanted += discount * 0.05 * float(torch.logsumexp(after / 0.05, dim=0))
        else:
            best = int(online(s_t[i : i + 1])[0].argmax())
            wanted = reward + discount * float(after[best]) - 0.7 * float(before.max() - before[action])
        expected.append(float(online(s_tm1[i : i + 1])[0, action]) - wanted)
    arrays = (batch.action, batch.reward, batch.discount, batch.weight)
    found = learner.differentiate(*stacks, *(torch.from_numpy(array) for array in arrays))[2]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=2e-5)
    learner.close()


def test_the_priorities_of_an_update_that_was_skipped_stay_as_they_were():
    """fp16 whose forward pass overflows: infinite errors would be the largest priority for good."""
    replay = noise_replay(np.random.default_rng(0), n_step=1, discount=0.9, alpha=0.6)
    config = dataclasses.replace(TINY, precision="fp16", batch_size=16, priority_exponent=0.6)
    learner = HostLearner(config, ACTIONS, replay, threads=2)
    with torch.no_grad():
        learner.master["head.weight"][0] = 3e37
    learner.refresh_working()
    before, largest = learner.state()["master.hidden.weight"], replay.max_priority
    reports = learner.learn(np.random.default_rng(1), 1, 0.4, 1e-3)
    assert reports[0].skipped
    assert not np.isfinite(reports[0].gradient_norm)
    assert replay.max_priority == largest
    assert torch.equal(learner.state()["master.hidden.weight"], before)
    learner.close()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_gradient_norm": 1e-3, "averaging": 0.99},
        {"flat_masters": True, "dueling": True, "head_learning_rate_factor": 0.5, "averaging": 0.9},
        {"optimizer": "rmsprop", "max_gradient_norm": 1e-3},
        {"precision": "fp16", "flat_masters": True},
    ],
    ids=["plain", "clipped", "flat", "rmsprop", "fp16"],
)
def test_updates_in_two_passes_are_pytorchs(options):
    """Beside the way that a GPU's weights go: PyTorch's norm, its clipping by a product, its optimiser."""
    replay, batch = replay_and_batch()
    config = dataclasses.replace(TINY, **({"precision": "fp32", "batch_size": 32} | options))
    ours, theirs = (HostLearner(config, ACTIONS, replay, threads=1) for _ in range(2))
    theirs.passes = None
    for _ in range(4):
        found, wanted = (learner.update(batch, 1e-3) for learner in (ours, theirs))
        assert found.gradient_norm == pytest.approx(wanted.gradient_norm, rel=1e-3)
    mine, other = ours.state(), theirs.state()
    assert mine.keys() == other.keys()
    for name, tensor in mine.items():
        if name.startswith(("master", "mean", "optimizer")):
            scale = float(other[name].abs().max())
            # In fp16 a weight's last bit moves the working copy's.
            tolerance = 2e-2 if options.get("precision") == "fp16" else 2e-4
            np.testing.assert_allclose(tensor, other[name], rtol=0, atol=tolerance * scale, err_msg=name)
    for learner in (ours, theirs):
        learner.close()
