"""CPU kernels of layers whose groups have few features: convolutions by tiles of products, without patches.

A group's image is copied once into a padded fp32 plane, which the first-level cache holds; tiles of products then read
the patches where they lie. Libraries' products are at their best with a hundred columns, not with sixteen.

Tables of sizes are ``(channels, side, out, kernel, stride, pad)``; a plane has ``(out - 1) stride + kernel`` rows and
columns. Tiles are ``(rows, columns, lanes)``, tuples of which only the lengths count, chosen by :func:`tiles`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spikestill.common.compiling import njit
from spikestill.common.vectors import add_products, read, spread, write

WIDE = (0,) * 16
"""Pixels, or pairs, that are written together."""


@njit(nogil=True, cache=True)
def pad_plane(y, at, plane, geometry, lanes):  # type: ignore[no-untyped-def]
    """Copy the image (side, side, channels) that begins at ``at`` into ``plane``, fp32 or bf16.

    What lies around it in the plane stays as it is: zeros.
    """
    channels, side, out, kernel, stride, pad = geometry
    across, wide = (out - 1) * stride + kernel, len(lanes)
    end = min(side, across - pad)
    for row in range(max(0, -pad), end):
        begin = max(0, -pad)
        to = ((row + pad) * across + begin + pad) * channels
        here = at + (row * side + begin) * channels
        for i in range(0, (end - begin) * channels, wide):
            write(plane, to + i, read(y, here + i, lanes))


@njit(nogil=True, cache=True)
def pad_pixels(pixels, at, plane, geometry):  # type: ignore[no-untyped-def]
    """Copy the uint8 image (channels, side, side) that begins at ``at`` into ``plane`` (channels, across, across), as
    :func:`pad_plane` does."""
    channels, side, out, kernel, stride, pad = geometry
    across = (out - 1) * stride + kernel
    begin, end = max(0, -pad), min(side, across - pad)
    for channel in range(channels):
        for row in range(begin, end):
            to = (channel * across + row + pad) * across + begin + pad
            here = at + (channel * side + row) * side + begin
            count = end - begin
            for i in range(0, count - len(WIDE) + 1, len(WIDE)):
                write(plane, to + i, read(pixels, here + i, WIDE))
            for i in range(count // len(WIDE) * len(WIDE), count):
                write(plane, to + i, read(pixels, here + i, (0,)))


@njit(nogil=True, cache=True)
def convert(source, at, target, to, count, lanes):  # type: ignore[no-untyped-def]
    """Copy ``count`` values from one format into another."""
    for i in range(0, count, len(lanes)):
        write(target, to + i, read(source, at + i, lanes))


@njit(nogil=True, cache=True)
def tiled(x, x_at, w, w_at, out, out_at, repeated, size, counts, steps, rows, columns, lanes):  # type: ignore[no-untyped-def]
    """Do the tiles of some products of ``size`` = (rows, columns); see :func:`add_products`.

    ``repeated`` is how many products, and from one to the next of x, of w and of out: a call costs as much as some
    tiles do.
    """
    many, across = len(rows), len(columns) * len(lanes)
    whole = size[0] // many * many
    for _ in range(repeated[0]):
        for column in range(0, size[1], across):
            for row in range(0, whole, many):
                add_products(
                    x, x_at + row * steps[0], w, w_at + column, out, out_at + row * steps[5] + column, counts, steps,
                    rows, columns, lanes,
                )  # fmt: skip
            for row in range(whole, size[0]):
                add_products(
                    x, x_at + row * steps[0], w, w_at + column, out, out_at + row * steps[5] + column, counts, steps,
                    (0,), columns, lanes,
                )  # fmt: skip
        x_at, w_at, out_at = x_at + repeated[1], w_at + repeated[2], out_at + repeated[3]


@njit(nogil=True, cache=True)
def sums(y, weight_GKM, s, layout, geometry, width, tile, lanes):  # type: ignore[no-untyped-def]
    """Write the sums (Q, G, b, out, out, m) of spikes (Q, G, b, side, side, c).

    Args:
        y: spikes.
        weight_GKM: fp32 weights, flat, K = (u, v, c).
        s: the sums.
        layout: Q, G, b.
        geometry: the sizes, see the module.
        width: m.
        tile: rows, columns and lanes.
        lanes: a tuple whose length divides m, what is read of an image's row, and a row.
    """
    blocks, groups, block = layout
    channels, side, out, kernel, stride, _ = geometry
    across, run = (out - 1) * stride + kernel, kernel * channels
    plane = np.zeros(across * across * channels, np.float32)
    found = np.empty(out * out * width, np.float32)
    counts, steps = (kernel, run), (stride * channels, across * channels, 1, run * width, width, width)
    for index in range(blocks):
        for group in range(groups):
            for image in range(block):
                place = (index * groups + group) * block + image
                pad_plane(y, place * side * side * channels, plane, geometry, lanes)
                found[:] = np.float32(0.0)
                tiled(
                    plane, 0, weight_GKM, group * kernel * run * width, found, 0,
                    (out, stride * across * channels, 0, out * width), (out, width), counts, steps,
                    tile[0], tile[1], tile[2],
                )  # fmt: skip
                convert(found, 0, s, place * out * out * width, out * out * width, lanes)


@njit(nogil=True, cache=True)
def gradients(  # type: ignore[no-untyped-def]
    y, ds, weight_GMK, dy, dweight_GKM, layout, geometry, width, tile, tile_back, lanes
):
    """Write the gradients of the spikes and, to zeros, those of the weights, of :func:`sums`.

    Args:
        y: see :func:`sums`.
        ds: gradient of the sums.
        weight_GMK: fp32 weights, flat, K = (u, v, c).
        dy: gradient of the spikes.
        dweight_GKM: fp32, flat.
        layout: see :func:`sums`.
        geometry: see :func:`sums`.
        width: see :func:`sums`.
        tile: of dweight, whose rows are inputs.
        tile_back: of dy, whose columns are inputs.
        lanes: see :func:`sums`.
    """
    blocks, groups, block = layout
    channels, side, out, kernel, stride, _ = geometry
    across, run = (out - 1) * stride + kernel, kernel * channels
    fan_in = kernel * run
    plane = np.zeros(across * across * channels, np.float32)
    back = np.empty(across * across * channels, np.float32)
    gradient = np.empty(out * out * width, np.float32)
    steps = (1, across * stride * channels, stride * channels, out * width, width, width)
    steps_back = (width, 0, 1, 0, fan_in, stride * channels)
    for index in range(blocks):
        for group in range(groups):
            for image in range(block):
                place = (index * groups + group) * block + image
                pad_plane(y, place * side * side * channels, plane, geometry, lanes)
                convert(ds, place * out * out * width, gradient, 0, out * out * width, lanes)
                tiled(
                    plane, 0, gradient, 0, dweight_GKM, group * fan_in * width,
                    (kernel, across * channels, 0, run * width), (run, width), (out, out), steps,
                    tile[0], tile[1], tile[2],
                )  # fmt: skip
                back[:] = np.float32(0.0)
                for u in range(kernel):
                    tiled(
                        gradient, 0, weight_GMK, group * width * fan_in + u * run, back, u * across * channels,
                        (out, out * width, 0, stride * across * channels), (out, run), (1, width), steps_back,
                        tile_back[0], tile_back[1], tile_back[2],
                    )  # fmt: skip
                crop(back, dy, place * side * side * channels, geometry, lanes)


@njit(nogil=True, cache=True)
def crop(plane, y, at, geometry, lanes):  # type: ignore[no-untyped-def]
    """Copy what :func:`pad_plane` copies the other way; what no patch reads becomes 0."""
    channels, side, out, kernel, stride, pad = geometry
    across, wide, nothing = (out - 1) * stride + kernel, len(lanes), spread(np.float32(0.0), lanes)
    begin, end = max(0, -pad), min(side, across - pad)
    if begin > 0 or end < side:
        for i in range(0, side * side * channels, wide):
            write(y, at + i, nothing)
    for row in range(begin, end):
        here = ((row + pad) * across + begin + pad) * channels
        to = at + (row * side + begin) * channels
        for i in range(0, (end - begin) * channels, wide):
            write(y, to + i, read(plane, here + i, lanes))


@njit(nogil=True, cache=True)
def pixel_sums(pixels, weight_KM, s, images, geometry, width, tile):  # type: ignore[no-untyped-def]
    """Write the sums (images, out, out, m) of uint8 pixels (images, C, side, side); K = (c, u, v), fp32."""
    channels, side, out, kernel, stride, _ = geometry
    across = (out - 1) * stride + kernel
    plane = np.zeros(channels * across * across, np.float32)
    counts, steps = (kernel, kernel), (stride, across, 1, kernel * width, width, width)
    s[:] = np.float32(0.0)
    for image in range(images):
        pad_pixels(pixels, image * channels * side * side, plane, geometry)
        for channel in range(channels):
            tiled(
                plane, channel * across * across, weight_KM, channel * kernel * kernel * width,
                s, image * out * out * width, (out, stride * across, 0, out * width), (out, width), counts, steps,
                tile[0], tile[1], tile[2],
            )  # fmt: skip


@njit(nogil=True, cache=True)
def pixel_gradients(pixels, ds, dweight_KM, images, geometry, width, tile, lanes):  # type: ignore[no-untyped-def]
    """Add the gradients of the weights of :func:`pixel_sums` to ``dweight_KM``."""
    channels, side, out, kernel, stride, _ = geometry
    across = (out - 1) * stride + kernel
    plane = np.zeros(channels * across * across, np.float32)
    gradient = np.empty(out * out * width, np.float32)
    steps = (1, across * stride, stride, out * width, width, width)
    for image in range(images):
        pad_pixels(pixels, image * channels * side * side, plane, geometry)
        convert(ds, image * out * out * width, gradient, 0, out * out * width, lanes)
        for channel in range(channels):
            tiled(
                plane, channel * across * across, gradient, 0, dweight_KM, channel * kernel * kernel * width,
                (kernel, across, 0, kernel * width), (kernel, width), (out, out), steps, tile[0], tile[1], tile[2],
            )  # fmt: skip


def tile(rows: int, columns: int, width: int) -> tuple[Any, Any, Any]:
    """Return a tile for products of ``rows`` rows and ``columns`` columns, with vectors of ``width`` lanes.

    Up to twelve vectors of sums, two in a row, where there are 16 registers, 16 where there are 32.
    """
    lanes = next(count for count in (width, 8, 4, 2, 1) if count <= width and columns % count == 0)
    across = next(count for count in (3, 2, 1) if columns % (count * lanes) == 0)
    most = (16 if width > 8 else 12) // across
    many = next((count for count in (8, 6, 5, 4, 3) if count <= most and rows % count == 0), min(most, 4))
    return (0,) * min(many, rows), (0,) * across, (0,) * lanes
