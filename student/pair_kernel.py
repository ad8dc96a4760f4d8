"""CPU kernels of :mod:`spikestill.student.narrow_kernel`'s layers by products of pairs of bf16, sums in fp32.

One instruction multiplies two pairs a lane where there is one (:func:`spikestill.common.vectors.native_pairs`), so that
half as many are needed. Spikes, pixels up to 255 and ternary weights are exact in bf16: sums of them are those of the
fp32 kernels, bit for bit.

A pair is a uint32, the first number in its lower half. Numbers are paired along what is summed over: neighbours in
memory for the sums and for the gradient of the spikes, neighbouring places of a row for the gradient of the weights;
for that one the pairs of each number and the one a stride on are written anew.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spikestill.common.compiling import njit
from spikestill.common.kernel_arrays import kernel_array
from spikestill.common.vectors import pair_up
from spikestill.student.narrow_kernel import WIDE, convert, crop, pad_pixels, pad_plane, tiled


@njit(nogil=True, cache=True)
def _whole(size):  # type: ignore[no-untyped-def]
    """Return the least multiple of the number of pairs written together that is not below ``size``."""
    return (size + len(WIDE) - 1) // len(WIDE) * len(WIDE)


@njit(nogil=True, cache=True)
def _pair_all(plane, apart, pairs):  # type: ignore[no-untyped-def]
    """Write the pair of each bf16 and the one ``apart`` further on; as many pairs as are written together."""
    for i in range(0, pairs.shape[0], len(WIDE)):
        pair_up(pairs, i, plane, i, plane, i + apart, WIDE)


@njit(nogil=True, cache=True)
def _pair_places(ds, at, out, width, nothing, pairs, lanes):  # type: ignore[no-untyped-def]
    """Write the pairs (out, ceil(out / 2), width) of neighbouring places of a row; an odd last one has 0 beside it."""
    to = 0
    for row in range(out):
        for place in range(0, out, 2):
            here = at + (row * out + place) * width
            for m in range(0, width, len(lanes)):
                if place + 1 < out:
                    pair_up(pairs, to + m, ds, here + m, ds, here + width + m, lanes)
                else:
                    pair_up(pairs, to + m, ds, here + m, nothing, 0, lanes)
            to += width


@njit(nogil=True, cache=True)
def sums(y, weight_pairs, s, layout, geometry, width, tile, lanes):  # type: ignore[no-untyped-def]
    """Do :func:`narrow_kernel.sums`; an even number of channels; ``weight_pairs`` are (G, K / 2, M)."""
    blocks, groups, block = layout
    channels, side, out, kernel, stride, _ = geometry
    across, run = (out - 1) * stride + kernel, kernel * channels
    plane = np.zeros(across * across * channels, np.uint16)
    pairs = plane.view(np.uint32)
    found = np.empty(out * out * width, np.float32)
    counts = (kernel, run // 2)
    steps = (stride * channels // 2, across * channels // 2, 1, run // 2 * width, width, width)
    for index in range(blocks):
        for group in range(groups):
            for image in range(block):
                place = (index * groups + group) * block + image
                pad_plane(y, place * side * side * channels, plane, geometry, lanes)
                found[:] = np.float32(0.0)
                tiled(
                    pairs, 0, weight_pairs, group * kernel * run // 2 * width, found, 0,
                    (out, stride * across * channels // 2, 0, out * width), (out, width), counts, steps,
                    tile[0], tile[1], tile[2],
                )  # fmt: skip
                convert(found, 0, s, place * out * out * width, out * out * width, lanes)


@njit(nogil=True, cache=True)
def gradients(  # type: ignore[no-untyped-def]
    y, ds, weight_pairs, dy, dweight_GKM, layout, geometry, width, tile, tile_back, lanes
):
    """Do :func:`narrow_kernel.gradients` for ds in bf16; an even ``width``; ``weight_pairs`` are (G, M / 2, K)."""
    blocks, groups, block = layout
    channels, side, out, kernel, stride, _ = geometry
    across, run, half = (out - 1) * stride + kernel, kernel * channels, (out + 1) // 2
    fan_in, plane_size, image_size = kernel * run, across * across * channels, out * out * width
    padded = np.zeros(_whole(plane_size) + stride * channels, np.uint16)
    plane, nothing = padded[:plane_size], np.zeros(len(lanes), np.uint16)
    along, ds_along = np.empty(_whole(plane_size), np.uint32), np.empty(out * half * width, np.uint32)
    back, ds_pairs = np.empty(plane_size, np.float32), ds.view(np.uint32)
    steps = (1, across * stride * channels, 2 * stride * channels, half * width, width, width)
    steps_back = (width // 2, 0, 1, 0, fan_in, stride * channels)
    for index in range(blocks):
        for group in range(groups):
            for image in range(block):
                place = (index * groups + group) * block + image
                pad_plane(y, place * side * side * channels, plane, geometry, lanes)
                _pair_all(padded, stride * channels, along)
                _pair_places(ds, place * image_size, out, width, nothing, ds_along, lanes)
                tiled(
                    along, 0, ds_along, 0, dweight_GKM, group * fan_in * width,
                    (kernel, across * channels, 0, run * width), (run, width), (out, half), steps,
                    tile[0], tile[1], tile[2],
                )  # fmt: skip
                back[:] = np.float32(0.0)
                for u in range(kernel):
                    tiled(
                        ds_pairs, place * image_size // 2, weight_pairs, group * width // 2 * fan_in + u * run,
                        back, u * across * channels, (out, out * width // 2, 0, stride * across * channels),
                        (out, run), (1, width // 2), steps_back, tile_back[0], tile_back[1], tile_back[2],
                    )  # fmt: skip
                crop(back, dy, place * side * side * channels, geometry, lanes)


@njit(nogil=True, cache=True)
def pixel_sums(pixels, weight_pairs, s, images, geometry, width, tile):  # type: ignore[no-untyped-def]
    """Do :func:`narrow_kernel.pixel_sums`; an even kernel; ``weight_pairs`` are (K / 2, M)."""
    channels, side, out, kernel, stride, _ = geometry
    across = (out - 1) * stride + kernel
    size = channels * across * across
    plane, pairs = np.zeros(_whole(size) + 1, np.uint16), np.empty(_whole(size), np.uint32)
    counts, steps = (kernel, kernel // 2), (stride, across, 2, kernel // 2 * width, width, width)
    s[:] = np.float32(0.0)
    for image in range(images):
        pad_pixels(pixels, image * channels * side * side, plane, geometry)
        _pair_all(plane, 1, pairs)
        for channel in range(channels):
            tiled(
                pairs, channel * across * across, weight_pairs, channel * kernel * kernel // 2 * width,
                s, image * out * out * width, (out, stride * across, 0, out * width), (out, width), counts, steps,
                tile[0], tile[1], tile[2],
            )  # fmt: skip


@njit(nogil=True, cache=True)
def pixel_gradients(pixels, ds, dweight_KM, images, geometry, width, tile, lanes):  # type: ignore[no-untyped-def]
    """Do :func:`narrow_kernel.pixel_gradients` for ds in bf16."""
    channels, side, out, kernel, stride, _ = geometry
    across, half = (out - 1) * stride + kernel, (out + 1) // 2
    size = channels * across * across
    plane, along = np.zeros(_whole(size) + stride, np.uint16), np.empty(_whole(size), np.uint32)
    ds_along, nothing = np.empty(out * half * width, np.uint32), np.zeros(len(lanes), np.uint16)
    steps = (1, across * stride, 2 * stride, half * width, width, width)
    for image in range(images):
        pad_pixels(pixels, image * channels * side * side, plane, geometry)
        _pair_all(plane, stride, along)
        _pair_places(ds, image * out * out * width, out, width, nothing, ds_along, lanes)
        for channel in range(channels):
            tiled(
                along, channel * across * across, ds_along, 0, dweight_KM, channel * kernel * kernel * width,
                (kernel, across, 0, kernel * width), (kernel, width), (out, half), steps,
                tile[0], tile[1], tile[2],
            )  # fmt: skip


def paired(weight_GIJ: Tensor) -> npt.NDArray[np.uint32]:
    """Return the pairs (G, I / 2, J) of neighbours along I, in bf16, flat."""
    groups, inner, outer = weight_GIJ.shape
    by_pair = weight_GIJ.to(torch.bfloat16).view(groups, inner // 2, 2, outer).transpose(2, 3).contiguous()
    return kernel_array(by_pair).view(np.uint32)
