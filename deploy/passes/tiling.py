"""Tile: choose which output patch and which groups a core computes, layer by layer from the last.

A tile is a patch of rows x columns of ``groups`` groups of a layer. It needs (real input rows) x (real
input columns) x (group inputs) x groups <= axons / 2 paired inputs. Each of its neurons is needed once
for every axon that reads it, and that number depends on the tiling of the next layer, so the search
runs backwards: a beam over the layers keeps the cheapest partial tilings with the demand that each
makes on the layer before. Where a tile's copies exceed a core, up to ``max_replicas`` cores compute the
tile again, which doubles the demand upstream; copies beyond that come from splitter cores.

The cost model takes every input as used with both signs, and a layer's features alike; replication
then counts exactly.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spikestill.configs.hardware import HardwareSpec
from spikestill.deploy.passes.lowering import LoweredLayer
from spikestill.deploy.passes.pruning import PrunedLayer

BEAM = 24
MAX_REPLICAS = (1, 2, 3, 4, 6, 8)


class Interval(NamedTuple):
    """Output positions first..last-1 of an axis; they read the input positions in_first..in_last-1."""

    first: int
    last: int
    in_first: int
    in_last: int

    @property
    def inputs(self) -> int:
        """Real input positions."""
        return self.in_last - self.in_first


@dataclasses.dataclass(frozen=True)
class Tiling:
    """How one layer is cut.

    Attributes:
        groups: groups of the layer that one core computes.
        rows: the rows' intervals, in order, without gaps.
        columns: the columns' intervals.
        max_replicas: cores that may compute one tile before its further copies come from splitters.
    """

    groups: int
    rows: tuple[Interval, ...]
    columns: tuple[Interval, ...]
    max_replicas: int


@dataclasses.dataclass(frozen=True)
class _Partial:
    """A tiling of the last layers, its cost in cores, and its demand on the layer before them."""

    cores: float
    demand_HW: npt.NDArray[np.float64]
    chain: tuple[Tiling, ...]


def tile(layers: tuple[PrunedLayer, ...], spec: HardwareSpec) -> tuple[Tiling, ...]:
    """Return a tiling for every layer, first to last, that needs few cores."""
    votes = np.asarray(layers[-1].live_OHW.any(axis=0), np.float64)
    states = [_Partial(0.0, votes, ())]
    for position in range(len(layers) - 1, -1, -1):
        layer = layers[position]
        options = _options(layer, spec)
        ranked: dict[bytes, tuple[float, _Partial]] = {}
        for state in states:
            for option in options:
                cores, upstream = _cost(layer, option, state.demand_HW, spec)
                grown = _Partial(state.cores + cores, upstream, (option, *state.chain))
                # The layer before has to emit the demanded spikes: its slots bound its cores from below.
                bound = grown.cores
                if position > 0:
                    bound += float(upstream.sum()) * layer.lowered.in_shape[0] / spec.neurons
                key = upstream.tobytes() if position > 0 else b""
                if key not in ranked or (grown.cores, bound) < (ranked[key][1].cores, ranked[key][0]):
                    ranked[key] = (bound, grown)
        states = [state for _, state in sorted(ranked.values(), key=lambda pair: pair[0])[:BEAM]]
    return states[0].chain


def partitions(
    low: int, high: int, limit: int, layer: LoweredLayer, in_size: int
) -> set[tuple[Interval, ...]]:
    """Return the partitions of output positions low..high-1 into few intervals of at most ``limit`` inputs.

    One is greedy, the other evens the lengths out; they are often the same. Empty where not even one
    position fits.
    """
    greedy = _partition(low, high, limit, high - low, layer, in_size)
    if not greedy:
        return set() if high > low else {()}
    even = _partition(low, high, limit, -(-(high - low) // len(greedy)), layer, in_size)
    return {greedy, even} if len(even) == len(greedy) else {greedy}


def _partition(
    low: int, high: int, limit: int, longest: int, layer: LoweredLayer, in_size: int
) -> tuple[Interval, ...]:
    kernel, stride, pad = layer.layer.kernel, layer.layer.stride, layer.layer.pad
    found: list[Interval] = []
    first = low
    while first < high:
        start, last = min(in_size, max(0, first * stride - pad)), first
        while (
            last < min(high, first + longest) and min(in_size, last * stride - pad + kernel) - start <= limit
        ):
            last += 1
        if last == first:
            return ()
        end = max(start, min(in_size, (last - 1) * stride - pad + kernel))
        found.append(Interval(first, last, start, end))
        first = last
    return tuple(found)


def _span(live_OHW: npt.NDArray[np.bool_], axes: tuple[int, int]) -> tuple[int, int]:
    """Return the first position with a living neuron on the axis that is not in ``axes``, and the end."""
    where = np.flatnonzero(live_OHW.any(axis=axes))
    return (int(where[0]), int(where[-1]) + 1) if where.size else (0, 0)


def _options(pruned: PrunedLayer, spec: HardwareSpec) -> list[Tiling]:
    layer, half = pruned.lowered, spec.axons // 2
    low_row, high_row = _span(pruned.live_OHW, axes=(0, 2))
    low_column, high_column = _span(pruned.live_OHW, axes=(0, 1))
    shapes: set[tuple[int, tuple[Interval, ...], tuple[Interval, ...]]] = set()
    blocks: set[int] = set()
    for groups in range(1, min(layer.layer.groups, half // layer.group_inputs) + 1):
        count = -(-layer.layer.groups // groups)
        if count in blocks:
            continue
        blocks.add(count)
        area = half // (layer.group_inputs * groups)
        for row_limit in range(1, min(area, layer.in_shape[1]) + 1):
            column_limit = min(area // row_limit, layer.in_shape[2])
            rows = partitions(low_row, high_row, row_limit, layer, layer.in_shape[1])
            columns = partitions(low_column, high_column, column_limit, layer, layer.in_shape[2])
            shapes.update((groups, *pair) for pair in itertools.product(rows, columns))
    return [
        Tiling(groups, rows, columns, replicas)
        for groups, rows, columns in sorted(shapes)
        for replicas in MAX_REPLICAS
    ]


def _membership(intervals: tuple[Interval, ...], size: int, *, inputs: bool) -> npt.NDArray[np.float64]:
    """Return 0/1 of shape (intervals, size): which positions an interval computes, or reads."""
    position = np.arange(size)
    bounds = [(i.in_first, i.in_last) if inputs else (i.first, i.last) for i in intervals]
    low_high = np.array(bounds, np.int64).reshape(-1, 2)
    return ((position >= low_high[:, :1]) & (position < low_high[:, 1:])).astype(np.float64)


def _cost(
    pruned: PrunedLayer, tiling: Tiling, demand_HW: npt.NDArray[np.float64], spec: HardwareSpec
) -> tuple[float, npt.NDArray[np.float64]]:
    """Return the cores that the layer takes, and the axons that read each input pixel's channels."""
    layer = pruned.lowered
    rows = _membership(tiling.rows, layer.out_shape[1], inputs=False)
    columns = _membership(tiling.columns, layer.out_shape[2], inputs=False)
    features = layer.group_features * tiling.groups
    copies = features * (rows @ demand_HW @ columns.T)
    neurons = features * (rows @ (demand_HW > 0) @ columns.T)
    replicas = np.maximum(
        np.ceil(neurons / spec.neurons),
        np.minimum(tiling.max_replicas, np.ceil(copies / spec.neurons)),
    )
    excess = np.maximum(copies - spec.neurons * replicas, 0)
    mean = np.maximum(copies / np.maximum(neurons, 1), 1 + 1e-9)
    split = np.where(excess > 0, excess * mean / (mean - 1), 0).sum()
    blocks = -(-layer.layer.groups // tiling.groups)
    cores = blocks * float(replicas.sum()) + float(np.ceil(blocks * split / spec.neurons))
    in_rows = _membership(tiling.rows, layer.in_shape[1], inputs=True)
    in_columns = _membership(tiling.columns, layer.in_shape[2], inputs=True)
    return cores, 2 * (in_rows.T @ replicas @ in_columns)
