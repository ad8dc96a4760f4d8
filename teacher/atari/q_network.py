"""The Nature Q-network (Mnih 2015) as a pure function of its weights.

    h1 = relu(conv(x / 255, 32, 8x8, stride 4))     (B, 32, 20, 20)
    h2 = relu(conv(h1, 64, 4x4, stride 2))          (B, 64,  9,  9)
    h3 = relu(conv(h2, 64, 3x3, stride 1))          (B, 64,  7,  7)
    h4 = relu(W h3 + b)                             (B, 512)
    q  = W h4 + b                                   (B, A), given in fp32

A *dueling* head (Wang 2016, equation 9) splits h4 into a value and an advantage stream of 256 units each,

    q  = V h_v + U h_a - mean_a(U h_a)              biases alike,

which is linear in h4: :func:`plain` gives the W and b that say the same.

With *layer norm* (Ba 2016) every relu(s) above is

    relu(gain (s - mean(s)) / sqrt(var(s) + 1e-5) + shift)          gain, shift (C,)

over the C features of one place, as Gallici 2025 has it. Such a network has the weights ``conv1.gain``, ``conv1.shift``
and so on, and is read by what names it holds.

Axis suffixes: B batch, C channels, H height, W width, A actions.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
import torch.nn.functional as F
from torch import Tensor

from spikestill.common.precision.operations import NATIVE, Operations

Weights = dict[str, Tensor]

CONVOLUTIONS = (("conv1", 4, 32, 8, 4), ("conv2", 32, 64, 4, 2), ("conv3", 64, 64, 3, 1))
FLAT = 64 * 7 * 7
HIDDEN = 512
STREAM = HIDDEN // 2
LAST_LAYER = ("head", "value", "advantage")
MAX_PIXEL = 255.0
EPSILON = 1e-5
"""Beside the variance of a layer norm."""


def in_last_layer(name: str) -> bool:
    """Return True for the parameters of the last layer, plain or dueling."""
    return name.partition(".")[0] in LAST_LAYER


def is_normalised(names: Collection[str]) -> bool:
    """Return True for the weights of a network with layer norm."""
    return "conv1.gain" in names


def shapes(actions: int, dueling: bool = False, layer_norm: bool = False) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter, in the order of the forward pass."""
    bodies = {name: (outputs, inputs, kernel, kernel) for name, inputs, outputs, kernel, _ in CONVOLUTIONS}
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in (bodies | {"hidden": (HIDDEN, FLAT)}).items():
        parts = ("bias", "gain", "shift") if layer_norm else ("bias",)
        found |= {f"{name}.weight": shape} | {f"{name}.{part}": (shape[0],) for part in parts}
    if dueling:
        found |= {"value.weight": (1, STREAM), "value.bias": (1,)}
        return found | {"advantage.weight": (actions, STREAM), "advantage.bias": (actions,)}
    return found | {"head.weight": (actions, HIDDEN), "head.bias": (actions,)}


def initial_weights(
    actions: int, generator: torch.Generator, dueling: bool = False, layer_norm: bool = False
) -> Weights:
    """Return fp32 weights drawn from U(-1/sqrt(fan_in), 1/sqrt(fan_in)), as Mnih 2015's Torch code did.

    The gains of a layer norm are 1, its shifts 0.
    """
    weights: Weights = {}
    fan_in = 1
    for name, shape in shapes(actions, dueling, layer_norm).items():
        if name.endswith((".gain", ".shift")):
            weights[name] = torch.full(shape, float(name.endswith(".gain")))
            continue
        if name.endswith(".weight"):
            fan_in = math.prod(shape[1:])
        bound = 1.0 / math.sqrt(fan_in)
        weights[name] = torch.empty(shape).uniform_(-bound, bound, generator=generator)
    return weights


def working_copy(
    weights: Weights, dtype: torch.dtype, head: torch.dtype = torch.float32, *, requires_grad: bool
) -> Weights:
    """Return the weights that the forward pass reads: channels-last in ``dtype``, the last layer in ``head``."""
    copy: Weights = {}
    for name, weight in weights.items():
        made = weight.detach().to(head if in_last_layer(name) else dtype, copy=True)
        if made.ndim == 4:
            made = made.contiguous(memory_format=torch.channels_last)
        copy[name] = made.requires_grad_(requires_grad)
    return copy


def q_values(
    weights: Weights, stacks_BCHW: Tensor, pixel_offset: float = 0.0, operations: Operations = NATIVE
) -> Tensor:
    """Return q (B, A) in fp32 for uint8 stacks (B, 4, 84, 84), oldest frame first.

    The first layer computes conv((x - pixel_offset) / 255) + bias, with the scale and the offset
    moved into its weights and bias: pixels are exact integers in every format with 8 bits of significand.
    """
    weight, bias = last_layer(weights)
    hidden = features(weights, stacks_BCHW, pixel_offset, operations)[-1].to(weight.dtype)
    # Six outputs are too few for FP8 products, and half a precision too little for Q-values: their gaps are small.
    return F.linear(hidden.float(), weight.float(), bias.float())


def last_layer(weights: Weights) -> tuple[Tensor, Tensor]:
    """Return W (A, 512) and b (A,) of q = W h4 + b, differentiable, composed where the head is dueling."""
    if "head.weight" in weights:
        return weights["head.weight"], weights["head.bias"]
    advantage, bias = weights["advantage.weight"], weights["advantage.bias"]
    value = weights["value.weight"].expand(len(advantage), -1)
    weight = torch.cat([value, advantage - advantage.mean(dim=0, keepdim=True)], dim=1)
    return weight, weights["value.bias"] + bias - bias.mean()


def plain(weights: Weights) -> Weights:
    """Return the same network with a plain last layer."""
    body = {name: weight for name, weight in weights.items() if not in_last_layer(name)}
    weight, bias = last_layer(weights)
    return {**body, "head.weight": weight, "head.bias": bias}


def features(
    weights: Weights, stacks_BCHW: Tensor, pixel_offset: float = 0.0, operations: Operations = NATIVE
) -> list[Tensor]:
    """Return the activations of the four hidden layers, for stacks (B, 4, 84, 84) uint8."""
    dtype = weights["conv1.weight"].dtype
    x = stacks_BCHW.to(dtype)
    activations: list[Tensor] = []
    for name, _, _, _, stride in CONVOLUTIONS:
        weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        if name == "conv1":
            weight = weight * (1.0 / MAX_PIXEL)
            if pixel_offset:
                bias = bias - pixel_offset * weight.sum(dim=(1, 2, 3), dtype=torch.float32).to(dtype)
        x = _active(weights, name, operations.conv2d(x, weight, bias, stride))
        activations.append(x)
    x = operations.linear(x.flatten(1), weights["hidden.weight"], weights["hidden.bias"])
    return [*activations, _active(weights, "hidden", x)]


def _active(weights: Weights, layer: str, sums: Tensor) -> Tensor:
    """Return the activations of a layer's sums (B, C) or (B, C, H, W), behind its layer norm where it has one."""
    if not is_normalised(weights):
        return F.relu(sums)
    from spikestill.teacher.atari.feature_norm import feature_norm  # compiled, and few networks need it

    return feature_norm(sums, weights[f"{layer}.gain"], weights[f"{layer}.shift"], EPSILON)


def fold_offset(weights: Weights, pixel_offset: float) -> Weights:
    """Return weights that give the same q without an offset: b <- b - offset / 255 * sum(w), conv1 only."""
    folded = {name: weight.detach().clone() for name, weight in weights.items()}
    folded["conv1.bias"] -= pixel_offset / MAX_PIXEL * folded["conv1.weight"].sum(dim=(1, 2, 3))
    return folded


def dead_fractions(activations: list[Tensor]) -> list[float]:
    """Return, per hidden layer, the fraction of units (features of convolutions) that no input makes active."""
    return [
        float((layer.amax(dim=[axis for axis in range(layer.ndim) if axis != 1]) <= 0).float().mean())
        for layer in activations
    ]
