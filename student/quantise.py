"""The two quantisers of an EEDN network (Esser 2016), and its losses' gradient through them, in PyTorch's operations.

:mod:`spikestill.student.grouped` computes the same on a CPU, in fewer passes.

Axis suffixes: B batch, O output features, H height, W width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

VARIANCE_EPSILON = 1e-5


def ternarise(shadow: Tensor, previous: Tensor, hysteresis: float) -> Tensor:
    """Return ternary weights of the shadow weights, with hysteresis (Esser 2016, eq. 5).

    +1 where w >= 0.5 + h; -1 where w <= -0.5 - h; 0 where -0.5 + h <= w <= 0.5 - h; elsewhere the
    previous ternary value, moved to the nearer side of the band's two values if it is neither. Without hysteresis
    the rules meet at |w| = 0.5, and the first two hold, as in :func:`initial_ternary`.

    Args:
        shadow: fp32 shadow weights in [-1, 1].
        previous: ternary weights of the step before, same shape.
        hysteresis: h, 0..0.5.
    """
    upper = torch.where(previous > 0, 0.5 - hysteresis, 0.5 + hysteresis)
    lower = torch.where(previous < 0, -0.5 + hysteresis, -0.5 - hysteresis)
    # With previous = +1 the weight stays +1 down to 0.5 - h (exclusive: at 0.5 - h the rule says 0).
    beyond = torch.gt if hysteresis else torch.ge
    positive = torch.where(previous > 0, beyond(shadow, upper), shadow >= upper)
    negative = torch.where(previous < 0, beyond(lower, shadow), shadow <= lower)
    return positive.to(shadow.dtype) - negative.to(shadow.dtype)


def initial_ternary(shadow: Tensor) -> Tensor:
    """Return the ternary weights to begin with: the sign of w where |w| >= 0.5, else 0."""
    return torch.sign(shadow) * (shadow.abs() >= 0.5)


class Pressure(NamedTuple):
    """What a layer's sparsity term adds to the gradient of every spike of feature o: linear + square m_o.

    m_o is the feature's mean spike over batch and places. penalty * mean(y) of a layer of N neurons in B images gives
    linear = penalty / (B N); penalty / 2 sum_o m_o^2 gives square = penalty / (B H W).
    """

    linear: float
    square: float

    def on(self, rate_O: Tensor) -> Tensor:
        """Return what is added, fp32 (O,)."""
        return self.linear + self.square * rate_O


class NormalisedStep(torch.autograd.Function):
    """Batch renormalisation and binary threshold in one: y = 1 where x = gamma (s - m) / d + beta >= 0.

    m and d = sqrt(v + epsilon) are the *running* mean and deviation, so that the spikes in training are
    those of the deployed net. The gradient passes through the batch's own statistics as in batch
    normalisation, with the correction between the two held constant (batch renormalisation, Ioffe 2017).
    Plain batch normalisation (Ioffe 2015) is the case m, v = the batch's. A threshold at the batch's mean
    would make features that are nearly constant, of which games have many, flip with the batch.

    The step's surrogate gradient is the triangle dy/dx = max(0, 1 - |x|) (Esser 2016). ``pressure`` adds
    the gradient of the spike-sparsity term to that of the loss. Who computes a batch in shares gives every share its
    part of the penalty, as of the loss.

    forward(s, gamma, beta, mean, variance, pressure) -> (y in s's dtype, the batch's mean (O,) and variance (O,)),
    for s (B, O, H, W); ``mean`` and ``variance`` (O,) are the running ones, or None for the batch's.
    """

    @staticmethod
    def forward(
        ctx: Any,
        s_BOHW: Tensor,
        gamma_O: Tensor,
        beta_O: Tensor,
        mean_O: Tensor | None,
        variance_O: Tensor | None,
        pressure: Pressure,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return spikes and the batch's statistics."""
        s = _rows(s_BOHW)
        batch_variance, batch_mean = statistics(s)
        mean = batch_mean if mean_O is None else mean_O
        deviation = torch.rsqrt((batch_variance if variance_O is None else variance_O) + VARIANCE_EPSILON)
        slope = gamma_O * deviation
        offset = beta_O - mean * slope
        y = fire(s, slope, offset)
        scale = torch.rsqrt(batch_variance + VARIANCE_EPSILON)
        pushed = pressure.on(y.float().mean(dim=0))
        ctx.save_for_backward(s, batch_mean, scale, slope, offset, mean, deviation, pushed)
        ctx.mark_non_differentiable(batch_mean, batch_variance)
        return _image(y, s_BOHW.shape), batch_mean, batch_variance

    @staticmethod
    def backward(ctx: Any, dy_BOHW: Tensor, _mean: Tensor, _variance: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of s, gamma and beta."""
        s, batch_mean, scale, slope, offset, mean, deviation, pushed = ctx.saved_tensors
        dy = _rows(dy_BOHW.to(s.dtype))
        ds, dx, dx_normal = step_gradient(s, dy, batch_mean, scale, slope, offset, pushed)
        # sum dx (s - m) / d, from the sums over the batch's own normalised values.
        dgamma = (dx_normal / scale + dx * (batch_mean - mean)) * deviation
        return _image(ds, dy_BOHW.shape), dgamma, dx, None, None, None


def _rows(x_BOHW: Tensor) -> Tensor:
    return x_BOHW.permute(0, 2, 3, 1).contiguous().view(-1, x_BOHW.shape[1])


def _image(x_NO: Tensor, shape: torch.Size) -> Tensor:
    return x_NO.view(shape[0], shape[2], shape[3], shape[1]).permute(0, 3, 1, 2)


def statistics(s_NO: Tensor) -> tuple[Tensor, Tensor]:
    """Return (variance, mean) of every column, fp32 (O,)."""
    return torch.var_mean(s_NO.float(), dim=0, correction=0)


def fire(s_NO: Tensor, slope_O: Tensor, offset_O: Tensor) -> Tensor:
    """Return 1 where s * slope + offset >= 0, else 0, in s's dtype."""
    return (torch.addcmul(offset_O, s_NO, slope_O) >= 0).to(s_NO.dtype)


def step_gradient(
    s_NO: Tensor, dy_NO: Tensor, mu: Tensor, scale: Tensor, slope: Tensor, offset: Tensor, pushed_O: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (ds, sum dx, sum dx n) with dx = (dy + pushed) max(0, 1 - |s slope + offset|), n = (s - mu) scale.

    ds = slope (dx - mean(dx) - n mean(dx n)): the gradient through the batch's mean and deviation (Ioffe 2015).
    """
    value = s_NO.float()
    normal = (value - mu) * scale
    dx = (dy_NO.float() + pushed_O) * (1.0 - (value * slope + offset).abs()).clamp_min(0.0)
    dx_sum, dx_normal_sum = dx.sum(dim=0), (dx * normal).sum(dim=0)
    ds = (dx - dx_sum / len(s_NO) - normal * (dx_normal_sum / len(s_NO))) * slope
    return ds.to(s_NO.dtype), dx_sum, dx_normal_sum
