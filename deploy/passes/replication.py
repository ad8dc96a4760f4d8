"""Replicate: give every reading axon a neuron of its own.

A neuron drives one axon, so a neuron read by d axons is needed d times. Its copies lie on its tile's
core while that has room, on replicas of that core (which read the same inputs), and, where the tiling
sets a limit to those, on splitter cores: a splitter neuron meets one axon with weight +1 and has
threshold 1, so that it fires whenever its source did, one tick later.

Axes: C cores of one layer (computing ones first, then splitters), N neurons, A axons, W words, T tiles.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spikestill.configs.hardware import HardwareSpec
from spikestill.deploy.core_map import NONE, WORD_BITS
from spikestill.deploy.passes.lowering import LoweredLayer
from spikestill.deploy.passes.pruning import PrunedLayer
from spikestill.deploy.passes.tiling import Interval, Tiling


@dataclasses.dataclass(frozen=True, eq=False)
class LayerCores:
    """The cores of one layer, with destinations still local to the layers.

    Attributes:
        pruned: the layer.
        tiling: how it was cut.
        computing: cores 0..computing-1 compute, the rest are splitters.
        crossbars: distinct crossbars, uint64 (N, W) each.
        core_crossbar_C: int32, index into ``crossbars``.
        axon_source_CA: int32, the neuron (flat o*H*W + h*W + w) that feeds the axon, -1 for none: of the
            layer before for computing cores, of this layer for splitters.
        minus_CA: bool, True where the axon carries weight -1.
        source_CN: int32, the neuron of this layer (flat) that each neuron computes or relays, -1 unused.
        theta_CN: int32.
        dest_core_CN: int32, local core: of this layer where ``to_splitter_CN``, else of the next; -1 none.
        dest_axon_CN: int16, -1 none.
        to_splitter_CN: bool.
    """

    pruned: PrunedLayer
    tiling: Tiling
    computing: int
    crossbars: tuple[npt.NDArray[np.uint64], ...]
    core_crossbar_C: npt.NDArray[np.int32]
    axon_source_CA: npt.NDArray[np.int32]
    minus_CA: npt.NDArray[np.bool_]
    source_CN: npt.NDArray[np.int32]
    theta_CN: npt.NDArray[np.int32]
    dest_core_CN: npt.NDArray[np.int32]
    dest_axon_CN: npt.NDArray[np.int16]
    to_splitter_CN: npt.NDArray[np.bool_]

    @property
    def cores(self) -> int:
        """Cores of the layer, splitters among them."""
        return len(self.core_crossbar_C)

    @property
    def splits(self) -> bool:
        """True where some spikes pass through a splitter, which takes a tick."""
        return self.cores > self.computing


def replicate(
    layers: tuple[PrunedLayer, ...], tilings: tuple[Tiling, ...], spec: HardwareSpec
) -> tuple[LayerCores, ...]:
    """Return every layer's cores, first layer first; built from the last, whose readers are the votes."""
    built: list[LayerCores] = []
    for pruned, tiling in zip(reversed(layers), reversed(tilings), strict=True):
        built.append(_layer_cores(pruned, tiling, built[-1] if built else None, spec))
    return tuple(reversed(built))


@dataclasses.dataclass(frozen=True, eq=False)
class _Bundles:
    """Neurons with the axons that each must drive, at most a core's worth a bundle, in tile order.

    Attributes:
        source_B: flat neuron of each bundle.
        demand_B: axons of each bundle, 1..N.
        start_B: first of them in the entries; a bundle's entries are consecutive.
        tile_B: its tile.
        core_E, axon_E: the axon that each entry drives, -1 for a vote.
    """

    source_B: npt.NDArray[np.int64]
    demand_B: npt.NDArray[np.int64]
    start_B: npt.NDArray[np.int64]
    tile_B: npt.NDArray[np.int64]
    core_E: npt.NDArray[np.int64]
    axon_E: npt.NDArray[np.int64]


def _bundles(pruned: PrunedLayer, tiling: Tiling, readers: LayerCores | None, spec: HardwareSpec) -> _Bundles:
    source: npt.NDArray[np.int64]
    core: npt.NDArray[np.int64]
    axon: npt.NDArray[np.int64]
    if readers is None:
        source = np.flatnonzero(pruned.live_OHW)
        core = axon = np.full(len(source), NONE, np.int64)
    else:
        core, axon = np.nonzero(readers.axon_source_CA[: readers.computing] != NONE)
        source = readers.axon_source_CA[core, axon].astype(np.int64)
        order = np.argsort(source, kind="stable")
        source, core, axon = source[order], core[order], axon[order]
    first = np.searchsorted(source, source)
    start = np.flatnonzero((np.arange(len(source)) - first) % spec.neurons == 0)
    demand = np.diff(np.append(start, len(source)))
    tile = _tile_of(pruned.lowered, tiling, source[start])
    order = np.lexsort((source[start], tile))
    return _Bundles(source[start][order], demand[order], start[order], tile[order], core, axon)


def _tile_of(layer: LoweredLayer, tiling: Tiling, flat: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return each neuron's tile: (row interval * column intervals + column interval) * blocks + block."""
    feature, row, column = np.unravel_index(flat, layer.out_shape)
    row_starts = np.array([i.first for i in tiling.rows], np.int64)
    column_starts = np.array([i.first for i in tiling.columns], np.int64)
    patch = (np.searchsorted(row_starts, row, "right") - 1) * len(tiling.columns)
    patch += np.searchsorted(column_starts, column, "right") - 1
    found: npt.NDArray[np.int64] = patch * _blocks(layer, tiling) + feature // (
        layer.group_features * tiling.groups
    )
    return found


def _blocks(layer: LoweredLayer, tiling: Tiling) -> int:
    return -(-layer.layer.groups // tiling.groups)


def _before(values: npt.NDArray[np.int64], segment: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the sum of the values before each one in its segment; segments are consecutive and sorted."""
    total = np.cumsum(values) - values
    found: npt.NDArray[np.int64] = total - total[np.searchsorted(segment, segment)]
    return found


def _split(bundles: _Bundles, tiles: int, max_replicas: int, spec: HardwareSpec) -> npt.NDArray[np.bool_]:
    """Return which bundles go through a splitter: the most demanded, until the replicas hold the rest."""
    tile, demand = bundles.tile_B, bundles.demand_B
    neurons = np.bincount(tile, minlength=tiles)
    copies = np.bincount(tile, demand, minlength=tiles).astype(np.int64)
    replicas = np.maximum(-(-neurons // spec.neurons), np.minimum(max_replicas, -(-copies // spec.neurons)))
    order = np.lexsort((-demand, tile))
    freed = demand[order] - 1
    chosen = (_before(freed, tile[order]) < (copies - replicas * spec.neurons)[tile[order]]) & (freed > 0)
    split = np.zeros(len(tile), bool)
    split[order[chosen]] = True
    return split


class _Neurons(NamedTuple):
    """What each neuron of a layer's cores relays and drives, and what feeds the splitters' axons.

    Fields as of :class:`LayerCores`; ``axon_source_CA`` is still empty for computing cores.
    """

    source_CN: npt.NDArray[np.int32]
    dest_core_CN: npt.NDArray[np.int32]
    dest_axon_CN: npt.NDArray[np.int16]
    to_splitter_CN: npt.NDArray[np.bool_]
    axon_source_CA: npt.NDArray[np.int32]


def _wire(
    bundles: _Bundles,
    split: npt.NDArray[np.bool_],
    slot_B: npt.NDArray[np.int64],
    computing: int,
    spec: HardwareSpec,
) -> _Neurons:
    """Give every bundle its neurons: copies of its own, or one that drives a splitter with the copies.

    Args:
        bundles: the bundles.
        split: which go through a splitter.
        slot_B: each bundle's first neuron, counted through the computing cores: core * N + neuron.
        computing: computing cores; splitters come after them.
        spec: the hardware.
    """
    relay_core, relay_axon, relay_neuron, relays = _pack_splitters(bundles.demand_B[split], spec)
    relay_core = computing + relay_core
    shape = (computing + relays, spec.neurons)
    wired = _Neurons(
        np.full(shape, NONE, np.int32),
        np.full(shape, NONE, np.int32),
        np.full(shape, NONE, np.int16),
        np.zeros(shape, bool),
        np.full((shape[0], spec.axons), NONE, np.int32),
    )
    source, dest_core, dest_axon = (table.reshape(-1) for table in wired[:3])

    # A splitter's source: one neuron of the tile, driving the splitter's axon.
    source[slot_B[split]] = bundles.source_B[split]
    dest_core[slot_B[split]] = relay_core
    dest_axon[slot_B[split]] = relay_axon
    wired.to_splitter_CN.reshape(-1)[slot_B[split]] = True
    wired.axon_source_CA[relay_core, relay_axon] = bundles.source_B[split]

    # Direct copies, and the splitters' neurons: one for each entry.
    order = np.concatenate([np.flatnonzero(~split), np.flatnonzero(split)])
    first = np.concatenate([slot_B[~split], relay_core * spec.neurons + relay_neuron])
    place = _ranges(first, bundles.demand_B[order])
    entry = _ranges(bundles.start_B[order], bundles.demand_B[order])
    source[place] = np.repeat(bundles.source_B[order], bundles.demand_B[order])
    dest_core[place] = bundles.core_E[entry]
    dest_axon[place] = bundles.axon_E[entry]
    return wired


def _layer_cores(
    pruned: PrunedLayer, tiling: Tiling, readers: LayerCores | None, spec: HardwareSpec
) -> LayerCores:
    layer = pruned.lowered
    bundles = _bundles(pruned, tiling, readers, spec)
    tiles = len(tiling.rows) * len(tiling.columns) * _blocks(layer, tiling)
    split = _split(bundles, tiles, tiling.max_replicas, spec)

    slots = np.where(split, 1, bundles.demand_B)
    per_tile = np.bincount(bundles.tile_B, slots, minlength=tiles).astype(np.int64)
    cores_T = -(-per_tile // spec.neurons)
    first_core_T = np.cumsum(cores_T) - cores_T
    computing = int(cores_T.sum())
    slot_B = first_core_T[bundles.tile_B] * spec.neurons + _before(slots, bundles.tile_B)
    wired = _wire(bundles, split, slot_B, computing, spec)
    source, axon_source = wired.source_CN, wired.axon_source_CA

    used = source != NONE
    theta = np.zeros(source.shape, np.int32)
    theta[used] = np.repeat(layer.layer.theta_O, layer.out_shape[1] * layer.out_shape[2])[source[used]]
    theta[computing:][used[computing:]] = 1
    weave = _Weaver(pruned, tiling, spec)
    for index, tile in enumerate(np.repeat(np.arange(tiles), cores_T).tolist()):
        axon_source[index] = weave.computing(tile, source[index, used[index]])
    for index in range(computing, len(source)):
        weave.splitter(axon_source[index], source[index])
    minus = np.zeros(axon_source.shape, bool)
    minus[:computing, spec.axons // 2 :] = True
    return LayerCores(
        pruned=pruned,
        tiling=tiling,
        computing=computing,
        crossbars=tuple(weave.crossbars),
        core_crossbar_C=np.array(weave.core_crossbar, np.int32),
        axon_source_CA=axon_source,
        minus_CA=minus,
        source_CN=source,
        theta_CN=theta,
        dest_core_CN=wired.dest_core_CN,
        dest_axon_CN=wired.dest_axon_CN,
        to_splitter_CN=wired.to_splitter_CN,
    )


def _ranges(start: npt.NDArray[np.int64], length: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return start[0] .. start[0] + length[0] - 1, start[1] .., concatenated."""
    offset = np.cumsum(length) - length
    found: npt.NDArray[np.int64] = np.repeat(start - offset, length) + np.arange(int(length.sum()))
    return found


def _pack_splitters(
    demand: npt.NDArray[np.int64], spec: HardwareSpec
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
    """Return each source's splitter, axon and first neuron there, and the number of splitters.

    Sources are taken in order, so that a splitter's sources lie near each other; none straddles two.
    """
    core, axon, neuron = (np.zeros(len(demand), np.int64) for _ in range(3))
    index, axons, neurons = 0, 0, 0
    for position, count in enumerate(demand.tolist()):
        if neurons + count > spec.neurons or axons == spec.axons:
            index, axons, neurons = index + 1, 0, 0
        core[position], axon[position], neuron[position] = index, axons, neurons
        axons, neurons = axons + 1, neurons + count
    return core, axon, neuron, index + 1 if len(demand) else 0


class _Weaver:
    """Makes the crossbars of one layer, each distinct one once.

    Paired inputs sit at axon i (type +1) and axons / 2 + i (type -1), i counting the tile's inputs by
    channel, row and column; so tiles of one shape and one block share their crossbars.
    """

    def __init__(self, pruned: PrunedLayer, tiling: Tiling, spec: HardwareSpec) -> None:
        self.layer, self.tiling, self.spec = pruned.lowered, tiling, spec
        self.crossbars: list[npt.NDArray[np.uint64]] = []
        self.core_crossbar: list[int] = []
        self._known: dict[bytes, int] = {}
        self._weights: dict[tuple[object, ...], npt.NDArray[np.int8]] = {}

    def computing(self, tile: int, sources: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Add the crossbar of a computing core; return the neuron of the layer before at each axon, -1 none.

        Args:
            tile: the core's tile.
            sources: the flat neurons of this layer that the core's neurons 0, 1, ... compute.
        """
        layer, tiling, half = self.layer, self.tiling, self.spec.axons // 2
        patch, block = divmod(tile, _blocks(layer, tiling))
        rows, columns = (
            tiling.rows[patch // len(tiling.columns)],
            tiling.columns[patch % len(tiling.columns)],
        )
        weight = self._tile_weights(block, rows, columns)
        feature, row, column = np.unravel_index(sources, layer.out_shape)
        feature = feature - block * tiling.groups * layer.group_features
        local = (feature * (rows.last - rows.first) + row - rows.first) * (columns.last - columns.first)
        weight = weight[local + column - columns.first]
        inputs = weight.shape[1]
        bits = np.zeros((self.spec.neurons, self.spec.axons), bool)
        bits[: len(sources), :inputs] = weight > 0
        bits[: len(sources), half : half + inputs] = weight < 0
        self._add(bits)
        first_channel = block * tiling.groups * layer.group_inputs
        channels = inputs // max(1, rows.inputs * columns.inputs)
        _, height, width = layer.in_shape
        flat = (
            (first_channel + np.arange(channels))[:, None, None] * height
            + np.arange(rows.in_first, rows.in_last)[:, None]
        ) * width + np.arange(columns.in_first, columns.in_last)
        read = np.full(self.spec.axons, NONE, np.int32)
        read[:inputs] = read[half : half + inputs] = flat.reshape(-1)
        read[~bits.any(axis=0)] = NONE
        return read

    def splitter(self, axon_source: npt.NDArray[np.int32], sources: npt.NDArray[np.int32]) -> None:
        """Add the crossbar of a splitter whose axons and neurons have these sources; -1 is unused."""
        self._add((sources[:, None] == axon_source) & (sources[:, None] != NONE))

    def _add(self, bits: npt.NDArray[np.bool_]) -> None:
        words = -(-self.spec.axons // WORD_BITS)
        padded = np.pad(bits, ((0, 0), (0, words * WORD_BITS - self.spec.axons)))
        packed = np.packbits(padded, axis=1, bitorder="little")
        key = packed.tobytes()
        if key not in self._known:
            self._known[key] = len(self.crossbars)
            self.crossbars.append(packed.view("<u8").astype(np.uint64))
        self.core_crossbar.append(self._known[key])

    def _tile_weights(self, block: int, rows: Interval, columns: Interval) -> npt.NDArray[np.int8]:
        """Return the int8 weights (outputs, inputs) of a block's patch, both sides by (channel, y, x)."""
        layer, spec = self.layer, self.layer.layer
        shapes = []
        for axis in (rows, columns):
            corner = axis.first * spec.stride - spec.pad - axis.in_first
            shapes.append((axis.last - axis.first, axis.inputs, corner))
        key = (block, *shapes)
        if key in self._weights:
            return self._weights[key]
        first = block * self.tiling.groups
        groups = min(self.tiling.groups, spec.groups - first)
        (height, in_height, top), (width, in_width, left) = shapes
        out, ins, kernel = layer.group_features, layer.group_inputs, spec.kernel
        patch = np.zeros((groups, out, height, width, groups, ins, in_height, in_width), np.int8)
        grouped = spec.weight_OIHW.reshape(spec.groups, out, ins, kernel, kernel)
        for y in range(height):
            y0 = top + y * spec.stride
            ys = slice(max(0, y0), max(0, min(in_height, y0 + kernel)))
            for x in range(width):
                x0 = left + x * spec.stride
                xs = slice(max(0, x0), max(0, min(in_width, x0 + kernel)))
                part = grouped[..., ys.start - y0 : ys.stop - y0, xs.start - x0 : xs.stop - x0]
                if ys.start < ys.stop and xs.start < xs.stop:
                    for group in range(groups):
                        patch[group, :, y, x, group, :, ys, xs] = part[first + group]
        found = patch.reshape(groups * out * height * width, groups * ins * in_height * in_width)
        self._weights[key] = found
        return found
