"""The agents' mathematics for one element, each written once: every operation's result is rounded to the format.

The host compiles these functions into loops over fp32 or fp64 numbers (``kernels.py``), with ``rounded`` as
``number_format.py`` defines it.

Notation: u before tanh, a = tanh u, n noise ~ N(0, 1); g gradients of the scaled loss; q the format.
Source: Björck 2021 (the six methods, appendix B and C), Haarnoja 2018 (SAC), Kingma 2015 (Adam).
"""

from __future__ import annotations

from math import exp, log, sqrt, tanh
from typing import Any

from spikestill.common.compiling import njit
from spikestill.common.precision.rounding import Rounding, rounded

LOG_2 = 0.6931471805599453
HALF_LOG_2PI = 0.9189385332046727


@njit(error_model="numpy", forceinline=True)
def pick(condition: Any, yes: Any, no: Any) -> Any:
    """Return ``yes`` where the condition holds, else ``no``."""
    return yes if condition else no


@njit(error_model="numpy", forceinline=True)
def softplus(x: Any, limit: Any, fix: bool, q: Rounding) -> Any:
    """Return log(1 + exp(x)); with the softplus-fix x itself above ``limit``, where exp(x) might overflow."""
    found = rounded(log(rounded(1.0 + rounded(exp(x), q), q)), q)
    if fix:
        return pick(x > limit, x, found)
    return found


@njit(error_model="numpy", forceinline=True)
def softplus_slope(x: Any, limit: Any, fix: bool, q: Rounding) -> Any:
    """Return exp(x) / (1 + exp(x)), the derivative of :func:`softplus`; with the fix 1 above ``limit``."""
    grown = rounded(exp(x), q)
    found = rounded(grown / rounded(1.0 + grown, q), q)
    if fix:
        return pick(x > limit, rounded(x * 0.0 + 1.0, q), found)
    return found


@njit(error_model="numpy", forceinline=True)
def squashed(mean: Any, z: Any, noise: Any, low: Any, half_width: Any, added: Any, q: Rounding) -> Any:
    """Return (tanh z, log σ, σ, u, a): log σ = low + ½ (high − low)(tanh z + 1), u = μ + σ n, a = tanh u.

    ``added`` is added to σ (from pixels 1e-4).
    """
    t = rounded(tanh(z), q)
    log_std = rounded(low + rounded(half_width * rounded(t + 1.0, q), q), q)
    std = rounded(rounded(exp(log_std), q) + added, q)
    u = rounded(mean + rounded(std * noise, q), q)
    return t, log_std, std, u, rounded(tanh(u), q)


@njit(error_model="numpy", forceinline=True)
def log_density(
    mean: Any, std: Any, u: Any, limit: Any, normal_fix: bool, softplus_fix: bool, q: Rounding
) -> Any:
    """Return the log density of a = tanh u, u ~ N(μ, σ): −½ ((u − μ)/σ)² − log σ − ½ log 2π − log(1 − tanh² u).

    Without the normal-fix the square is (u − μ)²/(2 σ²). The last term is 2 (log 2 − u − softplus(−2 u)).
    """
    d = rounded(u - mean, q)
    if normal_fix:
        n = rounded(d / std, q)
        half = rounded(0.5 * rounded(n * n, q), q)
    else:
        half = rounded(rounded(d * d, q) / rounded(2.0 * rounded(std * std, q), q), q)
    normal = rounded(rounded(-half - rounded(log(std), q), q) - HALF_LOG_2PI, q)
    rest = softplus(rounded(-2.0 * u, q), limit, softplus_fix, q)
    return rounded(normal - rounded(2.0 * rounded(rounded(LOG_2 - u, q) - rest, q), q), q)


@njit(error_model="numpy", forceinline=True)
def squashed_backward(
    g_action: Any, g_density: Any, mean: Any, noise: Any, t: Any, std: Any, added: Any, u: Any, a: Any,
    half_width: Any, limit: Any, normal_fix: bool, softplus_fix: bool, q: Rounding,
) -> Any:  # fmt: skip
    """Return the gradients of μ and z, by the chain rule through :func:`log_density` and :func:`squashed`.

    Args:
        g_action, g_density: gradients of a and of log π.
    """
    # log(1 - tanh^2 u) = 2 (log 2 - u - softplus(-2 u)), subtracted.
    g_inner = rounded(-2.0 * g_density, q)
    slope = softplus_slope(rounded(-2.0 * u, q), limit, softplus_fix, q)
    g_u = rounded(g_action * rounded(1.0 - rounded(a * a, q), q), q)
    g_u = rounded(g_u - g_inner, q)
    g_u = rounded(g_u + rounded(2.0 * rounded(g_inner * slope, q), q), q)
    d = rounded(u - mean, q)
    if normal_fix:
        n = rounded(d / std, q)
        g_n = rounded(-g_density * n, q)
        g_d = rounded(g_n / std, q)
        g_std = rounded(-g_n * rounded(n / std, q), q)
    else:
        twice = rounded(2.0 * rounded(std * std, q), q)
        g_square = rounded(-g_density / twice, q)
        g_d = rounded(rounded(2.0 * d, q) * g_square, q)
        g_twice = rounded(g_density * rounded(rounded(rounded(d * d, q) / twice, q) / twice, q), q)
        g_std = rounded(rounded(2.0 * g_twice, q) * rounded(2.0 * std, q), q)
    g_std = rounded(g_std - rounded(g_density / std, q), q)
    g_u = rounded(g_u + g_d, q)
    g_mean = rounded(g_u - g_d, q)
    g_std = rounded(g_std + rounded(g_u * noise, q), q)
    g_log_std = rounded(g_std * rounded(std - added, q), q)
    g_t = rounded(g_log_std * half_width, q)
    return g_mean, rounded(g_t * rounded(1.0 - rounded(t * t, q), q), q)


@njit(error_model="numpy", forceinline=True)
def bellman_target(
    reward: Any, going_on: Any, q1: Any, q2: Any, density: Any, alpha: Any, discount: Any, q: Rounding
) -> Any:
    """Return y = r + γ · going_on · (min(q1, q2) − α log π)."""
    value = rounded(pick(q1 < q2, q1, q2) - rounded(alpha * density, q), q)
    return rounded(reward + rounded(rounded(going_on * discount, q) * value, q), q)


@njit(error_model="numpy", forceinline=True)
def temporal_difference(value: Any, target: Any, factor: Any, q: Rounding) -> Any:
    """Return the gradient factor · (Q − y) of a squared error; ``factor`` is 2 γ_s / B."""
    return rounded(factor * rounded(value - target, q), q)


@njit(error_model="numpy", forceinline=True)
def tanh_backward(g: Any, a: Any, q: Rounding) -> Any:
    """Return g (1 − a²), the gradient before a = tanh u."""
    return rounded(g * rounded(1.0 - rounded(a * a, q), q), q)


@njit(error_model="numpy", forceinline=True)
def hypotenuse(a: Any, b: Any, q: Rounding) -> Any:
    """Return √(a² + b²) as M √(1 + (m/M)²), M the larger magnitude and m the smaller: neither square is formed."""
    a, b = abs(a), abs(b)
    larger, smaller = pick(a > b, a, b), pick(a > b, b, a)
    ratio = rounded(smaller / pick(larger > 0.0, larger, rounded(larger + 1.0, q)), q)
    return rounded(larger * rounded(sqrt(rounded(1.0 + rounded(ratio * ratio, q), q)), q), q)


@njit(error_model="numpy", forceinline=True)
def first_moment(m: Any, g: Any, beta1: Any, rest1: Any, q: Rounding) -> Any:
    """Return m ← β₁ m + (1 − β₁) g; ``rest1`` is 1 − β₁."""
    return rounded(rounded(beta1 * m, q) + rounded(rest1 * g, q), q)


@njit(error_model="numpy", forceinline=True)
def second_moment(v: Any, g: Any, beta2: Any, rest2: Any, q: Rounding) -> Any:
    """Return v ← β₂ v + (1 − β₂) g²; ``rest2`` is 1 − β₂."""
    return rounded(rounded(beta2 * v, q) + rounded(rest2 * rounded(g * g, q), q), q)


@njit(error_model="numpy", forceinline=True)
def second_moment_root(w: Any, g: Any, root_beta2: Any, root_rest2: Any, q: Rounding) -> Any:
    """Return hAdam's w = √v ← hypot(√β₂ w, √(1 − β₂) g)."""
    return hypotenuse(rounded(root_beta2 * w, q), rounded(root_rest2 * g, q), q)


@njit(error_model="numpy", forceinline=True)
def adam_change(m: Any, root: Any, step: Any, correction: Any, epsilon: Any, q: Rounding) -> Any:
    """Return −step · m / (√v / correction + ε): step = η / (1 − β₁ᵗ), correction = √(1 − β₂ᵗ)."""
    return rounded(-step * rounded(m / rounded(rounded(root / correction, q) + epsilon, q), q), q)


@njit(error_model="numpy", forceinline=True)
def square_root(v: Any, q: Rounding) -> Any:
    """Return √v."""
    return rounded(sqrt(v), q)


@njit(error_model="numpy", forceinline=True)
def changed(p: Any, change: Any, q: Rounding) -> Any:
    """Return p + change."""
    return rounded(p + change, q)


@njit(error_model="numpy", forceinline=True)
def changed_kahan(p: Any, c: Any, change: Any, q: Rounding) -> Any:
    """Return (p, c) of Kahan gradients: y = change − c, t = p + y, c ← (t − p) − y, p ← t."""
    y = rounded(change - c, q)
    t = rounded(p + y, q)
    return t, rounded(rounded(t - p, q) - y, q)


@njit(error_model="numpy", forceinline=True)
def averaged(target: Any, p: Any, tau: Any, rest: Any, q: Rounding) -> Any:
    """Return the target network's weight (1 − τ) θ̂ + τ θ."""
    return rounded(rounded(rest * target, q) + rounded(tau * p, q), q)


@njit(error_model="numpy", forceinline=True)
def averaged_kahan(total: Any, c: Any, p: Any, tau: Any, scale: Any, q: Rounding) -> Any:
    """Return (S, c, θ̂) of Kahan momentum: S = C θ̂, y = τ (C θ − S) − c, t = S + y, c ← (t − S) − y, S ← t."""
    y = rounded(rounded(tau * rounded(rounded(scale * p, q) - total, q), q) - c, q)
    t = rounded(total + y, q)
    return t, rounded(rounded(t - total, q) - y, q), rounded(t / scale, q)
