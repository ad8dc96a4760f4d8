"""Colours and sizes that drawings share."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

INNER = 320
"""Side of the picture of an agent's inside, at most."""
BACKGROUND = np.array([16, 18, 24], np.uint8)
FAINT = np.array([44, 48, 60], np.uint8)


def heat_palette() -> npt.NDArray[np.uint8]:
    """Return colours of 0..255, (256, 3): dark blue over orange to white."""
    stops = np.array([0, 40, 110, 180, 255])
    colours = np.array([[22, 26, 40], [40, 58, 120], [190, 70, 90], [255, 168, 60], [255, 250, 225]])
    levels = np.arange(256)
    return np.stack([np.interp(levels, stops, colours[:, c]) for c in range(3)], axis=1).astype(np.uint8)
