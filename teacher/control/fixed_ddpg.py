"""DDPG in integers alone (Lillicrap 2016; FIXAR, Yang 2021): pure functions of one explicit state.

    y = r + discount not_done Q'(s', mu'(s'))                critic: e = Q(s, a) - y,  mean of e^2 / 2
    actor: the mean of -Q(s, mu(s)), through the critic to the action and through tanh
    both by Adam, both target networks move by tau

Observations, rewards and actions become integers where they enter; nothing in between is a float. Saturations are
counted by place in the state.

Axis suffixes: B batch, S observation, A action, N parameters.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spikestill.common.errors import UserError
from spikestill.common.precision import fixed_fast
from spikestill.common.precision.fixed import Affine, Int32, QFormat, random_bits
from spikestill.common.precision.fixed_adam import (
    ALPHA_FRACTION,
    DECAY_FRACTION,
    POWER_FRACTION,
    AdamRule,
    next_powers,
    step_size,
)
from spikestill.common.precision.fixed_words import DISCOUNT_FRACTION, DRAWS, NOISE_FRACTION
from spikestill.common.precision.names import LARGEST_BATCH
from spikestill.common.precision.sharing import share
from spikestill.configs.fixed_point import FixedPointConfig, Formats
from spikestill.teacher.control import fixed_network
from spikestill.teacher.control.fixed_network import Arithmetic, Trace

ACTOR, CRITIC = "actor", "critic"
UPDATING = ("input", "activation", "error", "gradient", "weight", "value", "quantised")
"""Where updates saturate: what enters, layers, errors, gradients, Adam's results, targets, 16-bit activations."""
ACTING = "acting"
"""Where the actor's pass that chooses an action saturates: what enters, layers, 16-bit activations."""
PLACES = (*UPDATING, ACTING)

ROWS = 4
"""Rows of a batch that a thread passes are a multiple of it, as the product's blocks are."""
MOST_INPUTS = 1 << 16
"""Of observations and actions of a file."""
POWERS = ("powers.0", "powers.1")
"""What errors call the powers of Adam's two decays."""


class Batch(NamedTuple):
    """Transitions as they come from the replay, real numbers; actions in -1..1."""

    obs_BS: npt.NDArray[Any]
    action_BA: npt.NDArray[Any]
    reward_B: npt.NDArray[Any]
    not_done_B: npt.NDArray[Any]
    next_obs_BS: npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class NetworkState:
    """One network and its optimiser, int32 (N,) each.

    Attributes:
        weight_N, target_N: parameters, and the target network's.
        m_N, v_N: Adam's moments; ``v_N`` is the root of the second one in hAdam's form.
        range_L2: least and largest activation seen at each layer's input, int64 (L, 2).
    """

    weight_N: Int32
    target_N: Int32
    m_N: Int32
    v_N: Int32
    range_L2: npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class FixedState:
    """Everything that an update reads; saved whole, so that resuming is never having stopped.

    Attributes:
        config: the options.
        observation_size, action_size: S, A.
        actor, critic: networks.
        powers: beta1^t and beta2^t, 30 fraction bits.
        updates: t.
        seed: of every random number.
        drawn: random numbers that exploration has used.
        saturated: how many values were saturated at each of :data:`PLACES`, since the beginning; 0 for ``acting`` in
            what was saved before it was counted.
    """

    config: FixedPointConfig
    observation_size: int
    action_size: int
    actor: NetworkState
    critic: NetworkState
    powers: tuple[int, int]
    updates: int
    seed: int
    drawn: int
    saturated: Mapping[str, int]

    @property
    def formats(self) -> Formats:
        """The variant's number formats."""
        return self.config.formats

    @property
    def quantised(self) -> bool:
        """Activations are 16 bits wide by now."""
        return self.config.variant == "fixar" and self.updates >= self.config.quantisation_delay

    def sizes(self, network: str) -> tuple[int, ...]:
        """Return the layer sizes of ``actor`` or ``critic``, the input's first."""
        return _sizes(self.config, self.observation_size, self.action_size, network)

    def sites(self, network: str) -> tuple[Affine | None, ...]:
        """Return the format of each layer's input: 16 bits after the quantisation delay, else None."""
        range_L2 = getattr(self, network).range_L2
        if not self.quantised:
            return (None,) * len(range_L2)
        return tuple(Affine.of(int(least), int(largest)) for least, largest in range_L2)


def _sizes(config: FixedPointConfig, observation: int, action: int, network: str) -> tuple[int, ...]:
    """Return the layer sizes of ``actor`` or ``critic``, the input's first."""
    if network == ACTOR:
        return (observation, *config.hidden, action)
    return (observation + action, *config.hidden, 1)


def initial_state(config: FixedPointConfig, observation_size: int, action_size: int, seed: int) -> FixedState:
    """Return an untrained agent; its target networks are copies."""
    random = np.random.default_rng(seed)
    sizes = {name: _sizes(config, observation_size, action_size, name) for name in (ACTOR, CRITIC)}
    networks = {}
    for name, of in sizes.items():
        weight_N = fixed_network.initial(of, config.formats, random)
        zero_N = np.zeros_like(weight_N)
        range_L2 = np.zeros((len(of) - 1, 2), np.int64)
        networks[name] = NetworkState(weight_N, weight_N.copy(), zero_N, zero_N.copy(), range_L2)
    one = 1 << POWER_FRACTION
    return FixedState(
        config, observation_size, action_size, networks[ACTOR], networks[CRITIC], (one, one), 0, seed, 0,
        dict.fromkeys(PLACES, 0),
    )  # fmt: skip


def rule(config: FixedPointConfig, network: str) -> AdamRule:
    """Return the integer constants of Adam for ``actor`` or ``critic``."""
    formats = config.formats
    fraction = formats.actor_gradient if network == ACTOR else formats.critic_gradient
    first, second = (round((1.0 - beta) * (1 << DECAY_FRACTION)) for beta in config.betas)
    return AdamRule(
        formats.bits, formats.weight, first, second, max(1, round(config.epsilon * 2**fraction)),
        config.second_moment == "root", config.rounding == "stochastic",
    )  # fmt: skip


def entered(word: QFormat, name: str, values: npt.NDArray[Any]) -> Int32:
    """Return real numbers (B, ...) as integers of ``word``.

    Args:
        word: a format.
        name: what they are, for the error.
        values: the numbers.

    Raises:
        UserError: one is NaN.
    """
    try:
        return word.quantise(values)
    except ValueError as error:
        row = int(np.argwhere(np.isnan(values))[0][0])
        raise UserError(
            f"the {name} in row {row} of {len(values)} has a NaN, which is no number in {word}",
            f"look at the {name.removeprefix('next ')}s that the environment gives",
        ) from error


def _at_the_ends(word: QFormat, values: Int32) -> int:
    """Return how many numbers are the largest or the smallest of ``word``: what entered and was saturated."""
    return int(np.count_nonzero((values == word.high) | (values == word.low)))


def act(
    state: FixedState, obs_BS: npt.NDArray[Any], noise: bool, arithmetic: Arithmetic = fixed_fast
) -> tuple[FixedState, npt.NDArray[np.float32]]:
    """Return (the state after, actions (B, A) in -1..1): the actor's output, with the generator's noise added or not.

    The state after has counted what saturated on the way, and the numbers that the noise has used.

    Args:
        state: the agent.
        obs_BS: observations, real numbers.
        noise: explore: add near-normal numbers of deviation ``config.noise`` (``fixed.gaussian``) and clip.
        arithmetic: reference or fast.

    Raises:
        UserError: an observation is NaN.
    """
    formats = state.formats
    word = formats.word(formats.activation)
    entered_BS = entered(word, "observation", obs_BS)
    trace = fixed_network.forward(
        state.actor.weight_N, state.sizes(ACTOR), entered_BS, state.sites(ACTOR), formats, arithmetic
    )
    if lost := _at_the_ends(word, entered_BS) + trace.saturated + trace.overshot:
        total = {**state.saturated, ACTING: state.saturated[ACTING] + lost}
        state = dataclasses.replace(state, saturated=total)
    action_BA = arithmetic.tanh(trace.output_BP, word)
    if noise:
        deviation = round(state.config.noise * (1 << NOISE_FRACTION))
        key = _key(state.seed, 1)
        action_BA = arithmetic.explore(action_BA, key, state.drawn, deviation, formats.activation)
        state = dataclasses.replace(state, drawn=state.drawn + DRAWS * action_BA.size)
    return state, word.real(action_BA).astype(np.float32)


def values(
    state: FixedState,
    obs_BS: npt.NDArray[Any],
    action_BA: npt.NDArray[Any],
    arithmetic: Arithmetic = fixed_fast,
) -> npt.NDArray[np.float32]:
    """Return the critic's values Q(s, a), (B,): its integers, as float32 numbers.

    Args:
        state: the agent.
        obs_BS: observations, real numbers.
        action_BA: actions in -1..1, as :func:`act` gives them.
        arithmetic: reference or fast.

    Raises:
        UserError: an observation or an action is NaN.
    """
    word = state.formats.word(state.formats.activation)
    inputs = entered(word, "observation", obs_BS), entered(word, "action", action_BA)
    trace = fixed_network.forward(
        state.critic.weight_N, state.sizes(CRITIC), np.concatenate(inputs, 1), state.sites(CRITIC), state.formats,
        arithmetic,
    )  # fmt: skip
    return word.real(trace.output_BP[:, 0]).astype(np.float32)


def update(
    state: FixedState, batch: Batch, arithmetic: Arithmetic = fixed_fast
) -> tuple[FixedState, dict[str, Any]]:
    """Return (the state after one update of critic, actor and targets; what to log).

    Args:
        state: the agent.
        batch: B transitions, B a power of two up to 4,096.
        arithmetic: reference or fast: the same integers.

    Raises:
        UserError: B is no power of two or too large, or a number of the batch is NaN.
    """
    size = len(batch.reward_B)
    if size > LARGEST_BATCH:
        raise UserError(
            f"batch of {size}: in fixed point {LARGEST_BATCH} is the largest, whose sums fit in 64 bits",
            f"give --batch_size {LARGEST_BATCH} or less",
        )
    if size & (size - 1):
        below = 1 << (size.bit_length() - 1)
        raise UserError(
            f"batch of {size}: in fixed point a mean over the batch is a shift, so it must be a power of two",
            f"give --batch_size {below} or {2 * below}",
        )
    run = _Update(state, arithmetic)
    words = run.enter(batch)
    critic, q_B1, error_B1 = run.critic(words)
    actor = run.actor(words, critic)
    # The actor's passes before widened what the critic's state was made with.
    critic = dataclasses.replace(critic, range_L2=run.seen[CRITIC])
    total = {
        **state.saturated,
        **{place: state.saturated[place] + count for place, count in run.lost.items()},
    }
    after = dataclasses.replace(
        state, actor=actor, critic=critic, powers=run.powers, updates=state.updates + 1, saturated=total
    )
    report = {
        "q": float(run.word.real(q_B1).mean()),
        "critic_loss": float((state.formats.word(state.formats.error).real(error_B1) ** 2).mean()),
        "saturated": {place: count for place, count in run.lost.items() if count},
        "quantised": state.quantised,
    }
    return after, report


class _Words(NamedTuple):
    """A batch in integers: observations and actions in the activations' format."""

    obs_BS: Int32
    action_BA: Int32
    reward_B: Int32
    not_done_B: npt.NDArray[np.bool_]
    next_obs_BS: Int32


class _Passes:
    """Passes of some rows of a batch, and what they met.

    Attributes:
        seen: a network and the least and largest activation at each layer's input, int64 (L, 2), of each pass before
            the quantisation delay.
        lost: values saturated, by place.
    """

    def __init__(
        self, state: FixedState, arithmetic: Arithmetic, sites: Mapping[str, tuple[Affine | None, ...]]
    ) -> None:
        self._state, self._arithmetic, self._sites = state, arithmetic, sites
        self.seen: list[tuple[str, npt.NDArray[np.int64]]] = []
        self.lost = dict.fromkeys(UPDATING, 0)

    def forward(self, network: str, flat_N: Int32, x_BQ: Int32) -> Trace:
        """Pass ``x_BQ`` through a network, note the range of what it meets, and count what saturates."""
        state = self._state
        trace = fixed_network.forward(
            flat_N, state.sizes(network), x_BQ, self._sites[network], state.formats, self._arithmetic
        )
        if trace.extremes:
            self.seen.append((network, np.array(trace.extremes)))
        self.lost["activation"] += trace.saturated
        self.lost["quantised"] += trace.overshot
        return trace

    def backward(
        self, network: str, flat_N: Int32, trace: Trace, error_BP: Int32, *, to_input: bool
    ) -> tuple[list[Int32], Int32 | None]:
        """Return (each layer's errors; the input's, None where they are not asked for)."""
        state = self._state
        errors, input_BQ, over = fixed_network.backward(
            flat_N, state.sizes(network), trace, error_BP, state.formats, self._arithmetic, to_input=to_input
        )
        self.lost["error"] += over
        return errors, input_BQ


class _Update:
    """One update under way.

    Attributes:
        word: the activations' format.
        powers: of the betas, after this update.
        seen: least and largest activation at each layer's input, by network, int64 (L, 2).
        lost: values saturated by this update, by place.
    """

    def __init__(self, state: FixedState, arithmetic: Arithmetic) -> None:
        self._state, self._arithmetic = state, arithmetic
        config = state.config
        self.word = state.formats.word(state.formats.activation)
        self.powers = next_powers(state.powers, rule(config, ACTOR))
        self.seen = {ACTOR: state.actor.range_L2.copy(), CRITIC: state.critic.range_L2.copy()}
        self.lost = dict.fromkeys(UPDATING, 0)
        self._sites = {ACTOR: state.sites(ACTOR), CRITIC: state.sites(CRITIC)}
        self._alpha = step_size(round(config.learning_rate * (1 << ALPHA_FRACTION)), self.powers)
        self._tau = round(config.tau * (1 << DECAY_FRACTION))

    def enter(self, batch: Batch) -> _Words:
        """Return ``batch`` in integers.

        Raises:
            UserError: a value is NaN.
        """
        word = self.word
        obs_BS = entered(word, "observation", batch.obs_BS)
        action_BA = entered(word, "action", batch.action_BA)
        reward_B = entered(word, "reward", batch.reward_B)
        next_BS = entered(word, "next observation", batch.next_obs_BS)
        self.lost["input"] = sum(_at_the_ends(word, each) for each in (obs_BS, next_BS, reward_B))
        return _Words(obs_BS, action_BA, reward_B, np.asarray(batch.not_done_B) != 0, next_BS)

    def critic(self, words: _Words) -> tuple[NetworkState, Int32, Int32]:
        """Return (the critic one step on; its values before, (B, 1); their errors, (B, 1))."""
        state, arithmetic, formats = self._state, self._arithmetic, self._state.formats
        discount = round(state.config.discount * (1 << DISCOUNT_FRACTION))

        def of_rows(rows: slice) -> tuple[_Passes, Trace, list[Int32]]:
            obs_BS, action_BA, next_obs_BS = (
                words.obs_BS[rows],
                words.action_BA[rows],
                words.next_obs_BS[rows],
            )
            passes = _Passes(state, arithmetic, self._sites)
            next_trace = passes.forward(ACTOR, state.actor.target_N, next_obs_BS)
            next_BA = arithmetic.tanh(next_trace.output_BP, self.word)
            next_input = np.concatenate([next_obs_BS, next_BA], 1)
            next_q_B1 = passes.forward(CRITIC, state.critic.target_N, next_input).output_BP
            trace = passes.forward(CRITIC, state.critic.weight_N, np.concatenate([obs_BS, action_BA], 1))
            error_B1, beyond, over = arithmetic.td_errors(
                words.reward_B[rows], words.not_done_B[rows], next_q_B1, trace.output_BP, discount,
                formats.error - formats.activation, formats.bits,
            )  # fmt: skip
            passes.lost["value"] += beyond
            passes.lost["error"] += over
            errors, _ = passes.backward(CRITIC, state.critic.weight_N, trace, error_B1, to_input=False)
            return passes, trace, errors

        trace, errors = self._whole(of_rows, len(words.reward_B))
        return self._learn(CRITIC, trace, errors), trace.output_BP, errors[-1]

    def actor(self, words: _Words, critic: NetworkState) -> NetworkState:
        """Return the actor one step up the value that ``critic`` gives to its actions."""
        state, arithmetic, formats = self._state, self._arithmetic, self._state.formats

        def of_rows(rows: slice) -> tuple[_Passes, Trace, list[Int32]]:
            obs_BS = words.obs_BS[rows]
            passes = _Passes(state, arithmetic, self._sites)
            trace = passes.forward(ACTOR, state.actor.weight_N, obs_BS)
            chosen_BA = arithmetic.tanh(trace.output_BP, self.word)
            value = passes.forward(CRITIC, critic.weight_N, np.concatenate([obs_BS, chosen_BA], 1))
            ascent_B1 = np.full((len(obs_BS), 1), -(1 << formats.error), np.int32)
            _, to_input = passes.backward(CRITIC, critic.weight_N, value, ascent_B1, to_input=True)
            assert to_input is not None
            error_BA, over = arithmetic.through_tanh(to_input, chosen_BA, formats.activation, formats.bits)
            passes.lost["error"] += over
            errors, _ = passes.backward(ACTOR, state.actor.weight_N, trace, error_BA, to_input=False)
            return passes, trace, errors

        return self._learn(ACTOR, *self._whole(of_rows, len(words.reward_B)))

    def _whole(
        self, of_rows: Callable[[slice], tuple[_Passes, Trace, list[Int32]]], size: int
    ) -> tuple[Trace, list[Int32]]:
        """Return the pass and the errors of all rows; note what the passes met, and what they lost.

        The fast kernels pass the rows in parts, a thread for each: no row's numbers depend on another's.
        """
        if self._arithmetic is fixed_fast:
            weights = len(self._state.actor.weight_N) + len(self._state.critic.weight_N)
            parts = share(size, ROWS, size * weights, lambda first, last: of_rows(slice(first, last)))
        else:
            parts = [of_rows(slice(0, size))]
        for passes, _, _ in parts:
            for place, count in passes.lost.items():
                self.lost[place] += count
            for network, found_L2 in passes.seen:
                seen_L2 = self.seen[network]
                seen_L2[:, 0] = np.minimum(seen_L2[:, 0], found_L2[:, 0])
                seen_L2[:, 1] = np.maximum(seen_L2[:, 1], found_L2[:, 1])
        if len(parts) == 1:  # the accelerator's arithmetic knows its arrays by who they are
            return parts[0][1:]
        errors = [np.concatenate(each) for each in zip(*(errors for _, _, errors in parts), strict=True)]
        return fixed_network.stacked([trace for _, trace, _ in parts]), errors

    def _learn(self, network: str, trace: Trace, errors: list[Int32]) -> NetworkState:
        """Return a network after one step of Adam, and its target after it."""
        state, arithmetic, formats = self._state, self._arithmetic, self._state.formats
        old: NetworkState = getattr(state, network)
        fraction = formats.actor_gradient if network == ACTOR else formats.critic_gradient
        gradient_N, clipped = fixed_network.gradient(
            state.sizes(network), trace, errors, fraction, formats, arithmetic
        )
        self.lost["gradient"] += clipped
        key = _key(state.seed, 4 * state.updates + (2 if network == ACTOR else 3))
        weight_N, m_N, v_N, clipped = arithmetic.adam(
            old.weight_N, old.m_N, old.v_N, gradient_N, self._alpha, rule(state.config, network), key
        )
        self.lost["weight"] += clipped
        target_N = arithmetic.approach(old.target_N, weight_N, self._tau)
        return NetworkState(weight_N, target_N, m_N, v_N, self.seen[network])


def _key(seed: int, stream: int) -> int:
    """Return the key of one of the seed's streams of random numbers."""
    return int(random_bits(seed, np.array([stream], np.uint32))[0])


def to_arrays(state: FixedState) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """Return (arrays by name, plain JSON values): the state, whole."""
    arrays = {
        f"{network}.{field.name}": getattr(getattr(state, network), field.name)
        for network in (ACTOR, CRITIC)
        for field in dataclasses.fields(NetworkState)
    }
    plain = {
        "config": json.loads(json.dumps(dataclasses.asdict(state.config))),
        "observation_size": state.observation_size, "action_size": state.action_size,
        "powers": list(state.powers), "updates": state.updates, "seed": state.seed, "drawn": state.drawn,
        "saturated": dict(state.saturated),
    }  # fmt: skip
    return arrays, plain


def from_arrays(arrays: Mapping[str, npt.NDArray[Any]], plain: Mapping[str, Any]) -> FixedState:
    """Return the state that :func:`to_arrays` took apart.

    Raises:
        UserError: an array is missing, or of another shape or type.
        ValueError, LookupError, TypeError: a value is out of range, or missing.
    """
    config = FixedPointConfig(**_options(plain["config"]))
    numbers = {name: plain[name] for name in ("observation_size", "action_size", "updates", "seed", "drawn")}
    if not isinstance(plain["powers"], list) or len(plain["powers"]) != 2:
        raise ValueError(
            f"powers are {str(plain['powers'])[:60]}, two of them wanted, one for each of Adam's moments"
        )
    numbers |= {f"powers.{index}": power for index, power in enumerate(plain["powers"])}
    saturated = plain["saturated"]
    if isinstance(saturated, dict):
        saturated = {ACTING: 0} | saturated
    if not isinstance(saturated, dict) or set(saturated) != set(PLACES):
        raise ValueError(f"saturated is {str(plain['saturated'])[:60]}, counts of {', '.join(PLACES)} wanted")
    numbers |= {f"saturated.{place}": saturated[place] for place in PLACES}
    for name, number in numbers.items():
        sizes = name.endswith("_size")
        low, high = (
            int(sizes),
            MOST_INPUTS if sizes else 1 << POWER_FRACTION if name in POWERS else (1 << 62) - 1,
        )
        if type(number) is not int or not low <= number <= high:
            raise ValueError(f"{name} is {str(number)[:60]}, a whole number {low}..{high} wanted")
    observations, actions = numbers["observation_size"], numbers["action_size"]
    networks = {
        network: _network(
            arrays, network, _sizes(config, observations, actions, network), config.formats.bits
        )
        for network in (ACTOR, CRITIC)
    }
    state = FixedState(
        config, observations, actions, networks[ACTOR], networks[CRITIC], (numbers[POWERS[0]], numbers[POWERS[1]]),
        numbers["updates"], numbers["seed"], numbers["drawn"], {place: saturated[place] for place in PLACES},
    )  # fmt: skip
    for network in (ACTOR, CRITIC):
        state.sites(network)  # a range that no format has is refused now
    return state


def _options(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as they were before JSON, each of the type that it has by default."""
    options = {**saved, "hidden": tuple(saved["hidden"]), "betas": tuple(saved["betas"])}
    for field in dataclasses.fields(FixedPointConfig):
        value, usual = options.get(field.name, field.default), field.default
        numbers = value if isinstance(value, tuple) else (value,)
        wanted = (int, float) if isinstance(usual, float) or field.name == "betas" else (type(usual), int)
        if any(type(number) not in wanted for number in numbers):
            names = " or ".join(dict.fromkeys(kind.__name__ for kind in wanted if kind is not tuple))
            raise ValueError(f"option {field.name} is {str(value)[:60]}, {names} wanted")
    return options


def _network(
    arrays: Mapping[str, npt.NDArray[Any]], network: str, sizes: tuple[int, ...], bits: int
) -> NetworkState:
    count = fixed_network.parameters(sizes)
    found = {}
    for field in dataclasses.fields(NetworkState):
        name, array = f"{network}.{field.name}", arrays.get(f"{network}.{field.name}")
        ranges = field.name == "range_L2"
        want: tuple[str, tuple[int, ...]] = ("int64", (len(sizes) - 1, 2)) if ranges else ("int32", (count,))
        if array is None or array.shape != want[1] or array.dtype != want[0]:
            have = "missing" if array is None else f"{array.dtype} {array.shape}"
            raise UserError(f"{name} is {have}, {want[0]} {want[1]} wanted", "give another checkpoint")
        if int(array.max()) >= 1 << (bits - 1) or int(array.min()) < -(1 << (bits - 1)):
            raise ValueError(
                f"{name} holds values of more than {bits} bits: {array.min()}..{array.max()}, "
                f"{-(1 << (bits - 1))}..{(1 << (bits - 1)) - 1} wanted"
            )
        if field.name == "v_N" and int(array.min()) < 0:
            raise ValueError(f"{name} holds values below 0: {array.min()}, second moments from 0 wanted")
        if ranges and (array[:, 0] > array[:, 1]).any():
            wrong = array[array[:, 0] > array[:, 1]][0]
            raise ValueError(
                f"{name} holds a range whose end is before its beginning: {wrong[0]}..{wrong[1]}, low..high wanted"
            )
        found[field.name] = np.array(array)
    return NetworkState(**found)
