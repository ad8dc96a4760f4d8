"""Core-ticks a second of a whole chip of random full cores, beside the same crossbars as CSR matrices.

    python -m benchmarks.chip [--cores 4096] [--ticks 200]

Every core has 256 axons, 256 neurons and a random crossbar of its own, half full; its neurons drive random axons of
random cores of the next of 16 stages, so that in a pipelined run all cores work in every tick. One thread. The peer is
what a fused Lava Process on CSR layers computes in a step: SciPy's product of each stage's matrix with its spikes, on
an eighth of the cores. RANC's figure is not measured here: its C++ simulator, built with -O3 on a machine of this kind,
made 5,200 core-ticks/s at 99 cores and 3,300 at 1,023. Writes ``benchmarks/results/chip.json``.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
from scipy.sparse import csr_matrix

from benchmarks.measurement import finish
from spikestill.common.provenance import Provenance
from spikestill.configs.hardware import hardware
from spikestill.deploy.core_map import CoreMap
from spikestill.deploy.simulator import CoreSimulator
from spikestill.student.integer_net import IntegerLayer

STAGES = 16
SIZE = 256
RANC_CORE_TICKS_PER_S = 5_200.0
ROUNDS = 5


def random_chip(cores: int, seed: int = 0) -> CoreMap:
    """Return a core map of ``cores`` full cores in 16 stages."""
    rng = np.random.default_rng(seed)
    stage = cores // STAGES
    neurons = stage * SIZE
    shape = np.array([(1, stage, SIZE), *[(neurons, 1, 1)] * STAGES], np.int32)
    layer = np.repeat(np.arange(1, STAGES + 1), stage).astype(np.int16)
    feature = np.tile(np.arange(neurons, dtype=np.int32).reshape(stage, SIZE), (STAGES, 1))
    dest_core = np.full((cores, SIZE), -1, np.int32)
    dest_axon = np.full((cores, SIZE), -1, np.int16)
    for index in range(STAGES - 1):
        place = rng.permutation(neurons)
        mine = slice(index * stage, (index + 1) * stage)
        dest_core[mine] = ((index + 1) * stage + place // SIZE).reshape(stage, SIZE)
        dest_axon[mine] = (place % SIZE).reshape(stage, SIZE)
    entry = rng.permutation(neurons)
    zero = np.zeros((cores, SIZE), np.int16)
    last = cores - stage + np.arange(neurons) // SIZE
    spec = hardware("truenorth")
    return CoreMap(
        spec=spec,
        transduction=IntegerLayer(np.ones((1, 1, 1, 1), np.int8), np.array([128], np.int32), 1, 0, 1),
        layer_shape_L3=shape,
        layer_tick_L=np.arange(STAGES + 1, dtype=np.int32),
        actions=6,
        input_shape=(1, stage, SIZE),
        game="",
        crossbar_XNW=rng.integers(0, 2**64, (cores, SIZE, SIZE // 64), np.uint64),
        weight_Y=np.array([1, -1], np.int16),
        core_crossbar_C=np.arange(cores, dtype=np.int32),
        core_layer_C=layer,
        core_relay_C=np.zeros(cores, bool),
        axon_type_CA=np.tile(np.repeat([0, 1], SIZE // 2), (cores, 1)).astype(np.uint8),
        theta_CN=rng.integers(-4, 9, (cores, SIZE)).astype(np.int32),
        feature_CN=feature,
        row_CN=zero,
        column_CN=zero.copy(),
        dest_core_CN=dest_core,
        dest_axon_CN=dest_axon,
        dest_delay_CN=(dest_core >= 0).astype(np.uint8),
        chip_C=(np.arange(cores) // spec.cores_per_chip).astype(np.int16),
        x_C=(np.arange(cores) % spec.cores_x).astype(np.int16),
        y_C=(np.arange(cores) // spec.cores_x % spec.cores_y).astype(np.int16),
        input_start_S=np.arange(neurons + 1, dtype=np.int64),
        input_core_E=(entry // SIZE).astype(np.int32),
        input_axon_E=(entry % SIZE).astype(np.int16),
        input_delay_E=np.ones(neurons, np.uint8),
        output_core_V=last.astype(np.int32),
        output_neuron_V=(np.arange(neurons) % SIZE).astype(np.int16),
        output_action_V=(feature[cores - stage :].reshape(-1) % 6).astype(np.int16),
        provenance=Provenance.of({}, seed),
    )


def stage_matrices(core_map: CoreMap, cores: int) -> list[csr_matrix]:
    """Return the first ``cores`` cores' crossbars as signed CSR matrices, block-diagonal, one a stage's share."""
    weight = core_map.weight_Y[core_map.axon_type_CA[0]].astype(np.int32)
    found = []
    for begin in range(0, cores, cores // STAGES):
        bits = np.unpackbits(
            core_map.crossbar_XNW[begin : begin + cores // STAGES].view(np.uint8), axis=2, bitorder="little"
        )
        block, neuron, axon = np.nonzero(bits)
        size = len(bits) * SIZE
        pair = (block * SIZE + neuron, block * SIZE + axon)
        found.append(csr_matrix((weight[axon], pair), shape=(size, size), dtype=np.int32))
    return found


def main() -> None:
    """Measure both in turn and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cores", type=int, default=4096, help="a multiple of 128, 65,536 at most")
    parser.add_argument("--ticks", type=int, default=200)
    options = parser.parse_args()
    core_map = random_chip(options.cores)
    simulator = CoreSimulator(core_map)
    stacks = np.random.default_rng(1).integers(0, 256, (options.ticks, *core_map.input_shape), np.uint8)
    peer_cores = options.cores // 8
    matrices = stage_matrices(core_map, peer_cores)
    spikes = [np.random.default_rng(2).integers(0, 2, m.shape[1], np.int32) for m in matrices]
    simulator.pipelined(stacks[:4])
    rates: dict[str, list[float]] = {"cores": [], "csr": []}
    for _ in range(ROUNDS):
        began = time.perf_counter()
        simulator.pipelined(stacks)
        rates["cores"].append(
            options.cores * (options.ticks + core_map.ticks) / (time.perf_counter() - began)
        )
        began = time.perf_counter()
        for matrix, fired in zip(matrices, spikes, strict=True):
            (matrix @ fired >= 0).astype(np.int32)
        rates["csr"].append(peer_cores / (time.perf_counter() - began))
    cores, csr = (statistics.median(rates[name]) for name in ("cores", "csr"))
    finish(
        "chip",
        {
            "cores": options.cores,
            "core_ticks_per_s": cores,
            "ms_a_tick": 1e3 * options.cores / cores,
            "csr_core_ticks_per_s": csr,
            "times_csr": cores / csr,
            "times_ranc_quoted": cores / RANC_CORE_TICKS_PER_S,
            "rounds": rates,
        },
    )


if __name__ == "__main__":
    main()
