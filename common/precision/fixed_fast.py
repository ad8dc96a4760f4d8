"""A fixed-point layer's operations as numba kernels: the integers of ``fixed_reference.py``.

``network_forward``, ``network_backward`` and ``network_gradient`` do all of a network's layers without the interpreter,
so that threads that pass parts of a batch do not wait for it.

Products of factors too large for one 64-bit sum take the element's two sums, slowly; no training comes near it.

Axis suffixes: B batch, P outputs, Q inputs, N parameters, S rows of the stream, K terms, O outputs, L layers.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.common.compiling import njit
from spikestill.common.precision import fixed_adam
from spikestill.common.precision.fixed import AFFINE_SHIFT, TERMS, Affine, Int32, affine_shift, tanh
from spikestill.common.precision.fixed_adam import AdamRule
from spikestill.common.precision.fixed_product import WIDTH, fits, multiply
from spikestill.common.precision.fixed_words import explore, td_errors, through_tanh
from spikestill.common.precision.sharing import share

__all__ = [
    "adam", "approach", "backward", "explore", "extremes", "forward", "gradient", "network_backward", "network_forward",
    "network_gradient", "quantise", "tanh", "td_errors", "through_tanh",
]  # fmt: skip

_compiled = njit(nogil=True, cache=True, error_model="numpy")
_LIMIT = 1 << 47
MOVING, STEPPING = 16, 64
"""Multiply-adds that take as long as to move and to step a number."""
TILE = 16
"""Rows that are transposed at a time: a cache line."""
SHARES = 64
"""Into which the rows of every layer's gradient are cut, to be handed out."""
NO_BIAS = np.zeros(0, np.int32)
NO_MASK = np.zeros((0, 0), np.int32)
UP, DIVISOR, ZERO, MANTISSA, SHIFT = range(5)
"""Of a row of :func:`_sites`."""


@_compiled
def _transposed(matrix_PQ: Any) -> Any:
    """Return the transpose, zeros behind it up to a multiple of WIDTH columns."""
    rows, columns = matrix_PQ.shape
    out_QO = np.empty((columns, -(-rows // WIDTH) * WIDTH), np.int32)
    out_QO[:, rows:] = 0
    for first in range(0, rows, TILE):
        for q in range(columns):
            for p in range(first, min(first + TILE, rows)):
                out_QO[q, p] = matrix_PQ[p, q]
    return out_QO


@_compiled
def _widened(matrix_KO: Any) -> Any:
    """Return the matrix, zeros behind it up to a multiple of WIDTH columns."""
    rows, columns = matrix_KO.shape
    wide = -(-columns // WIDTH) * WIDTH
    if wide == columns:
        return matrix_KO
    out_KO = np.empty((rows, wide), np.int32)
    out_KO[:, columns:] = 0
    for k in range(rows):
        for o in range(columns):
            out_KO[k, o] = matrix_KO[k, o]
    return out_KO


@_compiled
def _two_sums(stream_SK: Any, right_KO: Any, upper_SO: Any, lower_SO: Any) -> None:
    for s in range(stream_SK.shape[0]):
        for o in range(right_KO.shape[1]):
            up, low = np.int64(0), np.int64(0)
            for k in range(stream_SK.shape[1]):
                value, weight = np.int64(stream_SK[s, k]), np.int64(right_KO[k, o])
                up += (value >> 16) * weight
                low += (value & 0xFFFF) * weight
            upper_SO[s, o], lower_SO[s, o] = up, low


@_compiled
def _narrow_two(upper_SO: Any, lower_SO: Any, shift: Any) -> None:
    """Write ``fixed.narrow``'s value, saturated to 48 bits, over the upper sums."""
    for s in range(upper_SO.shape[0]):
        for o in range(upper_SO.shape[1]):
            up = upper_SO[s, o] + (lower_SO[s, o] >> 16)
            low = lower_SO[s, o] & 0xFFFF
            if shift > 16:
                value = (up + (np.int64(1) << (shift - 17))) >> (shift - 16)
            else:
                up = min(max(up, -(np.int64(1) << 40)), np.int64(1) << 40)
                value = (up << (16 - shift)) + ((low + ((np.int64(1) << shift) >> 1)) >> shift)
            upper_SO[s, o] = min(max(value, -_LIMIT), _LIMIT - 1)


@_compiled
def _finish(
    sum_SO: Any, shift: Any, mantissa: Any, scale_shift: Any, bias_O: Any, bias_shift: Any, relu: Any, mask_SO: Any,
    bits: Any, out_SO: Any,
) -> int:  # fmt: skip
    """Round, scale, add the bias, apply ReLU or its derivative, saturate; return how many values were saturated."""
    bias_half = (np.int64(1) << bias_shift) >> 1
    high = np.int64((1 << (bits - 1)) - 1)
    half = (np.int64(1) << shift) >> 1
    clipped = 0
    columns = out_SO.shape[1]
    for s in range(out_SO.shape[0]):
        for o in range(columns):
            value = (sum_SO[s, o] + half) >> shift
            if mantissa > 0:
                kept = min(max(value, -_LIMIT), _LIMIT - 1)
                clipped += kept != value
                value = kept * mantissa
                if scale_shift > 0:
                    value = ((value >> (scale_shift - 1)) + 1) >> 1
            if bias_O.shape[0] > 0:
                value += (np.int64(bias_O[o]) + bias_half) >> bias_shift
            if relu:
                value = max(value, np.int64(0))
            kept = min(max(value, -high - 1), high)
            clipped += kept != value
            if mask_SO.shape[0] > 0 and mask_SO[s, o] <= 0:
                kept = np.int64(0)
            out_SO[s, o] = kept
    return clipped


@_compiled
def _product(
    stream_SK: Any, right_KO: Any, shift: Any, mantissa: Any, scale_shift: Any, bias_O: Any, bias_shift: Any, relu: Any,
    mask_SO: Any, bits: Any, out_SO: Any,
) -> int:  # fmt: skip
    """Write the finished product, of a stream in 16-bit formats where ``mantissa`` > 0; return values saturated."""
    sum_SO = np.empty((stream_SK.shape[0], right_KO.shape[1]), np.int64)
    if mantissa > 0 or fits(stream_SK, right_KO):
        multiply(stream_SK, right_KO, sum_SO)
        shift = AFFINE_SHIFT if mantissa > 0 else shift
    else:
        lower_SO = np.empty_like(sum_SO)
        _two_sums(stream_SK, right_KO, sum_SO, lower_SO)
        _narrow_two(sum_SO, lower_SO, shift)
        shift = 0
    return _finish(sum_SO, shift, mantissa, scale_shift, bias_O, bias_shift, relu, mask_SO, bits, out_SO)


@_compiled
def _quantise(activation_BQ: Any, up: Any, divisor: Any, zero: Any, out_BQ: Any) -> int:
    clipped = 0
    for b in range(activation_BQ.shape[0]):
        for q in range(activation_BQ.shape[1]):
            value = np.int64(activation_BQ[b, q]) << up
            found = np.int64(np.floor(np.float64(value) / np.float64(divisor)))
            rest = value - found * divisor
            found += np.int64(rest >= divisor) - np.int64(rest < 0) + zero
            kept = min(max(found, np.int64(0)), np.int64(65535))
            clipped += kept != found
            out_BQ[b, q] = kept - zero
    return clipped


def _quotient(affine: Affine) -> tuple[int, int]:
    """Return (bits to shift an activation up, what to divide it by then)."""
    return 16 + max(0, -affine.exponent), affine.mantissa << max(0, affine.exponent)


def _sites(sites: Sequence[Affine | None], shift: int) -> npt.NDArray[np.int64]:
    """Return what the kernels read of the layers' input formats, (L, 5); a mantissa of 0: there is none."""
    return np.array(
        [
            (0, 1, 0, 0, 0)
            if affine is None
            else (*_quotient(affine), affine.zero, affine.mantissa, affine_shift(affine, shift))
            for affine in sites
        ],
        np.int64,
    )


def _check(terms: int) -> None:
    if terms > TERMS:
        raise ValueError(f"{terms} terms, {TERMS} is what a 64-bit sum holds for certain")


@_compiled
def _forward(
    flat_N: Any, sizes: Any, x_BQ: Any, site_L5: Any, shift: Any, bias_shift: Any, bits: Any,
    flat_inputs: Any, extreme_L2: Any, out_BP: Any,
) -> Any:  # fmt: skip
    saturated, overshot, at, place = 0, 0, 0, 0
    layers, batch = len(sizes) - 1, x_BQ.shape[0]
    for index in range(layers):
        q, p = sizes[index], sizes[index + 1]
        weight_PQ, bias_P = flat_N[at : at + p * q].reshape(p, q), flat_N[at + p * q : at + p * q + p]
        in_BQ = flat_inputs[place : place + batch * q].reshape(batch, q)
        site = site_L5[index]
        if site[MANTISSA] > 0:
            overshot += _quantise(x_BQ, site[UP], site[DIVISOR], site[ZERO], in_BQ)
        else:
            least, largest = np.int32(0), np.int32(0)
            for b in range(batch):
                for i in range(q):
                    value = x_BQ[b, i]
                    least, largest = min(least, value), max(largest, value)
                    in_BQ[b, i] = value
            extreme_L2[index, 0], extreme_L2[index, 1] = least, largest
        last = index == layers - 1
        next_BP = out_BP if last else np.empty((batch, p), np.int32)
        saturated += _product(
            in_BQ, _transposed(weight_PQ), shift, site[MANTISSA], site[SHIFT], bias_P, bias_shift,
            not last, NO_MASK, bits, next_BP,
        )  # fmt: skip
        x_BQ = next_BP
        at += p * q + p
        place += batch * q
    return saturated, overshot


def network_forward(
    flat_N: Int32, sizes: tuple[int, ...], x_BQ: Int32, sites: Sequence[Affine | None], shift: int,
    bias_shift: int, bits: int,
) -> tuple[list[Int32], Int32, list[tuple[int, int]], int, int]:  # fmt: skip
    """Pass a batch through all layers, each as ``fixed_reference.forward`` behind ``quantise`` or ``extremes``.

    Args:
        flat_N: parameters, layer after layer: weights by rows, then biases.
        sizes: of the layers, the input's first.
        x_BQ: activations.
        sites: format of each layer's input, None for whole ones.
        shift, bias_shift, bits: see ``fixed_reference.forward``.

    Returns:
        what each layer multiplied; the output; the extremes of whole inputs; values saturated; values beyond their
        16-bit format.
    """
    _check(max(sizes[:-1]))
    batch = len(x_BQ)
    flat_inputs = np.empty(batch * sum(sizes[:-1]), np.int32)
    extreme_L2 = np.empty((len(sites), 2), np.int64)
    out_BP = np.empty((batch, sizes[-1]), np.int32)
    saturated, overshot = _forward(
        flat_N, sizes, np.ascontiguousarray(x_BQ), _sites(sites, shift), shift, bias_shift, bits,
        flat_inputs, extreme_L2, out_BP,
    )  # fmt: skip
    extremes = [
        (int(least), int(largest))
        for site, (least, largest) in zip(sites, extreme_L2, strict=True)
        if site is None
    ]
    return _by_layers(flat_inputs, sizes[:-1], batch), out_BP, extremes, int(saturated), int(overshot)


def _by_layers(flat: Int32, widths: Sequence[int], batch: int) -> list[Int32]:
    """Return views of a flat array's layers, (batch, width) each."""
    ends = [batch * end for end in itertools.accumulate(widths)]
    return [
        flat[end - batch * width : end].reshape(batch, width) for end, width in zip(ends, widths, strict=True)
    ]


@_compiled
def _backward(
    flat_N: Any, sizes: Any, masks: Any, error_BP: Any, shift: Any, bits: Any, flat_errors: Any
) -> int:
    saturated, at, place = 0, len(flat_N), len(flat_errors)
    layers, batch = len(sizes) - 1, error_BP.shape[0]
    for index in range(layers - 1, -1, -1):
        q, p = sizes[index], sizes[index + 1]
        at -= p * q + p
        place -= batch * q
        if place < 0:
            break
        weight_PQ = flat_N[at : at + p * q].reshape(p, q)
        next_BQ = flat_errors[place : place + batch * q].reshape(batch, q)
        mask = masks[index] if index > 0 else NO_MASK
        saturated += _product(
            error_BP, _widened(weight_PQ), shift, 0, 0, NO_BIAS, 0, False, mask, bits, next_BQ
        )
        error_BP = next_BQ
    return saturated


def network_backward(
    flat_N: Int32, sizes: tuple[int, ...], inputs: Sequence[Int32], error_BP: Int32, shift: int, bits: int, *,
    to_input: bool,
) -> tuple[list[Int32], int]:  # fmt: skip
    """Return (the errors at every layer's input, from the second layer's or the first's on; values saturated).

    Args:
        flat_N, sizes: the network.
        inputs: of each layer, whose signs are ReLU's derivative.
        error_BP: at the output.
        shift, bits: see ``fixed_reference.backward``.
        to_input: begin with the first layer's input.
    """
    _check(max(sizes[1:]))
    widths = sizes[0 if to_input else 1 : -1]
    flat_errors = np.empty(len(error_BP) * sum(widths), np.int32)
    saturated = _backward(
        flat_N, sizes, tuple(inputs), np.ascontiguousarray(error_BP), shift, bits, flat_errors
    )
    return _by_layers(flat_errors, widths, len(error_BP)), int(saturated)


@_compiled
def _gradient(
    sizes: Any, errors: Any, inputs: Any, site_L5: Any, unit: Any, shift: Any, bits: Any, first: Any, last: Any,
    flat_N: Any,
) -> int:  # fmt: skip
    high = np.int64((1 << (bits - 1)) - 1)
    half = (np.int64(1) << shift) >> 1
    saturated, at = 0, 0
    for index in range(len(sizes) - 1):
        q, p = sizes[index], sizes[index + 1]
        error_BP = errors[index]
        batch, begin, end = error_BP.shape[0], p * first // SHARES, p * last // SHARES
        stream_PB = np.empty((end - begin, batch), np.int32)
        for row in range(begin, end):
            total = np.int64(0)
            for b in range(batch):
                value = error_BP[b, row]
                stream_PB[row - begin, b] = value
                total += value
            found = ((total << unit) + half) >> shift
            kept = min(max(found, -high - 1), high)
            saturated += kept != found
            flat_N[at + p * q + row] = kept
        weight_PQ = flat_N[at + begin * q : at + end * q].reshape(end - begin, q)
        saturated += _product(
            stream_PB, _widened(inputs[index]), shift, site_L5[index, MANTISSA], site_L5[index, SHIFT], NO_BIAS, 0,
            False, NO_MASK, bits, weight_PQ,
        )  # fmt: skip
        at += p * q + p
    return saturated


def network_gradient(
    sizes: tuple[int, ...], errors: Sequence[Int32], inputs: Sequence[Int32], sites: Sequence[Affine | None],
    unit: int, shift: int, bits: int,
) -> tuple[Int32, int]:  # fmt: skip
    """Return (the gradient of all parameters, flat; values saturated), a part of every layer's rows on each thread.

    Args:
        sizes: of the layers.
        errors: at each layer's output.
        inputs, sites: of each layer.
        unit, shift, bits: see ``fixed_reference.gradient``.
    """
    batch = len(errors[0])
    _check(batch)
    parameters = sum((q + 1) * p for q, p in itertools.pairwise(sizes))
    flat_N, site_L5 = np.empty(parameters, np.int32), _sites(sites, shift)
    contiguous = tuple(map(np.ascontiguousarray, errors)), tuple(map(np.ascontiguousarray, inputs))

    def work(first: int, last: int) -> int:
        return int(_gradient(sizes, *contiguous, site_L5, unit, shift, bits, first, last, flat_N))

    return flat_N, sum(share(SHARES, 1, batch * parameters, work))


def forward(
    x_BQ: Int32, affine: Affine | None, weight_PQ: Int32, bias_P: Int32, shift: int, bias_shift: int,
    bits: int, relu: bool,
) -> tuple[Int32, int]:  # fmt: skip
    """Return (activations, values saturated), see ``fixed_reference.forward``."""
    _check(x_BQ.shape[1])
    mantissa, scale_shift = _sites([affine], shift)[0, [MANTISSA, SHIFT]]
    out_BP = np.empty((len(x_BQ), len(weight_PQ)), np.int32)
    lost = _product(
        np.ascontiguousarray(x_BQ), _transposed(np.ascontiguousarray(weight_PQ)), shift, mantissa, scale_shift,
        bias_P, bias_shift, relu, NO_MASK, bits, out_BP,
    )  # fmt: skip
    return out_BP, int(lost)


def backward(
    error_BP: Int32, weight_PQ: Int32, mask_BQ: Int32 | None, shift: int, bits: int
) -> tuple[Int32, int]:
    """Return (errors, values saturated), see ``fixed_reference.backward``."""
    mask = NO_MASK if mask_BQ is None else np.ascontiguousarray(mask_BQ)
    out_BQ = np.empty((len(error_BP), weight_PQ.shape[1]), np.int32)
    _check(len(weight_PQ))
    lost = _product(
        np.ascontiguousarray(error_BP), _widened(np.ascontiguousarray(weight_PQ)), shift, 0, 0, NO_BIAS, 0, False,
        mask, bits, out_BQ,
    )  # fmt: skip
    return out_BQ, int(lost)


def gradient(
    error_BP: Int32, x_BQ: Int32, affine: Affine | None, unit: int, shift: int, bits: int
) -> tuple[Int32, Int32, int]:
    """Return (gradients of weights and biases, values saturated), see ``fixed_reference.gradient``."""
    q, p = x_BQ.shape[1], error_BP.shape[1]
    flat_N, lost = network_gradient((q, p), [error_BP], [x_BQ], [affine], unit, shift, bits)
    return flat_N[: p * q].reshape(p, q), flat_N[p * q :], lost


def quantise(activation: Int32, affine: Affine) -> tuple[Int32, int]:
    """Return (q - z, how many q were saturated)."""
    out = np.empty_like(activation)
    return out, int(_quantise(activation, *_quotient(affine), affine.zero, out))


def extremes(activation: Int32) -> tuple[int, int]:
    """Return (least, largest), 0 included."""
    return int(activation.min(initial=0)), int(activation.max(initial=0))


def adam(
    weight_N: Int32, m_N: Int32, v_N: Int32, gradient_N: Int32, alpha: int, rule: AdamRule, key: int
) -> tuple[Int32, Int32, Int32, int]:
    """Return (weight, m, v, values saturated): :func:`fixed_adam.step`."""
    out_3N = np.empty((3, len(weight_N)), np.int32)
    clipped = share(
        len(weight_N), 1024, STEPPING * len(weight_N),
        lambda first, last: fixed_adam.fast_step(
            weight_N, m_N, v_N, gradient_N, alpha, rule, key, out_3N, first, last
        ),
    )  # fmt: skip
    return out_3N[0], out_3N[1], out_3N[2], sum(clipped)


def approach(target_N: Int32, weight_N: Int32, tau: int) -> Int32:
    """Return the moved target network: :func:`fixed_adam.approach`."""
    out_N = np.empty_like(target_N)
    work = functools.partial(fixed_adam.fast_approach, target_N, weight_N, tau, out_N)
    share(len(target_N), 1024, MOVING * len(target_N), work)
    return out_N
