"""The two operations that a number format may compute in its own way: convolution and matrix product."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor


class Operations(NamedTuple):
    """What the Q-network computes with.

    Attributes:
        conv2d: (x (B, C, H, W), weight (O, C, K, K), bias (O,), stride) -> (B, O, H', W'), no padding.
        linear: (x (B, I), weight (O, I), bias (O,)) -> (B, O).
    """

    conv2d: Callable[[Tensor, Tensor, Tensor, int], Tensor]
    linear: Callable[[Tensor, Tensor, Tensor], Tensor]


def _upcast_conv2d(x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    return F.conv2d(x.float(), weight.float(), bias.float(), stride).to(x.dtype)


def _upcast_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(x.float(), weight.float(), bias.float()).to(x.dtype)


NATIVE = Operations(F.conv2d, F.linear)
"""PyTorch's own, in the format of their arguments."""

UPCAST = Operations(_upcast_conv2d, _upcast_linear)
"""Factors and results in the format of the arguments, sums in fp32; autograd rounds the gradients alike."""
