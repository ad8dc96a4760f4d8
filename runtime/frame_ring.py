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

from spikestill.common.atari import MAX_ACTIONS, STACK

SLOTS = 120
"""Frames in flight at most: two seconds."""

# One frame of the game with what the loop knew then. Times in ms, picture and stack uint8.
FRAME = np.dtype(
    [
        ("frame", "<i8"),
        ("game", "<i8"),
        ("action", "<i8"),
        ("score", "<f8"),
        ("decisions", "<i8"),
        ("misses", "<i8"),
        ("answer", "<i8"),  # number of the newest answer, -1 before the first of a game
        ("latency_ms", "<f8"),
        ("votes", "?"),  # the scores are votes, counted from 0
        ("scores", "<f8", MAX_ACTIONS),
        ("stack", STACK.dtype, STACK.shape),
        ("screen", "u1", (210, 160, 3)),
    ]
)
HEADER = 64


def shared_file() -> int:
    """Return the descriptor of a new file for a ring: in memory where the system has such files."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("spikestill-frames")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, HEADER + SLOTS * FRAME.itemsize)
    return descriptor


class FrameRing:
    """One side of the ring.

    Args:
        memory: descriptor of a :func:`shared_file`.
        pipe: the writer's or the reader's end of a pipe; the writer's is not blocking.
    """

    def __init__(self, memory: int, pipe: int) -> None:
        self._pipe = pipe
        self._map = mmap.mmap(memory, HEADER + SLOTS * FRAME.itemsize)
        self._read = np.frombuffer(self._map, "<i8", count=1)
        self._slots = np.frombuffer(self._map, FRAME, count=SLOTS, offset=HEADER)
        self._count = 0

    def next_slot(self) -> np.void | None:
        """Return the slot to fill, None while the ring is full."""
        if self._count - int(self._read[0]) >= SLOTS:
            return None
        return self._slots[self._count % SLOTS]

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
        while announced := os.read(self._pipe, SLOTS):
            for _ in announced:
                yield self._slots[self._count % SLOTS]
                self._count += 1
                self._read[0] = self._count
