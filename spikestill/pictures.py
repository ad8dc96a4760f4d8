"""Pictures of artefacts as pixels: where a net's layers lie on a chip, and filters of a first layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.charts import png_uri
from spikestill.deploy.core_map import CoreMap

# Anchors of a ramp that rises in lightness (after viridis: van der Walt and Smith 2015), dark to light.
RAMP = np.array([(68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37)], np.float64)
EMPTY = (24, 26, 32)
SPACE, LINE = 4, 200
"""Pixels between two frames of a sheet, and their grey."""
FILTER_COLUMNS = 16


def ramp(share: npt.ArrayLike) -> npt.NDArray[np.uint8]:
    """Return colours, uint8 (..., 3), for values in 0..1."""
    at = np.clip(np.asarray(share, np.float64), 0.0, 1.0) * (len(RAMP) - 1)
    low = np.minimum(at.astype(np.int64), len(RAMP) - 2)
    part = (at - low)[..., None]
    return np.round(RAMP[low] * (1 - part) + RAMP[low + 1] * part).astype(np.uint8)


def layer_colours(layers: int) -> npt.NDArray[np.uint8]:
    """Return one colour for each layer, uint8 (layers, 3); layer 0, on the host, has the darkest."""
    return ramp(np.linspace(0.0, 1.0, max(layers, 2)))


def chip_pixels(core_map: CoreMap, chip: int) -> npt.NDArray[np.uint8]:
    """Return a chip, a pixel a core coloured by layer, relays dimmed, uint8 (cores_y, cores_x, 3)."""
    spec = core_map.spec
    pixels = np.full((spec.cores_y, spec.cores_x, 3), EMPTY, np.uint8)
    mine = np.flatnonzero(core_map.chip_C == chip)
    colours = layer_colours(len(core_map.layer_shape_L3))[core_map.core_layer_C[mine]].astype(np.float64)
    colours[core_map.core_relay_C[mine]] *= 0.55
    pixels[core_map.y_C[mine], core_map.x_C[mine]] = colours.astype(np.uint8)
    return pixels


def chip_cards(core_map: CoreMap) -> list[dict[str, Any]]:
    """Return ``chip``, ``image`` and ``legend`` of every chip in use, for the pages."""
    colours = layer_colours(len(core_map.layer_shape_L3))
    cards = []
    for chip in np.unique(core_map.chip_C).tolist():
        present = np.unique(core_map.core_layer_C[core_map.chip_C == chip]).tolist()
        legend = [
            {"name": f"layer {layer}", "colour": "rgb({}, {}, {})".format(*colours[layer])}
            for layer in present
        ]
        if (core_map.core_relay_C & (core_map.chip_C == chip)).any():
            legend.append({"name": "dimmed: splitter", "colour": "#777"})
        cards.append({"chip": chip, "image": png_uri(chip_pixels(core_map, chip)), "legend": legend})
    return cards


def frame_sheet(frames_BHW: npt.NDArray[np.uint8], rows: int) -> npt.NDArray[np.uint8]:
    """Return frames side by side in ``rows`` rows, uint8 (H, W), a light line between them."""
    columns = -(-len(frames_BHW) // rows)
    height, width = (size + SPACE for size in frames_BHW.shape[1:])
    sheet = np.full((rows * height - SPACE, columns * width - SPACE), LINE, np.uint8)
    for index, frame in enumerate(frames_BHW):
        top, left = index // columns * height, index % columns * width
        sheet[top : top + height - SPACE, left : left + width - SPACE] = frame
    return sheet


def filters_caption(what: str, outputs: int, channels: int) -> str:
    """Return what stands under :func:`filter_pixels`: how many rows there are for each frame."""
    blocks = -(-outputs // FILTER_COLUMNS)
    if blocks == 1:
        return f"{what}: a column each, a row for each of the {channels} frames"
    return f"{what}, {FILTER_COLUMNS} beside each other: {blocks} blocks of {channels} rows, a row for each frame"


def filter_pixels(weight_OIHW: npt.NDArray[Any], columns: int = FILTER_COLUMNS) -> npt.NDArray[np.uint8]:
    """Return first-layer filters as tiles, uint8 (H, W): a row of tiles per channel, mid grey is zero."""
    outputs, channels, height, width = weight_OIHW.shape
    scale = np.abs(weight_OIHW).max() or 1
    grey = np.round(127.5 + 127.5 * (weight_OIHW.astype(np.float64) / scale)).astype(np.uint8)
    columns = min(columns, outputs)
    blocks = -(-outputs // columns)
    page = np.full((blocks * channels * (height + 1), columns * (width + 1)), 60, np.uint8)
    for output in range(outputs):
        for channel in range(channels):
            top = (output // columns * channels + channel) * (height + 1)
            left = output % columns * (width + 1)
            page[top : top + height, left : left + width] = grey[output, channel]
    return page
