"""A picture of the cores at their places, lit by how many of their neurons fired, drawn from a decision's trace.

Axis suffixes: U cores, W words of packed spikes, P planes (see :class:`spikestill.common.spikes.SpikeLayout`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from spikestill.common.spikes import SpikeLayout, activity
from spikestill.runtime.palette import BACKGROUND, FAINT, INNER, heat_palette

if TYPE_CHECKING:
    from spikestill.deploy.core_map import CoreMap

FULL_SCALE = 0.6
"""The share of firing neurons that is shown brightest."""


def core_grid(core_map: CoreMap, layout: SpikeLayout) -> dict[str, npt.NDArray[Any]]:
    """Return what draws the cores: their places on the board's grid, their layers, and how to read their spikes.

    Keys: ``column_U``, ``row_U``, ``layer_U`` (int64), ``relay_U`` (bool), ``chip`` (cores across and down a chip),
    and ``unit_W``, ``planes_PW``, ``neurons_U`` of the layout.
    """
    spec = core_map.spec
    column_U, row_U = spec.on_grid(core_map.chip_C, core_map.x_C, core_map.y_C)
    return {
        "column_U": np.asarray(column_U, np.int64),
        "row_U": np.asarray(row_U, np.int64),
        "layer_U": core_map.core_layer_C.astype(np.int64),
        "relay_U": core_map.core_relay_C.astype(bool),
        "chip": np.array([spec.cores_x, spec.cores_y], np.int64),
        "unit_W": layout.unit_W,
        "planes_PW": layout.planes_PW,
        "neurons_U": layout.neurons_U,
    }


class CorePicture:
    """Draws the cores at their places, chips side by side, coloured by the share of neurons that fire.

    Args:
        layout: a :func:`core_grid`.
    """

    def __init__(self, layout: Mapping[str, npt.NDArray[Any]]) -> None:
        self._layout = layout
        across, down = layout["chip"].tolist()
        self._shape = (
            (int(layout["row_U"].max()) // down + 1) * down,
            (int(layout["column_U"].max()) // across + 1) * across,
        )
        self._pitch = max(1, INNER // max(self._shape))
        self._palette = heat_palette()

    def __call__(self, frame: np.void) -> tuple[npt.NDArray[np.uint8], str]:
        """Return the picture of the cores as they decided, uint8 (H, W, 3), and a caption."""
        layout, share_U = self._layout, shares(self._layout, frame)
        cells = np.empty((*self._shape, 3), np.uint8)
        cells[:] = FAINT // 2
        level_U = np.minimum(255, share_U * (255 / FULL_SCALE)).astype(np.uint8)
        cells[layout["row_U"], layout["column_U"]] = self._palette[level_U]
        picture = cells.repeat(self._pitch, axis=0).repeat(self._pitch, axis=1)[:INNER, :INNER]
        if self._pitch >= 4:
            picture[:: self._pitch] = BACKGROUND
            picture[:, :: self._pitch] = BACKGROUND
        return picture, f"{len(share_U):,} cores, {share_U.mean():.0%} of their neurons firing"


def shares(layout: Mapping[str, Any], frame: np.void) -> npt.NDArray[np.float64]:
    """Return what share of each core's neurons fired at the decision that ``frame`` shows; (U,), 0 to 1.

    The ring's field for the trace is as long as the longest of the agents'; ``layout`` says how much is this one's.
    """
    words_BW = frame["trace"][None, : len(layout["unit_W"])]
    return activity(layout["unit_W"], layout["planes_PW"], layout["neurons_U"], words_BW)[0]
