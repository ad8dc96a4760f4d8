"""Random and ordered access to a buffer's stacks, Q-values and actions.

Steps are numbered 0 .. len - 1 over the valid ones (whose action was played), in the order of time and,
within a vector step, of stream. So the first steps are the oldest play of all streams, the last the newest.

Axis suffixes: B batch, C the four frames of a stack (oldest first), H height, W width, A actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spikestill.common.atari import FRAMES, PIXELS, SIDE, STACK
from spikestill.common.errors import UserError
from spikestill.common.memory import free_memory
from spikestill.common.processor import cores
from spikestill.common.stacking import frames_at_hand
from spikestill.dataset.format import CHUNK_ROWS, BufferFile, Header

# Share of the machine's free memory that frames may take where no limit is given.
MEMORY_SHARE = 0.6
GO_ON = "go on with `spikestill record ... --resume`"


class Batch(NamedTuple):
    """Steps of the teacher's play.

    Attributes:
        stacks: uint8 (B, 4, 84, 84), oldest frame first, as the teacher saw them.
        q_values: float32 (B, A), the teacher's.
        actions: int64 (B,), what was played.
    """

    stacks: npt.NDArray[np.uint8]
    q_values: npt.NDArray[np.float32]
    actions: npt.NDArray[np.int64]


def check_different(readers: Sequence[BufferReader]) -> None:
    """Raise UserError where two of the buffers are one file."""
    for index, reader in enumerate(readers):
        if any(reader.path.samefile(other.path) for other in readers[:index]):
            raise UserError(
                f"also names {reader.path} a second time: each of its frames would count twice",
                "leave it out of --also",
            )


class BufferReader:
    """A buffer for training and verification.

    The oldest frames, as many as ``memory`` holds, are unpacked into memory at once; the others are
    unpacked from the file whenever they are asked for. What comes out does not depend on ``memory``.

    Attributes:
        header: game, action names, streams, provenance.
        path: where it lies.
        resident: how many vector steps lie in memory, from the first.

    Args:
        path: the buffer.
        memory: bytes of unpacked frames to hold, >= 0 (7,056 a step); None: 60 % of what is free.

    Raises:
        UserError: see :class:`BufferFile`; no step is valid; ``memory`` is negative.
    """

    def __init__(self, path: Path | str, memory: int | None = None) -> None:
        if memory is not None and memory < 0:
            raise UserError(
                f"memory is {memory} bytes, at least 0 wanted", "give 0 to read from the file alone"
            )
        self.path = Path(path)
        self._file = BufferFile(self.path)
        self.header: Header = self._file.header
        self._steps, streams = self._file.steps, self.header.streams
        self._valid = np.flatnonzero(self._steps.valid.reshape(-1))
        if not len(self._valid):
            self._file.close()
            if not self._file.rows and (told := self.interruption()):
                raise UserError(told, GO_ON)
            raise UserError(f"{path}: holds no steps", "record some first, with `spikestill record`")
        self._have = frames_at_hand(self._steps.start, FRAMES)
        self._pool = ThreadPoolExecutor(cores(), "unpacking")
        if self.header.version > 1:
            # Observations other than packed frames came with the other columns.
            self.resident = self._file.rows
            return
        limit = int(MEMORY_SHARE * free_memory()) if memory is None else memory
        chunks = min(-(-self._file.rows // CHUNK_ROWS), limit // (streams * CHUNK_ROWS * PIXELS))
        # Stream after stream, so that the four frames of a stack lie side by side.
        self._frames = np.empty((streams, chunks * CHUNK_ROWS, PIXELS), np.uint8)
        self.resident = min(chunks * CHUNK_ROWS, self._file.rows)
        try:
            list(self._pool.map(self._load, range(chunks)))
        except BaseException:
            self.close()
            raise

    def _load(self, chunk: int) -> None:
        first = chunk * CHUNK_ROWS
        for stream in range(self.header.streams):
            self._frames[stream, first : first + CHUNK_ROWS] = self._file.decode(chunk, stream)

    @property
    def game(self) -> str:
        """The game in snake case."""
        return self.header.game

    @property
    def actions(self) -> int:
        """A, the number of actions."""
        return self.header.actions

    def __len__(self) -> int:
        return len(self._valid)

    def interruption(self) -> str:
        """Return how many frames the recording lacks of those that it began for; '' where it is whole or tells none."""
        asked, recorded = self.header.provenance.config.get("frames"), self._file.rows * self.header.streams
        if type(asked) is not int or recorded >= asked:
            return ""
        return f"{self.path}: {recorded:,} of the {asked:,} frames asked for: interrupted"

    def locate(self, indices: npt.ArrayLike) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the vector step and the stream of each step, int64 (B,).

        Raises:
            IndexError: an index is outside 0 .. len - 1.
        """
        index = np.asarray(indices, np.int64)
        if index.size and (index.min() < 0 or index.max() >= len(self)):
            raise IndexError(
                f"step {index.min()}..{index.max()} asked for, the buffer has 0..{len(self) - 1}"
            )
        time, stream = np.divmod(self._valid[index], self.header.streams)
        return time, stream

    def check_stacks(self) -> None:
        """Raise UserError where the buffer is of an environment that shows something else than stacks."""
        if self.header.version > 1:
            shown = ", ".join(f"{field.name} {field.shape}" for field in self.header.fields)
            raise UserError(
                f"{self.path}: the buffer is of {self.header.game}, which shows {shown}; stacks {STACK.shape} are "
                "wanted",
                "give a buffer of an Atari game",
            )

    def stacks(self, indices: npt.ArrayLike) -> npt.NDArray[np.uint8]:
        """Return the stacks that the teacher saw at these steps, uint8 (B, 4, 84, 84).

        Raises:
            UserError: see :meth:`check_stacks`.
        """
        self.check_stacks()
        time, stream = self.locate(indices)
        out = np.empty((len(time), FRAMES, PIXELS), np.uint8)
        far = np.flatnonzero(time >= self.resident)
        near = np.flatnonzero(time < self.resident)
        waiting = [
            self._pool.submit(self._unpack_stacks, time, stream, share, out)
            for share in np.array_split(far, min(len(far), cores()) or 1)
            if len(share)
        ]
        where = (time[near], stream[near])
        rows = (near, *where, self._have[where])
        for b, t, e, have in zip(*(row.tolist() for row in rows), strict=True):
            if have < FRAMES:
                out[b, : FRAMES - have] = 0
            out[b, FRAMES - have :] = self._frames[e, t + 1 - have : t + 1]
        for share in waiting:
            share.result()
        return out.reshape(-1, FRAMES, SIDE, SIDE)

    def _unpack_stacks(
        self,
        time: npt.NDArray[np.int64],
        stream: npt.NDArray[np.int64],
        share: npt.NDArray[np.int64],
        out: npt.NDArray[np.uint8],
    ) -> None:
        for b in share.tolist():
            t, e = int(time[b]), int(stream[b])
            have = int(self._have[t, e])
            chunk, row = divmod(t, CHUNK_ROWS)
            inside = min(have, row + 1)
            out[b, : FRAMES - have] = 0
            out[b, FRAMES - inside :] = self._file.decode(chunk, e, row + 1)[row + 1 - inside :]
            if inside < have:
                out[b, FRAMES - have : FRAMES - inside] = self._file.decode(chunk - 1, e)[inside - have :]

    def observations(self, indices: npt.ArrayLike) -> dict[str, npt.NDArray[Any]]:
        """Return what the teacher saw at these steps: field name to (B, *shape)."""
        if self.header.version == 1:
            return {STACK.name: self.stacks(indices)}
        time, stream = self.locate(indices)
        found = {}
        for field in self.header.fields:
            column = self._steps.observations[field.name]
            found[field.name] = column[time, stream]
            if field.stacked:
                found[field.name] = self._stacked(column, time, stream, field.shape[0])
        return found

    def _stacked(
        self,
        column: npt.NDArray[Any],
        time: npt.NDArray[np.int64],
        stream: npt.NDArray[np.int64],
        frames: int,
    ) -> npt.NDArray[Any]:
        have = frames_at_hand(self._steps.start, frames)[time, stream]
        stack = np.zeros((len(time), frames, *column.shape[2:]), column.dtype)
        for back in range(frames):
            there = have > back
            stack[there, frames - 1 - back] = column[time[there] - back, stream[there]]
        return stack

    def q_values(self, indices: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Return the teacher's Q-values at these steps, float32 (B, A)."""
        return self._steps.q_values[self.locate(indices)]

    def played(self, indices: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return the actions that were played at these steps, int64 (B,), or float32 (B, D) where continuous."""
        action = self._steps.action[self.locate(indices)]
        return action.astype(np.int64) if self.header.box is None else action

    def batch(self, indices: npt.ArrayLike) -> Batch:
        """Return these steps."""
        return Batch(self.stacks(indices), self.q_values(indices), self.played(indices))

    def sample(self, rng: np.random.Generator, size: int, start: int = 0, stop: int | None = None) -> Batch:
        """Return ``size`` steps drawn uniformly, with replacement, from ``start`` .. ``stop - 1``.

        Args:
            rng: source of randomness; nothing else decides what is drawn.
            size: B, >= 1.
            start: first step to draw from.
            stop: end of the steps to draw from; None: all.
        """
        return self.batch(rng.integers(start, len(self) if stop is None else stop, size))

    def close(self) -> None:
        """End the threads and close the file."""
        self._pool.shutdown()
        self._file.close()

    def __enter__(self) -> BufferReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
