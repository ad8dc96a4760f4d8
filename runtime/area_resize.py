"""Area resampling of 8-bit pictures, bit for bit what ale-py's vector environment does to its frames.

An output pixel is the mean of the source rectangle that it covers, pixels at the rim weighted by the
part of them that is covered. Weights and sums are float32, first along a row, then over the rows in
their order, and the result is rounded half to even; any other order of the same sum differs in the
last bit, and where the mean lies half-way, in the pixel. Source: OpenCV's INTER_AREA, as ale-py uses it.

Axis suffixes: H height, W width of the source; h, w of the result.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spikestill.common.compiling import njit

RIM = 1e-3
"""Parts of a pixel below this are taken as nothing."""


class AreaTaps(NamedTuple):
    """Which source pixels an output pixel covers along one axis.

    Attributes:
        start: int64 (n + 1,), output i has the taps start[i] : start[i + 1].
        source: int64, source index of each tap.
        weight: float32, its share of the output, summing to 1 for each output.
    """

    start: npt.NDArray[np.int64]
    source: npt.NDArray[np.int64]
    weight: npt.NDArray[np.float32]


def area_taps(source_size: int, size: int) -> AreaTaps:
    """Return the taps that shrink an axis of ``source_size`` pixels to ``size``.

    Raises:
        ValueError: ``size`` exceeds ``source_size`` or is not positive.
    """
    if not 0 < size <= source_size:
        raise ValueError(f"area resampling shrinks: {source_size} pixels cannot become {size}")
    scale = source_size / size
    start, source, weight = [0], [], []
    for out in range(size):
        left = out * scale
        right = left + scale
        width = min(scale, source_size - left)
        last = min(int(np.floor(right)), source_size - 1)
        first = min(int(np.ceil(left)), last)
        if first - left > RIM:
            source.append(first - 1)
            weight.append((first - left) / width)
        for whole in range(first, last):
            source.append(whole)
            weight.append(1.0 / width)
        if right - last > RIM:
            source.append(last)
            weight.append(min(right - last, 1.0, width) / width)
        start.append(len(source))
    return AreaTaps(np.array(start, np.int64), np.array(source, np.int64), np.array(weight, np.float32))


@njit(cache=True, nogil=True)
def resize_area(picture_HW, rows, columns, out_hw):  # type: ignore[no-untyped-def]
    """Write the area mean of ``picture_HW`` into ``out_hw``; both uint8, C-contiguous.

    Args:
        picture_HW: uint8 (H, W).
        rows: taps of the vertical axis, H to h.
        columns: taps of the horizontal axis, W to w.
        out_hw: uint8 (h, w), overwritten.
    """
    height, width = out_hw.shape
    total = np.empty(width, np.float32)
    line = np.empty(width, np.float32)
    for row in range(height):
        total[:] = np.float32(0.0)
        for tap in range(rows.start[row], rows.start[row + 1]):
            source = picture_HW[rows.source[tap]]
            for column in range(width):
                value = np.float32(0.0)
                for index in range(columns.start[column], columns.start[column + 1]):
                    value += np.float32(source[columns.source[index]]) * columns.weight[index]
                line[column] = value
            share = rows.weight[tap]
            for column in range(width):
                total[column] += share * line[column]
        for column in range(width):
            out_hw[row, column] = np.uint8(np.rint(total[column]))
