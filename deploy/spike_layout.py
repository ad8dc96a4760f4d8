"""Where the spikes of a core map's last frame lie in the simulator's rows: the layout of its traces.

Axis suffixes: C cores, N neurons of a core, W words.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spikestill.common.spikes import SpikeLayout, binary_planes, neuron_mask
from spikestill.deploy.core_map import NONE, WORD_BITS, CoreMap, met_crosspoints
from spikestill.deploy.crossbar_program import CrossbarProgram, input_bits

Ints = npt.NDArray[np.int64]


def firing_ticks(core_map: CoreMap) -> Ints:
    """Return the tick in which each core fires for a frame that enters in tick 0, int64 (C,).

    A relay fires later than its layer: as many ticks before the core that it drives as its delay.
    """
    tick_C = core_map.layer_tick_L[core_map.core_layer_C].astype(np.int64)
    relays = np.flatnonzero(core_map.core_relay_C)
    neuron = (core_map.dest_core_CN[relays] != NONE).argmax(axis=1)
    target, delay = core_map.dest_core_CN[relays, neuron], core_map.dest_delay_CN[relays, neuron]
    # Relays of relays settle from the end of their chain.
    while (tick_C[relays] != (found := tick_C[target] - delay)).any():
        tick_C[relays] = found
    return tick_C


def core_of_word(program: CrossbarProgram) -> Ints:
    """Return the core whose spikes each word of a row holds, int64 (W,), -1 for the transducer's."""
    ends = np.append(program.lane_start_R[1:], program.row_words)
    return np.concatenate(
        [
            np.full(program.input_words, NONE, np.int64),
            np.repeat(program.order_R, ends - program.lane_start_R),
        ]
    )


def core_layout(
    core_map: CoreMap,
    program: CrossbarProgram,
    bit_CN: Ints,
    sources: list[tuple[Ints, npt.NDArray[np.uint64], Ints]],
) -> SpikeLayout:
    """Return the layout of a row in which each core's words are those of the tick in which it fires.

    Args:
        core_map: the map.
        program: its program.
        bit_CN: the bit of each neuron, -1: not used.
        sources: per binary layer, word, shift and flat place of each computing neuron.
    """
    bits = (input_bits(core_map), *(word * WORD_BITS + shift.astype(np.int64) for word, shift, _ in sources))
    places = (np.arange(len(bits[0])), *(place for *_, place in sources))
    shapes = tuple((int(o), int(h), int(w)) for o, h, w in core_map.layer_shape_L3)
    unit_W = core_of_word(program)
    layer_C = np.where(core_map.core_relay_C, NONE, core_map.core_layer_C)
    layer_W = np.where(unit_W == NONE, 0, layer_C[unit_W])
    used = bit_CN[core_map.used_CN]
    times = np.bincount(used, minlength=program.row_words * WORD_BITS)
    return SpikeLayout(
        shapes,
        bits,
        places,
        layer_W,
        neuron_mask(bits, places, program.row_words),
        unit_W,
        binary_planes(times),
        core_map.used_CN.sum(axis=1).astype(np.int64),
        binary_planes(_events(core_map, bit_CN, len(times))),
    )


def _events(core_map: CoreMap, bit_CN: Ints, bits: int) -> Ints:
    """Return how many crosspoints the spikes of each of a row's ``bits`` meet, copies and splitters included."""
    met_CA = met_crosspoints(core_map)
    events = np.zeros(bits, np.int64)
    source = np.repeat(input_bits(core_map), np.diff(core_map.input_start_S))
    np.add.at(events, source, met_CA[core_map.input_core_E, core_map.input_axon_E])
    core, neuron = np.nonzero(core_map.used_CN & (core_map.dest_core_CN != NONE))
    target, axon = core_map.dest_core_CN[core, neuron], core_map.dest_axon_CN[core, neuron]
    np.add.at(events, bit_CN[core, neuron], met_CA[target, axon])
    return events
