"""An update of all weights on a CPU in two passes over memory, each spread over the gradient threads.

PyTorch's operations go over the weights once for each of: a share's gradient made fp32, the sum of the shares, its
norm, the clipping, Adam, the running mean. Weights and moments do not fit in a core's cache, so that each waits for
memory. Here the first pass adds the shares and sums squares, and the second does all that follows, block by block.

Weights are cut into chunks, whatever the number of threads, and the chunks' sums are added in their order: the result
does not depend on that number.

Arrays are flat, (P,) for the P numbers of one weight; fp32 but for the shares' gradients, which may be bf16. Those of
other formats are made fp32 before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spikestill.common.compiling import njit
from spikestill.common.kernel_arrays import kernel_array
from spikestill.common.vectors import plus, product_sum, read, spread, times, write
from spikestill.teacher.atari.q_network import Weights

CHUNK = 1 << 16
"""Numbers of a weight that one thread goes over at a time."""
BLOCK = 2_048
"""Numbers that a loop of a kernel goes over before the next loop does: 8 KiB of each array, in a core's first cache."""
LANES, ONE = (0,) * 16, (0,)
BETA1, BETA2 = 0.9, 0.999
LARGEST = float(np.finfo(np.float32).max)

Array = npt.NDArray[Any]


class Moments(NamedTuple):
    """Adam's state of one weight: exponential means of gradient and squared gradient, (P,) fp32."""

    m: Array
    v: Array


class AdamStep(NamedTuple):
    """What an update of one weight is made with.

    p <- p - size m / (sqrt(v) / root + epsilon), with m and v the moments after this update.

    Attributes:
        clip: factor on the gradient.
        size: step size over 1 - beta1^t.
        root: sqrt(1 - beta2^t).
        epsilon: beside the root, Kingma 2015, Algorithm 1.
        rest: weight of the new weights in their running mean, 1 less its decay, where there is one.
    """

    clip: float
    size: float
    root: float
    epsilon: float
    rest: float

    @classmethod
    def at(cls, update: int, clip: float, step_size: float, epsilon: float, averaging: float) -> AdamStep:
        """Return the step of update number ``update``, from 1 on; ``averaging`` is the running mean's decay."""
        size, root = step_size / (1.0 - BETA1**update), math.sqrt(1.0 - BETA2**update)
        return cls(clip, size, root, epsilon, 1.0 - averaging)


def readable(tensor: Tensor) -> Array:
    """Return the numbers of a tensor as (P,), bf16 as uint16, other formats as fp32; a copy where it must be one."""
    held = tensor if tensor.dtype == torch.bfloat16 else tensor.float()
    return kernel_array(held.contiguous())


def writable(tensor: Tensor) -> Array:
    """Return the numbers of an fp32 tensor that lies in order as (P,), never a copy."""
    assert tensor.dtype == torch.float32
    return kernel_array(tensor.view(-1))


@njit(nogil=True, cache=True)
def _add(total, part, first, begin, end, lanes):  # type: ignore[no-untyped-def]
    """Total <- part where ``first``, else total + part; return where whole vectors end."""
    wide = len(lanes)
    whole = end - (end - begin) % wide
    for i in range(begin, whole, wide):
        found = read(part, i, lanes)
        if not first:
            found = plus(read(total, i, lanes), found)
        write(total, i, found)
    return whole


@njit(nogil=True, cache=True)
def _scale(total, factor, squares, begin, end, lanes):  # type: ignore[no-untyped-def]
    """Total <- factor total; write the sums of squares, a lane each; return where whole vectors end."""
    wide, scale, square = len(lanes), spread(factor, lanes), spread(np.float32(0.0), lanes)
    whole = end - (end - begin) % wide
    for i in range(begin, whole, wide):
        found = times(read(total, i, lanes), scale)
        write(total, i, found)
        square = product_sum(found, found, square)
    write(squares, 0, square)
    return whole


@njit(nogil=True, cache=True)
def add_gradients(total, parts, factor, begin, end, lanes, one):  # type: ignore[no-untyped-def]
    """Write factor (part 1 + part 2 + ...), added in this order, and return the sum of its squares.

    Args:
        total: fp32 (P,), written from ``begin`` to ``end``.
        parts: a tuple of the shares' gradients, each (P,) fp32 or all bf16 as uint16.
        factor: fp32.
        begin: where the chunk begins.
        end: where it ends.
        lanes: a tuple, as long as a vector.
        one: a tuple of one element.
    """
    squares, found = np.empty(len(lanes), np.float32), 0.0
    for block in range(begin, end, BLOCK):
        stop = min(block + BLOCK, end)
        for index in range(len(parts)):
            whole = _add(total, parts[index], index == 0, block, stop, lanes)
            _add(total, parts[index], index == 0, whole, stop, one)
        whole = _scale(total, factor, squares, block, stop, lanes)
        for lane in range(len(lanes)):
            found += squares[lane]
        for i in range(whole, stop):
            total[i] *= factor
            found += total[i] * total[i]
    return found


@njit(nogil=True, cache=True, error_model="numpy")
def adam(p, m, v, mean, g, step, begin, end):  # type: ignore[no-untyped-def]
    """Step the weights ``p`` from ``begin`` to ``end`` by the gradient ``g``, in place: m, v, p, then ``mean``.

    ``step`` is an :class:`AdamStep` in fp32. ``mean`` has no elements where there is no running mean.
    """
    clip, size, root, epsilon, rest = step
    one = np.float32(1.0)
    rest1, beta2, rest2 = np.float32(1.0 - BETA1), np.float32(BETA2), np.float32(1.0 - BETA2)
    scale = one / root
    for block in range(begin, end, BLOCK):
        stop = min(block + BLOCK, end)
        p_b, m_b, v_b, g_b = p[block:stop], m[block:stop], v[block:stop], g[block:stop]
        for i in range(stop - block):
            each = g_b[i] * clip
            m_b[i] += rest1 * (each - m_b[i])
            v_b[i] = beta2 * v_b[i] + rest2 * each * each
        for i in range(stop - block):
            p_b[i] -= size * m_b[i] / (np.sqrt(v_b[i]) * scale + epsilon)
        if mean.size:
            mean_b = mean[block:stop]
            for i in range(stop - block):
                mean_b[i] += rest * (p_b[i] - mean_b[i])


class WeightPasses:
    """The two passes over a network's weights, and the sum of the shares' gradients between them.

    Args:
        weights: the masters, fp32 by name.
        in_threads: calls a function (thread, threads) in each of its threads, and returns what they gave.
    """

    def __init__(
        self, weights: Weights, in_threads: Callable[[Callable[[int, int], list[float]]], list[list[float]]]
    ) -> None:
        self.gradients: Weights = {
            name: torch.zeros_like(weight, memory_format=torch.contiguous_format)
            for name, weight in weights.items()
        }
        self.in_threads = in_threads
        self.chunks = [
            (name, begin, min(begin + CHUNK, weight.numel()))
            for name, weight in weights.items()
            for begin in range(0, weight.numel(), CHUNK)
        ]

    def add(self, shares: Sequence[Sequence[Tensor]], factor: float) -> float:
        """Write ``factor`` times the sum of the shares' gradients to ``gradients``; return their L2 norm.

        It is infinite where its square is no fp32 number, which a second moment could not hold.

        Args:
            shares: of each share the gradients in the order of the weights.
            factor: of the sum.
        """
        parts = {
            name: tuple(readable(share[index]) for share in shares)
            for index, name in enumerate(self.gradients)
        }
        total = {name: writable(gradient) for name, gradient in self.gradients.items()}

        def work(name: str, begin: int, end: int) -> float:
            return float(add_gradients(total[name], parts[name], np.float32(factor), begin, end, LANES, ONE))

        square = sum(self._over_chunks(work))
        return math.inf if square > LARGEST else math.sqrt(square)

    def step(
        self, weights: Weights, mean: Weights, moments: dict[str, Moments], steps: dict[str, AdamStep]
    ) -> None:
        """Step the weights by ``gradients``, in place, and then their running mean.

        Args:
            weights: the masters.
            mean: of each weight, or nothing.
            moments: of each weight.
            steps: of each weight.
        """
        p, means, g = (
            {name: writable(each) for name, each in some.items()} for some in (weights, mean, self.gradients)
        )
        none = np.empty(0, np.float32)
        scalars = {name: tuple(np.float32(value) for value in step) for name, step in steps.items()}

        def work(name: str, begin: int, end: int) -> float:
            adam(p[name], *moments[name], means.get(name, none), g[name], scalars[name], begin, end)
            return 0.0

        self._over_chunks(work)

    def _over_chunks(self, work: Callable[[str, int, int], float]) -> list[float]:
        """Return what ``work(name, begin, end)`` gives for every chunk, in their order."""
        turns = self.in_threads(
            lambda thread, threads: [work(*each) for each in self.chunks[thread::threads]]
        )
        found = [0.0] * len(self.chunks)
        for thread, some in enumerate(turns):
            found[thread :: len(turns)] = some
        return found
