"""Which places of a kernel a sparse initialisation should prefer, so that every visible pixel is seen.

A relay from the last layer down to a pixel picks one place of every kernel. With uniform picks the border
of what the net can see is almost never reached: the 1-chip net's last visible column needs the last place of
four kernels, 1 in 8 x 4 x 3 x 4, and in Pong that column is where the player's own paddle is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from student.architectures import LayerSpec

ITERATIONS = 500
# Grey levels added to every pixel's deviation, so that none counts for nothing.
MINIMAL_DEVIATION = 0.1

Array = npt.NDArray[np.float64]


def kernel_places(layers: Sequence[LayerSpec], importance: Array) -> list[Array]:
    """Return, per layer, the probability (K,) of each place along one side of the kernel.

    They maximise sum_x v(x) ln c(x), c(x) being the probability that a relay which starts at a uniformly
    chosen output and picks each layer's place independently ends at pixel x, over all x that can be reached:
    the coverage nearest to v in the sense of Kullback and Leibler. Expectation maximisation finds it; the
    likelihood never falls (Dempster 1977).

    Args:
        layers: geometry, first to last.
        importance: v, how much of what matters each pixel along that side shows, >= 0.
    """
    sizes = [len(importance)]
    for spec in layers:
        sizes.append((sizes[-1] + 2 * spec.pad - spec.kernel) // spec.stride + 1)
    # reads[l][k, i]: which input position output i of layer l reads through place k; -1 is padding.
    reads = []
    for spec, inside, outside in zip(layers, sizes, sizes[1:], strict=False):
        position = np.arange(outside) * spec.stride + np.arange(spec.kernel)[:, None] - spec.pad
        reads.append(np.where((position >= 0) & (position < inside), position, -1))
    places = [np.full(spec.kernel, 1.0 / spec.kernel) for spec in layers]
    for _ in range(ITERATIONS):
        places = _improve(places, reads, sizes, importance)
    return places


def changing_places(layers: Sequence[LayerSpec], stacks_BCHW: npt.NDArray[np.uint8]) -> list[Tensor]:
    """Return, per layer, the probability (K, K) of each place of the kernel: where the picture changes.

    The importance of a row or column of pixels is its mean deviation over the stacks' newest frames.

    Args:
        layers: geometry, first to last.
        stacks_BCHW: uint8 stacks of different times.
    """
    deviation_HW = stacks_BCHW[:, -1].std(axis=0, dtype=np.float64) + MINIMAL_DEVIATION
    rows = kernel_places(layers, deviation_HW.mean(axis=1))
    columns = kernel_places(layers, deviation_HW.mean(axis=0))
    return [
        torch.from_numpy(np.outer(row, column)).float() for row, column in zip(rows, columns, strict=True)
    ]


def _improve(
    places: list[Array], reads: list[npt.NDArray[np.int64]], sizes: list[int], importance: Array
) -> list[Array]:
    # Down: the probability that a relay is at each position of each layer's output. The bin at -1 is padding.
    arrive = np.full(sizes[-1] + 1, 1.0 / sizes[-1])
    arrivals = []
    for place, read, inside in zip(reversed(places), reversed(reads), reversed(sizes[:-1]), strict=True):
        arrivals.append(arrive[:-1])
        below = np.zeros(inside + 1)
        np.add.at(below, read, place[:, None] * arrive[:-1])
        arrive = below
    # Up: how much each position adds to the likelihood, v(x) / c(x) at the pixels.
    seen = arrive[:-1] > 0
    worth = np.append(np.where(seen, importance / np.where(seen, arrive[:-1], 1.0), 0.0), 0.0)
    improved = []
    for place, read, arrival in zip(places, reads, reversed(arrivals), strict=True):
        share = place[:, None] * worth[read]
        counts = (share * arrival).sum(axis=1)
        improved.append(counts / counts.sum())
        worth = np.append(share.sum(axis=0), 0.0)
    return improved


def pixel_coverage(layers: Sequence[LayerSpec], places: Sequence[Array], size: int) -> Array:
    """Return c(x) (size,): where relays that pick by ``places`` end; what is missing to 1 ends in padding."""
    sizes = [size]
    for spec in layers:
        sizes.append((sizes[-1] + 2 * spec.pad - spec.kernel) // spec.stride + 1)
    arrive = np.full(sizes[-1], 1.0 / sizes[-1])
    for spec, place, inside in zip(reversed(layers), reversed(places), reversed(sizes[:-1]), strict=True):
        below = np.zeros(inside)
        for k, probability in enumerate(place):
            position = np.arange(len(arrive)) * spec.stride + k - spec.pad
            kept = (position >= 0) & (position < inside)
            np.add.at(below, position[kept], probability * arrive[kept])
        arrive = below
    return arrive
