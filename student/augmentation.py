"""Frames shifted at random, so that a student sees more pictures than were recorded.

Axis suffixes: B batch, C the four frames of a stack, H height, W width.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def shifted(stacks_BCHW: npt.NDArray[np.uint8], offsets_B2: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Return each stack moved by its own offset, all four frames alike; what comes into view repeats the edge.

        y[b, c, i, j] = x[b, c, clip(i - d, 0, H - 1), clip(j - e, 0, W - 1)]      (d, e) = offsets[b]

    Random shifts of a few pixels are DrQ's augmentation (Kostrikov 2021).

    Args:
        stacks_BCHW: uint8 (B, 4, H, W).
        offsets_B2: pixels downwards and to the right, (B, 2).
    """
    height, width = stacks_BCHW.shape[2:]
    moved = np.empty_like(stacks_BCHW)
    for stack, (down, right), into in zip(stacks_BCHW, offsets_B2, moved, strict=True):
        rows = np.clip(np.arange(height) - down, 0, height - 1)
        columns = np.clip(np.arange(width) - right, 0, width - 1)
        into[...] = stack[:, rows[:, None], columns]
    return moved


def at_random(
    rng: np.random.Generator, stacks_BCHW: npt.NDArray[np.uint8], most: int
) -> npt.NDArray[np.uint8]:
    """Return each stack shifted by -``most`` .. ``most`` pixels in both directions, drawn uniformly."""
    return shifted(stacks_BCHW, rng.integers(-most, most + 1, (len(stacks_BCHW), 2)))
