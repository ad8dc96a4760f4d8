"""Frames on their way to another process: a ring in shared memory, one writer, one reader, no waiting.

The writer announces each frame by one byte in a pipe, the reader says in the ring how far it has read.
The end of the pipe is the end of the frames, whether the writer closed it or died.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator

import numpy as np

MOST_SLOTS, FEWEST_SLOTS = 120, 24
"""Frames in flight: two seconds of one agent, fewer where frames are large."""
RING_BYTES = 48_000_000
HEADER = 64
SEEN_SHAPE = (84, 84)


def frame_dtype(
    sessions: int = 1, words: int = 0, actions: int = 18, screen_shape: tuple[int, int] = (210, 160)
) -> np.dtype[np.void]:
    """Return the dtype of one frame with what the loop knew then.

    ``scene`` is the number of the :class:`spikestill.runtime.scene.Scene` that it belongs to, ``paused`` says that it
    comes again because time stands still, ``sessions`` has each agent's part. Times are in ms; ``action`` is -1 where
    it is no number of a list; ``answer`` is the number of the newest answer, -1 before the first of a game;
    ``late_ms`` is how late the frame came; ``joules`` is the estimated energy of all decisions so far, 0 where
    nothing is known of it; ``value`` is what the agent expects, NaN where it does not say; ``votes`` says that the
    scores are votes, counted from 0; ``seen`` is the newest picture that the agent saw; ``state`` is the index in
    ``STATES``.

    Args:
        sessions: agents side by side.
        words: words of packed spikes.
        actions: most scores of an agent.
        screen_shape: (H, W).
    """
    session = np.dtype(
        [
            ("frame", "<i8"),
            ("game", "<i8"),
            ("action", "<i8"),
            ("score", "<f8"),
            ("decisions", "<i8"),
            ("misses", "<i8"),
            ("agreed", "<i8"),
            ("compared", "<i8"),
            ("state", "<i8"),
            ("answer", "<i8"),
            ("latency_ms", "<f8"),
            ("late_ms", "<f8"),
            ("joules", "<f8"),
            ("votes", "?"),
            ("scores", "<f8", (actions,)),
            ("value", "<f8"),
            ("trace", "<u8", (words,)),
            ("seen", "u1", SEEN_SHAPE),
            ("screen", "u1", (*screen_shape, 3)),
        ],
        align=True,
    )
    return np.dtype([("scene", "<i8"), ("paused", "?"), ("sessions", session, (sessions,))], align=True)


STATES = ("playing", "starting", "stalled", "failed")


def slots(dtype: np.dtype[np.void]) -> int:
    """Return how many frames may be in flight."""
    return max(FEWEST_SLOTS, min(MOST_SLOTS, RING_BYTES // dtype.itemsize))


def shared_file(size: int) -> int:
    """Return the descriptor of a new file of ``size`` bytes: in memory where the system has such files."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("spikestill-frames")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


def ring_bytes(dtype: np.dtype[np.void]) -> int:
    """Return the size of a ring's file."""
    return HEADER + slots(dtype) * dtype.itemsize


class FrameRing:
    """One side of the ring.

    Args:
        memory: descriptor of a :func:`shared_file` of :func:`ring_bytes`.
        pipe: the writer's or the reader's end of a pipe; the writer's is not blocking.
        dtype: a :func:`frame_dtype`.
    """

    def __init__(self, memory: int, pipe: int, dtype: np.dtype[np.void]) -> None:
        self._pipe, self._size = pipe, slots(dtype)
        self._map = mmap.mmap(memory, ring_bytes(dtype))
        self._read = np.frombuffer(self._map, "<i8", count=1)
        self._slots = np.frombuffer(self._map, dtype, count=self._size, offset=HEADER)
        self._count = 0

    @property
    def written(self) -> int:
        """Return how many frames were handed over, the writer's side."""
        return self._count

    @property
    def read(self) -> int:
        """Return how many frames the reader is done with."""
        return int(self._read[0])

    def next_slot(self) -> np.void | None:
        """Return the slot to fill, None while the ring is full."""
        if self._count - self.read >= self._size:
            return None
        return self._slots[self._count % self._size]

    def publish(self) -> None:
        """Hand the slot that was filled to the reader.

        Raises:
            BrokenPipeError: the reader is gone.
        """
        # Fewer bytes than slots are ever under way, and a pipe holds more: this cannot block.
        os.write(self._pipe, b".")
        self._count += 1

    def frames(self) -> Iterator[np.void]:
        """Yield each frame, the reader's side; a frame is valid until the next is asked for."""
        while announced := os.read(self._pipe, self._size):
            for _ in announced:
                yield self._slots[self._count % self._size]
                self._count += 1
                self._read[0] = self._count
