"""A fixed-point layer's operations as numba kernels on a thread a core, or :func:`at_most` so many: the integers of
``fixed_reference.py``.

Products of factors too large for one 64-bit sum take the element's two sums, slowly; no training comes near it.

Axis suffixes: B batch, P outputs, Q inputs, N parameters, S rows of the stream, K terms, O outputs.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from spikestill.common.awake import AwakeThread
from spikestill.common.compiling import njit
from spikestill.common.precision import fixed_adam
from spikestill.common.precision.fixed import (
    TERMS,
    Affine,
    Int32,
    Int64,
    affine_shift,
    round_shift,
    saturate,
    tanh,
)
from spikestill.common.precision.fixed_adam import AdamRule
from spikestill.common.precision.fixed_product import fits, multiply, padded
from spikestill.common.precision.fixed_words import explore, td_errors, through_tanh
from spikestill.common.processor import cores

__all__ = [
    "adam", "approach", "at_most", "backward", "explore", "extremes", "forward", "gradient", "quantise", "tanh",
    "td_errors", "through_tanh",
]  # fmt: skip

_compiled = njit(nogil=True, cache=True, error_model="numpy")
_LIMIT = 1 << 47
WORTH_SHARING = 1_000_000
"""Multiply-adds from which handing half to another thread (some 20 us) pays."""
LOOKS = 5000
"""How often a thread looks for work before it sleeps, 1 ms or more: longer than an update goes without any."""
MOVING, DIVIDING, STEPPING = 16, 32, 64
"""Multiply-adds that take as long as to move, to quantise and to step a number."""
TILE = 16
"""Rows that are transposed at a time: a cache line."""
NO_BIAS = np.zeros(0, np.int32)
NO_MASK = np.zeros((0, 0), np.int32)
_limit = 0
"""Threads that compute; 0: one a core."""


@contextlib.contextmanager
def at_most(threads: int) -> Iterator[None]:
    """Compute on ``threads`` threads within, 0: one a core. It holds for the whole process, and changes no integer."""
    global _limit
    before, _limit = _limit, threads
    try:
        yield
    finally:
        _limit = before


@functools.cache
def _free() -> list[AwakeThread]:
    """Return the threads that have no work: at first one for each core but the caller's."""
    return [AwakeThread(LOOKS) for _ in range(cores() - 1)]


def _share(rows: int, step: int, cost: int, work: Callable[[int, int], Any]) -> list[Any]:
    """Return what ``work(first, last)`` gives for the rows, in a part for each thread where ``cost`` is worth it.

    Args:
        rows: how many.
        step: parts are multiples of it.
        cost: multiply-adds, or as much work.
        work: of a part.
    """
    others: list[AwakeThread] = []
    if cost >= WORTH_SHARING:
        with contextlib.suppress(IndexError):  # another caller has the rest
            while len(others) < min(_limit or cores(), -(-rows // step)) - 1:
                others.append(_free().pop())
    threads = len(others) + 1
    size = -(-rows // threads // step) * step
    parts = [(first, min(first + size, rows)) for first in range(0, rows, size)] or [(0, 0)]
    asked = others[: len(parts) - 1]
    for other, part in zip(asked, parts[1:], strict=True):
        other.ask(functools.partial(work, *part))
    found = [work(*parts[0]), *(other.answer() for other in asked)]
    # Not after an error, which leaves answers that nobody fetched.
    _free().extend(others)
    return found


@_compiled
def _transpose(matrix_PQ: Any, out_QO: Any, first: int, last: int) -> None:
    """Write the transpose of rows into columns of ``out_QO``; with the last row its padding becomes 0."""
    rows, columns = matrix_PQ.shape
    if last == rows:
        out_QO[:, rows:] = 0
    for begin in range(first, last, TILE):
        for q in range(columns):
            for p in range(begin, min(begin + TILE, last)):
                out_QO[q, p] = matrix_PQ[p, q]


def _transposed(matrix_PQ: Int32) -> Int32:
    out_QO = np.empty((matrix_PQ.shape[1], padded(matrix_PQ.shape[0])), np.int32)
    work = functools.partial(_transpose, matrix_PQ, out_QO)
    _share(len(matrix_PQ), TILE, MOVING * matrix_PQ.size, work)
    return out_QO


def _widened(matrix_KO: Int32) -> Int32:
    outputs = matrix_KO.shape[1]
    if outputs == padded(outputs):
        return np.ascontiguousarray(matrix_KO)
    out = np.zeros((len(matrix_KO), padded(outputs)), np.int32)
    out[:, :outputs] = matrix_KO
    return out


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
    sum_SO: Any, shift: Any, mantissa: Any, scale_shift: Any, bias_O: Any, relu: Any, mask_SO: Any, bits: Any,
    out_SO: Any,
) -> int:  # fmt: skip
    """Round, scale, add the bias, apply ReLU or its derivative, saturate; return how many values were saturated."""
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
                value += bias_O[o]
            if relu:
                value = max(value, np.int64(0))
            kept = min(max(value, -high - 1), high)
            clipped += kept != value
            if mask_SO.shape[0] > 0 and mask_SO[s, o] <= 0:
                kept = np.int64(0)
            out_SO[s, o] = kept
    return clipped


def _product(
    stream_SK: Int32, right_KO: Int32, outputs: int, affine: Affine | None, shift: int, bias_O: Int64,
    relu: bool, mask_SO: Int32, bits: int, large: tuple[Int32, Int32],
) -> tuple[Int32, int]:  # fmt: skip
    """Return (the finished product (S, outputs), values saturated), rows shared out over the cores.

    ``large`` are the two factors as they were before padding and transposition, to bound the sums by.
    """
    terms = stream_SK.shape[1]
    if terms > TERMS:
        raise ValueError(f"{terms} terms, {TERMS} is what a 64-bit sum holds for certain")
    one_sum = affine is not None or fits(*large, terms)
    out_SO = np.empty((len(stream_SK), outputs), np.int32)
    mantissa, scale_shift = (0, 0) if affine is None else (affine.mantissa, affine_shift(affine, shift))
    first_shift = shift if affine is None else 8

    def work(first: int, last: int) -> int:
        sums = np.empty((last - first, right_KO.shape[1]), np.int64)
        stream, by = stream_SK[first:last], first_shift
        if one_sum:
            multiply(stream, right_KO, sums)
        else:
            lower = np.empty_like(sums)
            _two_sums(stream, right_KO, sums, lower)
            _narrow_two(sums, lower, shift)
            by = 0
        mask = mask_SO[first:last] if len(mask_SO) else mask_SO
        return int(_finish(sums, by, mantissa, scale_shift, bias_O, relu, mask, bits, out_SO[first:last]))

    return out_SO, sum(_share(len(stream_SK), 4, stream_SK.size * right_KO.shape[1], work))


def forward(
    x_BQ: Int32, affine: Affine | None, weight_PQ: Int32, bias_P: Int32, shift: int, bias_shift: int,
    bits: int, relu: bool,
) -> tuple[Int32, int]:  # fmt: skip
    """Return (activations, values saturated), see ``fixed_reference.forward``."""
    bias = round_shift(bias_P.astype(np.int64), bias_shift)
    return _product(
        np.ascontiguousarray(x_BQ), _transposed(weight_PQ), len(weight_PQ), affine, shift, bias, relu, NO_MASK,
        bits, (x_BQ, weight_PQ),
    )  # fmt: skip


def backward(
    error_BP: Int32, weight_PQ: Int32, mask_BQ: Int32 | None, shift: int, bits: int
) -> tuple[Int32, int]:
    """Return (errors, values saturated), see ``fixed_reference.backward``."""
    return _product(
        np.ascontiguousarray(error_BP), _widened(weight_PQ), weight_PQ.shape[1], None, shift,
        NO_BIAS.astype(np.int64), False, NO_MASK if mask_BQ is None else mask_BQ, bits, (error_BP, weight_PQ),
    )  # fmt: skip


def gradient(
    error_BP: Int32, x_BQ: Int32, affine: Affine | None, unit: int, shift: int, bits: int
) -> tuple[Int32, Int32, int]:
    """Return (gradients of weights and biases, values saturated), see ``fixed_reference.gradient``."""
    error_PB = np.ascontiguousarray(error_BP.T)
    weights, clipped = _product(
        error_PB, _widened(x_BQ), x_BQ.shape[1], affine, shift, NO_BIAS.astype(np.int64), False, NO_MASK,
        bits, (error_BP, x_BQ),
    )  # fmt: skip
    bias, more = saturate(round_shift(error_PB.sum(1, dtype=np.int64) << unit, shift), bits)
    return weights, bias.astype(np.int32), clipped + more


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


def quantise(activation: Int32, affine: Affine) -> tuple[Int32, int]:
    """Return (q - z, how many q were saturated)."""
    out = np.empty_like(activation)
    up, divisor = 16 + max(0, -affine.exponent), affine.mantissa << max(0, affine.exponent)

    def work(first: int, last: int) -> int:
        return int(_quantise(activation[first:last], up, divisor, affine.zero, out[first:last]))

    return out, sum(_share(len(activation), 1, DIVIDING * activation.size, work))


def extremes(activation: Int32) -> tuple[int, int]:
    """Return (least, largest), 0 included."""
    return int(activation.min(initial=0)), int(activation.max(initial=0))


def adam(
    weight_N: Int32, m_N: Int32, v_N: Int32, gradient_N: Int32, alpha: int, rule: AdamRule, key: int
) -> tuple[Int32, Int32, Int32, int]:
    """Return (weight, m, v, values saturated): :func:`fixed_adam.step`."""
    out_3N = np.empty((3, len(weight_N)), np.int32)
    clipped = _share(
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
    _share(len(target_N), 1024, MOVING * len(target_N), work)
    return out_N
