"""How active each core is, and a picture of it: for display, apart from the agent that plays.

Axis suffixes: C cores, N neurons of a core.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from spikestill.deploy.core_map import NONE, CoreMap
from spikestill.deploy.simulator import CoreSimulator
from spikestill.runtime.panel import BACKGROUND, FAINT, INNER, heat_palette

FULL_SCALE = 0.6
"""The share of firing neurons that is shown brightest."""


class CoreActivity(CoreSimulator):
    """A simulator that also tells how many neurons of each core fired for a stack."""

    def __init__(self, core_map: CoreMap) -> None:
        super().__init__(core_map)
        self._tick_C, self._used_CN = firing_ticks(core_map), core_map.used_CN

    def firing(self, stack_CHW: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
        """Return the share of each core's neurons in use that fired for the stack, float64 (C,), 0..1.

        Raises:
            ValueError: the stack is not uint8 of the map's input shape.
        """
        self._play(self._transduce(stack_CHW))
        return _firing(self._rows, self._tick_C, self._bit_CN, self._used_CN)


def firing_ticks(core_map: CoreMap) -> npt.NDArray[np.int64]:
    """Return the tick in which each core fires for a frame that enters in tick 0, int64 (C,).

    A relay fires later than its layer: as many ticks before the core that it drives as its delay.
    """
    tick_C = core_map.layer_tick_L[core_map.core_layer_C].astype(np.int64)
    relays = np.flatnonzero(core_map.core_relay_C)
    neuron = (core_map.dest_core_CN[relays] != NONE).argmax(axis=1)
    target, delay = core_map.dest_core_CN[relays, neuron], core_map.dest_delay_CN[relays, neuron]
    # Relays of relays settle from the end of their chain.
    while (tick_C[relays] != (found := tick_C[target] - delay)).any():
        tick_C[relays] = found
    return tick_C


@njit(cache=True, nogil=True)
def _firing(rows, tick_C, bit_CN, used_CN):  # type: ignore[no-untyped-def]
    """Return the share (C,) of used neurons whose bit is set in the row of their core's tick."""
    cores, neurons = bit_CN.shape
    share_C = np.zeros(cores, np.float64)
    for core in range(cores):
        fired, used = 0, 0
        row = rows[tick_C[core]]
        for neuron in range(neurons):
            if used_CN[core, neuron]:
                used += 1
                bit = bit_CN[core, neuron]
                fired += int((row[bit // 64] >> np.uint64(bit % 64)) & np.uint64(1))
        share_C[core] = fired / max(used, 1)
    return share_C


class CorePicture:
    """Draws the cores at their places, chips side by side, coloured by the share of neurons that fire."""

    def __init__(self, core_map: CoreMap) -> None:
        self._activity = CoreActivity(core_map)
        spec = core_map.spec
        self._column_C, self._row_C = spec.on_grid(core_map.chip_C, core_map.x_C, core_map.y_C)
        self._shape = (
            (int(self._row_C.max()) // spec.cores_y + 1) * spec.cores_y,
            (int(self._column_C.max()) // spec.cores_x + 1) * spec.cores_x,
        )
        self._pitch = max(1, INNER // max(self._shape))
        self._palette = heat_palette()

    def __call__(self, frame: np.void) -> tuple[npt.NDArray[np.uint8], str]:
        """Return the picture of the cores for the decided stack, uint8 (H, W, 3), and a caption."""
        share_C = self._activity.firing(np.ascontiguousarray(frame["stack"]))
        cells = np.empty((*self._shape, 3), np.uint8)
        cells[:] = FAINT // 2
        level_C = np.minimum(255, share_C * (255 / FULL_SCALE)).astype(np.uint8)
        cells[self._row_C, self._column_C] = self._palette[level_C]
        picture = cells.repeat(self._pitch, axis=0).repeat(self._pitch, axis=1)[:INNER, :INNER]
        if self._pitch >= 4:
            picture[:: self._pitch] = BACKGROUND
            picture[:, :: self._pitch] = BACKGROUND
        return picture, f"{len(share_C):,} cores, {share_C.mean():.0%} of their neurons firing"
