"""Multilayer perceptrons over flat parameters: ReLU between the layers, none after the last.

Axis suffixes: B batch, I, O layer inputs and outputs, P parameters, flat.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.teacher.control.lanes import Both, in_turn, side_by_side
from spikestill.teacher.control.operations import Layer


def parameters(sizes: Sequence[int]) -> int:
    """Return P of a network with these layer sizes, the input's first."""
    return sum((inputs + 1) * outputs for inputs, outputs in itertools.pairwise(sizes))


def layers(flat_P: Any, sizes: Sequence[int]) -> list[Layer]:
    """Return the layers as views of ``flat_P``: each one's weights (I, O), then its biases."""
    found, begin = [], 0
    for inputs, outputs in itertools.pairwise(sizes):
        middle = begin + inputs * outputs
        end = middle + outputs
        found.append(Layer(flat_P[begin:middle].reshape(inputs, outputs), flat_P[middle:end]))
        begin = end
    return found


def orthogonal(rng: np.random.Generator, inputs: int, outputs: int) -> npt.NDArray[np.float64]:
    """Return weights (I, O) with orthonormal rows or columns, uniform over such matrices (Saxe 2014)."""
    normal = rng.standard_normal((max(inputs, outputs), min(inputs, outputs)))
    q, r = np.linalg.qr(normal)
    q *= np.sign(np.diag(r))
    return q if inputs >= outputs else q.T


def fan_in(rng: np.random.Generator, inputs: int, outputs: int, bound: float) -> npt.NDArray[np.float64]:
    """Return weights (I, O) uniform in ±``bound``, ±1/√I where it is 0 (Lillicrap 2016, section 7)."""
    limit = bound or inputs**-0.5
    return rng.uniform(-limit, limit, (inputs, outputs))


def initial(rng: np.random.Generator, sizes: Sequence[int], kind: str) -> npt.NDArray[np.float64]:
    """Return random parameters (P,): ``orthogonal`` (Björck 2021) or ``fan_in`` (DDPG), zero biases."""
    found, last = [], len(sizes) - 2
    for index, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        if kind == "orthogonal":
            weight = orthogonal(rng, inputs, outputs)
        else:
            weight = fan_in(rng, inputs, outputs, 3e-3 if index == last else 0.0)
        found += [weight.reshape(-1), np.zeros(outputs)]
    return np.concatenate(found)


def forward(o: Any, net: Sequence[Layer], x_BI: Any) -> list[Any]:
    """Return the activations: the input, every hidden layer, the output."""
    found = [x_BI]
    for index, layer in enumerate(net):
        found.append(o.linear(found[-1], layer, index < len(net) - 1))
    return found


def backward(
    o: Any,
    net: Sequence[Layer],
    activations: Sequence[Any],
    g_BO: Any,
    into: Sequence[Layer] | None,
    to_input: bool = False,
    both: Both = in_turn,
) -> Any:
    """Write the gradients of the layers and, where ``to_input``, return the input's.

    Args:
        o: operations.
        net: layers.
        activations: of :func:`forward`.
        g_BO: gradient of the output.
        into: layers of gradients; None: they are not wanted.
        to_input: go on to the input.
        both: how a layer's two products are done, the one to its inputs and the one to its weights. The last layer's
            are too small for a second thread.
    """
    for index in range(len(net) - 1, -1, -1):
        x_BI, products = activations[index], []
        if index or to_input:
            products.append(partial(o.backward, g_BO, net[index], x_BI if index else None))
        if into is not None:
            products.append(partial(o.weight_gradient, x_BI, g_BO, into[index]))
        g_BO = side_by_side(in_turn if index == len(net) - 1 else both, *products)[0]
    return g_BO if to_input else None
