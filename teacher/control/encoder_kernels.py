"""The pixel encoder's loops on the host, compiled: patches of a convolution, layer norm, standardised weights.

A sum over many numbers is taken in the storage's type and rounded once, as a product is; every other operation's result
is rounded. Axis suffixes: H, W rows and columns, C channels, P places of an output, K = 9 C numbers of a patch,
B batch, I, O layer inputs and outputs, Z features.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.common.compiling import njit
from spikestill.common.precision.rounding import Rounding, rounded

Array = npt.NDArray[Any]
KERNEL = 3
"""Side of every convolution's kernel."""


@njit(cache=True, nogil=True)
def look_up(levels: Array, image: npt.NDArray[np.uint8], out: Array) -> None:
    """out ← levels[image], flat."""
    for i in range(image.size):
        out[i] = levels[image[i]]


@njit(cache=True, nogil=True)
def gather(x_HWC: Array, stride: int, patches_PK: Array) -> None:
    """Write the 3 x 3 patches of an image, row by row, each (row, column, channel)."""
    width, channels = x_HWC.shape[1], x_HWC.shape[2]
    x, run = x_HWC.reshape(-1), KERNEL * channels
    columns = (width - KERNEL) // stride + 1
    for p in range(patches_PK.shape[0]):
        top, left = p // columns * stride, p % columns * stride
        for row in range(KERNEL):
            begin = ((top + row) * width + left) * channels
            given, into = x[begin : begin + run], patches_PK[p, row * run : (row + 1) * run]
            for k in range(run):
                into[k] = given[k]


@njit(cache=True, nogil=True, error_model="numpy")
def scatter(g_PK: Array, stride: int, active_HWC: Array, q: Rounding, g_HWC: Array) -> None:
    """Write the image's gradient: the sum over all patches that hold a number, rounded; 0 where it was not active."""
    width, channels = active_HWC.shape[1], active_HWC.shape[2]
    g, active, run = g_HWC.reshape(-1), active_HWC.reshape(-1), KERNEL * channels
    columns = (width - KERNEL) // stride + 1
    g[:] = 0
    for p in range(g_PK.shape[0]):
        top, left = p // columns * stride, p % columns * stride
        for row in range(KERNEL):
            begin = ((top + row) * width + left) * channels
            into, given = g[begin : begin + run], g_PK[p, row * run : (row + 1) * run]
            for k in range(run):
                into[k] += given[k]
    zero = g.dtype.type(0)
    for i in range(g.size):
        g[i] = rounded(g[i], q) if active[i] > zero else zero


@njit(cache=True, nogil=True, error_model="numpy")
def standardise(
    weight_IO: Array, epsilon: Any, scale: Any, q: Rounding, out_IO: Array, inverse_O: Array
) -> None:
    """Write s (W - mean) / sqrt(variance + ε), both over the inputs of each output, and s / sqrt(variance + ε)."""
    inputs, outputs = weight_IO.shape
    mean_O = np.zeros_like(inverse_O)
    for i in range(inputs):
        for o in range(outputs):
            mean_O[o] += weight_IO[i, o]
    for o in range(outputs):
        mean_O[o] = rounded(mean_O[o] / inputs, q)
        inverse_O[o] = 0
    for i in range(inputs):
        for o in range(outputs):
            d = rounded(weight_IO[i, o] - mean_O[o], q)
            out_IO[i, o] = d
            inverse_O[o] += d * d
    for o in range(outputs):
        inverse_O[o] = rounded(reciprocal_root(inverse_O[o] / inputs, epsilon, q) * scale, q)
    for i in range(inputs):
        for o in range(outputs):
            out_IO[i, o] = rounded(out_IO[i, o] * inverse_O[o], q)


@njit(error_model="numpy", forceinline=True)
def reciprocal_root(variance: Any, epsilon: Any, q: Rounding) -> Any:
    """Return 1 / sqrt(variance + ε), each step rounded."""
    root = rounded(np.sqrt(rounded(rounded(variance, q) + epsilon, q)), q)
    return rounded(1.0 / root, q)


@njit(cache=True, nogil=True, error_model="numpy")
def standardise_backward(standard_IO: Array, inverse_O: Array, q: Rounding, g_IO: Array) -> None:
    """g ← (g - mean(g) - Ŵ sum(g Ŵ)) s / sqrt(variance + ε), mean and sum over the I inputs, from Ŵ's gradient to W's,
    where s = 1 / √I."""
    inputs, outputs = g_IO.shape
    mean_O, along_O = np.zeros_like(inverse_O), np.zeros_like(inverse_O)
    for i in range(inputs):
        for o in range(outputs):
            each = rounded(g_IO[i, o], q)
            g_IO[i, o] = each
            mean_O[o] += each
            along_O[o] += each * standard_IO[i, o]
    for o in range(outputs):
        mean_O[o], along_O[o] = rounded(mean_O[o] / inputs, q), rounded(along_O[o], q)
    for i in range(inputs):
        for o in range(outputs):
            rest = rounded(rounded(g_IO[i, o] - mean_O[o], q) - rounded(standard_IO[i, o] * along_O[o], q), q)
            g_IO[i, o] = rounded(rest * inverse_O[o], q)


@njit(cache=True, nogil=True, error_model="numpy")
def limit(x_BZ: Array, largest: Any, q: Rounding, factor_B: Array) -> None:
    """Scale each row whose largest magnitude is beyond ``largest`` down to it, in place; write the factors."""
    for b in range(x_BZ.shape[0]):
        found = x_BZ.dtype.type(0)
        for z in range(x_BZ.shape[1]):
            found = max(found, abs(x_BZ[b, z]))
        factor_B[b] = rounded(largest / found, q) if found > largest else x_BZ.dtype.type(1)
        for z in range(x_BZ.shape[1]):
            x_BZ[b, z] = rounded(x_BZ[b, z] * factor_B[b], q)


@njit(cache=True, nogil=True, error_model="numpy")
def scale_rows(x_BZ: Array, factor_B: Array, q: Rounding) -> None:
    """x ← x times its row's factor."""
    for b in range(x_BZ.shape[0]):
        for z in range(x_BZ.shape[1]):
            x_BZ[b, z] = rounded(x_BZ[b, z] * factor_B[b], q)


@njit(cache=True, nogil=True, error_model="numpy")
def normalise(
    x_BZ: Array, gain_Z: Array, offset_Z: Array, epsilon: Any, q: Rounding, normal_BZ: Array, inverse_B: Array,
    out_BZ: Array,
) -> None:  # fmt: skip
    """Layer norm (Ba 2016): n = (x - mean) / sqrt(variance + ε) over a row's features, out = gain n + offset."""
    features = x_BZ.shape[1]
    for b in range(x_BZ.shape[0]):
        mean = x_BZ.dtype.type(0)
        for z in range(features):
            mean += x_BZ[b, z]
        mean = rounded(mean / features, q)
        squares = x_BZ.dtype.type(0)
        for z in range(features):
            d = rounded(x_BZ[b, z] - mean, q)
            normal_BZ[b, z] = d
            squares += d * d
        inverse_B[b] = reciprocal_root(squares / features, epsilon, q)
        for z in range(features):
            n = rounded(normal_BZ[b, z] * inverse_B[b], q)
            normal_BZ[b, z] = n
            out_BZ[b, z] = rounded(rounded(gain_Z[z] * n, q) + offset_Z[z], q)


@njit(cache=True, nogil=True, error_model="numpy")
def normalise_backward(
    g_BZ: Array, normal_BZ: Array, inverse_B: Array, gain_Z: Array, q: Rounding, g_gain_Z: Array, g_offset_Z: Array
) -> None:  # fmt: skip
    """g ← x's gradient, (h - mean(h) - n mean(h n)) / sqrt(variance + ε), h = gain g; write gain's and offset's."""
    features = g_BZ.shape[1]
    g_gain_Z[:] = 0
    g_offset_Z[:] = 0
    for b in range(g_BZ.shape[0]):
        mean, along = g_BZ.dtype.type(0), g_BZ.dtype.type(0)
        for z in range(features):
            g, n = g_BZ[b, z], normal_BZ[b, z]
            g_gain_Z[z] += g * n
            g_offset_Z[z] += g
            h = rounded(g * gain_Z[z], q)
            g_BZ[b, z] = h
            mean += h
            along += h * n
        mean, along = rounded(mean / features, q), rounded(along / features, q)
        for z in range(features):
            rest = rounded(rounded(g_BZ[b, z] - mean, q) - rounded(normal_BZ[b, z] * along, q), q)
            g_BZ[b, z] = rounded(rest * inverse_B[b], q)
