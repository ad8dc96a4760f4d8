"""The one rule of stacked frames: a stack holds the last C frames, oldest first, zeros before an episode's first.

Axis suffixes: T rows, N streams, C frames of a stack.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def push(stack_C: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Make room for a new frame in place: the oldest goes; return the place (a view) of the newest."""
    stack_C[:-1] = stack_C[1:]
    newest: npt.NDArray[Any] = stack_C[-1]
    return newest


def frames_at_hand(start: npt.NDArray[np.bool_], frames: int) -> npt.NDArray[np.uint8]:
    """Return how many frames of its own episode each stack has, 1..``frames``, uint8 (T, N).

    It is min(``frames``, 1 + rows since the episode's start).

    Args:
        start: bool (T, N), first row of an episode; row 0 starts one in every stream.
        frames: C, 1..255.
    """
    rows = np.arange(len(start), dtype=np.int64)[:, None]
    began = np.maximum.accumulate(np.where(start, rows, 0), axis=0)
    return np.minimum(rows - began + 1, frames).astype(np.uint8)
