"""CPU kernels of a student's training: normalised step, patches, ternary weights; each pass reads its operands once.

Arrays are flat, fp32 or bf16 (uint16, the upper half of an fp32's bits); all arithmetic is fp32, in vectors of as many
*lanes* as a tuple has elements (:mod:`spikestill.common.vectors`).

Activations lie *group by group* for the layer that reads them, (Q, G, b, h, w, c): Q blocks of b images, G groups of
the reading layer, c channels of a group. Sums of a layer lie the same way, with its own groups and features.
"""

from __future__ import annotations

import numpy as np

from spikestill.common.compiling import njit
from spikestill.common.vectors import (
    minus,
    move,
    plus,
    product_sum,
    read,
    read_pieces,
    spread,
    step,
    times,
    triangle,
    write,
    write_pieces,
)
from spikestill.student.quantise import VARIANCE_EPSILON


@njit(nogil=True, cache=True)
def _add_lanes(total, part, sums):  # type: ignore[no-untyped-def]
    """Add the lanes of ``sums`` to the fp64 ``total`` and leave them in ``part``."""
    write(part, 0, sums)
    for lane in range(total.shape[0]):
        total[lane] += part[lane]


@njit(nogil=True, cache=True)
def _begin(feature, places, block, width):  # type: ignore[no-untyped-def]
    """Return where a feature begins within a block of images whose groups have ``width`` features."""
    return feature // width * block * places * width + feature % width


@njit(nogil=True, cache=True)
def _row(image, block, groups):  # type: ignore[no-untyped-def]
    """Return how many images of one group lie before an image's part of its block's first group."""
    return image // block * groups * block + image % block


@njit(nogil=True, cache=True)
def normalised_step(  # type: ignore[no-untyped-def]
    s,
    affine,
    running,
    is_running,
    pressure,
    y,
    plain,
    has_plain,
    normal,
    shape,
    source,
    target,
    lanes,
    pieces,
    pieces_to,
):
    """Write the spikes y = 1 where s * slope + offset >= 0, else 0, and the normalisation.

    One vector of features at a time, over all images: the second pass finds the sums in the cache.

    Args:
        s: sums.
        affine: fp32 (2, features): gamma, beta.
        running: fp32 (2, features): the running mean and variance.
        is_running: normalise with those, not with the batch's.
        pressure: fp32 (2,): :class:`spikestill.student.quantise.Pressure`.
        y: spikes, in the layout ``target``.
        plain: spikes, channels last, where ``has_plain``.
        has_plain: they are wanted.
        normal: fp32 (8, features): the batch's mean, 1 / deviation and variance, slope and offset, the mean and
            1 / deviation that were used, and what the sparsity term adds to the gradient of every spike.
        shape: (images, places of an image, features).
        source: (images of a block, groups, features of a group) of ``s``.
        target: the same of ``y``.
        lanes: a tuple; its length is the number of features that are handled together.
        pieces: a tuple; its length is the number of groups of ``source`` that these features fill, 1 for a part of one.
        pieces_to: the same of ``target``.
    """
    images, places, features = shape
    block, groups, width = source
    block_to, groups_to, width_to = target
    wide, apart, apart_to = len(lanes), block * places * width, block_to * places * width_to
    total, square = np.empty(wide, np.float64), np.empty(wide, np.float64)
    part = np.empty(wide, np.float32)
    epsilon, one, count = np.float32(VARIANCE_EPSILON), np.float32(1.0), images * places
    for feature in range(0, features, wide):
        from_feature = _begin(feature, places, block, width)
        pivot = read_pieces(s, from_feature, apart, pieces, lanes)
        total[:] = 0.0
        square[:] = 0.0
        sums, squares, pending = spread(np.float32(0.0), lanes), spread(np.float32(0.0), lanes), 0
        for image in range(images):
            at = _row(image, block, groups) * places * width + from_feature
            for place in range(places):
                difference = minus(read_pieces(s, at + place * width, apart, pieces, lanes), pivot)
                sums = plus(sums, difference)
                squares = product_sum(difference, difference, squares)
            pending += places
            if pending >= 256 or image == images - 1:
                _add_lanes(total, part, sums)
                _add_lanes(square, part, squares)
                sums, squares, pending = spread(np.float32(0.0), lanes), spread(np.float32(0.0), lanes), 0
        write(part, 0, pivot)
        for lane in range(wide):
            f, mean = feature + lane, total[lane] / count
            variance = np.float32(max(0.0, square[lane] / count - mean * mean))
            normal[0, f] = part[lane] + mean
            normal[1, f] = one / np.sqrt(variance + epsilon)
            normal[2, f] = variance
            normal[5, f], normal[6, f] = normal[0, f], normal[1, f]
            if is_running:
                normal[5, f] = running[0, f]
                normal[6, f] = one / np.sqrt(running[1, f] + epsilon)
            normal[3, f] = affine[0, f] * normal[6, f]
            normal[4, f] = affine[1, f] - normal[5, f] * normal[3, f]
        slope, offset = read(normal[3], feature, lanes), read(normal[4], feature, lanes)
        to_feature = _begin(feature, places, block_to, width_to)
        total[:] = 0.0
        sums, pending = spread(np.float32(0.0), lanes), 0
        for image in range(images):
            at = _row(image, block, groups) * places * width + from_feature
            to = _row(image, block_to, groups_to) * places * width_to + to_feature
            to_plain = image * places * features + feature
            for place in range(places):
                value = read_pieces(s, at + place * width, apart, pieces, lanes)
                fired = step(product_sum(value, slope, offset))
                sums = plus(sums, fired)
                write_pieces(y, to + place * width_to, apart_to, fired, pieces_to)
                if has_plain:
                    write(plain, to_plain + place * features, fired)
            pending += places
            if pending >= 256 or image == images - 1:
                _add_lanes(total, part, sums)
                sums, pending = spread(np.float32(0.0), lanes), 0
        for lane in range(wide):
            normal[7, feature + lane] = pressure[0] + pressure[1] * np.float32(total[lane] / count)


@njit(nogil=True, cache=True)
def step_gradient(  # type: ignore[no-untyped-def]
    s, dy, dy_plain, has_plain, normal, ds, sums, shape, source, target, lanes, pieces, pieces_to
):
    """Write ds, sum dx and sum dx n of :func:`spikestill.student.quantise.step_gradient`.

    Args:
        s: sums, in the layout ``source``.
        dy: gradient of the spikes, in the layout ``target``.
        dy_plain: a second gradient of the spikes, channels last, where ``has_plain``.
        has_plain: there is one.
        normal: what :func:`normalised_step` wrote.
        ds: gradient of the sums, in the layout ``source``.
        sums: fp32 (2, features): sum dx, sum dx n.
        shape: see :func:`normalised_step`.
        source: see :func:`normalised_step`.
        target: see :func:`normalised_step`.
        lanes: see :func:`normalised_step`.
        pieces: see :func:`normalised_step`.
        pieces_to: see :func:`normalised_step`.
    """
    images, places, features = shape
    block, groups, width = source
    block_to, groups_to, width_to = target
    wide, apart, apart_to = len(lanes), block * places * width, block_to * places * width_to
    total, total_normal = np.empty(wide, np.float64), np.empty(wide, np.float64)
    part, count = np.empty(wide, np.float32), images * places
    nothing = spread(np.float32(0.0), lanes)
    for feature in range(0, features, wide):
        from_feature = _begin(feature, places, block, width)
        added = read(normal[7], feature, lanes)
        mu, scale = read(normal[0], feature, lanes), read(normal[1], feature, lanes)
        slope, offset = read(normal[3], feature, lanes), read(normal[4], feature, lanes)
        to_feature = _begin(feature, places, block_to, width_to)
        total[:] = 0.0
        total_normal[:] = 0.0
        dx_sum, dx_normal_sum, pending = nothing, nothing, 0
        for image in range(images):
            at = _row(image, block, groups) * places * width + from_feature
            to = _row(image, block_to, groups_to) * places * width_to + to_feature
            to_plain = image * places * features + feature
            for place in range(places):
                value = read_pieces(s, at + place * width, apart, pieces, lanes)
                gradient = plus(read_pieces(dy, to + place * width_to, apart_to, pieces_to, lanes), added)
                if has_plain:
                    gradient = plus(gradient, read(dy_plain, to_plain + place * features, lanes))
                dx = times(gradient, triangle(product_sum(value, slope, offset)))
                dx_sum = plus(dx_sum, dx)
                dx_normal_sum = product_sum(dx, times(minus(value, mu), scale), dx_normal_sum)
            pending += places
            if pending >= 256 or image == images - 1:
                _add_lanes(total, part, dx_sum)
                _add_lanes(total_normal, part, dx_normal_sum)
                dx_sum, dx_normal_sum, pending = nothing, nothing, 0
        for lane in range(wide):
            sums[0, feature + lane], sums[1, feature + lane] = total[lane], total_normal[lane]
            part[lane] = total[lane] / count
        mean = read(part, 0, lanes)
        for lane in range(wide):
            part[lane] = total_normal[lane] / count
        mean_normal = read(part, 0, lanes)
        for image in range(images):
            at = _row(image, block, groups) * places * width + from_feature
            to = _row(image, block_to, groups_to) * places * width_to + to_feature
            to_plain = image * places * features + feature
            for place in range(places):
                value = read_pieces(s, at + place * width, apart, pieces, lanes)
                gradient = plus(read_pieces(dy, to + place * width_to, apart_to, pieces_to, lanes), added)
                if has_plain:
                    gradient = plus(gradient, read(dy_plain, to_plain + place * features, lanes))
                dx = times(gradient, triangle(product_sum(value, slope, offset)))
                n = times(minus(value, mu), scale)
                found = times(minus(dx, product_sum(n, mean_normal, mean)), slope)
                write_pieces(ds, at + place * width, apart, found, pieces)


@njit(nogil=True, cache=True)
def gather_pixels(pixels, patches, first, count, geometry, lanes):  # type: ignore[no-untyped-def]
    """Write the patches (count, out, out, C, k, k) of images ``first`` and on of ``pixels`` (B, C, H, W) uint8."""
    channels, side, out, kernel, stride, pad = geometry
    wide, nothing, to = len(lanes), spread(np.float32(0.0), lanes), 0
    one, one_nothing = (0,), spread(np.float32(0.0), (0,))
    for image in range(first, first + count):
        for row in range(out):
            for column in range(out):
                left = column * stride - pad
                for channel in range(channels):
                    for u in range(kernel):
                        r = row * stride + u - pad
                        if r < 0 or r >= side:
                            for v in range(0, kernel, wide):
                                write(patches, to + v, nothing)
                        elif left >= 0 and left + kernel <= side:
                            at = ((image * channels + channel) * side + r) * side + left
                            for v in range(0, kernel, wide):
                                write(patches, to + v, read(pixels, at + v, lanes))
                        else:
                            at = ((image * channels + channel) * side + r) * side + left
                            for v in range(kernel):
                                if 0 <= left + v < side:
                                    write(patches, to + v, read(pixels, at + v, one))
                                else:
                                    write(patches, to + v, one_nothing)
                        to += kernel


@njit(nogil=True, cache=True)
def gather(y, start, patches, geometry, lanes):  # type: ignore[no-untyped-def]
    """Write the patches (G, b, out, out, k, k, c) of one block of spikes (G, b, h, w, c) that begins at ``start``."""
    planes, channels, side, out, kernel, stride, pad = geometry
    wide, length, to, nothing = len(lanes), kernel * channels, 0, spread(np.float32(0.0), lanes)
    for plane in range(planes):
        for row in range(out):
            for column in range(out):
                left = column * stride - pad
                begin, end = max(0, -left), max(max(0, -left), min(kernel, side - left))
                for u in range(kernel):
                    r = row * stride + u - pad
                    if r < 0 or r >= side:
                        for i in range(0, length, wide):
                            write(patches, to + i, nothing)
                    else:
                        at = start + ((plane * side + r) * side + left) * channels
                        for i in range(0, begin * channels, wide):
                            write(patches, to + i, nothing)
                        for i in range(begin * channels, end * channels, wide):
                            move(patches, to + i, y, at + i, lanes)
                        for i in range(end * channels, length, wide):
                            write(patches, to + i, nothing)
                    to += length


@njit(nogil=True, cache=True)
def scatter(patches, dy, start, geometry, lanes):  # type: ignore[no-untyped-def]
    """Add the gradients of one block's patches up to those of its spikes: the transpose of :func:`gather`."""
    planes, channels, side, out, kernel, stride, pad = geometry
    wide, length, at = len(lanes), kernel * channels, 0
    image = np.empty(side * side * channels, np.float32)
    for plane in range(planes):
        image[:] = 0.0
        for row in range(out):
            for column in range(out):
                left = column * stride - pad
                begin, end = max(0, -left), max(max(0, -left), min(kernel, side - left))
                for u in range(kernel):
                    r = row * stride + u - pad
                    if 0 <= r < side:
                        to = (r * side + left) * channels
                        for i in range(begin * channels, end * channels, wide):
                            write(
                                image, to + i, plus(read(image, to + i, lanes), read(patches, at + i, lanes))
                            )
                    at += length
        to = start + plane * side * side * channels
        for i in range(0, side * side * channels, wide):
            write(dy, to + i, read(image, i, lanes))


@njit(nogil=True, cache=True)
def requantise(shadow, ternary, thresholds):  # type: ignore[no-untyped-def]
    """Clip flat shadow weights to [-1, 1] and renew their ternary weights.

    +1 where w >= thresholds[0] (thresholds[1] where the weight was +1), -1 where -w is, else 0.
    """
    low, high = np.float32(-1.0), np.float32(1.0)
    outside, inside, zero = np.float32(thresholds[0]), np.float32(thresholds[1]), np.float32(0.0)
    for index in range(shadow.shape[0]):
        w, before = shadow[index], ternary[index]
        w = high if w > high else w
        w = low if w < low else w
        shadow[index] = w
        plus_limit = inside if before > zero else outside
        minus_limit = inside if before < zero else outside
        found = high if w >= plus_limit else zero
        ternary[index] = low if -w >= minus_limit else found
