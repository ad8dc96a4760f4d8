"""Place: give every core a chip and a position, in layer order along a curve that keeps neighbours near."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from spikestill.common.errors import UserError
from spikestill.configs.hardware import HardwareSpec
from spikestill.deploy.passes.replication import LayerCores

STRIP = 8
"""Columns of a strip of the curve."""


@dataclasses.dataclass(frozen=True, eq=False)
class Placement:
    """Where the cores lie; cores are numbered through the layers, first layer first.

    Attributes:
        first_core_L: int64, number of each layer's core 0, one more at the end: the number of cores.
        chip_C, x_C, y_C: int16, chip and position on it.
    """

    first_core_L: npt.NDArray[np.int64]
    chip_C: npt.NDArray[np.int16]
    x_C: npt.NDArray[np.int16]
    y_C: npt.NDArray[np.int16]


def place(layers: tuple[LayerCores, ...], spec: HardwareSpec) -> Placement:
    """Return a placement that fills one chip after the other.

    Raises:
        UserError: more cores are needed than the target has.
    """
    first = np.concatenate([[0], np.cumsum([layer.cores for layer in layers])]).astype(np.int64)
    cores = int(first[-1])
    if cores > spec.cores:
        raise UserError(
            f"the net needs {cores} cores, {spec.name} has {spec.cores} ({spec.chips} chips)",
            "map a smaller student or choose hardware with more chips",
        )
    xs, ys = curve(spec.cores_x, spec.cores_y)
    chip, at = np.divmod(np.arange(cores), spec.cores_per_chip)
    return Placement(first, chip.astype(np.int16), xs[at], ys[at])


def curve(width: int, height: int) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int16]]:
    """Return x and y of width * height positions along a curve of unit steps.

    Strips of ``STRIP`` columns are swept row by row, down one strip and up the next, each row from the
    side where the last one ended; steps between strips may be up to a strip wide.
    """
    xs, ys = [], []
    for strip, left in enumerate(range(0, width, STRIP)):
        columns = np.arange(left, min(width, left + STRIP))
        rows = np.arange(height) if strip % 2 == 0 else np.arange(height)[::-1]
        for turn, row in enumerate(rows):
            xs.append(columns if turn % 2 == 0 else columns[::-1])
            ys.append(np.full(len(columns), row))
    return np.concatenate(xs).astype(np.int16), np.concatenate(ys).astype(np.int16)
