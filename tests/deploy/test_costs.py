from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from spikestill.common.errors import UserError
from spikestill.common.provenance import Provenance
from spikestill.configs.estimating import EstimateConfig
from spikestill.configs.hardware import hardware
from spikestill.deploy import core_map as core_map_format
from spikestill.deploy import costs
from spikestill.deploy.estimate import run
from spikestill.deploy.mapping import map_net
from spikestill.deploy.simulator import CoreSimulator
from spikestill.student.integer_net import IntegerLayer, IntegerNet, naive_forward, save
from tests.nets import SMALL_LAYERS, SMALL_SHAPE, random_net, random_stack, small_net


@pytest.fixture(scope="module")
def net() -> IntegerNet:
    return small_net(1)


@pytest.fixture(scope="module")
def stacks() -> np.ndarray:
    dark = np.zeros(SMALL_SHAPE, np.uint8)
    return np.stack([random_stack(0, SMALL_SHAPE), random_stack(1, SMALL_SHAPE), dark])


def counted(net: IntegerNet, stack: np.ndarray) -> tuple[int, list[int]]:
    """Return (dense, effective per layer) synaptic operations, counted synapse by synapse."""
    dense, effective, x = 0, [], stack
    for layer, spikes in zip(net.layers, naive_forward(net, stack), strict=True):
        features, height, width = spikes.shape
        per_in, per_out = layer.in_channels // layer.groups, features // layer.groups
        found = 0
        for f in range(features):
            for row in range(height):
                for column in range(width):
                    for i, u, v in np.ndindex(layer.weight_OIHW[f].shape):
                        y, z = row * layer.stride - layer.pad + u, column * layer.stride - layer.pad + v
                        if 0 <= y < x.shape[1] and 0 <= z < x.shape[2]:
                            dense += 1
                            if layer.weight_OIHW[f, i, u, v]:
                                found += int(x[f // per_out * per_in + i, y, z] != 0)
        effective.append(found)
        x = spikes
    return dense, effective


def test_operations_are_those_counted_synapse_by_synapse(net: IntegerNet, stacks: np.ndarray) -> None:
    found = costs.operations(net, stacks)
    counts = [counted(net, stack) for stack in stacks]
    assert found.dense == counts[0][0]
    assert found.effective_macs == pytest.approx(np.mean([effective[0] for _, effective in counts]))
    assert found.effective_acs == pytest.approx(np.mean([sum(effective[1:]) for _, effective in counts]))
    fired = sum(int(spikes.sum()) for stack in stacks for spikes in naive_forward(net, stack))
    assert found.activation_sparsity == pytest.approx(1 - fired / (3 * net.neurons()))


def test_synaptic_events_are_those_of_the_naive_cores(net: IntegerNet, stacks: np.ndarray) -> None:
    """Events by the definition: what arrives at each axon, times the neurons that it meets."""
    m = map_net(net, hardware("truenorth"))
    layers = [
        np.stack(spikes) for spikes in zip(*(naive_forward(net, stack) for stack in stacks), strict=True)
    ]
    events = 0
    for frame in range(len(stacks)):
        arriving = np.zeros((m.cores, m.spec.axons), int)
        for s in np.flatnonzero(layers[0][frame]):
            for e in range(m.input_start_S[s], m.input_start_S[s + 1]):
                arriving[m.input_core_E[e], m.input_axon_E[e]] += 1
        for core, neuron in np.argwhere(m.dest_core_CN >= 0):
            place = (m.feature_CN[core, neuron], m.row_CN[core, neuron], m.column_CN[core, neuron])
            if layers[m.core_layer_C[core]][frame][place]:
                arriving[m.dest_core_CN[core, neuron], m.dest_axon_CN[core, neuron]] += 1
        for core, axon in np.argwhere(arriving):
            words = m.crossbar_XNW[m.core_crossbar_C[core], :, axon // 64]
            events += int(((words >> np.uint64(axon % 64)) & np.uint64(1)).sum()) * arriving[core, axon]
    rates = [spikes.mean(axis=0) for spikes in layers]
    assert costs.synaptic_events(m, rates) == pytest.approx(events / len(stacks))
    simulator, told = CoreSimulator(m), []
    for stack in stacks:
        simulator.votes(stack)
        told.append(int(simulator.trace().events()[0]))
    assert sum(told) == events
    energy = costs.truenorth(m, rates, 0.05)
    assert energy.marginal_j == pytest.approx(events / len(stacks) * 2.30e-12)
    assert energy.total_j_real_time == pytest.approx(0.0644 * 0.05 + energy.marginal_j)
    assert energy.total_j_pipelined == pytest.approx(0.0644e-3 + energy.marginal_j)


def test_loihi_partition_counts_neurons_axons_and_memory() -> None:
    first = IntegerLayer(np.ones((8, 1, 1, 1), np.int8), np.zeros(8, np.int32), 1, 0, 1)
    second = IntegerLayer(np.ones((16, 8, 3, 3), np.int8), np.ones(16, np.int32), 1, 1, 1)
    (row,) = costs.loihi_partition(IntegerNet((first, second), 2, (1, 40, 40)), hardware("loihi"))
    assert (row.by_neurons, row.by_axons) == (25, 4)
    assert row.by_memory == -(-16 * 72 * 1600 * 2 // (128 * 1024))
    assert row.by_memory_shared == 1
    assert (row.cores, row.cores_shared) == (29, 25)


def test_the_stage_writes_its_figures_and_what_it_assumes(
    tmp_path: Path, net: IntegerNet, capsys: pytest.CaptureFixture[str]
) -> None:
    provenance = Provenance.of({}, 0)
    save(net, tmp_path / "student.safetensors", provenance)
    core_map_format.save(map_net(net, hardware("truenorth"), provenance), tmp_path / "core_map.h5")
    files = {"student": tmp_path / "student.safetensors", "core_map": tmp_path / "core_map.h5"}
    summary = run(EstimateConfig(frames=70, **files), tmp_path).summary
    written = json.loads((tmp_path / "estimate.json").read_text())
    assert (written["schema"], written["version"]) == ("spikestill.estimate", 1)
    assert written["operations"] == summary["operations"]
    assert written["provenance"]["parents"].keys() == {"student", "core_map"}
    assert "23.6 pJ" in capsys.readouterr().err
    save(
        random_net(SMALL_LAYERS[:2], 1, actions=3, input_shape=SMALL_SHAPE),
        tmp_path / "other.safetensors",
        provenance,
    )
    mapped = Provenance.of({}, 0, parents={"student": files["student"]})
    core_map_format.save(map_net(net, hardware("truenorth"), mapped), tmp_path / "told.h5")
    with pytest.raises(UserError, match=r"told\.h5 was mapped from another student file than .*other"):
        run(EstimateConfig(student=tmp_path / "other.safetensors", core_map=tmp_path / "told.h5"), tmp_path)
    with pytest.raises(UserError, match="maps a net of layers"):
        run(EstimateConfig(student=tmp_path / "other.safetensors", core_map=files["core_map"]), tmp_path)
