"""FP8 training products: E4M3 forward, E5M2 for gradients, a scale for every tensor (Micikevicius 2022).

    q(x) = round_fp8(x / s), s = amax(x) / max_fp8,    x y ~ s_x s_y q(x) q(y), sums in fp32, results in bf16

Scales are those of the tensor at hand. Convolutions are products of unfolded patches, for cuDNN's FP8
convolutions are out of PyTorch's reach. Every side of a product must be a multiple of 16: batch sizes too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spikestill.common.precision.operations import Operations


def has_fp8(device: torch.device) -> bool:
    """Return True where the device multiplies FP8 natively."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def quantise(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return x / s in ``dtype`` (an FP8 format) and s, a fp32 scalar."""
    scale = x.abs().amax().float().clamp_min(1e-12) / torch.finfo(dtype).max
    return (x.float() / scale).to(dtype), scale


def product(a_MK: Tensor, b_NK: Tensor, a_dtype: torch.dtype, b_dtype: torch.dtype) -> Tensor:
    """Return a b^T (M, N) in bf16, both rounded to FP8."""
    a, a_scale = quantise(a_MK, a_dtype)
    b, b_scale = quantise(b_NK, b_dtype)
    return torch._scaled_mm(
        a.contiguous(), b.contiguous().t(), scale_a=a_scale, scale_b=b_scale, out_dtype=torch.bfloat16
    )


class _Linear(torch.autograd.Function):
    """y = x w^T; the gradient of y is rounded to E5M2, x and w to E4M3."""

    @staticmethod
    def forward(ctx: Any, x_MK: Tensor, w_NK: Tensor) -> Tensor:
        ctx.save_for_backward(x_MK, w_NK)
        return product(x_MK, w_NK, torch.float8_e4m3fn, torch.float8_e4m3fn)

    @staticmethod
    def backward(ctx: Any, dy_MN: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x_MK, w_NK = ctx.saved_tensors
        dx = dw = None
        if ctx.needs_input_grad[0]:
            dx = product(dy_MN, w_NK.t(), torch.float8_e5m2, torch.float8_e4m3fn)
        if ctx.needs_input_grad[1]:
            dw = product(dy_MN.t(), x_MK.t(), torch.float8_e5m2, torch.float8_e4m3fn)
        return dx, dw


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x weight^T + bias (B, O) in bf16, the product in FP8."""
    return _Linear.apply(x, weight) + bias


def conv2d(x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    """Return the convolution (B, O, H', W') in bf16, without padding, as a product of patches in FP8."""
    kernel = weight.shape[-1]
    # (B, C, H', W', K, K) as a view: F.unfold would launch a kernel for each stack of the batch.
    patches = x.unfold(2, kernel, stride).unfold(3, kernel, stride)
    batch, _, height, width = patches.shape[:4]
    y = linear(patches.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(0, 2), weight.flatten(1), bias)
    return y.view(batch, height, width, -1).permute(0, 3, 1, 2)


FP8 = Operations(conv2d, linear)
