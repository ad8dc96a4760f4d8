"""SAC from pixels: the encoder's gradients against PyTorch's, crops, the replay of frames."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from spikestill.common.errors import UserError
from spikestill.common.precision.rounding import number_format
from spikestill.configs.control import EPSILON
from spikestill.teacher.control import networks
from spikestill.teacher.control.encoder import LARGEST, SIDES, STRIDES
from spikestill.teacher.control.frame_replay import FrameReplay
from spikestill.teacher.control.lanes import OtherThread
from spikestill.teacher.control.learner import FloatLearner, update_of
from spikestill.teacher.control.operations import HostOperations
from spikestill.teacher.control.sac_pixels import cropped
from spikestill.teacher.control.teach import make_replay
from tests.teacher.control.agents import OFF, Agent, D, config_of, pictured

SMALL = {
    "game": "pixelled_test",
    "filters": 4,
    "features": 6,
    "hidden": (12, 10),
    "std_added": 1e-4,
    "actor_period": 2,
}
ENCODERS = {"weight_standardisation": True, "feature_limit": True}


class Oracle:
    """The same training with PyTorch's convolutions, layer norm, gradients and Adam, written from the sources."""

    def __init__(self, agent):
        self.config, self.settings, self.rule = agent.config, agent.settings, agent.settings.encoder
        state = agent.state
        self.convs, head = self.encoder(state.encoder.p_NP[0])
        self.target_convs, self.target_head = self.encoder(state.encoder.p_NP[0])
        self.head = head
        self.actor_head = self.head_of(state.actor.p_NP[0])
        self.actor = self.mlp(agent.settings.actor_net(state.actor.p_NP[0]))
        self.critics, self.targets = (
            [self.mlp(networks.layers(each, self.settings.critic_sizes)) for each in state.critics.p_NP]
            for _ in range(2)
        )
        self.log_alpha = torch.tensor([np.log(self.config.initial_temperature)], requires_grad=True)
        self.groups = {
            "critic": [*self.convs, *self.head, *(w for critic in self.critics for w in critic)],
            "actor": [*self.actor_head, *self.actor], "temperature": [self.log_alpha],
        }  # fmt: skip
        self.adams = {}
        for name, group in self.groups.items():
            for each in group:
                each.requires_grad_()
            self.adams[name] = torch.optim.Adam(group, lr=self.config.learning_rate)
        self.updates = 0

    def mlp(self, layers):
        return [torch.tensor(np.array(each)) for layer in layers for each in layer]

    def head_of(self, flat):
        head = self.rule.head(flat)
        return [torch.tensor(np.array(each)) for each in (*head.linear, head.gain_Z, head.offset_Z)]

    def encoder(self, flat):
        found = []
        for layer in self.rule.convolutions(flat):
            # (row, column, channel; filter) to PyTorch's (filter, channel, row, column).
            weight = layer.weight_IO.reshape(3, 3, -1, self.rule.filters).transpose(3, 2, 0, 1)
            found += [torch.tensor(np.ascontiguousarray(weight)), torch.tensor(np.array(layer.bias_O))]
        return found, self.head_of(flat[self.rule.conv_parameters :])

    def convolve(self, convs, frames):
        x = torch.tensor(frames.reshape(len(frames), 9, 84, 84)) / 255.0
        for index, stride in enumerate(STRIDES):
            x = torch.relu(F.conv2d(x, convs[2 * index], convs[2 * index + 1], stride))
        return x.permute(0, 2, 3, 1).flatten(1)

    def look(self, head, x):
        weight, bias, gain, offset = head
        if self.rule.standardised:
            variance, mean = torch.var_mean(weight, 0, correction=0)
            weight = (weight - mean) / torch.sqrt(variance + EPSILON) / len(weight) ** 0.5
        y = x @ weight + bias
        if self.rule.limited:
            y = y * torch.clamp(LARGEST / y.detach().abs().amax(1, keepdim=True), max=1.0)
        y = F.layer_norm(y, (self.rule.features,), gain, offset, EPSILON)
        return torch.tanh(y) if self.rule.tanh else y

    def net(self, weights, x):
        for index in range(0, len(weights), 2):
            x = x @ weights[index] + weights[index + 1]
            x = torch.relu(x) if index + 2 < len(weights) else x
        return x

    def pi(self, features, noise):
        mean, z = self.net(self.actor, features).chunk(2, 1)
        low, high = self.config.log_std_low, self.config.log_std_high
        std = (low + 0.5 * (high - low) * (torch.tanh(z) + 1)).exp() + self.config.std_added
        u = mean + std * noise
        correction = 2 * (np.log(2.0) - u - torch.log(1 + torch.exp(-2 * u)))
        return torch.tanh(u), (torch.distributions.Normal(mean, std).log_prob(u) - correction).sum(1)

    def crop(self, frames, shifts):
        pad = self.config.crop
        padded = F.pad(torch.tensor(frames).double().flatten(1, 2), (pad,) * 4, mode="replicate")
        rows = [each[:, y : y + 84, x : x + 84] for each, (y, x) in zip(padded, shifts.tolist(), strict=True)]
        return torch.stack(rows).reshape(frames.shape).numpy()

    def minimise(self, name, loss):
        group = self.groups[name]
        for weight, gradient in zip(group, torch.autograd.grad(loss, group), strict=True):
            weight.grad = gradient
        self.adams[name].step()

    def update(self, batch, noise):
        crops, next_crops = (
            self.crop(batch.obs_BS, noise.shift_B2), self.crop(batch.next_obs_BS, noise.next_shift_B2)
        )  # fmt: skip
        action, reward, going_on = (torch.tensor(each) for each in batch[1:4])
        size, alpha = len(reward), self.log_alpha.exp().detach()
        with torch.no_grad():
            ys = []
            for part, frames in enumerate((batch.next_obs_BS.astype(float), next_crops)):
                x = self.convolve(self.convs, frames)
                noise_part = torch.tensor(noise.next_VD[part * size : (part + 1) * size])
                a, density = self.pi(self.look(self.actor_head, x), noise_part)
                seen = torch.cat(
                    [self.look(self.target_head, self.convolve(self.target_convs, frames)), a], 1
                )
                values = torch.cat([self.net(each, seen) for each in self.targets], 1).min(1).values
                ys.append(reward + self.config.discount * going_on * (values - alpha * density))
            y = (ys[0] + ys[1]) / 2
        loss = 0.0
        for frames in (batch.obs_BS.astype(float), crops):
            x = torch.cat([self.look(self.head, self.convolve(self.convs, frames)), action], 1)
            loss = loss + sum(((self.net(each, x)[:, 0] - y) ** 2).mean() / 2 for each in self.critics)
        self.minimise("critic", loss)
        if self.updates % self.config.actor_period == 0:
            x = self.convolve(self.convs, crops).detach()
            a, density = self.pi(self.look(self.actor_head, x), torch.tensor(noise.now_BD))
            seen = torch.cat([self.look(self.head, x).detach(), a], 1)
            values = torch.cat([self.net(each, seen) for each in self.critics], 1).min(1).values
            self.minimise("actor", (alpha * density - values).mean())
            self.minimise("temperature", (self.log_alpha.exp() * (-density.detach() + D)).mean())
        if self.updates % self.config.target_period == 0:
            followed = [*self.convs, *self.head, *(w for critic in self.critics for w in critic)]
            targets = [*self.target_convs, *self.target_head, *(w for critic in self.targets for w in critic)]
            with torch.no_grad():
                for target, weight in zip(targets, followed, strict=True):
                    target.lerp_(weight, self.config.target_rate)
        self.updates += 1

    def weights(self):
        def flat(convs, head):
            ours = [w.permute(2, 3, 1, 0) if w.ndim == 4 else w for w in convs]
            return [*ours, *head]

        found = [*self.actor_head, *self.actor, *(w for critic in self.critics for w in critic)]
        found += [*flat(self.convs, self.head), self.log_alpha]
        found += [w for target in self.targets for w in target]
        found += flat(self.target_convs, self.target_head)
        return np.concatenate([each.detach().numpy().reshape(-1) for each in found])


@pytest.mark.parametrize(
    ("methods", "options"),
    [({}, {}), (ENCODERS, {"feature_tanh": False, "actor_period": 1})],
    ids=["plain", "standardised and limited"],
)
def test_in_fp64_updates_are_those_of_pytorch(methods, options):
    agent = Agent(config_of(methods=OFF | methods, **(SMALL | options)))
    oracle = Oracle(agent)
    rng = np.random.default_rng(1)
    for _ in range(6):
        numbers = pictured(rng, agent.settings)
        agent.update(numbers)
        oracle.update(*numbers)
    np.testing.assert_allclose(agent.weights(), oracle.weights(), rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize(
    "methods",
    [
        {
            "hadam": True,
            "normal_fix": True,
            "kahan_momentum": True,
            "kahan_gradients": True,
            "kahan_actor": True,
        },
        {"loss_scaling": "compound", "hadam": True, "loss_scale_period": 5},
    ],
    ids=["all but the loss's scale", "compound"],
)
def test_in_fp64_the_methods_change_nothing(methods):
    plain = Agent(config_of(**SMALL))
    other = Agent(config_of(methods=OFF | {"kahan_scale": 100.0} | methods, **SMALL))
    for seed in range(12):
        for agent in (plain, other):
            agent.update(pictured(np.random.default_rng(seed), agent.settings, 2))
    if "loss_scaling" in methods:
        assert [other.state.groups[name].scale for name in ("critics", "encoder")] == [4e4, 4e4]
    np.testing.assert_allclose(other.weights(), plain.weights(), rtol=1e-8, atol=1e-11)


def test_two_threads_change_nothing():
    one, two = (Agent(config_of(precision="fp16", methods={}, **SMALL)) for _ in range(2))
    other = OtherThread()
    with np.errstate(all="ignore"):
        for seed in range(3):
            for agent, both in ((one, []), (two, [other])):
                numbers = pictured(np.random.default_rng(seed), agent.settings, 3)
                update_of(agent.settings)(agent.o, agent.state, agent.settings, *numbers, *both)
    other.close()
    assert np.array_equal(one.weights(), two.weights())


def test_without_the_limit_the_layer_norm_overflows_in_fp16_and_with_it_not():
    """What Björck 2021 (appendix G) saw: squares of features beyond 256 are beyond fp16."""
    found = {}
    for limited in (False, True):
        agent = Agent(config_of(precision="fp16", methods={"feature_limit": limited}, **SMALL))
        rule, encoder = agent.settings.encoder, agent.state.encoder
        assert rule is not None
        assert encoder is not None
        rule.head(encoder.p_NP[0][rule.conv_parameters :]).linear.bias_O[...] = np.linspace(-900.0, 900.0, 6)
        with np.errstate(all="ignore"):
            agent.update(pictured(np.random.default_rng(0), agent.settings))
        found[limited] = encoder
    # An infinite variance makes all features 0: no gradient arrives.
    assert not found[False].g_NP[:, :100].any()
    assert found[True].g_NP[:, :100].any()


def test_every_number_of_a_low_precision_agent_is_one_of_its_format():
    agent = Agent(config_of(precision="fp16", methods={"kahan_scale": 100.0}, **SMALL))
    with np.errstate(all="ignore"):
        for seed in range(4):
            agent.update(pictured(np.random.default_rng(seed), agent.settings))
    for name, array in agent.state.arrays(agent.o).items():
        if "counters" not in name and name != "updates":
            assert np.array_equal(array, array.astype(np.float16).astype(np.float32)), name
    assert np.isfinite(agent.weights()).all()


def of_any_brightness(rng, settings, size):
    """Return transitions without a next state, and how bright each picture is, 0 to 1."""
    batch, _ = pictured(rng, settings, size)
    level = rng.uniform(0, 1, size)
    dark = (batch.obs_BS * level[:, None, None, None, None]).astype(np.uint8)
    return batch._replace(obs_BS=dark, going_on_B=np.zeros(size)), level


def test_the_critics_learn_brightness_from_pictures():
    """A task without a next state: the reward is how bright a picture is, and its value must be learned."""
    config = config_of(
        precision="fp16",
        methods={"kahan_scale": 100.0},
        **(SMALL | {"learning_rate": 1e-3, "actor_period": 50}),
    )
    learner = FloatLearner(config, 0, D, 0)
    rng = np.random.default_rng(0)

    def batch_of(size):
        batch, level = of_any_brightness(rng, learner.settings, size)
        return batch._replace(reward_B=level)

    losses = [learner.update(batch_of(8), rng)["loss"] for _ in range(140)]
    # The variance of the rewards, 1/12, is the loss of the best constant.
    assert np.mean(losses[-40:]) < 0.3 / 12, losses[::10]


@pytest.mark.slow
def test_a_policy_of_pictures_is_learnt_in_fp16():
    """A task without a next state: the best action says how bright a picture is, and any other costs its distance."""
    config = config_of(
        precision="fp16",
        methods={"kahan_scale": 100.0},
        **SMALL
        | {
            "learning_rate": 3e-3,
            "actor_period": 1,
            "features": 8,
            "hidden": (32, 32),
            "initial_temperature": 0.02,
        },
    )
    learner = FloatLearner(config, 0, D, 0)
    rng = np.random.default_rng(0)

    def shown(size):
        batch, level = of_any_brightness(rng, learner.settings, size)
        return batch, 2 * level[:, None] - 1

    for _ in range(350):
        batch, best = shown(16)
        learner.update(batch._replace(reward_B=-np.square(batch.action_BD - best).sum(axis=1)), rng)
    batch, best = shown(64)
    missed = np.square(learner.act(batch.obs_BS, None) - best).sum(axis=1).mean()
    # The same action always misses by 2/3 at the least.
    assert missed < 0.2, missed


def test_a_crop_moves_the_picture_and_repeats_its_edge():
    frames = np.arange(2 * 9 * 84 * 84, dtype=np.int64).astype(np.uint8).reshape(2, 3, 3, 84, 84)
    o = HostOperations(number_format("fp32"))
    pictures = o.images(frames)
    assert pictures.shape == (2, SIDES[0], SIDES[0], 9)
    assert np.array_equal(pictures[1, 5, 7], frames[1, :, :, 5, 7].reshape(-1))
    same = cropped(o, pictures, np.full((2, 2), 4), 4)
    assert np.array_equal(same, pictures)
    moved = cropped(o, pictures, np.array([[0, 8], [8, 0]]), 4)
    assert np.array_equal(moved[0, 4:, :-4], pictures[0, :-4, 4:])
    assert np.array_equal(moved[1, :-4, 4:], pictures[1, 4:, :-4])
    assert np.array_equal(moved[0, 0, -1], pictures[0, 0, -1])


def stream(rng, steps, envs, chance):
    """What environments of pictures give: observations, actions, rewards, ends, next observations, kept ones."""
    stack = np.zeros((envs, 3, 3, 84, 84), np.uint8)
    ended = np.zeros(envs, bool)
    stack[:, -1] = rng.integers(0, 256, (envs, 3, 84, 84))
    for _ in range(steps):
        before, kept = stack.copy(), ~ended
        for env in range(envs):
            if ended[env]:
                stack[env] = 0
            else:
                stack[env, :-1] = stack[env, 1:].copy()
            stack[env, -1] = rng.integers(0, 256, (3, 84, 84))
        terminated = kept & (rng.random(envs) < chance)
        yield (
            before, rng.uniform(-1, 1, (envs, D)).astype(np.float32), rng.random(envs).astype(np.float32),
            (~terminated).astype(np.float32), stack.copy(), kept,
        )  # fmt: skip
        ended = terminated


@pytest.mark.parametrize(("steps", "capacity"), [(5, 64), (70, 64)])
def test_what_is_drawn_is_what_was_added_and_survives_a_checkpoint(steps, capacity):
    rng = np.random.default_rng(3)
    replay = FrameReplay(capacity, 2, D)
    added = {}
    for obs, action, reward, going_on, following, kept in stream(rng, steps, 2, 0.2):
        replay.add(obs, action, reward, going_on, following, kept)
        for env in np.flatnonzero(kept):
            added[float(reward[env])] = (obs[env], action[env], reward[env], going_on[env], following[env])
    other = FrameReplay(capacity, 2, D)
    other.set_state(replay.state())
    batch, again = (each.sample(np.random.default_rng(1), 200) for each in (replay, other))
    for mine, theirs in zip(batch, again, strict=True):
        assert np.array_equal(mine, theirs)
    for row in range(200):
        wanted = added[float(batch.reward_B[row])]
        for part, value in zip(batch, wanted, strict=True):
            assert np.array_equal(part[row], value)
    drawn = len(set(batch.reward_B.tolist()))
    assert drawn >= 0.8 * min(len(added), replay.size / 1.5)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda s: s | {"place": np.array([3, 31])}, "31 slots, 32 slots wanted"),
        (lambda s: s | {"age": s["age"] + np.uint8(9)}, "1..3 wanted"),
        (
            lambda s: s | {"kept": np.zeros_like(s["kept"])},
            "0% of the replay's transitions may be drawn, 25% wanted",
        ),
        (lambda s: s | {"frame": s["frame"][:, :1]}, "frame"),
    ],
)
def test_a_damaged_replay_is_refused(damage, message):
    replay = FrameReplay(64, 2, D)
    for step in stream(np.random.default_rng(0), 9, 2, 0.1):
        replay.add(*step)
    with pytest.raises(ValueError, match=message):
        FrameReplay(64, 2, D).set_state(damage(replay.state()))


def test_an_empty_replay_says_so():
    with pytest.raises(ValueError, match="empty"):
        FrameReplay(64, 2, D).sample(np.random.default_rng(0), 4)


def test_replays_that_outgrow_the_memory_are_refused():
    many = {"replay_capacity": 100_000_000, "steps": 100_000_000, "seeds": 3}
    pixels = config_of(**SMALL, **many)
    with pytest.raises(UserError, match=r"replay_capacity 100000000 needs 6,35\d\.\d\d GB of memory"):
        make_replay(pixels, 0, D)
    states = config_of(**many)
    with pytest.raises(UserError, match=r"replay_capacity 100000000 needs 9,60\d\.\d\d GB of memory"):
        make_replay(states, 4_000, D)
