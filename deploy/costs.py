"""What a decision costs: operations, footprint and sparsity (NeuroBench), energy on TrueNorth and Loihi, Loihi cores.

Pure functions of a net, its core map and some frames. Every energy is an estimate from published figures, no
measurement of a chip; :data:`ASSUMPTIONS` says which.

Axis suffixes: B frames, C cores, N neurons of a core, A axons of a core, O output features, H height, W width.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.configs.hardware import HardwareSpec
from spikestill.deploy.core_map import NONE, CoreMap, met_crosspoints
from spikestill.deploy.packed_kernel import PackedNet
from spikestill.deploy.rates import Rates
from spikestill.student.integer_net import IntegerLayer, IntegerNet

TRUENORTH_CORE_W = 15.7e-6
TRUENORTH_CHIP_W = 64.4e-3
TRUENORTH_EVENT_J = 2.30e-12
TICK_S = 1e-3
LOIHI_SYNAPSE_J = 23.6e-12
LOIHI_ACTIVE_J, LOIHI_INACTIVE_J = 81e-12, 52e-12

ASSUMPTIONS = (
    "TrueNorth: 64.4 mW static for each chip at 0.8 V, 15.7 uW a core, and 2.30 pJ for each synaptic event, hops "
    "included (the two-parameter fit to the published sweep); an event is a spike on an axon and a neuron it meets",
    "TrueNorth: ticks of 1 ms; pipelined, one frame enters at every tick and a decision pays for one tick",
    "Loihi (Davies 2018, pre-silicon): 23.6 pJ for each synaptic operation, 81 pJ for an update of a neuron that fires "
    "and 52 pJ of one that does not, one update of each neuron a decision; static power and hops are left out",
    "Loihi cores: 1,024 neurons, 4,096 input axons and 128 KiB of synapses a core, 16 bits a synapse; shared: a "
    "convolution's kernel is stored once in each core, else once for each neuron",
    "the transduction layer runs on the host and is in the operations, not in the energy",
    "NeuroBench: operations of every layer as written, also those that no vote depends on",
)


@dataclasses.dataclass(frozen=True)
class Operations:
    """NeuroBench's complexity metrics of a net on some frames.

    Attributes:
        footprint_bytes: weights at two bits and thresholds at four bytes.
        connection_sparsity: share of weights that are 0.
        activation_sparsity: share of neurons that do not fire, over all layers and frames.
        dense: synaptic operations of a decision if nothing were 0 but the padding.
        effective_macs: multiply-accumulates of a decision with neither factor 0: the transduction layer's.
        effective_acs: accumulates of a decision with neither factor 0: all later layers'.
    """

    footprint_bytes: int
    connection_sparsity: float
    activation_sparsity: float
    dense: float
    effective_macs: float
    effective_acs: float


def operations(net: IntegerNet, stacks_BCHW: npt.NDArray[np.uint8]) -> Operations:
    """Return the metrics; Yik 2025 (NeuroBench), section 3.2.

    Args:
        net: any integer net.
        stacks_BCHW: uint8 stacks, at least one.
    """
    packed = PackedNet(net)
    frames = [packed.spikes(stack) for stack in stacks_BCHW]
    spikes = [np.stack(layer) for layer in zip(*frames, strict=True)]
    inputs = [stacks_BCHW, *spikes[:-1]]
    dense, effective = 0.0, []
    for layer, x in zip(net.layers, inputs, strict=True):
        dense += _meetings(np.ones_like(x[:1]), np.ones_like(layer.weight_OIHW), layer)
        effective.append(_meetings(x, layer.weight_OIHW, layer))
    weights = np.concatenate([layer.weight_OIHW.reshape(-1) for layer in net.layers])
    fired, neurons = sum(int(each.sum()) for each in spikes), sum(each.size for each in spikes)
    return Operations(
        footprint_bytes=sum(
            math.ceil(layer.weight_OIHW.size / 4) + 4 * layer.features for layer in net.layers
        ),
        connection_sparsity=float((weights == 0).mean()),
        activation_sparsity=1.0 - fired / neurons,
        dense=dense,
        effective_macs=effective[0] / len(stacks_BCHW),
        effective_acs=sum(effective[1:]) / len(stacks_BCHW),
    )


def _meetings(x_BCHW: npt.NDArray[Any], weight_OIHW: npt.NDArray[np.int8], layer: IntegerLayer) -> float:
    """Return how often an input that is not 0 meets a weight that is not 0 in ``layer``, over all frames."""
    stride, kernel = layer.stride, layer.kernel
    zeros, left_out = max(layer.pad, 0), max(-layer.pad, 0)
    height, width = x_BCHW.shape[2:]
    inner_BCHW = x_BCHW[:, :, left_out : height - left_out, left_out : width - left_out] != 0
    active_BCHW = np.pad(inner_BCHW, ((0, 0), (0, 0), (zeros, zeros), (zeros, zeros)))
    rows, columns = ((size - kernel) // stride + 1 for size in active_BCHW.shape[2:])
    # Every output of a group reads each of the group's inputs by its own weight.
    outputs, inputs = weight_OIHW.shape[:2]
    weights_GIHW = (
        (weight_OIHW != 0).reshape(layer.groups, outputs // layer.groups, inputs, kernel, kernel).sum(axis=1)
    )
    weights_CHW = weights_GIHW.reshape(-1, kernel, kernel)
    met = 0
    for y in range(kernel):
        for x in range(kernel):
            window = active_BCHW[:, :, y : y + stride * rows : stride, x : x + stride * columns : stride]
            met += int(window.sum(axis=(0, 2, 3)) @ weights_CHW[:, y, x])
    return float(met)


@dataclasses.dataclass(frozen=True)
class TrueNorthEnergy:
    """Energy of a decision on TrueNorth cores.

    Attributes:
        cores, chips: in use.
        events: synaptic events of a decision.
        marginal_j: their energy.
        static_j_pipelined: static energy of the chips in one tick, J.
        static_j_used_cores: the part of it that falls to the cores in use, J.
        total_j_pipelined: one decision a tick, J.
        total_j_real_time: one decision in ``period_s``, the chips powered all along, J.
        period_s: that period.
    """

    cores: int
    chips: int
    events: float
    marginal_j: float
    static_j_pipelined: float
    static_j_used_cores: float
    total_j_pipelined: float
    total_j_real_time: float
    period_s: float


def truenorth(core_map: CoreMap, rates: Rates, period_s: float) -> TrueNorthEnergy:
    """Return the estimate.

    Args:
        core_map: the net on cores.
        rates: mean firing rate (O, H, W) of every layer, transduction first.
        period_s: seconds between two decisions in real time.
    """
    events = synaptic_events(core_map, rates)
    marginal, static = events * TRUENORTH_EVENT_J, core_map.chips * TRUENORTH_CHIP_W
    return TrueNorthEnergy(
        cores=core_map.cores, chips=core_map.chips, events=events, marginal_j=marginal,
        static_j_pipelined=static * TICK_S, static_j_used_cores=core_map.cores * TRUENORTH_CORE_W * TICK_S,
        total_j_pipelined=static * TICK_S + marginal,
        total_j_real_time=decision_j(core_map.chips, events, period_s), period_s=period_s,
    )  # fmt: skip


def decision_j(chips: int, events: float, period_s: float) -> float:
    """Return the energy of a decision in real time, J: chips powered all along, and its synaptic events."""
    return chips * TRUENORTH_CHIP_W * period_s + events * TRUENORTH_EVENT_J


def synaptic_events(core_map: CoreMap, rates: Rates) -> float:
    """Return the mean over the frames of the crosspoints that spikes arrive at, copies and splitters included."""
    met_CA = met_crosspoints(core_map)
    weight_S = np.zeros(len(core_map.input_start_S) - 1)
    np.add.at(weight_S, core_map.input_source_E, met_CA[core_map.input_core_E, core_map.input_axon_E])
    total = float((rates[0].reshape(-1) * weight_S).sum())
    core, neuron = np.nonzero(core_map.dest_core_CN != NONE)
    met = met_CA[core_map.dest_core_CN[core, neuron], core_map.dest_axon_CN[core, neuron]]
    at = (core_map.feature_CN, core_map.row_CN, core_map.column_CN)
    for index in range(1, len(rates)):
        mine = core_map.core_layer_C[core] == index
        rate = rates[index][tuple(axis[core[mine], neuron[mine]] for axis in at)]
        total += float((rate * met[mine]).sum())
    return total


@dataclasses.dataclass(frozen=True)
class LoihiLayer:
    """Cores of one layer on Loihi; the largest of the three needs decides.

    Attributes:
        layer: index.
        by_neurons, by_axons: cores for its neurons, and for the axons that they read.
        by_memory, by_memory_shared: cores for its synapses, kernels stored for each neuron, or once a core.
    """

    layer: int
    by_neurons: int
    by_axons: int
    by_memory: int
    by_memory_shared: int

    @property
    def cores(self) -> int:
        """Cores without sharing."""
        return max(self.by_neurons, self.by_axons, self.by_memory)

    @property
    def cores_shared(self) -> int:
        """Cores with kernels shared."""
        return max(self.by_neurons, self.by_axons, self.by_memory_shared)


def loihi_partition(net: IntegerNet, spec: HardwareSpec) -> list[LoihiLayer]:
    """Return the cores that each layer but the first needs on ``spec`` (``loihi`` or ``loihi2``)."""
    assert spec.synapse_bytes is not None
    assert spec.synapse_bits is not None
    shapes = [net.input_shape, *net.shapes()]
    rows = []
    for index, layer in enumerate(net.layers):
        if index == 0:
            continue
        neurons, sources = int(np.prod(shapes[index + 1])), int(np.prod(shapes[index]))
        nonzero = int((layer.weight_OIHW != 0).sum())
        positions = neurons // layer.features
        kernel_bytes = nonzero * spec.synapse_bits / 8
        rows.append(
            LoihiLayer(
                layer=index,
                by_neurons=math.ceil(neurons / spec.neurons),
                by_axons=math.ceil(sources / spec.axons),
                by_memory=math.ceil(kernel_bytes * positions / spec.synapse_bytes),
                by_memory_shared=math.ceil(kernel_bytes / spec.synapse_bytes),
            )
        )
    return rows


def loihi_energy(rates: Rates, effective_acs: float) -> float:
    """Return the energy of a decision on Loihi, J: synaptic operations and neuron updates.

    Args:
        rates: mean firing rate (O, H, W) of every layer, transduction first.
        effective_acs: from :func:`operations`.
    """
    neurons = sum(rate.size for rate in rates[1:])
    fired = sum(float(rate.sum()) for rate in rates[1:])
    updates = fired * LOIHI_ACTIVE_J + (neurons - fired) * LOIHI_INACTIVE_J
    return effective_acs * LOIHI_SYNAPSE_J + updates
