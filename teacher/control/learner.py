"""What trains: it acts, updates and is saved whole, in whatever arithmetic.

Axis suffixes: N environments, B batch, S observation, D action numbers.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from spikestill.common.environment import EnvironmentSpec
from spikestill.common.errors import UserError
from spikestill.common.precision.names import FIXED
from spikestill.common.precision.rounding import number_format
from spikestill.common.processor import compute_device
from spikestill.common.provenance import Provenance
from spikestill.configs.control import ControlConfig
from spikestill.teacher.control import ddpg, networks, sac, sac_pixels
from spikestill.teacher.control.actor_critic import (
    AgentState,
    Batch,
    Noise,
    Settings,
    new_state,
)
from spikestill.teacher.control.agent_file import HEAD_PARTS, save_agent
from spikestill.teacher.control.encoder import Head, effective, flat_features, project
from spikestill.teacher.control.lanes import Both, in_turn
from spikestill.teacher.control.operations import STEP, HostOperations
from spikestill.teacher.control.optimiser import Trained
from spikestill.teacher.control.program import Program, can_be_recorded

Arrays = Mapping[str, npt.NDArray[Any]]
UPDATES = {"sac": sac.update, "ddpg": ddpg.update}
"""From states."""
OVERFLOWS = 100
"""Updates without a step, in a row or beyond the times that the scale doubled, after which a training is given up: the
scale has fallen by 2^100, and is not why they overflow."""
WIDER = "train in another --run_dir with a format that reaches further, such as --precision bf16 or fp32"


class DivergedError(UserError):
    """Weights that are not finite, or gradients that overflow in every update.

    Attributes:
        seeds: every seed that diverged by the same step, to what happened; {} until that is known.
    """

    seeds: Mapping[int, str] = {}


class Learner(Protocol):
    """An agent in training; actions are in -1..1."""

    def act(
        self, obs_NS: npt.NDArray[np.float32], rng: np.random.Generator | None
    ) -> npt.NDArray[np.float32]:
        """Return actions (N, D): explored with random numbers, the policy's mean without."""
        ...

    def update(self, batch: Batch, rng: np.random.Generator) -> dict[str, float]:
        """Do one update; return what the learning curve shows.

        Raises:
            DivergedError: nothing can be learned any more.
        """
        ...

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the whole state."""
        ...

    def restore(self, arrays: Arrays) -> None:
        """Restore what :meth:`arrays` returned."""
        ...

    def save(self, path: Path, spec: EnvironmentSpec, provenance: Provenance) -> None:
        """Write the file that plays in ``spec``."""
        ...


class FloatLearner:
    """SAC or DDPG in a floating-point format, on the host or on a GPU.

    Args:
        config: the options.
        observation, action: sizes S, D; from pixels S is not read.
        seed: of the weights.
        both: how work on two critics is done.
    """

    def __init__(
        self, config: ControlConfig, observation: int, action: int, seed: int, both: Both = in_turn
    ) -> None:
        self.config, self.both = config, both
        self.form = number_format(config.precision)
        self.o = operations_of(config)
        self.settings = Settings.of(config, observation, action)
        self.state = new_state(self.o, self.settings, np.random.default_rng(seed))
        self._fragile = self.form.low and self.settings.methods.loss_scaling == "none"
        self._recorded = can_be_recorded(self.o, self.settings)
        self._programs: dict[tuple[Any, ...], Program] = {}

    def act(
        self, obs_NS: npt.NDArray[np.float32], rng: np.random.Generator | None
    ) -> npt.NDArray[np.float32]:
        """See :class:`Learner`.

        Raises:
            DivergedError: an action is not finite.
        """
        noise_ND = None if rng is None else rng.standard_normal((len(obs_NS), self.settings.action))
        action_ND = mean_or_sample(self.o, self.state, self.settings, obs_NS, noise_ND)
        if np.isfinite(action_ND).all():
            return action_ND
        watching = operations_of(self.config)
        watching.watch = []
        mean_or_sample(watching, self.state, self.settings, obs_NS, noise_ND)
        first = watching.watch[0] if watching.watch else "none of its operations"
        raise DivergedError(
            f"update {self.state.updates}: the actor's actions in {self.form.name} are not finite, first in: {first}"
            f"{self._methods_off()}",
            self._remedy(),
        )

    def update(self, batch: Batch, rng: np.random.Generator) -> dict[str, float]:
        """See :class:`Learner`."""
        noise = drawn_noise(self.settings, len(batch.reward_B), rng)
        before = copy.deepcopy(self.state) if self._fragile else self.state
        with np.errstate(all="ignore"):
            found = self._updated(batch, noise)
        self._check(before, batch, noise)
        values, target = self.o.host(found["values"][0]).reshape(-1), self.o.host(found["target"])
        # The ufunc's own sums: np.mean takes 5 us for each of them.
        report = {
            "q": float(np.add.reduce(values)) / len(values),
            "target": float(np.add.reduce(target)) / len(target),
        }
        difference = values.astype(np.float64) - target
        report["loss"] = float(difference @ difference) / len(target)
        report |= {name: float(found[name]) for name in ("entropy", "alpha") if name in found}
        return report

    def _updated(self, batch: Batch, noise: Any) -> dict[str, Any]:
        """Do an update, where it can be by what was written down of one like it; return what it found."""
        if not self._recorded:
            return update_of(self.settings)(self.o, self.state, self.settings, batch, noise, self.both)
        periods = (self.config.actor_period, self.config.target_period)
        kind = (len(batch.reward_B), *(self.state.updates % period == 0 for period in periods))
        if kind not in self._programs:
            self._programs[kind] = Program(self.o, self.state, self.settings, batch, noise)
        return self._programs[kind](batch, noise, self.both)

    def _check(self, before: AgentState, batch: Batch, noise: Any) -> None:
        groups = {name: group for name, group in self.state.groups.items() if name != "temperature"}
        least = self.settings.methods.loss_scale * 2.0**-OVERFLOWS
        stuck = [
            name for name, group in groups.items() if group.in_a_row >= OVERFLOWS or group.scale <= least
        ]
        # In fp32 and fp64 the next actions show them, and to look here would cost every update.
        broken = [name for name, group in groups.items() if self.form.low and not self.o.finite(group.p_NP)]
        if not stuck and not broken:
            return
        # Where steps are left out the state is still the one that overflows; else a finite gradient broke in the step.
        # Such an update is counted all the same, and which parts of it are done depends on its number.
        done = before if self._fragile else dataclasses.replace(before, updates=before.updates - 1)
        operation = first_overflow(done, self.settings, batch, noise) if stuck or self._fragile else STEP
        happened = _stuck(stuck[0], groups[stuck[0]]) if stuck else f"weights of {broken[0]} are not finite"
        raise DivergedError(
            f"update {self.state.updates}: {self.form.name} does not hold this training: {happened}, first in: "
            f"{operation}{self._methods_off()}",
            WIDER if stuck and not self._off() else self._remedy(),
        )

    def _off(self) -> list[str]:
        return self.settings.methods.off(self.config.from_pixels)

    def _methods_off(self) -> str:
        """Return the methods that are off as the end of a sentence, '' in fp32 and fp64, which want none."""
        return f"; methods that are off: {', '.join(self._off()) or 'none'}" if self.form.low else ""

    def _remedy(self) -> str:
        """Return what to begin anew with: a checkpoint goes on with its own options alone."""
        names = [name.replace(" ", "=") for name in self._off()]
        if not self.form.low:
            return "train in another --run_dir with a lower --learning_rate"
        if names:
            flags = " ".join(f"--methods.{n}" if "=" in n else f"--methods.{n}=true" for n in names)
            return (
                f"train in another --run_dir with what is off turned on ({flags}), or with --precision fp32"
            )
        return "train in another --run_dir with a lower --learning_rate, or with --precision fp32"

    def values(self, obs_BS: npt.NDArray[Any], action_BD: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Return the smaller critic's values (B,) of observations and actions in -1..1."""
        o, state, settings = self.o, self.state, self.settings
        with np.errstate(all="ignore"):
            seen = (
                o.array(obs_BS) if settings.encoder is None else critic_features(o, state, settings, obs_BS)
            )
            x_BI = o.joined(seen, o.array(action_BD))
            nets = [networks.layers(each, settings.critic_sizes) for each in state.critics.p_NP]
            found = [o.host(networks.forward(o, net, x_BI)[-1])[:, 0] for net in nets]
        return np.min(np.asarray(found, np.float32), axis=0)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """See :class:`Learner`."""
        return self.state.arrays(self.o)

    def restore(self, arrays: Arrays) -> None:
        """See :class:`Learner`."""
        self.state.restore(self.o, arrays)

    def save(self, path: Path, spec: EnvironmentSpec, provenance: Provenance) -> None:
        """See :class:`Learner`."""
        config = self.config
        save_agent(
            path,
            self.weights(),
            spec,
            algorithm=config.algorithm,
            precision=config.precision,
            log_std=(config.log_std_low, config.log_std_high),
            std_added=config.std_added,
            encoder=self.settings.encoder,
            provenance=provenance,
        )

    def weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return what plays: ``actor.I.weight``, ``actor.I.bias`` and the critics' ``critic.N.I.weight``, fp32."""
        state, settings = self.state, self.settings
        nets = {"actor": settings.actor_net(state.actor.p_NP[0])}
        for index, each in enumerate(state.critics.p_NP):
            nets[f"critic.{index}"] = networks.layers(each, settings.critic_sizes)
        o, heads = self.o, {}
        if settings.encoder is not None:
            rule, encoder = sac_pixels.encoder_of(state, settings)
            nets["encoder"], heads["critic.head"] = rule.whole(encoder.p_NP[0])
            heads["actor.head"] = rule.head(state.actor.p_NP[0])
        found = {}
        for name, layers in nets.items():
            for index, layer in enumerate(layers):
                found[f"{name}.{index}.weight"] = np.array(o.host(layer.weight_IO), np.float32)
                found[f"{name}.{index}.bias"] = np.array(o.host(layer.bias_O), np.float32)
        for name, head in heads.items():
            parts = (*head.linear, head.gain_Z, head.offset_Z)
            for part, values in zip(HEAD_PARTS, parts, strict=True):
                found[f"{name}.{part}"] = np.array(o.host(values), np.float32)
        return found


def operations_of(config: ControlConfig) -> Any:
    """Return what a training computes with: the host's operations, or with ``--device cuda`` a GPU's.

    Raises:
        UserError: there is no such device.
    """
    form = number_format(config.precision)
    if config.device == "cpu":
        return HostOperations(form)
    from spikestill.teacher.control.device_operations import DeviceOperations

    return DeviceOperations(form, compute_device(config.device))


def _stuck(name: str, group: Trained) -> str:
    """Return how often a group's gradients overflowed that no loss scale helps."""
    if group.in_a_row >= OVERFLOWS:
        return f"the {name} overflow in every update"
    updates = group.skipped + group.steps
    return f"the {name} overflowed in {group.skipped} of {updates} updates, whatever the loss's scale"


def drawn_noise(settings: Settings, rows: int, rng: np.random.Generator) -> Any:
    """Return the random numbers of an update with ``rows`` transitions."""
    if settings.encoder is not None:
        return sac_pixels.PixelNoise.drawn(rng, rows, settings.action, settings.config.crop)
    shape = (rows, settings.action)
    return Noise(rng.standard_normal(shape), rng.standard_normal(shape))


def update_of(settings: Settings) -> Callable[..., dict[str, Any]]:
    """Return the function that does an update."""
    return UPDATES[settings.config.algorithm] if settings.encoder is None else sac_pixels.update


def mean_or_sample(
    o: Any, state: AgentState, settings: Settings, obs_NS: npt.ArrayLike, noise_ND: npt.NDArray[Any] | None
) -> npt.NDArray[np.float32]:
    """Return actions (N, D) in -1..1: the mean, tanh μ, without noise; else the policy's sample, or DDPG's action plus
    ``exploration`` times the noise."""
    net = settings.actor_net(state.actor.p_NP[0])
    with np.errstate(all="ignore"):
        seen = o.array(obs_NS) if settings.encoder is None else actor_features(o, state, settings, obs_NS)
        head = networks.forward(o, net, seen)[-1]
        if settings.config.algorithm == "sac" and noise_ND is not None:
            return np.asarray(
                o.host(o.sample(head, o.array(noise_ND), settings.policy).action_BD), np.float32
            )
        mean = np.ascontiguousarray(o.host(head)[:, : settings.action])
        action = np.asarray(o.host(o.tanh(o.array(mean))), np.float32)
    if noise_ND is not None:
        action = np.clip(action + settings.config.exploration * noise_ND, -1.0, 1.0).astype(np.float32)
    return action


def actor_features(o: Any, state: AgentState, settings: Settings, frames_N: Any) -> Any:
    """Return what the actor sees of stacks uint8 (N, frame, colour, row, column), (N, Z)."""
    rule, _ = sac_pixels.encoder_of(state, settings)
    return _features(o, state, settings, frames_N, rule.head(state.actor.p_NP[0]))


def critic_features(o: Any, state: AgentState, settings: Settings, frames_N: Any) -> Any:
    """Return what the critics see of stacks, (N, Z)."""
    rule, trained = sac_pixels.encoder_of(state, settings)
    return _features(o, state, settings, frames_N, rule.whole(trained.p_NP[0])[1])


def _features(o: Any, state: AgentState, settings: Settings, frames_N: Any, head: Head) -> Any:
    rule, trained = sac_pixels.encoder_of(state, settings)
    x_NX = flat_features(o, rule, rule.convolutions(trained.p_NP[0]), o.images(frames_N))
    return project(o, rule, effective(o, rule, head), x_NX).features_BZ


def first_overflow(state: AgentState, settings: Settings, batch: Batch, noise: Any) -> str:
    """Return the first operation of an update whose result is not finite; the state is left as it is."""
    o = operations_of(settings.config)
    o.watch = []
    with np.errstate(all="ignore"):
        update_of(settings)(o, copy.deepcopy(state), settings, batch, noise, in_turn)
    return o.watch[0] if o.watch else "none of its operations"


def make_learner(
    config: ControlConfig, observation: int, action: int, seed: int, both: Both = in_turn
) -> Learner:
    """Return an untrained agent of the algorithm and the arithmetic that ``config`` asks for."""
    if config.precision in FIXED:
        from spikestill.teacher.control.fixed_learner import FixedLearner

        return FixedLearner(config, observation, action, seed)
    return FloatLearner(config, observation, action, seed, both)
