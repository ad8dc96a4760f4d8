"""What SAC and DDPG share: settings, state, batches, the critics' update, target networks.

Functions over explicit state: everything that an update reads is in :class:`AgentState`, the batch and the noise;
they write into that state and keep none of their own.

Axis suffixes: B batch, S observation, D action numbers, N networks, P parameters, flat.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spikestill.configs.control import ControlConfig, MethodsConfig
from spikestill.teacher.control import networks
from spikestill.teacher.control.lanes import Both, in_turn
from spikestill.teacher.control.operations import AdamRule, PolicyRule
from spikestill.teacher.control.optimiser import Trained, count, grow, step

WORTH_WAKING = 1 << 18
"""Parameters in fp32 that Adam steps in about twice the 60 us in which a thread is woken and waited for."""
AVERAGE_COST = 8
"""How much longer a step of Adam takes than a target's."""


class Batch(NamedTuple):
    """Transitions; ``going_on`` is 0 where the episode ended by its rules, else 1."""

    obs_BS: npt.NDArray[np.float32]
    action_BD: npt.NDArray[np.float32]
    reward_B: npt.NDArray[np.float32]
    going_on_B: npt.NDArray[np.float32]
    next_obs_BS: npt.NDArray[np.float32]


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
        observation, action: sizes S, D.
        policy: how a head becomes an action.
        adam, adam_actor: the optimiser's rule for critics and temperature, and for the actor.
    """

    config: ControlConfig
    methods: MethodsConfig
    observation: int
    action: int
    policy: PolicyRule
    adam: AdamRule
    adam_actor: AdamRule

    @staticmethod
    def of(config: ControlConfig, observation: int, action: int, low: bool) -> Settings:
        """Return the settings of a training; ``low``: its format has fewer bits than fp32."""
        methods = config.methods.resolved(low)
        policy = PolicyRule(
            low=config.log_std_low,
            high=config.log_std_high,
            added=0.0,
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
        )
        actor = dataclasses.replace(adam, kahan=adam.kahan and methods.kahan_actor)
        return Settings(config, methods, observation, action, policy, adam, actor)

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
        total_NP, target_c_NP: Kahan momentum's scaled sum and compensation, critics then actor; (0, 0) without.
        updates: of the critics, made or left out.
    """

    actor: Trained
    critics: Trained
    temperature: Trained | None
    target_NP: Any
    target_actor_NP: Any
    total: dict[str, Any]
    updates: int = 0

    def arrays(self, o: Any) -> dict[str, npt.NDArray[Any]]:
        """Return the whole state as named arrays."""
        groups = {"actor": self.actor, "critics": self.critics, "temperature": self.temperature}
        found = {
            f"{name}.{key}": array
            for name, group in groups.items()
            if group is not None
            for key, array in group.arrays(o).items()
        }
        found |= {
            "target": o.host(self.target_NP).copy(),
            "target_actor": o.host(self.target_actor_NP).copy(),
        }
        found |= {f"total.{name}": o.host(array).copy() for name, array in self.total.items()}
        return found | {"updates": np.array([self.updates], np.int64)}

    def restore(self, o: Any, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore what :meth:`arrays` returned.

        Raises:
            ValueError, KeyError: an array is missing or of another shape.
        """
        for name, group in (
            ("actor", self.actor),
            ("critics", self.critics),
            ("temperature", self.temperature),
        ):
            if group is not None:
                inner = {
                    key.partition(".")[2]: array
                    for key, array in arrays.items()
                    if key.startswith(f"{name}.")
                }
                group.restore(o, inner)
        for name, own in (("target", self.target_NP), ("target_actor", self.target_actor_NP)):
            own[...] = o.array(arrays[name])
        for name, own in self.total.items():
            own[...] = o.array(arrays[f"total.{name}"])
        self.updates = int(arrays["updates"][0])


def new_state(o: Any, settings: Settings, rng: np.random.Generator) -> AgentState:
    """Return an agent that has learned nothing."""
    config, methods = settings.config, settings.methods
    kind = "orthogonal" if config.algorithm == "sac" else "fan_in"
    scale = 1.0 if methods.loss_scaling == "none" else methods.loss_scale
    actor = networks.initial(rng, settings.actor_sizes, kind)[None]
    critics = np.stack([networks.initial(rng, settings.critic_sizes, kind) for _ in range(config.twins)])
    sac = config.algorithm == "sac"
    temperature = np.log(np.array([[config.initial_temperature]])) if sac else None
    kahan = bool(methods.kahan_gradients)
    state = AgentState(
        Trained.new(o, actor, kahan and methods.kahan_actor, scale),
        Trained.new(o, critics, kahan, scale),
        None if temperature is None else Trained.new(o, temperature, kahan, scale),
        o.array(critics),
        o.array(actor[:0] if sac else actor),
        {},
    )
    if methods.kahan_momentum:
        for name, own in (("critics", state.target_NP), ("actor", state.target_actor_NP)):
            if len(own):
                total = own.copy()
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
) -> dict[str, Any]:
    """Step the critics towards the targets; the loss is the sum of their mean squared errors.

    ``passes`` are those of :func:`critic_pass`, where they are already done.
    """
    trained, sizes = state.critics, settings.critic_sizes
    factor = 2.0 * trained.scale / len(batch.reward_B)
    inner = both if settings.config.twins == 1 else in_turn

    def differentiate(index: int) -> tuple[bool, Any]:
        net, into = (networks.layers(flat[index], sizes) for flat in (trained.p_NP, trained.g_NP))
        activations = passes[index] if passes else critic_pass(o, state, settings, batch, index)
        g_BO = o.temporal_difference(activations[-1], target_B, factor)
        networks.backward(o, net, activations, g_BO, into, both=inner)
        return o.finish(trained.g_NP[index]), activations[-1]

    found = both(differentiate, settings.config.twins)
    if count(o, trained, all(finite for finite, _ in found), settings.methods):
        step_all(o, trained, settings.adam, settings.methods, both)
    return {"values": [value for _, value in found], "target": target_B}


def worth(o: Any, numbers: int, both: Both) -> Both:
    """Return ``both`` where a loop over so many parameters takes longer than a thread takes to wake, else ``in_turn``.

    Rounded to fewer bits than fp32 it always does. Each parameter is on its own there, so that this changes no result.
    """
    return both if o.form.low or numbers >= WORTH_WAKING else in_turn


def step_all(o: Any, trained: Trained, rule: AdamRule, methods: MethodsConfig, both: Both) -> None:
    """Step every network, or both halves of a single one; double the loss's scale where that is due."""
    networks_there, both = len(trained.p_NP), worth(o, trained.p_NP.size, both)
    if networks_there == 1:
        both(lambda half: step(o, trained, 0, rule, methods, (half, 2)), 2)
    else:
        both(lambda index: step(o, trained, index, rule, methods), networks_there)
    grow(o, trained, methods)


def action_gradient(
    o: Any, state: AgentState, settings: Settings, obs_BS: Any, action_BD: Any, factor: float, both: Both
) -> tuple[Any, list[Any]]:
    """Return (``factor`` times the gradient of min Q by the action (B, D), the critics' values).

    Of a single critic the batch is cut into halves, one for each thread.
    """
    sizes = settings.critic_sizes
    x_BI = o.joined(obs_BS, action_BD)
    if settings.config.twins == 1:
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
    rows = [("critics", index) for index in range(len(state.target_NP))]
    rows += [("actor", index) for index in range(len(state.target_actor_NP))]

    def move(number: int) -> None:
        name, index = rows[number]
        targets_NP, trained = (
            (state.target_NP, state.critics) if name == "critics" else (state.target_actor_NP, state.actor)
        )
        target, p = targets_NP[index], trained.p_NP[index]
        if settings.methods.kahan_momentum:
            total, c = state.total[name][index], state.total[f"{name}_c"][index]
            o.average_kahan(total, c, target, p, rate, scale)
        else:
            o.average(target, p, rate)

    moved = state.target_NP.size + state.target_actor_NP.size
    worth(o, moved // AVERAGE_COST, both)(move, len(rows))


def target_values(state: AgentState, settings: Settings, o: Any, x_BI: Any, both: Both) -> Sequence[Any]:
    """Return the target critics' values, (B, 1) each."""
    nets = [networks.layers(each, settings.critic_sizes) for each in state.target_NP]
    return both(lambda index: networks.forward(o, nets[index], x_BI)[-1], len(nets))
