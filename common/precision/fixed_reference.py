"""A fixed-point layer's operations in NumPy: what ``fixed_fast.py`` gives too, bit for bit, and faster.

Axis suffixes: B batch, P outputs, Q inputs, N parameters.
"""

from __future__ import annotations

import numpy as np

from spikestill.common.precision import fixed_adam
from spikestill.common.precision.fixed import (
    Affine,
    Int32,
    affine_product,
    narrow,
    narrow_affine,
    product,
    round_shift,
    saturate,
    tanh,
)
from spikestill.common.precision.fixed_adam import AdamRule, approach
from spikestill.common.precision.fixed_words import explore, td_errors, through_tanh

__all__ = [
    "adam", "approach", "backward", "explore", "extremes", "forward", "gradient", "quantise", "tanh", "td_errors",
    "through_tanh",
]  # fmt: skip

WIDE = 48
"""Bits of a sum once rounded to the activation's last place, before the bias is added."""


def forward(
    x_BQ: Int32, affine: Affine | None, weight_PQ: Int32, bias_P: Int32, shift: int, bias_shift: int,
    bits: int, relu: bool,
) -> tuple[Int32, int]:  # fmt: skip
    """Return (``saturate(round(x W^T) + round(b))``, values saturated), negative values 0 where ``relu``.

    Args:
        x_BQ: activations, or q - z of 16-bit ones.
        affine: their format, None for 32-bit ones.
        weight_PQ: weights.
        bias_P: biases, in the weights' format.
        shift: the weights' fraction.
        bias_shift: the weights' fraction less the activations'.
        bits: of an activation.
        relu: apply ReLU.
    """
    lost = 0
    if affine is None:
        value, _ = narrow(product(x_BQ, weight_PQ.T), shift, WIDE)
    else:
        value, lost = narrow_affine(affine_product(x_BQ, weight_PQ.T), affine, shift, WIDE)
    value = value + round_shift(bias_P.astype(np.int64), bias_shift)
    if relu:
        value = np.maximum(value, 0)
    out, clipped = saturate(value, bits)
    return out.astype(np.int32), lost + clipped


def backward(
    error_BP: Int32, weight_PQ: Int32, mask_BQ: Int32 | None, shift: int, bits: int
) -> tuple[Int32, int]:
    """Return (``saturate(round(e W))`` where ``mask_BQ`` > 0, else 0; values saturated before the mask)."""
    value, clipped = narrow(product(error_BP, weight_PQ), shift, bits)
    if mask_BQ is not None:
        value = np.where(mask_BQ > 0, value, 0)
    return value.astype(np.int32), clipped


def gradient(
    error_BP: Int32, x_BQ: Int32, affine: Affine | None, unit: int, shift: int, bits: int
) -> tuple[Int32, Int32, int]:
    """Return (the weights' gradient (P, Q), the biases' (P,), values saturated): sums over the batch, rounded once.

    Args:
        error_BP: errors.
        x_BQ, affine: as in :func:`forward`.
        unit: the activations' fraction: a bias is a weight whose input is 1.
        shift: fraction of an error times an activation, and of the batch, less the gradient's.
        bits: of a gradient.
    """
    error_PB = np.ascontiguousarray(error_BP.T)
    if affine is None:
        value, clipped = narrow(product(error_PB, x_BQ), shift, bits)
    else:
        value, clipped = narrow_affine(affine_product(x_BQ.T, error_BP), affine, shift, bits)
        value = value.T
    bias, more = saturate(round_shift(error_PB.sum(1, dtype=np.int64) << unit, shift), bits)
    return value.astype(np.int32), bias.astype(np.int32), clipped + more


def quantise(activation: Int32, affine: Affine) -> tuple[Int32, int]:
    """Return (q - z, how many q were saturated)."""
    return affine.quantise(activation)


def extremes(activation: Int32) -> tuple[int, int]:
    """Return (least, largest), 0 included."""
    return int(activation.min(initial=0)), int(activation.max(initial=0))


def adam(
    weight_N: Int32, m_N: Int32, v_N: Int32, gradient_N: Int32, alpha: int, rule: AdamRule, key: int
) -> tuple[Int32, Int32, Int32, int]:
    """Return (weight, m, v, values saturated): :func:`fixed_adam.step`."""
    return fixed_adam.step(weight_N, m_N, v_N, gradient_N, alpha, rule, key)
