from __future__ import annotations

import dataclasses

import gymnasium
import numpy as np
import pytest

from spikestill.common.errors import UserError
from spikestill.common.precision import fixed_fast, fixed_reference
from spikestill.common.precision.names import LARGEST_BATCH
from spikestill.configs.fixed_point import FORMATS, FixedPointConfig
from spikestill.teacher.control import fixed_ddpg
from spikestill.teacher.control.fixed_ddpg import Batch, FixedState
from tests.teacher.control.agents import pendulum_returns

S, A = 17, 6


def batch(seed: int, size: int = 16, scale: float = 3.0) -> Batch:
    rng = np.random.default_rng(seed)
    return Batch(
        rng.normal(0, scale, (size, S)), rng.uniform(-1, 1, (size, A)), rng.normal(0, 1, size),
        rng.random(size) > 0.1, rng.normal(0, scale, (size, S)),
    )  # fmt: skip


def assert_same(one: FixedState, other: FixedState) -> None:
    arrays, plain = fixed_ddpg.to_arrays(one)
    others, other_plain = fixed_ddpg.to_arrays(other)
    assert plain == other_plain
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, others[name], err_msg=name)


@pytest.mark.parametrize("variant", ["fixed32", "fixar", "fixed16"])
@pytest.mark.parametrize(("moment", "rounding"), [("plain", "nearest"), ("root", "stochastic")])
def test_updates_by_the_kernels_are_the_references_bit_for_bit(variant, moment, rounding):
    config = FixedPointConfig(
        variant=variant, quantisation_delay=2, hidden=(40, 30), second_moment=moment, rounding=rounding
    )
    fast = slow = fixed_ddpg.initial_state(config, S, A, seed=3)
    for index in range(4):
        scale = 3.0 if index < 3 else 3000.0
        fast, report = fixed_ddpg.update(fast, batch(index, scale=scale), fixed_fast)
        slow, other = fixed_ddpg.update(slow, batch(index, scale=scale), fixed_reference)
        assert report == other
        assert report["quantised"] == (variant == "fixar" and index >= 2)
    assert_same(fast, slow)
    assert fast.saturated["input"] > 0
    for noise in (False, True):
        actions = fixed_ddpg.act(fast, batch(9).obs_BS, noise, fixed_fast)[1]
        np.testing.assert_array_equal(
            actions, fixed_ddpg.act(slow, batch(9).obs_BS, noise, fixed_reference)[1]
        )


@pytest.mark.parametrize("variant", ["fixed32", "fixar", "fixed16"])
def test_headroom_takes_places_from_errors_and_gradients_alike_in_kernels_and_reference(variant):
    lost = {}
    for headroom in (0, 3, 8):
        config = FixedPointConfig(variant=variant, quantisation_delay=2, hidden=(40, 30), headroom=headroom)
        fast = slow = fixed_ddpg.initial_state(config, S, A, seed=3)
        for index in range(4):
            loud = batch(index)
            loud = loud._replace(reward_B=loud.reward_B * np.float32(1000.0))
            fast, report = fixed_ddpg.update(fast, loud, fixed_fast)
            slow, other = fixed_ddpg.update(slow, loud, fixed_reference)
            assert report == other
        assert_same(fast, slow)
        lost[headroom] = fast.saturated["error"] + fast.saturated["gradient"]
    assert lost[0] > lost[3] >= lost[8]
    plain, wide = FORMATS[variant], FixedPointConfig(variant=variant, headroom=3).formats
    assert (wide.error, wide.actor_gradient, wide.critic_gradient) == (
        plain.error - 3, plain.actor_gradient - 3, plain.critic_gradient - 3
    )  # fmt: skip
    assert (wide.weight, wide.activation, wide.bits) == (plain.weight, plain.activation, plain.bits)


@pytest.mark.parametrize("variant", ["fixed32", "fixar", "fixed16"])
@pytest.mark.parametrize("noise", [False, True])
def test_what_saturates_while_the_actor_acts_is_counted_alike_by_kernels_and_reference(variant, noise):
    config = FixedPointConfig(variant=variant, quantisation_delay=1, hidden=(40, 30))
    state = fixed_ddpg.initial_state(config, S, A, seed=3)
    state, _ = fixed_ddpg.update(state, batch(0))
    # Sixteen times the weights, within their format: sums of layers leave the activations' range, but for 16-bit ones,
    # which are cut off at the range that the update has seen.
    limit = (1 << (config.formats.bits - 1)) - 1
    loud_N = np.clip(state.actor.weight_N.astype(np.int64) * 16, -limit, limit).astype(np.int32)
    loud = dataclasses.replace(state, actor=dataclasses.replace(state.actor, weight_N=loud_N))
    assert loud.quantised == (variant == "fixar")
    for scale in (1.0, 400.0, 4000.0):
        obs_BS = batch(5, scale=scale).obs_BS
        fast, action = fixed_ddpg.act(loud, obs_BS, noise, fixed_fast)
        slow, other = fixed_ddpg.act(loud, obs_BS, noise, fixed_reference)
        np.testing.assert_array_equal(action, other)
        assert_same(fast, slow)
        counted = fast.saturated["acting"]
        word = config.formats.word(config.formats.activation)
        entered = word.quantise(obs_BS)
        beyond = int(((entered == word.high) | (entered == word.low)).sum())
        trace = fixed_ddpg.fixed_network.forward(
            loud_N, loud.sizes("actor"), entered, loud.sites("actor"), config.formats, fixed_reference
        )
        assert counted == beyond + trace.saturated + trace.overshot
        # Nothing else is counted, and counts go on from what they were.
        assert fast.saturated == {**loud.saturated, "acting": counted}
        assert fixed_ddpg.act(fast, obs_BS, noise)[0].saturated["acting"] == 2 * counted
    assert beyond > 0
    assert (trace.saturated > 0) == (variant != "fixar")
    assert (trace.overshot > 0) == (variant == "fixar")
    assert fixed_ddpg.update(fast, batch(1))[0].saturated["acting"] == counted


def test_an_actor_within_its_range_counts_nothing():
    state = fixed_ddpg.initial_state(FixedPointConfig(variant="fixed32", hidden=(8, 8)), S, A, seed=0)
    assert fixed_ddpg.act(state, batch(0).obs_BS, noise=False)[0] is state
    beyond = batch(0).obs_BS
    beyond[0, :3], beyond[4, 2] = 1e6, -1e6
    zero = dataclasses.replace(state.actor, weight_N=np.zeros_like(state.actor.weight_N))
    after, _ = fixed_ddpg.act(dataclasses.replace(state, actor=zero), beyond, noise=False)
    assert after.saturated["acting"] == 4


def test_a_state_from_before_acting_was_counted_goes_on_from_0():
    state = fixed_ddpg.initial_state(FixedPointConfig(variant="fixed32", hidden=(8, 8)), S, A, seed=0)
    state, _ = fixed_ddpg.act(state, batch(0, scale=1e5).obs_BS, noise=True)
    arrays, plain = fixed_ddpg.to_arrays(state)
    assert plain["saturated"].pop("acting") > 0
    again = fixed_ddpg.from_arrays(arrays, plain)
    assert again.saturated == {**state.saturated, "acting": 0}
    again, _ = fixed_ddpg.act(again, batch(0, scale=1e5).obs_BS, noise=True)
    assert again.saturated["acting"] > 0


def test_a_state_taken_apart_and_put_together_goes_on_as_if_nothing_had_happened():
    config = FixedPointConfig(quantisation_delay=2, hidden=(20, 10), rounding="stochastic")
    state = fixed_ddpg.initial_state(config, S, A, seed=1)
    for index in range(3):
        state, _ = fixed_ddpg.update(state, batch(index))
        state, _ = fixed_ddpg.act(state, batch(index, scale=3000.0).obs_BS, noise=True)
    assert state.saturated["acting"] > 0
    again = fixed_ddpg.from_arrays(*fixed_ddpg.to_arrays(state))
    assert_same(state, again)
    for index in range(3, 5):
        obs_BS = batch(index, scale=3000.0).obs_BS
        state, again = (fixed_ddpg.act(each, obs_BS, noise=True)[0] for each in (state, again))
        state, again = (fixed_ddpg.update(each, batch(index))[0] for each in (state, again))
    assert_same(state, again)


def test_gradients_are_those_of_the_loss():
    """The critic's integer gradient against central differences of its float64 loss."""
    config = FixedPointConfig(variant="fixed32", hidden=(12, 8))
    state = fixed_ddpg.initial_state(config, S, A, seed=5)
    x, formats, sizes = batch(0), config.formats, state.sizes("critic")
    word, weight = formats.word(formats.activation), formats.word(formats.weight)
    inputs = np.concatenate([x.obs_BS, x.action_BA], 1)
    target_B1 = x.reward_B[:, None]
    network = fixed_ddpg.fixed_network
    trace = network.forward(
        state.critic.weight_N, sizes, word.quantise(inputs), (None,) * 3, formats, fixed_fast
    )
    reward_B, ended_B = word.quantise(x.reward_B), np.zeros(len(x.reward_B), bool)
    by = formats.error - formats.activation
    error, *_ = fixed_fast.td_errors(reward_B, ended_B, trace.output_BP, trace.output_BP, 0, by, formats.bits)
    errors, _, _ = network.backward(
        state.critic.weight_N, sizes, trace, error, formats, fixed_fast, to_input=False
    )
    gradient_N, lost = network.gradient(sizes, trace, errors, formats.critic_gradient, formats, fixed_fast)
    assert lost == 0

    def loss(flat_N: np.ndarray) -> float:
        h = inputs
        for index, (w, b) in enumerate(network.layers(flat_N, sizes)):
            h = h @ w.T + b
            h = np.maximum(h, 0) if index < 2 else h
        return float(((h - target_B1) ** 2).mean() / 2)

    real_N = weight.real(state.critic.weight_N)
    for index in np.random.default_rng(1).choice(len(real_N), 40, replace=False):
        step = np.zeros_like(real_N)
        step[index] = 1e-6
        want = (loss(real_N + step) - loss(real_N - step)) / 2e-6
        assert abs(gradient_N[index] * 2.0**-formats.critic_gradient - want) < 1e-4 * max(1.0, abs(want))


def test_a_batch_that_is_no_power_of_two_is_refused():
    state = fixed_ddpg.initial_state(FixedPointConfig(hidden=(8, 8)), S, A, seed=0)
    with pytest.raises(UserError, match=r"batch of 100: .*Give --batch_size 64 or 128"):
        fixed_ddpg.update(state, batch(0, size=100))
    with pytest.raises(
        UserError, match=r"batch of 8192: .*4096 is the largest.*Give --batch_size 4096 or less"
    ):
        fixed_ddpg.update(state, batch(0, size=8192))


@pytest.mark.parametrize("arithmetic", [fixed_fast, fixed_reference])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_batch_of_saturated_errors_saturates_its_gradients(arithmetic, sign):
    formats = FixedPointConfig().formats
    worst = np.int64(2**31 - 1) if sign > 0 else np.int64(-(2**31))
    error_BP = np.full((LARGEST_BATCH, 1), worst, np.int32)
    shift = formats.error + formats.activation + LARGEST_BATCH.bit_length() - 1 - formats.critic_gradient
    x_BQ = np.full((LARGEST_BATCH, 2), 2**31 - 1, np.int32)
    weight, bias, lost = arithmetic.gradient(error_BP, x_BQ, None, formats.activation, shift, formats.bits)
    assert weight.tolist() == [[worst] * 2]
    assert bias.tolist() == [worst]
    assert lost == 3


@pytest.mark.parametrize(
    ("field", "name", "remedy"),
    [
        ("obs_BS", "observation", "observations"),
        ("action_BA", "action", "actions"),
        ("reward_B", "reward", "rewards"),
        ("next_obs_BS", "next observation", "observations"),
    ],
)
def test_nan_from_the_simulator_is_named(field, name, remedy):
    state = fixed_ddpg.initial_state(FixedPointConfig(hidden=(8, 8)), S, A, seed=0)
    broken = batch(0)
    getattr(broken, field)[3] = np.nan
    text = (
        rf"the {name} in row 3 of 16 has a NaN, which is no number in Q\(32, 20\)\. Look at the {remedy} that"
    )
    with pytest.raises(UserError, match=text):
        fixed_ddpg.update(state, broken)
    if field == "obs_BS":
        with pytest.raises(UserError, match=text):
            fixed_ddpg.act(state, broken.obs_BS, noise=False)


def test_a_checkpoint_of_another_network_is_refused():
    arrays, plain = fixed_ddpg.to_arrays(fixed_ddpg.initial_state(FixedPointConfig(hidden=(8, 8)), S, A, 0))
    plain["observation_size"] = 3
    with pytest.raises(UserError, match=r"actor.weight_N is int32 \(270,\), int32 \(158,\) wanted"):
        fixed_ddpg.from_arrays(arrays, plain)


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("learning_rate", 0.1, "learning_rate is 0.1, its range is"),
        ("hidden", (0,), "layers of 1 to 4096 units"),
        ("betas", (0.9, 1.0), "is the range"),
    ],
)
def test_impossible_options_are_refused(option, value, text):
    with pytest.raises(UserError, match=text):
        FixedPointConfig(**{option: value})


def returns(state: FixedState) -> float:
    return pendulum_returns(lambda obs_BS: fixed_ddpg.act(state, obs_BS, noise=False)[1])


def learn_pendulum(config: FixedPointConfig, steps: int) -> FixedState:
    environment = gymnasium.make("Pendulum-v1")
    rng, state = np.random.default_rng(0), fixed_ddpg.initial_state(config, 3, 1, seed=0)
    shapes = (steps, 3), (steps, 1), steps, steps, (steps, 3)
    seen = Batch(*(np.ones(shape) for shape in shapes))
    obs, _ = environment.reset(seed=0)
    for t in range(steps):
        action = rng.uniform(-1, 1, 1)
        if t >= 400:
            state, found = fixed_ddpg.act(state, obs[None], noise=True)
            action = found[0]
        after, reward, _, cut, _ = environment.step(2.0 * action)
        seen.obs_BS[t], seen.action_BA[t], seen.reward_B[t], seen.next_obs_BS[t] = obs, action, reward, after
        obs = environment.reset()[0] if cut else after
        if t >= 400:
            drawn = rng.integers(0, t + 1, 64)
            state, _ = fixed_ddpg.update(state, Batch(*(values[drawn] for values in seen)))
    return state


@pytest.mark.parametrize(
    ("variant", "steps"), [("fixar", 4400), pytest.param("fixed32", 6000, marks=pytest.mark.slow)]
)
def test_integers_alone_learn_to_swing_a_pendulum_up(variant, steps):
    """With fixar before and after quantisation. An agent that does nothing gets some -1,200, one that keeps the
    pendulum upright -150."""
    config = FixedPointConfig(variant=variant, hidden=(48, 32), learning_rate=2e-3, quantisation_delay=2000)
    state = learn_pendulum(config, steps)
    assert state.quantised == (variant == "fixar")
    assert returns(state) > -400
    untrained = fixed_ddpg.initial_state(config, 3, 1, seed=0)
    assert returns(untrained) < -900
