"""Where a training's frames and Q-values come from: a buffer that was recorded, or a teacher that plays meanwhile.

Axis suffixes: B batch, C the four frames of a stack, H height, W width, A actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from spikestill.dataset.reader import BufferReader

VALIDATION_FRAMES = 1_024


class Drawn(NamedTuple):
    """Frames with the teacher's Q-values.

    Attributes:
        stacks: uint8 (B, 4, 84, 84), oldest frame first.
        q_values: float32 (B, A).
    """

    stacks: npt.NDArray[np.uint8]
    q_values: npt.NDArray[np.float32]


class Source(Protocol):
    """What a training draws from."""

    @property
    def game(self) -> str:
        """The game in snake case."""

    @property
    def actions(self) -> int:
        """A."""

    @property
    def held_out(self) -> int:
        """Steps that are validated on and never drawn."""

    def advance(self) -> None:
        """Make ready what the next batch may be drawn from."""

    def draw(self, rng: np.random.Generator, size: int) -> Drawn:
        """Return ``size`` steps drawn uniformly, with replacement; ``rng`` alone decides which."""

    def validation(self) -> Drawn:
        """Return up to ``VALIDATION_FRAMES`` steps: of those held out, or else of the training's own."""

    def state(self) -> Mapping[str, Tensor]:
        """Return all that changes, as named tensors, for a checkpoint."""

    def set_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state` returned."""


class BufferSource:
    """A recorded buffer.

    Args:
        reader: the buffer.
        validation: share of its steps, the last ones, that is held out.
    """

    def __init__(self, reader: BufferReader, validation: float) -> None:
        self._reader = reader
        self.held_out = int(len(reader) * validation)
        self.game, self.actions = reader.game, reader.actions

    def advance(self) -> None:
        """Do nothing: all is there."""

    def draw(self, rng: np.random.Generator, size: int) -> Drawn:
        """See :meth:`Source.draw`."""
        stacks, q, _ = self._reader.sample(rng, size, stop=len(self._reader) - self.held_out)
        return Drawn(stacks, q)

    def validation(self) -> Drawn:
        """See :meth:`Source.validation`."""
        steps = len(self._reader)
        first = steps - self.held_out if self.held_out else 0
        indices = np.unique(np.linspace(first, steps - 1, VALIDATION_FRAMES).astype(np.int64))
        return Drawn(self._reader.stacks(indices), self._reader.q_values(indices))

    def state(self) -> Mapping[str, Tensor]:
        """Return nothing: a buffer does not change."""
        return {}

    def set_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Do nothing."""
