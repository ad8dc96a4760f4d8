"""The agents' elementwise loops on the host, compiled: each applies one formula of ``formulas.py``.

Arrays are contiguous and of the format's storage; results are written in place or into the last arrays given.
Axis suffixes: B batch, D action numbers, O, I layer outputs and inputs, P parameters of a network, flat.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.common.compiling import njit
from spikestill.common.precision.rounding import Rounding, rounded
from spikestill.teacher.control import formulas as f

Array = npt.NDArray[Any]
BLOCK = 2048
"""Parameters that an optimiser's loops go through at a time: 8 KiB of each array."""


@njit(cache=True, nogil=True, error_model="numpy")
def add_bias(y_BO: Array, bias_O: Array, relu: bool, q: Rounding) -> None:
    """y ← y + b, rounded once with the product that y is; then max(y, 0) where ``relu``."""
    zero = y_BO.dtype.type(0)
    for b in range(y_BO.shape[0]):
        for o in range(y_BO.shape[1]):
            each = rounded(y_BO[b, o] + bias_O[o], q)
            y_BO[b, o] = zero if relu and each < zero else each


@njit(cache=True, nogil=True, error_model="numpy")
def mask(g_BI: Array, active_BI: Array, q: Rounding) -> None:
    """g ← g where the unit was active, else 0: back through max(y, 0)."""
    zero = g_BI.dtype.type(0)
    for b in range(g_BI.shape[0]):
        for i in range(g_BI.shape[1]):
            each = rounded(g_BI[b, i], q)
            g_BI[b, i] = each if active_BI[b, i] > zero else zero


@njit(cache=True, nogil=True, error_model="numpy")
def outer(g_B: Array, w_I: Array, out_BI: Array) -> None:
    """Write g w, every number of one times every number of the other."""
    for b in range(g_B.size):
        for i in range(w_I.size):
            out_BI[b, i] = g_B[b] * w_I[i]


@njit(cache=True, nogil=True, error_model="numpy")
def column_sums(x_BO: Array, out_O: Array) -> None:
    """Write the sums over the batch, in its order and in the storage's type."""
    out_O[:] = x_BO[0]
    for b in range(1, x_BO.shape[0]):
        for o in range(x_BO.shape[1]):
            out_O[o] += x_BO[b, o]


@njit(cache=True, nogil=True)
def join(x_BI: Array, y_BD: Array, out: Array) -> None:
    """Write (x, y) side by side, (B, I + D)."""
    for b in range(x_BI.shape[0]):
        for i in range(x_BI.shape[1]):
            out[b, i] = x_BI[b, i]
        for d in range(y_BD.shape[1]):
            out[b, x_BI.shape[1] + d] = y_BD[b, d]


@njit(cache=True, nogil=True)
def copy_rows(x: Array, apart: int, out_RC: Array) -> None:
    """Copy rows that begin ``apart`` numbers one after the other in ``x``, flat."""
    for r in range(out_RC.shape[0]):
        for c in range(out_RC.shape[1]):
            out_RC[r, c] = x[r * apart + c]


@njit(cache=True, nogil=True, error_model="numpy")
def squash(
    head_BO: Array, noise_BD: Array, low: Any, half_width: Any, added: Any, limit: Any, normal_fix: bool,
    softplus_fix: bool, q: Rounding, t_BD: Array, std_BD: Array, u_BD: Array, a_BD: Array, density_B: Array,
) -> None:  # fmt: skip
    """Sample a = tanh u of (μ, z) in ``head_BO`` = (B, 2 D), and log π(a), summed over D in the storage's type."""
    actions = noise_BD.shape[1]
    for b in range(head_BO.shape[0]):
        total = density_B.dtype.type(0)
        for d in range(actions):
            mean = head_BO[b, d]
            t, _, std, u, a = f.squashed(
                mean, head_BO[b, actions + d], noise_BD[b, d], low, half_width, added, q
            )
            t_BD[b, d], std_BD[b, d], u_BD[b, d], a_BD[b, d] = t, std, u, a
            total += f.log_density(mean, std, u, limit, normal_fix, softplus_fix, q)
        density_B[b] = rounded(total, q)


@njit(cache=True, nogil=True, error_model="numpy")
def squash_backward(
    g_action_BD: Array, g_density: Any, head_BO: Array, noise_BD: Array, t_BD: Array, std_BD: Array, added: Any,
    u_BD: Array, a_BD: Array, half_width: Any, limit: Any, normal_fix: bool, softplus_fix: bool, q: Rounding,
    g_head_BO: Array,
) -> None:  # fmt: skip
    """Write the gradients of (μ, z) from those of a and, the same for every row, of log π."""
    actions = noise_BD.shape[1]
    for b in range(head_BO.shape[0]):
        for d in range(actions):
            g_mean, g_z = f.squashed_backward(
                g_action_BD[b, d], g_density, head_BO[b, d], noise_BD[b, d], t_BD[b, d], std_BD[b, d], added,
                u_BD[b, d], a_BD[b, d], half_width, limit, normal_fix, softplus_fix, q,
            )  # fmt: skip
            g_head_BO[b, d] = g_mean
            g_head_BO[b, actions + d] = g_z


@njit(cache=True, nogil=True, error_model="numpy")
def tanh(u_BD: Array, q: Rounding) -> None:
    """u ← tanh u."""
    flat = u_BD.reshape(-1)
    for i in range(flat.size):
        flat[i] = rounded(np.tanh(flat[i]), q)


@njit(cache=True, nogil=True, error_model="numpy")
def tanh_backward(g_BD: Array, a_BD: Array, q: Rounding) -> None:
    """g ← g (1 − a²)."""
    g, a = g_BD.reshape(-1), a_BD.reshape(-1)
    for i in range(g.size):
        g[i] = f.tanh_backward(g[i], a[i], q)


@njit(cache=True, nogil=True, error_model="numpy")
def bellman(
    reward_B: Array, going_on_B: Array, q1_B: Array, q2_B: Array, density_B: Array, alpha: Any, discount: Any,
    q: Rounding, target_B: Array,
) -> None:  # fmt: skip
    """Write the targets y of both critics."""
    for b in range(reward_B.size):
        target_B[b] = f.bellman_target(
            reward_B[b], going_on_B[b], q1_B[b], q2_B[b], density_B[b], alpha, discount, q
        )


@njit(cache=True, nogil=True, error_model="numpy")
def temporal_difference(value_B: Array, target_B: Array, factor: Any, q: Rounding, g_B: Array) -> None:
    """Write the gradients factor · (Q − y)."""
    for b in range(value_B.size):
        g_B[b] = f.temporal_difference(value_B[b], target_B[b], factor, q)


@njit(cache=True, nogil=True, error_model="numpy")
def of_smaller(first_B: Array, second_B: Array, factor: Any, g_first_B: Array, g_second_B: Array) -> None:
    """Write ``factor`` where a value is the smaller one, the second one's where neither is; else 0."""
    zero = g_first_B.dtype.type(0)
    for b in range(first_B.size):
        smaller = first_B[b] < second_B[b]
        g_first_B[b] = factor if smaller else zero
        g_second_B[b] = zero if smaller else factor


@njit(cache=True, nogil=True, error_model="numpy")
def add(x: Array, y: Array, q: Rounding) -> None:
    """x ← x + y, flat."""
    for i in range(x.size):
        x[i] = rounded(x[i] + y[i], q)


@njit(cache=True, nogil=True, error_model="numpy")
def multiply(x: Array, factor: Any, q: Rounding) -> bool:
    """x ← factor · x, flat; return True where all of it is finite then."""
    wrong = 0
    for i in range(x.size):
        each = rounded(x[i] * factor, q)
        x[i] = each
        wrong += 0 if abs(each) < np.inf else 1
    return wrong == 0


@njit(cache=True, nogil=True, error_model="numpy")
def adam(
    p_P: Array, m_P: Array, w_P: Array, c_P: Array, g_P: Array, beta1: Any, rest1: Any, beta2: Any, rest2: Any,
    step: Any, correction: Any, epsilon: Any, root_form: bool, kahan: bool, q: Rounding,
) -> None:  # fmt: skip
    """Step every parameter, in place; ``c_P`` has no elements without Kahan gradients.

    With ``root_form`` (hAdam) ``beta2`` and ``rest2`` are the roots of β₂ and 1 − β₂. Loops over few arrays at a time
    are what the compiler makes vectors of; blocks keep them in the cache.
    """
    change = np.empty(min(BLOCK, p_P.size), p_P.dtype)
    for begin in range(0, p_P.size, BLOCK):
        end = min(begin + BLOCK, p_P.size)
        p, m, w, g = p_P[begin:end], m_P[begin:end], w_P[begin:end], g_P[begin:end]
        for i in range(end - begin):
            m[i] = f.first_moment(m[i], g[i], beta1, rest1, q)
        if root_form:
            for i in range(end - begin):
                w[i] = f.second_moment_root(w[i], g[i], beta2, rest2, q)
            for i in range(end - begin):
                change[i] = f.adam_change(m[i], w[i], step, correction, epsilon, q)
        else:
            for i in range(end - begin):
                w[i] = f.second_moment(w[i], g[i], beta2, rest2, q)
            for i in range(end - begin):
                change[i] = f.adam_change(m[i], f.square_root(w[i], q), step, correction, epsilon, q)
        if kahan:
            c = c_P[begin:end]
            for i in range(end - begin):
                p[i], c[i] = f.changed_kahan(p[i], c[i], change[i], q)
        else:
            for i in range(end - begin):
                p[i] = f.changed(p[i], change[i], q)


@njit(cache=True, nogil=True, error_model="numpy")
def average(target_P: Array, p_P: Array, tau: Any, rest: Any, q: Rounding) -> None:
    """Move the target's weights towards p."""
    for i in range(p_P.size):
        target_P[i] = f.averaged(target_P[i], p_P[i], tau, rest, q)


@njit(cache=True, nogil=True, error_model="numpy")
def average_kahan(
    total_P: Array, c_P: Array, target_P: Array, p_P: Array, tau: Any, scale: Any, q: Rounding
) -> None:
    """Move the target's weights towards p by Kahan momentum."""
    for i in range(p_P.size):
        total_P[i], c_P[i], target_P[i] = f.averaged_kahan(total_P[i], c_P[i], p_P[i], tau, scale, q)
