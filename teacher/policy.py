"""A trained teacher, ready to give Q-values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from spikestill.common.atari import STACK
from spikestill.common.errors import UserError
from spikestill.common.policy import Decision, Observations
from spikestill.common.provenance import Provenance
from spikestill.teacher.atari import q_network
from spikestill.teacher.atari.q_network import Weights
from spikestill.teacher.checkpoint import nature_network, read_teacher_file
from spikestill.teacher.program import LANGUAGES, Program, program_of, start

Precision = Literal["fp32", "fp16", "bf16"]
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Greedy:
    """What gives Q-values, and plays the best of them."""

    def q_values(self, obs_BCHW: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Return Q-values (B, A) float32 of uint8 stacks (B, 4, 84, 84), oldest frame first."""
        raise NotImplementedError

    def act(self, observations: Observations) -> Decision:
        """Take the action of the highest Q-value; see :class:`spikestill.common.policy.Policy`."""
        return Decision.best(self.q_values(observations["stack"]))


class TeacherPolicy(Greedy):
    """The Q-network with fixed weights in one number format.

    Attributes:
        game: the game in snake case.
        actions: A.
        precision: format of all layers but the last, which is fp32.
        provenance: where the weights come from.
    """

    def __init__(
        self, weights: Weights, game: str, actions: int, provenance: Provenance, precision: Precision
    ) -> None:
        self.game, self.actions, self.provenance, self.precision = game, actions, provenance, precision
        self._weights = q_network.working_copy(weights, DTYPES[precision], requires_grad=False)

    def q_values(self, obs_BCHW: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Return Q-values (B, A) float32 of uint8 stacks (B, 4, 84, 84), oldest frame first.

        Raises:
            ValueError: wrong shape or dtype.
        """
        STACK.check(obs_BCHW)
        with torch.inference_mode():
            stacks = torch.from_numpy(np.ascontiguousarray(obs_BCHW)).contiguous(
                memory_format=torch.channels_last
            )
            return q_network.q_values(self._weights, stacks).numpy()


class ProgramPolicy(Greedy):
    """An imported network, run by ONNX Runtime or TorchScript; attributes as of :class:`TeacherPolicy`."""

    precision: Precision = "fp32"

    def __init__(self, program: Program, name: str, game: str, actions: int, provenance: Provenance) -> None:
        self.game, self.actions, self.provenance = game, actions, provenance
        self._network = start(program, name)

    def q_values(self, obs_BCHW: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Return the network's scores (B, A) float32 of uint8 stacks (B, 4, 84, 84), oldest frame first.

        Raises:
            ValueError: wrong shape or dtype.
        """
        STACK.check(obs_BCHW)
        return self._network(obs_BCHW)


Teacher = TeacherPolicy | ProgramPolicy


class EnsemblePolicy(Greedy):
    """Several teachers of one game: q = (q_1 + ... + q_n) / n; attributes as of :class:`TeacherPolicy`.

    Args:
        teachers: at least one; their order decides the sum's rounding.
    """

    precision: Precision = "fp32"

    def __init__(self, teachers: Sequence[Teacher]) -> None:
        self._teachers = tuple(teachers)
        first = self._teachers[0]
        self.game, self.actions, self.provenance = first.game, first.actions, first.provenance

    def q_values(self, obs_BCHW: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Return the mean Q-values (B, A) float32 of uint8 stacks (B, 4, 84, 84), oldest frame first.

        Raises:
            ValueError: wrong shape or dtype.
        """
        total = sum(
            (teacher.q_values(obs_BCHW) for teacher in self._teachers[1:]),
            self._teachers[0].q_values(obs_BCHW),
        )
        return total / np.float32(len(self._teachers))


def load_teacher(path: Path | str, precision: Precision = "fp32") -> Teacher:
    """Return the teacher in ``path``.

    Raises:
        UserError: the file cannot be read or holds impossible weights.
    """
    if precision not in DTYPES:
        raise UserError(f"unknown precision {precision!r}; known: {', '.join(DTYPES)}", "give fp32 or fp16")
    path = Path(path)
    file = read_teacher_file(path)
    if file.architecture in LANGUAGES:
        if precision != "fp32":
            raise UserError(
                f"{path}: an imported program runs in its own formats, not in {precision}", "take the teacher"
            )
        return ProgramPolicy(program_of(path, file), str(path), file.game, file.actions, file.provenance)
    weights, game, actions, provenance = nature_network(path, file)
    return TeacherPolicy(weights, game, actions, provenance, precision)
