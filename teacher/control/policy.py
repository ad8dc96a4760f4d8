"""A trained control agent, ready to play: the mean action, in the number format that it was trained in.

Axis suffixes: B batch, S observation, D action numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from spikestill.common.environment import Box, EnvironmentSpec, Observations
from spikestill.common.limits import regular_file
from spikestill.common.policy import Decision, Policy
from spikestill.common.precision.rounding import number_format
from spikestill.common.tensor_file import check_header
from spikestill.teacher.control import fixed_file, networks
from spikestill.teacher.control.agent_file import AgentFile, read_agent
from spikestill.teacher.control.encoder import EffectiveHead, Head, effective, flat_features, project
from spikestill.teacher.control.fixed_learner import load_fixed_policy
from spikestill.teacher.control.operations import HostOperations, Layer
from spikestill.teacher.control.play import joined, within

Array = npt.NDArray[np.float32]


class ControlPolicy:
    """Takes tanh μ, stretched to the action's bounds; see :class:`spikestill.common.policy.Policy`.

    A row's decision depends on that row alone: products of one row and of many may be summed in another order, so
    each row is multiplied by itself.

    Args:
        file: what it plays.
        spec: where.
    """

    def __init__(self, file: AgentFile, spec: EnvironmentSpec) -> None:
        assert isinstance(spec.actions, Box)
        self.file, self.spec, self.actions = file, spec, spec.actions
        self._o = HostOperations(number_format(file.precision))
        self._actor = self._layers(file.actor)
        self._critics = [self._layers(each) for each in file.critics]
        encoder = file.encoder
        self._convolutions = [] if encoder is None else self._layers(encoder.convolutions)
        self._heads: dict[str, EffectiveHead] = {}
        if encoder is not None:
            parts = {"actor": encoder.actor, "critic": encoder.critic}
            self._heads = {
                name: effective(self._o, encoder.rule, self._head(each)) for name, each in parts.items()
            }

    def _layers(self, layers: Sequence[tuple[Array, Array]]) -> list[Layer]:
        return [Layer(self._o.array(weight), self._o.array(bias)) for weight, bias in layers]

    def _head(self, parts: Sequence[Array]) -> Head:
        weight, bias, gain, offset = (self._o.array(each) for each in parts)
        return Head(Layer(weight, bias), gain, offset)

    def _seen(self, observations: Observations) -> dict[str, Array]:
        """Return what the actor and the critics read, (B, S) each, each row by itself."""
        given, encoder = joined(observations), self.file.encoder
        if encoder is None:
            state_BS = self._o.array(given)
            return {"actor": state_BS, "critic": state_BS}
        found: dict[str, list[Array]] = {name: [] for name in self._heads}
        for image in self._o.images(given):
            x = flat_features(self._o, encoder.rule, self._convolutions, image[None])
            for name, head in self._heads.items():
                found[name].append(project(self._o, encoder.rule, head, x).features_BZ)
        return {name: np.concatenate(rows) for name, rows in found.items()}

    def _values(self, seen_BS: Array, unit_BD: Array) -> Array:
        """Return the smaller of the critics' values, (B,)."""
        x = self._o.joined(seen_BS, self._o.array(unit_BD))
        found = [
            [networks.forward(self._o, critic, row[None])[-1][0, 0] for row in x] for critic in self._critics
        ]
        return np.min(np.asarray(found, np.float32), axis=0)

    def act(self, observations: Observations) -> Decision:
        """Return the mean actions.

        The scores are what was found of them: the action itself, for SAC σ of each number, and last the value
        min Q(s, a) where the file has critics: (B, 2 D + 1) for SAC, (B, D + 1) for DDPG.
        """
        self.spec.check(observations)
        seen, size = self._seen(observations), self.actions.shape[0]
        rows = [networks.forward(self._o, self._actor, row[None])[-1][0] for row in seen["actor"]]
        heads = np.asarray(np.stack(rows), np.float32)
        unit_BD = np.asarray(self._o.tanh(self._o.array(heads[:, :size])), np.float32)
        action_BD = within(self.actions, unit_BD)
        scores: list[npt.NDArray[np.floating]] = [action_BD]
        if self.file.algorithm == "sac":
            low, high = self.file.log_std
            log_std = low + 0.5 * (high - low) * (np.tanh(heads[:, size:]) + 1.0)
            scores.append(np.exp(log_std) + self.file.std_added)
        value_B = self._values(seen["critic"], unit_BD) if self._critics else None
        if value_B is not None:
            scores.append(value_B[:, None])
        return Decision(action_BD, np.concatenate(scores, axis=1).astype(np.float32), value=value_B)


def load_policy(path: Path, environment: EnvironmentSpec) -> Policy:
    """Return the agent of the file at ``path``, for ``environment``; one in fixed point plays in integers.

    Raises:
        UserError: the file cannot be read, or is for another task.
    """
    if schema_in(Path(path)) == fixed_file.SCHEMA:
        return load_fixed_policy(Path(path), environment)
    file = read_agent(Path(path))
    file.check(Path(path), environment)
    return ControlPolicy(file, environment)


def schema_in(path: Path) -> str:
    """Return the schema that a safetensors file names, '' where it is none: its reader says what is wrong with it."""
    try:
        regular_file(path, "file", "give an agent")
        check_header(path)
        with safe_open(path, framework="np") as file:
            return str((file.metadata() or {}).get("schema", ""))
    except (SafetensorError, OSError, ValueError):
        return ""
