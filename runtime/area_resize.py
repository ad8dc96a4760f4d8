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


class ColumnTaps(NamedTuple):
    """The same taps, as many for every output: what is missing has the weight 0, which changes no sum.

    Attributes:
        source: int64 (T, n).
        weight: float32 (T, n).
    """

    source: npt.NDArray[np.int64]
    weight: npt.NDArray[np.float32]


def column_taps(source_size: int, size: int) -> ColumnTaps:
    """Return :func:`area_taps` with the taps of all outputs side by side: a vector of outputs takes one each."""
    taps = area_taps(source_size, size)
    most = int(np.diff(taps.start).max())
    found = ColumnTaps(np.zeros((most, size), np.int64), np.zeros((most, size), np.float32))
    for out in range(size):
        first, end = taps.start[out : out + 2]
        found.source[: end - first, out] = taps.source[first:end]
        found.weight[: end - first, out] = taps.weight[first:end]
    return found


@njit(cache=True, nogil=True)
def resize_area(picture_HW, rows, columns, out_hw):  # type: ignore[no-untyped-def]
    """Write the area mean of ``picture_HW`` into ``out_hw``; both uint8, C-contiguous.

    Args:
        picture_HW: uint8 (H, W).
        rows: :class:`AreaTaps` of the vertical axis, H to h.
        columns: :class:`ColumnTaps` of the horizontal axis, W to w.
        out_hw: uint8 (h, w), overwritten.
    """
    height, width = out_hw.shape
    wide = np.empty(picture_HW.shape[1], np.float32)
    total = np.empty(width, np.float32)
    line = np.empty(width, np.float32)
    drawn = -1
    for row in range(height):
        total[:] = np.float32(0.0)
        for tap in range(rows.start[row], rows.start[row + 1]):
            # The last line of one row is often the first of the next.
            if rows.source[tap] != drawn:
                drawn = rows.source[tap]
                for column in range(wide.shape[0]):
                    wide[column] = np.float32(picture_HW[drawn, column])
                line[:] = np.float32(0.0)
                for index in range(columns.source.shape[0]):
                    for column in range(width):
                        line[column] += wide[columns.source[index, column]] * columns.weight[index, column]
            share = rows.weight[tap]
            for column in range(width):
                total[column] += share * line[column]
        for column in range(width):
            out_hw[row, column] = np.uint8(np.rint(total[column]))
