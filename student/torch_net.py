"""The integer net in PyTorch: batches of frames, bit for bit the naive definition.

All sums are integers that the compute format holds exactly: the first layer's (up to 65,280)
in fp32, the later ones' (fan-in <= 128) in fp32 or, on request, bf16, whose significand holds integers up to 256.
That holds for kernels that add products. NNPACK, which PyTorch takes where it has no oneDNN, multiplies transforms,
which round: importing this module turns it off. cuDNN may do so too, on a GPU: sums are compared with theta - 1/2,
which says the same of integers and bears such errors.

Axis suffixes: B batch, C channels, O output features, H height, W width, A actions.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.backends import nnpack

from spikestill.student.integer_net import IntegerLayer, IntegerNet, effective_theta, sum_bound

BF16_EXACT = 256
FP32_EXACT = (1 << 23) - 1
"""Largest sum whose half steps fp32 holds exactly, too."""

nnpack.set_flags(False)


class TorchIntegerNet:
    """An integer net as PyTorch tensors.

    Args:
        net: the net.
        dtype: format of the layers after the first, ``torch.float32`` or ``torch.bfloat16``; a layer whose sums
            it could not hold exactly runs in float32 all the same.
        device: where it runs.

    Raises:
        ValueError: a layer's sums exceed what fp32 holds exactly with their halves (2^23 - 1).
    """

    def __init__(
        self, net: IntegerNet, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> None:
        self.net, self.device = net, torch.device(device)
        self._weights, self._thetas = [], []
        for index, layer in enumerate(net.layers):
            bound = int(sum_bound(layer, first=index == 0).max(initial=0))
            if bound > FP32_EXACT:
                raise ValueError(f"layer {index}: sums reach {bound}, fp32 is exact up to {FP32_EXACT}")
            kind = dtype if index > 0 and bound <= BF16_EXACT else torch.float32
            weight = torch.from_numpy(layer.weight_OIHW).to(self.device, kind)
            self._weights.append(weight.contiguous(memory_format=torch.channels_last))
            theta = torch.from_numpy(effective_theta(layer, first=index == 0)).to(self.device, torch.float32)
            self._thetas.append(theta[:, None, None] - 0.5)

    def _forward(self, stacks_BCHW: Tensor) -> Iterator[Tensor]:
        if stacks_BCHW.dtype != torch.uint8 or tuple(stacks_BCHW.shape[1:]) != tuple(self.net.input_shape):
            raise ValueError(
                f"stacks must be uint8 (B, {', '.join(map(str, self.net.input_shape))}), "
                f"got {stacks_BCHW.dtype} {tuple(stacks_BCHW.shape)}"
            )
        x = stacks_BCHW.to(self.device)
        for layer, weight, theta in zip(self.net.layers, self._weights, self._thetas, strict=True):
            s = convolve(x.to(weight.dtype), weight, layer)
            x = s.float() >= theta
            yield x

    def spikes(self, stacks_BCHW: Tensor) -> list[Tensor]:
        """Return every layer's spikes, uint8 (B, O, H, W), of uint8 stacks."""
        with torch.inference_mode():
            return [x.to(torch.uint8) for x in self._forward(stacks_BCHW)]

    def votes(self, stacks_BCHW: Tensor) -> Tensor:
        """Return votes, int64 (B, A), of uint8 stacks."""
        with torch.inference_mode():
            *_, last = self._forward(stacks_BCHW)
            return count_votes(last, self.net.actions)


def convolve(x: Tensor, weight: Tensor, layer: IntegerLayer) -> Tensor:
    """Return s = sum w x of one layer."""
    if layer.pad < 0:
        x = F.pad(x, [layer.pad] * 4)
    return F.conv2d(x, weight, stride=layer.stride, padding=max(layer.pad, 0), groups=layer.groups)


def count_votes(spikes_BOHW: Tensor, actions: int) -> Tensor:
    """Return votes int64 (B, A); see :func:`count_votes`."""
    per_feature = spikes_BOHW.flatten(2).sum(dim=2, dtype=torch.int64)
    used = actions * (per_feature.shape[1] // actions)
    return per_feature[:, :used].reshape(len(per_feature), -1, actions).sum(dim=1)
