"""The encoder of pictures: four 3 x 3 convolutions with ReLU, linear layer, layer norm, tanh (Björck 2021, appendix G).

Critics and actor share the convolutions, which learn from the critics alone; each has a linear layer and a layer norm
of its own (Kostrikov 2020, whom Björck follows; the tanh is from there too). In few bits the linear layer's weights are
standardised (Qiao 2019), each output's to a norm of at most 1 (Brock 2021), and a row of its outputs beyond 10 is
scaled down to 10, so that the sum of squares in the layer norm does not overflow. Standardised to a variance of 1, as
Qiao has it, 39,200 inputs make outputs beyond fp16's 65,504.

On the host an image goes through the convolutions by itself, so neither threads nor the rest of a batch change its
features; a GPU takes all images at once.

Axis suffixes: B batch, H, W rows and columns, C channels, F filters, X features of the convolutions, Z of the encoder,
P parameters, flat.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spikestill.configs.control import EPSILON, PIXELS
from spikestill.teacher.control import networks
from spikestill.teacher.control.encoder_kernels import KERNEL
from spikestill.teacher.control.lanes import Both, in_turn
from spikestill.teacher.control.operations import Layer

STRIDES = (2, 1, 1, 1)
CHANNELS, SIDE = PIXELS[0] * PIXELS[1], PIXELS[2]
"""Three frames of three colours; rows and columns."""
LARGEST = 10.0
"""What a row of features is scaled down to before the layer norm."""
TAPS = KERNEL**2
SIDES = tuple(itertools.accumulate(STRIDES, lambda side, stride: (side - KERNEL) // stride + 1, initial=SIDE))
"""Rows and columns of the image and of what each convolution gives."""


class Head(NamedTuple):
    """Linear layer (X, Z), (Z,) and layer norm: gain (Z,), offset (Z,)."""

    linear: Layer
    gain_Z: Any
    offset_Z: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderRule:
    """What an encoder does, besides its weights.

    Attributes:
        filters: F of every convolution.
        features: Z.
        standardised: weight standardisation of the linear layer.
        limited: rows beyond 10 are scaled down before the layer norm.
        tanh: of what the layer norm gives.
    """

    filters: int
    features: int
    standardised: bool
    limited: bool
    tanh: bool

    @property
    def conv_shapes(self) -> tuple[tuple[int, int], ...]:
        """Inputs (9 C) and outputs (F) of each convolution."""
        return ((TAPS * CHANNELS, self.filters), *((TAPS * self.filters, self.filters),) * (len(STRIDES) - 1))

    @property
    def flat(self) -> int:
        """X, what the convolutions give."""
        return SIDES[-1] ** 2 * self.filters

    @property
    def conv_parameters(self) -> int:
        """P of all convolutions."""
        return sum((inputs + 1) * outputs for inputs, outputs in self.conv_shapes)

    @property
    def head_parameters(self) -> int:
        """P of a head."""
        return (self.flat + 3) * self.features

    def convolutions(self, flat_P: Any) -> list[Layer]:
        """Return the convolutions as views of the front of ``flat_P``: weights (9 C, F) by row, column, channel."""
        found, begin = [], 0
        for inputs, outputs in self.conv_shapes:
            middle = begin + inputs * outputs
            found.append(
                Layer(flat_P[begin:middle].reshape(inputs, outputs), flat_P[middle : middle + outputs])
            )
            begin = middle + outputs
        return found

    def head(self, flat_P: Any) -> Head:
        """Return a head as views of the front of ``flat_P``."""
        middle, width = self.flat * self.features, self.features
        bias_Z, gain_Z, offset_Z = (flat_P[middle + width * k : middle + width * (k + 1)] for k in range(3))
        return Head(Layer(flat_P[:middle].reshape(self.flat, width), bias_Z), gain_Z, offset_Z)

    def whole(self, flat_P: Any) -> tuple[list[Layer], Head]:
        """Return the convolutions and the head behind them, of an encoder that has both."""
        return self.convolutions(flat_P), self.head(flat_P[self.conv_parameters :])

    def initial_convolutions(self, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        """Return convolutions' parameters: orthogonal times √2, zero biases (Kostrikov 2020)."""
        found = []
        for inputs, outputs in self.conv_shapes:
            weight = 2**0.5 * networks.orthogonal(rng, inputs, outputs)
            found += [weight.reshape(-1), np.zeros(outputs)]
        return np.concatenate(found)

    def initial_head(self, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        """Return a head's parameters: orthogonal, zero biases and offsets, gains of 1."""
        weight, width = networks.orthogonal(rng, self.flat, self.features), self.features
        return np.concatenate([weight.reshape(-1), np.zeros(width), np.ones(width), np.zeros(width)])


class EffectiveHead(NamedTuple):
    """A head as it is used.

    Attributes:
        linear: layer, its weights standardised or not.
        gain_Z, offset_Z: of the layer norm.
        inverse_Z: 1 / (σ √X) of the standardised weights; None without.
    """

    linear: Layer
    gain_Z: Any
    offset_Z: Any
    inverse_Z: Any


class Projection(NamedTuple):
    """What a head found of images, and what its gradient needs.

    Attributes:
        head: as it was used.
        x_BX: features of the convolutions.
        factor_B: by which rows were scaled down; None without.
        normal_BZ, inverse_B: of the layer norm.
        features_BZ: the result.
    """

    head: EffectiveHead
    x_BX: Any
    factor_B: Any
    normal_BZ: Any
    inverse_B: Any
    features_BZ: Any


def shares(o: Any, both: Both, work: Callable[[slice, int], None], rows: int) -> None:
    """Do ``work(rows, part)`` of all rows, so many at a time as the operations take images, even times beside odd ones;
    ``part`` is 0 or 1."""
    at_once = o.at_once or rows

    def share(part: int) -> None:
        for begin in range(part * at_once, rows, 2 * at_once):
            work(slice(begin, begin + at_once), part)

    both(share, 2)


def convolve(
    o: Any,
    rule: EncoderRule,
    net: Sequence[Layer],
    images_BHWC: Any,
    both: Both = in_turn,
    keep: bool = False,
) -> list[Any]:
    """Return the activations of the convolutions, each (B, H, W, F): all of them where ``keep``, else the last.

    Args:
        o: operations.
        rule: of the encoder.
        net: convolutions.
        images_BHWC: uint8.
        both: how rows are shared out.
        keep: for :func:`convolve_backward`.
    """
    rows = len(images_BHWC)
    sides = SIDES[1:] if keep else SIDES[-1:]
    found = [o.empty(rows, side, side, rule.filters) for side in sides]

    def work(some: slice, _: int) -> None:
        x_BHWC = o.pixels(images_BHWC[some])
        for index, (layer, stride) in enumerate(zip(net, STRIDES, strict=True)):
            y = o.linear(o.patches(x_BHWC, stride), layer, True)
            x_BHWC = y.reshape(-1, SIDES[index + 1], SIDES[index + 1], rule.filters)
            if keep or index == len(net) - 1:
                found[index if keep else 0][some] = x_BHWC

    shares(o, both, work, rows)
    return found


def flat_features(
    o: Any, rule: EncoderRule, net: Sequence[Layer], images_BHWC: Any, both: Both = in_turn
) -> Any:
    """Return what the convolutions give, a row for each image, (B, X)."""
    return flattened(convolve(o, rule, net, images_BHWC, both)[-1])


def flattened(x_BHWF: Any) -> Any:
    """Return what the convolutions give as rows, (B, X)."""
    return x_BHWF.reshape(len(x_BHWF), -1)


def convolve_backward(
    o: Any,
    rule: EncoderRule,
    net: Sequence[Layer],
    images_BHWC: Any,
    activations: Sequence[Any],
    g_BX: Any,
    into_P: Any,
    both: Both = in_turn,
) -> None:
    """Write the gradients of the convolutions into ``into_P``; the operations' ``finish`` rounds them.

    Args:
        o: operations.
        rule: of the encoder.
        net: convolutions.
        images_BHWC, activations: of :func:`convolve` with ``keep``.
        g_BX: gradient of the last activations, 0 where they are not active.
        into_P: flat, of the convolutions.
        both: how rows are shared out.
    """
    sums = [o.zeros(rule.conv_parameters) for _ in range(2)]

    def work(some: slice, part: int) -> None:
        into = rule.convolutions(sums[part])
        g_PF = g_BX[some].reshape(-1, rule.filters)
        for index in range(len(net) - 1, -1, -1):
            x_BHWC = activations[index - 1][some] if index else o.pixels(images_BHWC[some])
            o.add_weight_gradient(o.patches(x_BHWC, STRIDES[index]), g_PF, into[index])
            if index:
                g_PF = o.scattered(g_PF, net[index], x_BHWC, STRIDES[index]).reshape(-1, rule.filters)

    shares(o, both, work, len(images_BHWC))
    o.add(sums[0], sums[1], into_P)


def effective(o: Any, rule: EncoderRule, head: Head) -> EffectiveHead:
    """Return a head as it is used until its weights change."""
    if not rule.standardised:
        return EffectiveHead(head.linear, head.gain_Z, head.offset_Z, None)
    weight_XZ, inverse_Z = o.standardised(head.linear.weight_IO, EPSILON)
    return EffectiveHead(Layer(weight_XZ, head.linear.bias_O), head.gain_Z, head.offset_Z, inverse_Z)


def project(o: Any, rule: EncoderRule, head: EffectiveHead, x_BX: Any) -> Projection:
    """Return what a head finds of the convolutions' features."""
    y_BZ = o.linear(x_BX, head.linear, False)
    factor_B = o.limited(y_BZ, LARGEST) if rule.limited else None
    out_BZ, normal_BZ, inverse_B = o.normalised(y_BZ, head.gain_Z, head.offset_Z, EPSILON)
    if rule.tanh:
        out_BZ = o.tanh(out_BZ)
    return Projection(head, x_BX, factor_B, normal_BZ, inverse_B, out_BZ)


def project_backward(
    o: Any, rule: EncoderRule, found: Projection, g_BZ: Any, into: Head, to_input: bool = False
) -> Any:
    """Write a head's gradients and, where ``to_input``, return the convolutions' (B, X), 0 where they are not active.

    The factor that scales a row down is taken as a constant: the layer norm gives the same for every factor.
    """
    head = found.head
    if rule.tanh:
        g_BZ = o.tanh_backward(g_BZ, found.features_BZ)
    g_BZ = o.normalised_backward(
        g_BZ, found.normal_BZ, found.inverse_B, head.gain_Z, into.gain_Z, into.offset_Z
    )
    if found.factor_B is not None:
        g_BZ = o.scaled_rows(g_BZ, found.factor_B)
    o.weight_gradient(found.x_BX, g_BZ, into.linear)
    if head.inverse_Z is not None:
        o.standardised_backward(head.linear.weight_IO, head.inverse_Z, into.linear.weight_IO)
    return o.backward(g_BZ, head.linear, found.x_BX) if to_input else None
