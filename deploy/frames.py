"""Frames to show a student: drawn from recordings, or random pixels."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.common.errors import UserError
from spikestill.common.legal import TOGETHER
from spikestill.dataset.reader import BufferReader, check_different
from spikestill.student.integer_net import STACK_SHAPE

CHUNK = 64


class Frames:
    """Stacks from recordings, drawn without repetition; or random pixels.

    Every game that was recorded has the same share, or all its frames where it has fewer. The games take turns, so
    that the first frames are of each game too; those of one game come in the order of its recordings.

    Args:
        buffers: what ``record`` wrote; none: random pixels.
        count: how many; fewer where a game's recordings have fewer than its share.
        seed: of the choice.
        game: that the net plays, in snake case; several joined by ``+``.
        input_shape: (C, H, W) that the net reads.
        reader: the file that reads them, for the error.

    Attributes:
        source: ``buffer`` or ``random``.
        indices: int64 (count,), the frames' places, each in its own buffer.

    Raises:
        UserError: a buffer cannot be read, is of another game, is given twice, or has stacks of another shape.
    """

    def __init__(
        self,
        buffers: Sequence[Path],
        count: int,
        seed: int,
        game: str,
        input_shape: tuple[int, int, int],
        reader: Path,
    ) -> None:
        self.source = "buffer" if buffers else "random"
        self._seed, self._shape = seed, tuple(input_shape)
        self._games = game.split(TOGETHER)
        self._readers: list[BufferReader] = []
        self.indices: npt.NDArray[np.int64] = np.arange(count, dtype=np.int64)
        self._buffer: npt.NDArray[np.int64] = np.zeros(count, np.int64)
        if not buffers:
            return
        if self._shape != STACK_SHAPE:
            raise UserError(
                f"{reader} reads input of shape {self._shape}, a buffer has {STACK_SHAPE}",
                "give --buffer none, and random frames are used",
            )
        with contextlib.ExitStack() as opened:
            opened.callback(self.close)
            for path in buffers:
                self._readers.append(BufferReader(path, memory=0))
                self._check_game(self._readers[-1], game, reader)
            check_different(self._readers)
            opened.pop_all()
        self._buffer, self.indices = self._drawn(count, np.random.default_rng(seed))

    def _check_game(self, opened: BufferReader, game: str, reader: Path) -> None:
        if opened.game not in self._games:
            raise UserError(
                f"{opened.path}: frames of {opened.game}, {reader} plays {game}",
                f"give a recording of {' or '.join(self._games)}, or --buffer none for random frames",
            )

    def _drawn(
        self, count: int, rng: np.random.Generator
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return which buffer each frame is from, and its place there, int64 (N,) each."""
        by_game = [
            [index for index, opened in enumerate(self._readers) if opened.game == game]
            for game in self._games
        ]
        recorded = [own for own in by_game if own]
        found = []
        for turn, own in enumerate(recorded):
            ends = np.cumsum([len(self._readers[index]) for index in own])
            wanted = count // len(recorded) + (turn < count % len(recorded))
            drawn = np.sort(rng.choice(ends[-1], min(wanted, int(ends[-1])), replace=False))
            part = np.searchsorted(ends, drawn, side="right")
            turns = (np.arange(len(drawn)) + 0.5) / max(1, len(drawn))
            found.append((turns, np.array(own)[part], drawn - np.concatenate([[0], ends[:-1]])[part]))
        turns, buffer, place = (np.concatenate(each) for each in zip(*found, strict=True))
        order = np.argsort(turns, kind="stable")
        return buffer[order].astype(np.int64), place[order].astype(np.int64)

    def __len__(self) -> int:
        return len(self.indices)

    def games(self, count: int | None = None) -> list[dict[str, Any]]:
        """Return how many of the first ``count`` frames, None: of all, are of each ``game`` of the net, as ``frames``.

        Of random pixels there is nothing to say.
        """
        if self.source == "random":
            return []
        shown = [self._readers[index].game for index in self._buffer[:count].tolist()]
        return [{"game": game, "frames": shown.count(game)} for game in self._games]

    def origin(self, frame: int) -> tuple[str, int]:
        """Return the buffer of a recorded frame, and its place there."""
        return str(self._readers[self._buffer[frame]].path), int(self.indices[frame])

    def stacks(self, begin: int, end: int) -> npt.NDArray[np.uint8]:
        """Return frames ``begin`` to ``end``, uint8 (B, C, H, W)."""
        if self.source == "random":
            return np.stack(
                [
                    np.random.default_rng([self._seed, index]).integers(0, 256, self._shape, np.uint8)
                    for index in self.indices[begin:end].tolist()
                ]
            )
        buffer, place = self._buffer[begin:end], self.indices[begin:end]
        found = np.empty((len(place), *self._shape), np.uint8)
        for index, opened in enumerate(self._readers):
            rows = np.flatnonzero(buffer == index)
            if len(rows):
                found[rows] = opened.stacks(place[rows])
        return found

    def chunks(self) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield all frames in their order, at most CHUNK at a time: uint8 (B, C, H, W)."""
        for begin in range(0, len(self), CHUNK):
            yield self.stacks(begin, min(begin + CHUNK, len(self)))

    def __iter__(self) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield all frames in their order, one by one: uint8 (C, H, W)."""
        for stacks_BCHW in self.chunks():
            yield from stacks_BCHW

    def close(self) -> None:
        """Close the buffers."""
        for opened in self._readers:
            opened.close()
