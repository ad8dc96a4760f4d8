"""An interpreter of core maps that follows docs/core-map.md word for word, slowly; it knows no mapper."""

from __future__ import annotations

import numpy as np

from spikestill.deploy.core_map import CoreMap
from spikestill.student.integer_net import naive_layer


def play(core_map: CoreMap, stacks: list[np.ndarray]) -> tuple[np.ndarray, dict[int, list[np.ndarray]]]:
    """Play one frame a tick; return votes (frames, A) and, per frame, every layer's spikes on the cores."""
    m, frames = core_map, len(stacks)
    words = m.crossbar_XNW.astype("<u8").view(np.uint8)
    bits = np.unpackbits(words, axis=2, bitorder="little")[:, :, : m.spec.axons].astype(np.int64)
    horizon = frames + m.ticks + m.spec.max_delay + 1
    arrived = np.zeros((horizon + m.spec.max_delay, m.cores, m.spec.axons), np.int64)
    votes = np.zeros((frames, m.actions), np.int64)
    spikes = {
        f: [np.zeros(shape, np.uint8) for shape in m.layer_shape_L3[1:].tolist()] for f in range(frames)
    }
    weight_CA = m.weight_Y[m.axon_type_CA].astype(np.int64)
    for tick in range(frames + m.ticks):
        if tick < frames:
            for s in np.flatnonzero(naive_layer(m.transduction, stacks[tick])):
                for e in range(m.input_start_S[s], m.input_start_S[s + 1]):
                    arrived[tick + m.input_delay_E[e], m.input_core_E[e], m.input_axon_E[e]] += 1
        potential = np.einsum("cna,ca->cn", bits[m.core_crossbar_C], weight_CA * arrived[tick]) - m.theta_CN
        fired = (potential >= 0) & m.used_CN
        core, neuron = np.nonzero(fired & (m.dest_core_CN >= 0))
        np.add.at(
            arrived,
            (
                tick + m.dest_delay_CN[core, neuron].astype(np.int64),
                m.dest_core_CN[core, neuron],
                m.dest_axon_CN[core, neuron],
            ),
            1,
        )
        frame = tick - m.ticks
        if 0 <= frame < frames:
            np.add.at(
                votes[frame], m.output_action_V, fired[m.output_core_V, m.output_neuron_V].astype(np.int64)
            )
        for core, neuron in np.argwhere(fired & ~m.core_relay_C[:, None]).tolist():
            layer = m.core_layer_C[core]
            frame = tick - m.layer_tick_L[layer]
            if 0 <= frame < frames:
                at = m.feature_CN[core, neuron], m.row_CN[core, neuron], m.column_CN[core, neuron]
                spikes[frame][layer - 1][at] = 1
    assert arrived.max() <= 1
    return votes, spikes
