"""Adam in integers (Kingma 2015): both moments, their root and the quotient, with hAdam's root form as an option.

With n bits, gradients of fraction f, weights of fraction F, and c = 1 - beta as an integer over 2^31:

    m <- m + R((g - m) c1 / 2^31)                           fraction f, R to nearest
    v <- v + U((ceil(g^2 / 2^(n-1)) - v) c2 / 2^31)         fraction 2 f - (n - 1), U upwards
    r  = floor(sqrt(v 2^(n-1)))                             fraction f again
    w <- w - round(alpha m / ((r + epsilon) 2^(40 - F)))    alpha: 40 fraction bits

``root`` form (hAdam, Bjorck 2021) keeps r itself, n bits of the gradient's own range instead of its square:

    r <- ceil(sqrt(r^2 + U((g^2 - r^2) c2 / 2^31)))

Upwards, because a second moment rounded down to 0 under a first one that is not would make an endless step: rounding
up, v stays at or above (1/c2 - 1) last places once a gradient was there, which acts as Adam's epsilon does. With
``stochastic`` rounding R, U, the root's and the quotient's rounding go up with the probability of what they drop. The
bias corrections are in alpha = rate sqrt(1 - beta2^t) / (1 - beta1^t), one number a step, :func:`step_size`.

Axis suffix: N parameters.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from spikestill.common.compiling import njit
from spikestill.common.precision.fixed import (
    Int32,
    Int64,
    ceil_root,
    ceil_shift,
    integer_root,
    random_bits,
    round_shift,
    rounded_quotient,
    saturate,
)

ALPHA_FRACTION = 40
DECAY_FRACTION = 31
POWER_FRACTION = 30
M_DRAW, V_DRAW, STEP_DRAW, DRAWS = 0, 1, 2, 4
BLOCK = 512
"""Parameters that the compiled step goes through at a time: 4 KiB of 64-bit numbers."""
LARGEST_RATE = 3e-3
"""Step size up to which alpha times m fits in 63 bits."""


@dataclasses.dataclass(frozen=True)
class AdamRule:
    """The constants of a step, all integers.

    Attributes:
        bits: n, of weights, gradients and moments.
        weight_fraction: F, at most 40.
        m_decay, v_decay: c1, c2: 1 - beta, 31 fraction bits.
        epsilon: in the gradient's last places, >= 1.
        root: keep the root of the second moment.
        stochastic: round by chance.
    """

    bits: int
    weight_fraction: int
    m_decay: int
    v_decay: int
    epsilon: int = 1
    root: bool = False
    stochastic: bool = False


def step_size(rate: int, powers: tuple[int, int]) -> int:
    """Return alpha (40 fraction bits) = rate sqrt(1 - beta2^t) / (1 - beta1^t).

    Args:
        rate: learning rate, 40 fraction bits.
        powers: beta1^t and beta2^t, 30 fraction bits, as :func:`next_powers` makes them, t >= 1.
    """
    one = 1 << POWER_FRACTION
    root = math.isqrt((one - powers[1]) << POWER_FRACTION)
    return (2 * rate * root + one - powers[0]) // (2 * (one - powers[0]))


def next_powers(powers: tuple[int, int], rule: AdamRule) -> tuple[int, int]:
    """Return (beta1^(t+1), beta2^(t+1)) of those of t; (2^30, 2^30) at t = 0."""
    half, one = 1 << (DECAY_FRACTION - 1), 1 << DECAY_FRACTION
    first, second = (
        (power * (one - decay) + half) >> DECAY_FRACTION
        for power, decay in zip(powers, (rule.m_decay, rule.v_decay), strict=True)
    )
    return first, second


def step(
    weight_N: Int32, m_N: Int32, v_N: Int32, gradient_N: Int32, alpha: int, rule: AdamRule, key: int = 0
) -> tuple[Int32, Int32, Int32, int]:
    """Return (weight, m, v, values saturated) after a step: the reference, see the module.

    Args:
        weight_N, m_N, v_N, gradient_N: int32 within ``rule.bits``.
        alpha: of :func:`step_size`.
        rule: the constants.
        key: of the random numbers, for ``stochastic``.
    """
    g, m, v = (x.astype(np.int64) for x in (gradient_N, m_N, v_N))
    counter = np.arange(len(g), dtype=np.uint32) * np.uint32(DRAWS)

    def draw(which: int) -> Int64:
        return random_bits(key, counter + np.uint32(which)).astype(np.int64)

    change = (g - m) * rule.m_decay
    m = m + ((change + (draw(M_DRAW) >> 1)) >> DECAY_FRACTION if rule.stochastic else round_shift(change, 31))
    up: Any = draw(V_DRAW) >> 1 if rule.stochastic else (1 << DECAY_FRACTION) - 1
    if rule.root:
        gap = g * g - v * v
        low = (gap & ((1 << 31) - 1)) * rule.v_decay
        square = v * v + (gap >> 31) * rule.v_decay + ((low + up) >> DECAY_FRACTION)
        if rule.stochastic:
            v = integer_root(square)
            v = v + ((draw(V_DRAW) >> 2) * (2 * v + 1) < (square - v * v) << 30)
        else:
            v = ceil_root(square)
        v, clipped = saturate(v, rule.bits)
        root = v
    else:
        change = (ceil_shift(g * g, rule.bits - 1) - v) * rule.v_decay
        v, clipped = saturate(v + ((change + up) >> DECAY_FRACTION), rule.bits)
        root = integer_root(v << (rule.bits - 1))
    numerator, denominator = alpha * m, root + rule.epsilon
    wide = denominator << (ALPHA_FRACTION - rule.weight_fraction)
    if rule.stochastic:
        part = denominator * draw(STEP_DRAW) >> (32 - (ALPHA_FRACTION - rule.weight_fraction))
        size = (np.abs(numerator) + part) // wide
        change = np.where(numerator < 0, -size, size)
    else:
        change = rounded_quotient(numerator, wide)
    weight, more = saturate(weight_N.astype(np.int64) - change, rule.bits)
    return weight.astype(np.int32), m.astype(np.int32), v.astype(np.int32), clipped + more


def approach(target_N: Int32, weight_N: Int32, tau: int) -> Int32:
    """Return target + round((weight - target) tau / 2^31): the moving target network, reference."""
    target = target_N.astype(np.int64)
    return (target + round_shift((weight_N - target) * tau, 31)).astype(np.int32)


# NumPy's error model: no check for division by zero, which would keep LLVM from vectors.
_compiled = njit(nogil=True, cache=True, error_model="numpy")
_inlined = njit(nogil=True, cache=True, error_model="numpy", inline="always")


@_inlined
def _draw(key: Any, counter: Any) -> Any:
    x = np.uint32(np.uint32(counter) * np.uint32(0x9E3779B9) + np.uint32(key))
    x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D))
    x = np.uint32((x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B))
    return np.int64(x ^ (x >> np.uint32(16)))


@_inlined
def _floor_root(x: Any) -> Any:
    # The float64 guess is at most 1 off for x < 2^62; the integers decide.
    root = np.int64(math.sqrt(np.float64(x)))
    root -= np.int64(root * root > x)
    return root + np.int64((root + 1) * (root + 1) <= x)


@_inlined
def _floor_quotient(numerator: Any, denominator: Any) -> Any:
    # Likewise: the quotient is below 2^47, the guess's relative error 2^-52.
    found = np.int64(np.float64(numerator) / np.float64(denominator))
    rest = numerator - found * denominator
    return found - np.int64(rest < 0) + np.int64(rest >= denominator)


@_compiled
def _step(
    weight_N: Any, m_N: Any, v_N: Any, gradient_N: Any, out_3N: Any, first: Any, last: Any, alpha: Any,
    bits: Any, spread: Any, m_decay: Any, v_decay: Any, epsilon: Any, root_form: Any, stochastic: Any, key: Any,
) -> int:  # fmt: skip
    """Do :func:`step` for parameters ``first`` to ``last``.

    Loops over few arrays at a time are what the compiler makes vectors of; blocks keep them in the cache.
    """
    high = np.int64((1 << (bits - 1)) - 1)
    saturated = 0
    m_B, root_B = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    for begin in range(first, last, BLOCK):
        end = min(begin + BLOCK, last)
        size, counter = end - begin, 4 * begin
        gradient, weight = gradient_N[begin:end], weight_N[begin:end]
        m_before, v_before = m_N[begin:end], v_N[begin:end]
        new_weight, new_m, new_v = out_3N[0, begin:end], out_3N[1, begin:end], out_3N[2, begin:end]
        for n in range(size):
            m = np.int64(m_before[n])
            part = _draw(key, counter + 4 * n) >> 1 if stochastic else np.int64(1 << 30)
            m_B[n] = m + (((np.int64(gradient[n]) - m) * m_decay + part) >> 31)
        if root_form:
            for n in range(size):
                g, v = np.int64(gradient[n]), np.int64(v_before[n])
                chance = _draw(key, counter + 4 * n + 1) if stochastic else np.int64(0)
                up = chance >> 1 if stochastic else np.int64((1 << 31) - 1)
                gap = g * g - v * v
                square = v * v + (gap >> 31) * v_decay + (((gap & 0x7FFFFFFF) * v_decay + up) >> 31)
                v = _floor_root(square)
                if stochastic:
                    v += np.int64((chance >> 2) * (2 * v + 1) < (square - v * v) << 30)
                else:
                    v += np.int64(v * v < square)
                kept = min(v, high)
                saturated += kept != v
                root_B[n] = kept
        else:
            for n in range(size):
                g, v = np.int64(gradient[n]), np.int64(v_before[n])
                up = _draw(key, counter + 4 * n + 1) >> 1 if stochastic else np.int64((1 << 31) - 1)
                v += ((((g * g + high) >> (bits - 1)) - v) * v_decay + up) >> 31
                kept = min(v, high)
                saturated += kept != v
                root_B[n] = kept
        for n in range(size):
            new_m[n] = m_B[n]
        for n in range(size):
            new_v[n] = root_B[n]
        if not root_form:
            for n in range(size):
                root_B[n] = _floor_root(root_B[n] << (bits - 1))
        for n in range(size):
            numerator, denominator = alpha * m_B[n], root_B[n] + epsilon
            wide = denominator << spread
            part = denominator * _draw(key, counter + 4 * n + 2) >> (32 - spread) if stochastic else wide >> 1
            change = _floor_quotient(abs(numerator) + part, wide)
            moved = np.int64(weight[n]) - (change if numerator >= 0 else -change)
            kept = min(max(moved, -high - 1), high)
            saturated += kept != moved
            new_weight[n] = kept
    return saturated


def fast_step(
    weight_N: Int32, m_N: Int32, v_N: Int32, gradient_N: Int32, alpha: int, rule: AdamRule, key: int,
    out_3N: Int32, first: int, last: int,
) -> int:  # fmt: skip
    """Write the new weight, m and v of parameters ``first`` to ``last`` into ``out_3N``; return values saturated."""
    return int(
        _step(
            weight_N, m_N, v_N, gradient_N, out_3N, first, last, alpha, rule.bits,
            ALPHA_FRACTION - rule.weight_fraction, rule.m_decay, rule.v_decay, rule.epsilon, rule.root,
            rule.stochastic, key & 0xFFFFFFFF,
        )
    )  # fmt: skip


@_compiled
def fast_approach(target_N: Any, weight_N: Any, tau: Any, out_N: Any, first: Any, last: Any) -> None:
    """Write :func:`approach` of elements ``first`` to ``last`` into ``out_N``."""
    for n in range(first, last):
        target = np.int64(target_N[n])
        out_N[n] = target + (((np.int64(weight_N[n]) - target) * tau + (1 << 30)) >> 31)
