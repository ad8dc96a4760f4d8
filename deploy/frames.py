"""Frames to show a student: drawn from a buffer, or random pixels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.common.errors import UserError
from spikestill.common.legal import TOGETHER
from spikestill.student.integer_net import STACK_SHAPE

CHUNK = 64


class Frames:
    """Stacks from a buffer, drawn without repetition, in its order; or random pixels.

    Args:
        buffer: what ``record`` wrote; None: random pixels.
        count: how many; fewer where the buffer has fewer.
        seed: of the choice.
        game: that the net plays, in snake case.
        input_shape: (C, H, W) that the net reads.
        reader: the file that reads them, for the error.

    Attributes:
        source: ``buffer`` or ``random``.
        indices: int64 (count,), the frames' places in the buffer.

    Raises:
        UserError: the buffer cannot be read, is of another game, or has stacks of another shape.
    """

    def __init__(
        self,
        buffer: Path | None,
        count: int,
        seed: int,
        game: str,
        input_shape: tuple[int, int, int],
        reader: Path,
    ) -> None:
        self._reader: Any = None
        self._seed, self._shape = seed, tuple(input_shape)
        self.indices: npt.NDArray[np.int64] = np.arange(count, dtype=np.int64)
        if buffer is None:
            self.source = "random"
            return
        if self._shape != STACK_SHAPE:
            raise UserError(
                f"{reader} reads input of shape {self._shape}, a buffer has {STACK_SHAPE}",
                "give --buffer none, and random frames are used",
            )
        from spikestill.dataset.reader import BufferReader

        self.source = "buffer"
        self._reader = BufferReader(buffer, memory=0)
        if self._reader.game not in game.split(TOGETHER):
            self._reader.close()
            raise UserError(
                f"{buffer}: frames of {self._reader.game}, {reader} plays {game}",
                f"give --buffer a recording of {game}, or none for random frames",
            )
        available = len(self._reader)
        rng = np.random.default_rng(seed)
        self.indices = np.sort(rng.choice(available, min(count, available), replace=False))

    def __len__(self) -> int:
        return len(self.indices)

    def stacks(self, begin: int, end: int) -> npt.NDArray[np.uint8]:
        """Return frames ``begin`` to ``end``, uint8 (B, C, H, W)."""
        if self._reader is None:
            return np.stack(
                [
                    np.random.default_rng([self._seed, index]).integers(0, 256, self._shape, np.uint8)
                    for index in self.indices[begin:end].tolist()
                ]
            )
        return np.asarray(self._reader.stacks(self.indices[begin:end]))

    def chunks(self) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield all frames in their order, at most CHUNK at a time: uint8 (B, C, H, W)."""
        for begin in range(0, len(self), CHUNK):
            yield self.stacks(begin, min(begin + CHUNK, len(self)))

    def __iter__(self) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield all frames in their order, one by one: uint8 (C, H, W)."""
        for stacks_BCHW in self.chunks():
            yield from stacks_BCHW

    def close(self) -> None:
        """Close the buffer."""
        if self._reader is not None:
            self._reader.close()
