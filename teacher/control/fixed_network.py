"""A fully connected network in fixed point: forward, backward and gradients, every number an integer.

    x_0 = the input;  z_l = W_l x_l + b_l;  x_{l+1} = ReLU(z_l), and the last z is the output

Inputs of layers are *sites*: from FIXAR's quantisation delay on, each site has a 16-bit format of its own
(``Affine``), and both the forward and the backward pass read the quantised values.

Axis suffixes: B batch, P outputs of a layer, Q its inputs, N parameters.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from spikestill.common.precision import fixed_fast
from spikestill.common.precision.fixed import Affine, Int32, saturate
from spikestill.configs.fixed_point import Formats

Arithmetic = Any
"""The modules ``fixed_reference`` or ``fixed_fast``, or FIXAR's accelerator: the same operations, the same integers."""
LAST_BOUND = 3e-3
"""Bound of the last layer's first weights (Lillicrap 2016, section 7)."""


def parameters(sizes: tuple[int, ...]) -> int:
    """Return N, the weights and biases of a network of these layer sizes."""
    return sum((q + 1) * p for q, p in itertools.pairwise(sizes))


def layers(flat_N: Int32, sizes: tuple[int, ...]) -> list[tuple[Int32, Int32]]:
    """Return views of every layer's weights (P, Q) and biases (P,): a layer's weights by rows, then its biases."""
    found: list[tuple[Int32, Int32]] = []
    at = 0
    for q, p in itertools.pairwise(sizes):
        weight = flat_N[at : at + p * q].reshape(p, q)
        found.append((weight, flat_N[at + p * q : at + p * q + p]))
        at += p * q + p
    return found


def initial(sizes: tuple[int, ...], formats: Formats, random: np.random.Generator) -> Int32:
    """Return random parameters: uniform integers within 1 / sqrt(fan in), the last layer's within 0.003."""
    flat_N = np.empty(parameters(sizes), np.int32)
    for index, (weight, bias) in enumerate(layers(flat_N, sizes)):
        last = index == len(sizes) - 2
        real = LAST_BOUND if last else weight.shape[1] ** -0.5
        bound = formats.word(formats.weight).integer(real)
        weight[:] = random.integers(-bound, bound, weight.shape, np.int32, endpoint=True)
        bias[:] = random.integers(-bound, bound, bias.shape, np.int32, endpoint=True)
    return flat_N


@dataclasses.dataclass(frozen=True)
class Trace:
    """One forward pass.

    Attributes:
        inputs: what each layer multiplied: activations, or q - z of 16-bit ones.
        sites: the format of each, None for whole activations.
        output_BP: the last layer's sums.
        extremes: least and largest activation at each site that has no format yet.
        saturated: values saturated at the end of a layer.
        overshot: values beyond the range of their site's 16-bit format.
    """

    inputs: tuple[Int32, ...]
    sites: tuple[Affine | None, ...]
    output_BP: Int32
    extremes: tuple[tuple[int, int], ...]
    saturated: int
    overshot: int


def stacked(traces: Sequence[Trace]) -> Trace:
    """Return the pass of a batch whose rows were passed in parts."""
    extremes = [
        (min(least for least, _ in each), max(largest for _, largest in each))
        for each in zip(*(trace.extremes for trace in traces), strict=True)
    ]
    return Trace(
        tuple(np.concatenate(each) for each in zip(*(trace.inputs for trace in traces), strict=True)),
        traces[0].sites,
        np.concatenate([trace.output_BP for trace in traces]),
        tuple(extremes),
        sum(trace.saturated for trace in traces),
        sum(trace.overshot for trace in traces),
    )


def forward(
    flat_N: Int32, sizes: tuple[int, ...], x_BQ: Int32, sites: tuple[Affine | None, ...], formats: Formats,
    arithmetic: Arithmetic,
) -> Trace:  # fmt: skip
    """Return a pass through the network.

    Args:
        flat_N: parameters.
        sizes: of the layers, the input's first.
        x_BQ: int32 activations.
        sites: format of each layer's input, or None for 32-bit ones.
        formats: of the variant.
        arithmetic: reference or fast.
    """
    if arithmetic is fixed_fast:
        inputs, out_BP, extremes, saturated, overshot = fixed_fast.network_forward(
            flat_N, sizes, x_BQ, sites, formats.weight, formats.weight - formats.activation, formats.bits
        )
        return Trace(tuple(inputs), sites, out_BP, tuple(extremes), saturated, overshot)
    inputs, extremes, saturated, overshot = [], [], 0, 0
    for index, (weight, bias) in enumerate(layers(flat_N, sizes)):
        affine = sites[index]
        if affine is None:
            extremes.append(arithmetic.extremes(x_BQ))
        else:
            x_BQ, beyond = arithmetic.quantise(x_BQ, affine)
            overshot += beyond
        inputs.append(x_BQ)
        x_BQ, lost = arithmetic.forward(
            x_BQ, affine, weight, bias, formats.weight, formats.weight - formats.activation, formats.bits,
            index < len(sizes) - 2,
        )  # fmt: skip
        saturated += lost
    return Trace(tuple(inputs), sites, x_BQ, tuple(extremes), saturated, overshot)


def backward(
    flat_N: Int32, sizes: tuple[int, ...], trace: Trace, error_BP: Int32, formats: Formats,
    arithmetic: Arithmetic, *, to_input: bool,
) -> tuple[list[Int32], Int32 | None, int]:  # fmt: skip
    """Return (the error at every layer's output, first layer first; at the input or None; values saturated).

    Args:
        flat_N, sizes: the network.
        trace: of its forward pass.
        error_BP: derivative of a transition's loss with respect to the output, int32.
        formats: of the variant.
        arithmetic: reference or fast.
        to_input: go on to the error at the input.
    """
    if arithmetic is fixed_fast:
        found, saturated = fixed_fast.network_backward(
            flat_N, sizes, trace.inputs, error_BP, formats.weight, formats.bits, to_input=to_input
        )
        return [*found[int(to_input) :], error_BP], found[0] if to_input else None, saturated
    errors, saturated = [error_BP], 0
    for index, (weight, _) in reversed(list(enumerate(layers(flat_N, sizes)))):
        if index == 0 and not to_input:
            return errors[::-1], None, saturated
        mask = trace.inputs[index] if index > 0 else None
        error_BP, lost = arithmetic.backward(error_BP, weight, mask, formats.weight, formats.bits)
        saturated += lost
        errors.append(error_BP)
    return errors[-2::-1], errors[-1], saturated


def gradient(
    sizes: tuple[int, ...], trace: Trace, errors: list[Int32], fraction: int, formats: Formats, arithmetic: Arithmetic
) -> tuple[Int32, int]:  # fmt: skip
    """Return (the mean gradient over the batch, flat int32 (N,), values saturated).

    Args:
        sizes: of the layers.
        trace: of the forward pass.
        errors: of :func:`backward`.
        fraction: of a gradient.
        formats: of the variant.
        arithmetic: reference or fast.
    """
    batch = len(errors[0])
    shift = formats.error + formats.activation + batch.bit_length() - 1 - fraction
    if arithmetic is fixed_fast:
        return fixed_fast.network_gradient(
            sizes, errors, trace.inputs, trace.sites, formats.activation, shift, formats.bits
        )
    flat_N, saturated = np.empty(parameters(sizes), np.int32), 0
    for index, (weight, bias) in enumerate(layers(flat_N, sizes)):
        weight[:], bias[:], lost = arithmetic.gradient(
            errors[index], trace.inputs[index], trace.sites[index], formats.activation, shift, formats.bits
        )
        saturated += lost
    return flat_N, saturated


def rescaled(x: Int32, by: int, bits: int) -> tuple[Int32, int]:
    """Return (``x`` with ``by`` more fraction bits, fewer where negative and rounded; values saturated)."""
    wide = x.astype(np.int64)
    wide = wide << by if by >= 0 else (wide + (1 << (-by - 1))) >> -by
    found, lost = saturate(wide, bits)
    return found.astype(np.int32), lost
