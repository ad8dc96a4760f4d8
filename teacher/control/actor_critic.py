"""What SAC and DDPG share: settings, state, batches, the critics' update, target networks.

Functions over explicit state: everything that an update reads is in :class:`AgentState`, the batch and the noise;
they write into that state and keep none of their own.

Axis suffixes: B batch, S observation, D action numbers, N networks, P parameters, flat.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spikestill.common.precision.names import smallest
from spikestill.common.precision.rounding import number_format
from spikestill.configs.control import ControlConfig, MethodsConfig
from spikestill.teacher.control import networks
from spikestill.teacher.control.encoder import EncoderRule
from spikestill.teacher.control.lanes import Both, in_turn
from spikestill.teacher.control.operations import AdamRule, Layer, PolicyRule
from spikestill.teacher.control.optimiser import Trained, count, grow, share_of, step

AVERAGE_COST = 8
"""How much longer a step of Adam takes than a target's."""


TARGETS = {"critics": "target", "actor": "target_actor", "encoder": "target_encoder"}
"""What a checkpoint calls the target network of each group."""


class Batch(NamedTuple):
    """Transitions; ``going_on`` is 0 where the episode ended by its rules, else 1. Observations are float32, or uint8
    (B, frame, colour, row, column) from pixels."""

    obs_BS: npt.NDArray[Any]
    action_BD: npt.NDArray[np.float32]
    reward_B: npt.NDArray[np.float32]
    going_on_B: npt.NDArray[np.float32]
    next_obs_BS: npt.NDArray[Any]


class Noise(NamedTuple):
    """Standard normal numbers of one update, for the next action and for the present one, (B, D) each."""

    next_BD: npt.NDArray[np.floating]
    now_BD: npt.NDArray[np.floating]


@dataclasses.dataclass(frozen=True)
class Settings:
    """What an update reads besides state, batch and noise.

    Attributes:
        config: the options.
        methods: of Björck 2021, resolved.
        observation, action: sizes S, D; from pixels S is the encoder's Z.
        policy: how a head becomes an action.
        adam, adam_actor: the optimiser's rule for critics and temperature, and for the actor.
        encoder: of pixels; None from states.
    """

    config: ControlConfig
    methods: MethodsConfig
    observation: int
    action: int
    policy: PolicyRule
    adam: AdamRule
    adam_actor: AdamRule
    encoder: EncoderRule | None = None

    @staticmethod
    def of(config: ControlConfig, observation: int, action: int) -> Settings:
        """Return the settings of a training."""
        methods = config.methods.resolved(number_format(config.precision))
        policy = PolicyRule(
            low=config.log_std_low,
            high=config.log_std_high,
            added=config.std_added,
            limit=methods.softplus_limit,
            normal_fix=bool(methods.normal_fix),
            softplus_fix=bool(methods.softplus_fix),
        )
        adam = AdamRule(
            rate=config.learning_rate,
            beta1=config.beta1,
            beta2=config.beta2,
            epsilon=config.adam_epsilon,
            root_form=bool(methods.hadam),
            kahan=bool(methods.kahan_gradients),
            least=smallest(config.precision) if methods.loss_scaling == "compound" else 0.0,
        )
        actor = dataclasses.replace(adam, kahan=adam.kahan and methods.kahan_actor)
        if not config.from_pixels:
            return Settings(config, methods, observation, action, policy, adam, actor)
        encoder = EncoderRule(
            filters=config.filters,
            features=config.features,
            standardised=bool(methods.weight_standardisation),
            limited=bool(methods.feature_limit),
            tanh=config.feature_tanh,
        )
        return Settings(config, methods, config.features, action, policy, adam, actor, encoder)

    def actor_net(self, flat_P: Any) -> list[Layer]:
        """Return the actor's layers as views of all its parameters; from pixels its head goes before them."""
        begin = 0 if self.encoder is None else self.encoder.head_parameters
        return networks.layers(flat_P[begin:], self.actor_sizes)

    @property
    def actor_sizes(self) -> tuple[int, ...]:
        """Layer sizes of the actor; SAC's head is (μ, z)."""
        heads = 2 if self.config.algorithm == "sac" else 1
        return (self.observation, *self.config.hidden, heads * self.action)

    @property
    def critic_sizes(self) -> tuple[int, ...]:
        """Layer sizes of a critic, which gets (s, a)."""
        return (self.observation + self.action, *self.config.hidden, 1)


@dataclasses.dataclass
class AgentState:
    """Everything that learns.

    Attributes:
        actor, critics, temperature: trained parameters; the temperature's one is log α, DDPG has none.
        target_NP: parameters of the target critics.
        target_actor_NP: of DDPG's target actor, (0, P) for SAC.
        total: Kahan momentum's scaled sum of a target network by its name, and its compensation; empty without.
        encoder: convolutions and the critics' head, (1, P); None from states.
        target_encoder_NP: of the target critics, (0, 0) from states.
        updates: of the critics, made or left out.
    """

    actor: Trained
    critics: Trained
    temperature: Trained | None
    target_NP: Any
    target_actor_NP: Any
    total: dict[str, Any]
    encoder: Trained | None = None
    target_encoder_NP: Any = dataclasses.field(default_factory=lambda: np.zeros((0, 0)))
    updates: int = 0

    @property
    def groups(self) -> dict[str, Trained]:
        """All that is trained, by name."""
        found = {
            "actor": self.actor, "critics": self.critics, "temperature": self.temperature, "encoder": self.encoder
        }  # fmt: skip
        return {name: group for name, group in found.items() if group is not None}

    @property
    def targets(self) -> dict[str, tuple[Any, Trained]]:
        """Target networks by name, with what they follow."""
        found = {"critics": (self.target_NP, self.critics), "actor": (self.target_actor_NP, self.actor)}
        return found if self.encoder is None else found | {"encoder": (self.target_encoder_NP, self.encoder)}

    def arrays(self, o: Any) -> dict[str, npt.NDArray[Any]]:
        """Return the whole state as named arrays."""
        found = {
            f"{name}.{key}": array
            for name, group in self.groups.items()
            for key, array in group.arrays(o).items()
        }
        found |= {TARGETS[name]: o.host(target_NP).copy() for name, (target_NP, _) in self.targets.items()}
        found |= {f"total.{name}": o.host(array).copy() for name, array in self.total.items()}
        return found | {"updates": np.array([self.updates], np.int64)}

    def restore(self, o: Any, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore what :meth:`arrays` returned.

        Raises:
            ValueError, KeyError: an array is missing or of another shape.
        """
        for name, group in self.groups.items():
            inner = {
                key.partition(".")[2]: array for key, array in arrays.items() if key.startswith(f"{name}.")
            }
            group.restore(o, inner)
        for name, (target_NP, _) in self.targets.items():
            target_NP[...] = o.array(arrays[TARGETS[name]])
        for name, own in self.total.items():
            own[...] = o.array(arrays[f"total.{name}"])
        self.updates = int(arrays["updates"][0])


def new_state(o: Any, settings: Settings, rng: np.random.Generator) -> AgentState:
    """Return an agent that has learned nothing."""
    config, methods = settings.config, settings.methods
    kind = "orthogonal" if config.algorithm == "sac" else "fan_in"
    scale = 1.0 if methods.loss_scaling == "none" else methods.loss_scale
    actor = networks.initial(rng, settings.actor_sizes, kind)
    critics = np.stack([networks.initial(rng, settings.critic_sizes, kind) for _ in range(config.twins)])
    sac, kahan, rule = config.algorithm == "sac", bool(methods.kahan_gradients), settings.encoder
    encoder = None
    if rule is not None:
        actor = np.concatenate([rule.initial_head(rng), actor])
        encoder = np.concatenate([rule.initial_convolutions(rng), rule.initial_head(rng)])[None]
    temperature = np.log(np.array([[config.initial_temperature]])) if sac else None
    state = AgentState(
        Trained.new(o, actor[None], kahan and methods.kahan_actor, scale),
        Trained.new(o, critics, kahan, scale),
        None if temperature is None else Trained.new(o, temperature, kahan, scale),
        o.rows(critics),
        o.rows(actor[None][:0] if sac else actor[None]),
        {},
        None if encoder is None else Trained.new(o, encoder, kahan, scale),
        o.zeros(0, 0) if encoder is None else o.rows(encoder),
    )
    if methods.kahan_momentum:
        for name, (own, _) in state.targets.items():
            if len(own):
                total = o.copy(own)
                for each in total:
                    o.multiply(each, methods.kahan_scale)
                state.total |= {name: total, f"{name}_c": o.zeros(*own.shape)}
    return state


def rounded_batch(o: Any, batch: Batch) -> Batch:
    """Return the batch in the format."""
    return Batch(*(o.array(each) for each in batch))


def critic_pass(o: Any, state: AgentState, settings: Settings, batch: Batch, index: int) -> list[Any]:
    """Return the activations of critic ``index`` for the batch's actions."""
    net = networks.layers(state.critics.p_NP[index], settings.critic_sizes)
    return networks.forward(o, net, o.joined(batch.obs_BS, batch.action_BD))


def learn_critics(
    o: Any,
    state: AgentState,
    settings: Settings,
    batch: Batch,
    target_B: Any,
    both: Both,
    passes: Sequence[list[Any]] | None = None,
    learn: Callable[[list[Any]], None] | None = None,
) -> dict[str, Any]:
    """Step the critics towards the targets; the loss is the sum of their mean squared errors.

    ``passes`` are those of :func:`critic_pass`, where they are already done. ``learn`` takes the gradients of the
    critics' inputs further, to the encoder that made them, which steps with the critics; None: nothing learned did.
    """
    trained, sizes = state.critics, settings.critic_sizes
    factor = o.changing(lambda: 2.0 * trained.scale / len(batch.reward_B))
    inner = both if settings.config.twins == 1 else in_turn

    def differentiate(index: int) -> tuple[bool, Any, Any]:
        net, into = (networks.layers(flat[index], sizes) for flat in (trained.p_NP, trained.g_NP))
        activations = passes[index] if passes else critic_pass(o, state, settings, batch, index)
        g_BO = o.temporal_difference(activations[-1], target_B, factor)
        g_BI = networks.backward(o, net, activations, g_BO, into, learn is not None, both=inner)
        return o.finish(trained.g_NP[index]), activations[-1], g_BI

    each, values, g_inputs = zip(*both(differentiate, settings.config.twins), strict=True)
    finite, together = all(each), [trained]
    if learn is not None:
        assert state.encoder is not None
        learn(list(g_inputs))
        finite = o.finish(state.encoder.g_NP[0]) and finite
        together.append(state.encoder)
    if all([count(o, group, finite, settings.methods) for group in together]):
        step_all(o, together, settings.adam, settings.methods, both)
    return {"values": list(values), "target": target_B}


def worth(o: Any, numbers: int, both: Both) -> Both:
    """Return ``both`` where a loop over so many parameters takes longer than a thread takes to wake, else ``in_turn``.

    Rounded to fewer bits than fp32 it always does. Each parameter is on its own there, so that this changes no result.
    """
    return both if numbers >= o.worth_sharing else in_turn


def step_all(o: Any, together: Sequence[Trained], rule: AdamRule, methods: MethodsConfig, both: Both) -> None:
    """Step all that one loss trains, in as many shares as the operations want; double the loss's scale where that is
    due."""

    def step_group(trained: Trained) -> None:
        where = worth(o, math.prod(trained.p_NP.shape), both)
        where(lambda share: step(o, trained, rule, methods, (share, o.shares)), o.shares)

    for trained in together:
        step_group(trained)
    grow(o, together, methods)


def action_gradient(
    o: Any, state: AgentState, settings: Settings, obs_BS: Any, action_BD: Any, factor: float, both: Both
) -> tuple[Any, list[Any]]:
    """Return (``factor``, a number of the format, times the gradient of Q by the action (B, D), the values of the
    critics that were asked).

    SAC's Q is the smaller of both critics (Haarnoja 2018), DDPG's the first one, of two too (TD3, Fujimoto 2018). Of a
    single critic the batch is cut into halves, one for each thread.
    """
    sizes = settings.critic_sizes
    x_BI = o.joined(obs_BS, action_BD)
    if settings.config.algorithm == "ddpg":
        net, middle = networks.layers(state.critics.p_NP[0], sizes), len(x_BI) // 2
        halves = x_BI[:middle], x_BI[middle:]

        def differentiate(half: int) -> tuple[Any, Any]:
            activations = networks.forward(o, net, halves[half])
            (g_BO,) = o.of_smaller([activations[-1]], factor)
            g_BI = networks.backward(o, net, activations, g_BO, None, True)
            return g_BI[:, settings.observation :], activations[-1]

        found = both(differentiate, 2)
        return o.stacked([part for part, _ in found]), [o.stacked([value for _, value in found])]
    nets = [networks.layers(each, sizes) for each in state.critics.p_NP]
    activations = both(lambda index: networks.forward(o, nets[index], x_BI), len(nets))
    values = [each[-1] for each in activations]
    g = o.of_smaller(values, factor)
    parts = both(
        lambda index: networks.backward(o, nets[index], activations[index], g[index], None, True), len(nets)
    )
    return o.sum([part[:, settings.observation :] for part in parts]), values


def move_targets(o: Any, state: AgentState, settings: Settings, both: Both) -> None:
    """Move every target network a step towards its own."""
    rate, scale = settings.config.target_rate, settings.methods.kahan_scale
    targets = {name: each for name, each in state.targets.items() if len(each[0])}
    pieces = [(name, (share, o.shares)) for name in targets for share in range(o.shares)]

    def move(number: int) -> None:
        name, part = pieces[number]
        target_P, p_P = (share_of(each, part) for each in (targets[name][0], targets[name][1].p_NP))
        if settings.methods.kahan_momentum:
            total_P, c_P = (share_of(state.total[each], part) for each in (name, f"{name}_c"))
            o.average_kahan(total_P, c_P, target_P, p_P, rate, scale)
        else:
            o.average(target_P, p_P, rate)

    moved = sum(math.prod(target_NP.shape) for target_NP, _ in targets.values())
    worth(o, moved // AVERAGE_COST, both)(move, len(pieces))


def end_update(o: Any, state: AgentState, settings: Settings, both: Both) -> None:
    """Move the targets where that is due, and count the update."""
    if state.updates % settings.config.target_period == 0:
        move_targets(o, state, settings, both)
    state.updates += 1


def target_values(state: AgentState, settings: Settings, o: Any, x_BI: Any, both: Both) -> Sequence[Any]:
    """Return the target critics' values, (B, 1) each."""
    nets = [networks.layers(each, settings.critic_sizes) for each in state.target_NP]
    return both(lambda index: networks.forward(o, nets[index], x_BI)[-1], len(nets))
