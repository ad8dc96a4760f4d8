"""The Nature Q-network in integer arithmetic only, calibrated on frames, not trained so.

Numbers of b bits (16 or 8): weights are signed, |w| <= 2^(b-1) - 1; activations, being behind a ReLU, unsigned, 0 to
2^b - 1; pixels are the 8-bit integers that they are. Every sum has 32 bits and cannot overflow, whatever the input:
a weight's scale is chosen for its output so that the largest possible sum fits. One layer is

    plane sums       hi = sum_k w_k (a_k >> 8),  lo = sum_k w_k (a_k & 255)          two sums where a has 16 bits
    accumulator      s = hi + ((lo + 128) >> 8) + bias                               s = lo + bias where a has 8 bits
    activation       y = min(max((s m + 2^(n-1)) >> n, 0), 2^b - 1)                  ReLU and saturation at once

with w, bias and s in int32, m in [2^30, 2^31) and n from 1 to 62 for each output, s m in int64. ``>>`` is the
arithmetic shift, so that halves round up. The last layer gives its s as it is, for A + 1 outputs: each action's
advantage over the mean of all actions, and that mean. The advantages share one scale, so that the greatest s is the
greatest Q-value's; Q = advantage + mean. What all actions have in common takes none of the advantages' bits: in Pong
they differ by a hundredth of a Q-value.

Scales: a weight's |w|_max and sum decide for each output. Activations of 16 bits have the range m, the largest of their
layer in calibration. With 8 bits a channel c whose largest is m_c gets the range sqrt(m_c m), and the weights that read
it are scaled to it: weak channels keep more levels, and weights do not pay for all of it. With 16 there are levels
enough, and the larger range saturates later.

Sources: per-output scales and the integer requantisation are Jacob 2018 (equations 5 to 7); ranges by channel, moved
between a layer and the next, are Nagel 2019 (section 4.1; the geometric mean with the layer's largest is ours); two
planes of 8 bits in place of one product of 16, as FIXAR's elements do (Yang 2021, section IV-B), are what keeps 32-bit
sums exact.

:func:`forward` here is the reference; ``fixed_kernel`` is the fast form and :func:`torch_forward` PyTorch's, equal bit
for bit.

Axis suffixes: B batch, H, W, C channels (last), K taps (row, column, channel), O outputs, P positions.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

    from spikestill.teacher.atari.q_network import Weights

Bits = Literal[8, 16]
INT32_MAX = 2**31 - 1
PIXEL_MAX = 255.0
LAYERS = (("conv1", 8, 4), ("conv2", 4, 2), ("conv3", 3, 1), ("hidden", 7, 1), ("head", 1, 1))
"""Name, kernel and stride; the two last are convolutions over all that is left."""


@dataclasses.dataclass(frozen=True)
class FixedLayer:
    """One layer in integers.

    Attributes:
        kernel, stride: of the convolution.
        planes: 8-bit planes of its input, 1 or 2.
        weight_KO: int32, the weights.
        bias_O: int32.
        multiplier_O: int64, m of each output, 2^30 to 2^31 - 1; empty in the last layer.
        shift_O: int64, n of each output; empty in the last layer.
        largest: the largest activation, 2^b - 1; 0 in the last layer.
        unit_O: float64, Q-value of one unit of each accumulator in the last layer, one value for all advantages and
            one for their mean; empty in the others.
    """

    kernel: int
    stride: int
    planes: int
    weight_KO: npt.NDArray[np.int32]
    bias_O: npt.NDArray[np.int32]
    multiplier_O: npt.NDArray[np.int64]
    shift_O: npt.NDArray[np.int64]
    largest: int
    unit_O: npt.NDArray[np.float64]


def calibrate(weights: Weights, stacks_BCHW: npt.NDArray[np.uint8], bits: Bits) -> tuple[FixedLayer, ...]:
    """Return the network in integers, with ranges from what its layers give for some frames.

    Args:
        weights: of the Nature network, plain or dueling, fp32.
        stacks_BCHW: uint8 (B, 4, 84, 84), B >= 1.
        bits: of weights and activations.

    Raises:
        ValueError: no frames, or other bits.
    """
    import torch

    from spikestill.teacher.atari import q_network

    if bits not in (8, 16) or not len(stacks_BCHW):
        raise ValueError(
            f"{bits} bits and {len(stacks_BCHW)} frames; 8 or 16 bits and 1 frame or more wanted"
        )
    plain = {name: tensor.float() for name, tensor in q_network.plain(weights).items()}
    most: list[npt.NDArray[np.float64]] = []
    with torch.inference_mode():
        for part in np.array_split(stacks_BCHW, -(-len(stacks_BCHW) // 64)):
            found = q_network.features(plain, torch.from_numpy(np.ascontiguousarray(part)))
            now = [each.flatten(2).amax(dim=(0, 2)) if each.ndim > 2 else each.amax(dim=0) for each in found]
            seen_C = [each.double().numpy() for each in now]
            most = [np.maximum(*pair) for pair in zip(most, seen_C, strict=True)] if most else seen_C
    largest = 2**bits - 1
    channels = stacks_BCHW.shape[1]
    scales_in = [np.full(channels, 1 / PIXEL_MAX), *(_ranges(most_C, bits) / largest for most_C in most)]
    layers = []
    for index, (name, kernel, stride) in enumerate(LAYERS):
        weight = plain[f"{name}.weight"].double().numpy()
        bias_O = plain[f"{name}.bias"].double().numpy()
        last = index == len(LAYERS) - 1
        if last:
            weight, bias_O = _advantages(weight), _advantages(bias_O)
        if weight.ndim == 2:
            weight = weight.reshape(len(weight), -1, kernel, kernel)
        scale_K = np.tile(scales_in[index], kernel * kernel)
        weight_KO = weight.transpose(2, 3, 1, 0).reshape(-1, len(weight)) * scale_K[:, None]
        planes = 2 if bits == 16 and index else 1
        scale_out_O = None if last else scales_in[index + 1]
        layers.append(_layer(weight_KO, bias_O, kernel, stride, planes, bits, scale_out_O))
    return tuple(layers)


def _ranges(most_C: npt.NDArray[np.float64], bits: Bits) -> npt.NDArray[np.float64]:
    """Return each channel's range, from its largest activation in calibration.

    A channel that hardly fired counts as a thousandth of the largest; a layer that never did has no range, and any will
    do.
    """
    most = float(most_C.max()) or 1.0
    if bits == 16:
        return np.full(len(most_C), most)
    found: npt.NDArray[np.float64] = np.sqrt(np.maximum(most_C, 1e-3 * most) * most)
    return found


def _advantages(values_O: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return what each action has more than the mean of all, and that mean after them; along the first axis."""
    mean = values_O.mean(axis=0, keepdims=True)
    return np.concatenate([values_O - mean, mean])


def _layer(
    weight_KO: npt.NDArray[np.float64],
    bias_O: npt.NDArray[np.float64],
    kernel: int,
    stride: int,
    planes: int,
    bits: int,
    scale_out_O: npt.NDArray[np.float64] | None,
) -> FixedLayer:
    """Return one layer; ``weight_KO`` is per unit of input, ``scale_out_O`` None makes it the last."""
    unit = 256.0 if planes == 2 else 1.0
    step_O = np.maximum(np.abs(weight_KO).max(axis=0), 1e-12) / (2 ** (bits - 1) - 1)
    while True:
        if scale_out_O is None:
            # One scale for all advantages, so that they compare.
            step_O[:-1] = step_O[:-1].max()
        found_KO = np.rint(weight_KO / step_O)
        bias = np.rint(bias_O / (step_O * unit))
        # The largest sum of either plane, of both together, and of a bias.
        bound_O = 256.0 * np.abs(found_KO).sum(axis=0) + np.abs(bias) + 1
        if (bound_O <= INT32_MAX).all():
            break
        step_O = step_O * np.maximum(bound_O / INT32_MAX, 1.0) * (1 + 1e-9 + 1e-4 * (bound_O > INT32_MAX))
    empty = np.zeros(0, np.int64)
    multiplier_O, shift_O = (
        (empty, empty) if scale_out_O is None else _multipliers(step_O * unit / scale_out_O)
    )
    return FixedLayer(
        kernel=kernel,
        stride=stride,
        planes=planes,
        weight_KO=np.ascontiguousarray(found_KO.astype(np.int32)),
        bias_O=bias.astype(np.int32),
        multiplier_O=multiplier_O,
        shift_O=shift_O,
        largest=0 if scale_out_O is None else 2**bits - 1,
        unit_O=step_O * unit if scale_out_O is None else np.zeros(0),
    )


def _multipliers(ratio_O: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return m (2^30 to 2^31 - 1) and n (1 to 62) with m / 2^n nearest to each ratio."""
    mantissa_O, exponent_O = np.frexp(ratio_O)
    multiplier_O = np.minimum(np.rint(mantissa_O * 2.0**31), INT32_MAX).astype(np.int64)
    shift_O = (31 - exponent_O).astype(np.int64)
    # A ratio below 2^-31 makes every sum round to nothing; one of 2^30 or more does not occur.
    multiplier_O[shift_O > 62] = 0
    return multiplier_O, np.clip(shift_O, 1, 62)


def q_values(layers: tuple[FixedLayer, ...], sums_BO: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    """Return the Q-values (B, A) that the last layer's sums (B, A + 1) stand for: advantage + mean."""
    value_BO = sums_BO * layers[-1].unit_O
    found: npt.NDArray[np.float64] = value_BO[:, :-1] + value_BO[:, -1:]
    return found


def forward(layers: tuple[FixedLayer, ...], stacks_BCHW: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
    """Return the last layer's sums (B, A + 1), int32, by plain NumPy: the reference.

    Args:
        layers: the network.
        stacks_BCHW: uint8 (B, 4, 84, 84).
    """
    found = [_forward_one(layers, stack_CHW.transpose(1, 2, 0)) for stack_CHW in stacks_BCHW]
    return np.stack(found)


def _forward_one(layers: tuple[FixedLayer, ...], stack_HWC: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
    activation = stack_HWC.astype(np.int64)
    for layer in layers:
        windows = np.lib.stride_tricks.sliding_window_view(
            activation,
            (layer.kernel, layer.kernel),
            axis=(0, 1),  # type: ignore[call-overload]
        )
        patches = windows[:: layer.stride, :: layer.stride].transpose(0, 1, 3, 4, 2)
        height, width = patches.shape[:2]
        patch_PK = patches.reshape(height * width, -1)
        weight_KO = layer.weight_KO.astype(np.int64)
        low_PO = _within((patch_PK & 255) @ weight_KO)
        sum_PO = low_PO
        if layer.planes == 2:
            sum_PO = _within((patch_PK >> 8) @ weight_KO) + ((low_PO + 128) >> 8)
        sum_PO = _within(sum_PO + layer.bias_O)
        if not layer.largest:
            return sum_PO[0].astype(np.int32)
        rounded = (sum_PO * layer.multiplier_O + (1 << (layer.shift_O - 1))) >> layer.shift_O
        activation = np.clip(rounded, 0, layer.largest).reshape(height, width, -1)
    raise AssertionError("the network has no last layer")


def _within(sums: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    assert np.abs(sums).max() <= INT32_MAX, "a sum of 32 bits overflows"
    return sums


def torch_forward(layers: tuple[FixedLayer, ...], stacks_BCHW: torch.Tensor) -> torch.Tensor:
    """Return :func:`forward` by PyTorch, int32 (B, A + 1); sums in float64, in which they are exact integers."""
    import torch
    import torch.nn.functional as F

    activation = stacks_BCHW.to(torch.int64)
    for layer in layers:
        weight = torch.from_numpy(layer.weight_KO).double()
        kernel, outputs = layer.kernel, weight.shape[1]
        weight_OIHW = weight.reshape(kernel, kernel, -1, outputs).permute(3, 2, 0, 1).contiguous()
        stride = layer.stride

        def product(
            plane: torch.Tensor, weight: torch.Tensor = weight_OIHW, stride: int = stride
        ) -> torch.Tensor:
            return F.conv2d(plane.double(), weight, stride=stride).to(torch.int64)

        sums = product(activation & 255)
        if layer.planes == 2:
            sums = product(activation >> 8) + ((sums + 128) >> 8)
        sums = sums + torch.from_numpy(layer.bias_O).to(torch.int64)[:, None, None]
        if not layer.largest:
            return sums.flatten(1).to(torch.int32)
        shift = torch.from_numpy(layer.shift_O)[:, None, None]
        half = torch.ones_like(shift) << (shift - 1)
        rounded = (sums * torch.from_numpy(layer.multiplier_O)[:, None, None] + half) >> shift
        activation = rounded.clamp(0, layer.largest)
    raise AssertionError("the network has no last layer")
