"""A core map as gates: SystemVerilog that plays it, memory images of its cores, and a test bench with some frames.

The sources are those of ``deploy/rtl/``, unchanged; ``map_parameters.sv`` and the images beside them are the map's. One
datapath plays all cores in turn, a neuron a cycle, so that a map of any size is the same few hundred lines with other
images. ``deploy/rtl/*.sv`` says what happens in which cycle.

Axis suffixes: C cores, N neurons of a core, A axons of a core, X crossbars, B frames, T ticks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.common.atomic import atomic_path, write_text
from spikestill.common.errors import UserError
from spikestill.common.legal import legal_to_plain
from spikestill.common.progress import Progress
from spikestill.configs.hardware import hardware, signed
from spikestill.deploy.core_map import NONE, CoreMap
from spikestill.deploy.exports.folder import own
from spikestill.deploy.exports.replay import Replay
from spikestill.deploy.simulator import CoreSimulator
from spikestill.deploy.transduction import plan_transduction, transduce_planned
from spikestill.deploy.validate import reach

SOURCES = Path(__file__).parents[1] / "rtl"
MODULES = ("neuron.sv", "scheduler.sv", "core_array.sv", "testbench.sv")
PARAMETERS, LAYOUT = "map_parameters.sv", "layout.json"
IMAGES = ("crossbar.mem", "neuron.mem", "type.mem", "core.mem")
FRAMES = ("packets.bin", "spikes.bin", "votes.mem")
BUILT = "obj_dir"
"""Where Verilator builds, by the command in ``layout.json``."""
BUILD = "verilator --binary --timing -O3 --top-module testbench map_parameters.sv neuron.sv scheduler.sv core_array.sv "
BUILD += "testbench.sv && obj_dir/Vtestbench"
GATES = hardware("gates")
UNUSED, DRIVES, VOTES = 0, 1, 2
SLOT_BITS, CORE_BITS, AXON_BITS = 4, 16, 8
"""Widths of a packet, as in ``core_array.sv`` and ``testbench.sv``."""
CORE_CYCLES = 5
"""Cycles of a core beside those of its neurons."""


def write(core_map: CoreMap, replay: Replay, folder: Path) -> dict[str, Any]:
    """Write sources, images and frames into ``folder``; return what ``layout.json`` says.

    Raises:
        UserError: a parameter exceeds the width that the gates have for it: layer, core and neuron are named; the
            folder holds other files; the disk is full.
    """
    check_fits(core_map)
    own(folder, (*MODULES, PARAMETERS, LAYOUT, *IMAGES, *FRAMES, BUILT))
    for name in MODULES:
        write_text(folder / name, (SOURCES / name).read_text(encoding="ascii"))
    write_text(folder / PARAMETERS, parameters(core_map, len(replay)))
    for name, lines in zip(IMAGES, images(core_map), strict=True):
        _write_lines(folder / name, lines)
    simulator = CoreSimulator(core_map)
    ticks = len(replay) + core_map.ticks
    with (
        atomic_path(folder / "packets.bin") as packets,
        atomic_path(folder / "spikes.bin") as spikes,
        Progress("export", ticks, "ticks") as bar,
    ):
        with open(packets, "wb") as file:
            for words in _packets(core_map, replay.stacks_BCHW):
                file.write(words.tobytes())
        with open(spikes, "wb") as file:
            for fired_CN in simulator.firings(replay.stacks_BCHW):
                file.write(_spike_rows(fired_CN).tobytes())
                bar.advance(1)
    _write_lines(folder / "votes.mem", (f"{votes:08x}" for votes in replay.votes_BA.reshape(-1).tolist()))
    layout = {
        "game": core_map.game,
        "games": legal_to_plain(core_map.legal),
        "frames": len(replay),
        "frame_source": replay.source,
        "frame_index": replay.indices_B.tolist(),
        "ticks": core_map.ticks,
        "cores": core_map.cores,
        "crossbars": len(core_map.crossbar_XNW),
        "cycles_a_tick": cycles(core_map),
        "expected_votes": replay.votes_BA.tolist(),
        "play": BUILD,
    }
    write_text(folder / LAYOUT, json.dumps(layout) + "\n")
    return layout


def cycles(core_map: CoreMap) -> int:
    """Return the clock cycles of a tick without packets of the host: one to start, then each core's."""
    return 1 + int((_last_C(core_map) + 1 + CORE_CYCLES).sum())


def check_fits(core_map: CoreMap) -> None:
    """Raise UserError where a value of the map exceeds its width in the gates; the first offender is named."""
    spec, remedy = core_map.spec, "map the student again with `spikestill map --hardware gates`"
    for what, value, least, most in (
        ("cores", core_map.cores, 1, GATES.cores),
        ("axons of a core", spec.axons, 2, GATES.axons),
        ("neurons of a core", spec.neurons, 1, GATES.neurons),
        ("axon types", len(core_map.weight_Y), 1, GATES.axon_types),
        ("actions", core_map.actions, 1, spec.axons),
    ):
        if not least <= value <= most:
            raise UserError(f"the core map has {value} {what}, the gates hold {least}..{most}", remedy)
    leak, potential, weight = (
        signed(bits) for bits in (GATES.leak_bits, GATES.potential_bits, GATES.weight_bits)
    )
    used, driving = core_map.used_CN, core_map.dest_core_CN != NONE
    smallest, largest = reach(core_map)
    theta, delay = core_map.theta_CN.astype(np.int64), core_map.dest_delay_CN.astype(np.int64)
    wrong = (core_map.weight_Y < weight[0]) | (core_map.weight_Y > weight[1])
    if wrong.any():
        axon_type = int(np.flatnonzero(wrong)[0])
        raise UserError(
            f"axon type {axon_type}: weight {core_map.weight_Y[axon_type]}, the gates hold {weight[0]}..{weight[1]}",
            remedy,
        )
    for field, low, high, mask, allowed in (
        ("theta", theta, theta, used, leak),
        ("potential", smallest - theta, largest - theta, used, potential),
        ("delay", delay, delay, driving, (GATES.min_delay, GATES.max_delay)),
    ):
        bad = mask & ((low < allowed[0]) | (high > allowed[1]))
        if bad.any():
            core, neuron = np.argwhere(bad)[0]
            raise UserError(
                f"layer {core_map.core_layer_C[core]}, core {core}, neuron {neuron}: {field} "
                f"{low[core, neuron]}..{high[core, neuron]}, the gates hold {allowed[0]}..{allowed[1]}",
                remedy,
            )
    late = np.flatnonzero(
        (core_map.input_delay_E < GATES.min_delay) | (core_map.input_delay_E > GATES.max_delay)
    )
    if late.size:
        raise UserError(
            f"input {late[0]}, to core {core_map.input_core_E[late[0]]}: delay {core_map.input_delay_E[late[0]]}, the "
            f"gates hold {GATES.min_delay}..{GATES.max_delay}",
            remedy,
        )


def parameters(core_map: CoreMap, frames: int) -> str:
    """Return ``map_parameters.sv``: what the test bench gives the modules."""
    bits, types = GATES.weight_bits, len(core_map.weight_Y)
    weights = ", ".join(
        f"{'-' if weight < 0 else ''}{bits}'sd{abs(weight)}" for weight in core_map.weight_Y.tolist()[::-1]
    )
    lines = "\n".join(
        f"    localparam int {name} = {value};"
        for name, value in {
            "CORES": core_map.cores,
            "CROSSBARS": len(core_map.crossbar_XNW),
            "AXONS": core_map.spec.axons,
            "NEURONS": _neurons(core_map),
            "TYPES": types,
            "TYPE_BITS": _type_bits(core_map),
            "WEIGHT_BITS": bits,
            "THETA_BITS": GATES.leak_bits,
            "POTENTIAL_BITS": GATES.potential_bits,
            "SLOTS": 1 << SLOT_BITS,
            "ACTIONS": core_map.actions,
            "FRAMES": frames,
            "DEPTH": core_map.ticks,
            "WARM_UP": core_map.ticks + GATES.max_delay,
        }.items()
    )
    return (
        f"// The core map of {core_map.game or 'a student'}, and the frames beside it.\npackage map_parameters;\n"
        f"{lines}\n    localparam logic [{types * bits - 1}:0] WEIGHTS = {{{weights}}};\nendpackage\n"
    )


def images(core_map: CoreMap) -> tuple[Iterator[str], ...]:
    """Return the lines of every image, in the order of :data:`IMAGES`."""
    return _crossbar_image(core_map), _neuron_image(core_map), _type_image(core_map), _core_image(core_map)


def _crossbar_image(core_map: CoreMap) -> Iterator[str]:
    neurons, digits = _neurons(core_map), -(-core_map.spec.axons // 4)
    for index, crossbar_NW in enumerate(core_map.crossbar_XNW.astype("<u8")):
        yield f"// crossbar {index}"
        yield from (row.tobytes()[::-1].hex()[-digits:] for row in crossbar_NW)
        yield from ["0" * digits] * (neurons - len(crossbar_NW))


def _neuron_image(core_map: CoreMap) -> Iterator[str]:
    theta_bits = GATES.leak_bits
    kind_CN = np.where(core_map.used_CN, DRIVES, UNUSED)
    core_CN, axon_CN = (
        np.maximum(core_map.dest_core_CN, 0),
        np.maximum(core_map.dest_axon_CN, 0).astype(np.int64),
    )
    kind_CN[core_map.output_core_V, core_map.output_neuron_V] = VOTES
    axon_CN[core_map.output_core_V, core_map.output_neuron_V] = core_map.output_action_V
    axon_bits = max(1, (core_map.spec.axons - 1).bit_length())
    word_CN = kind_CN.astype(np.int64)
    for value_CN, bits in (
        (core_map.dest_delay_CN, SLOT_BITS),
        (core_CN, CORE_BITS),
        (axon_CN, axon_bits),
        (core_map.theta_CN & ((1 << theta_bits) - 1), theta_bits),
    ):
        word_CN = word_CN << bits | value_CN
    idle = ["0"] * (_neurons(core_map) - core_map.spec.neurons)
    for core, words in enumerate(word_CN.tolist()):
        yield f"// core {core}, layer {core_map.core_layer_C[core]}"
        yield from (f"{word:x}" for word in words)
        yield from idle


def _type_image(core_map: CoreMap) -> Iterator[str]:
    """Yield a line a core: bit b of every axon's type, the highest plane first."""
    for types_A in core_map.axon_type_CA:
        planes = [types_A >> bit & 1 for bit in range(_type_bits(core_map))]
        bits = np.concatenate(planes)
        yield np.packbits(bits, bitorder="little").tobytes()[::-1].hex()


def _core_image(core_map: CoreMap) -> Iterator[str]:
    """Yield a line a core: its crossbar, and the last neuron that is in use."""
    bits = (_neurons(core_map) - 1).bit_length()
    for crossbar, last in zip(core_map.core_crossbar_C.tolist(), _last_C(core_map).tolist(), strict=True):
        yield f"{crossbar << bits | last:x}"


def _last_C(core_map: CoreMap) -> npt.NDArray[np.int64]:
    """Return the last neuron in use of every core, 0 where there is none."""
    used_CN = core_map.used_CN
    return np.where(used_CN.any(axis=1), used_CN.shape[1] - 1 - used_CN[:, ::-1].argmax(axis=1), 0)


def _neurons(core_map: CoreMap) -> int:
    """Return the neurons of a core in the images: a power of two, whole bytes."""
    return max(8, 1 << (core_map.spec.neurons - 1).bit_length())


def _type_bits(core_map: CoreMap) -> int:
    return max(1, (len(core_map.weight_Y) - 1).bit_length())


def _packets(core_map: CoreMap, stacks_BCHW: npt.NDArray[np.uint8]) -> Iterator[npt.NDArray[np.uint32]]:
    """Yield each frame's packets, big-endian, with the word that ends them."""
    plan = plan_transduction(core_map.transduction, core_map.input_shape)
    word_E = core_map.input_delay_E.astype(np.uint32) << (AXON_BITS + CORE_BITS)
    word_E |= core_map.input_core_E.astype(np.uint32) << AXON_BITS
    word_E |= core_map.input_axon_E.astype(np.uint32)
    source_E = core_map.input_source_E
    for stack in stacks_BCHW:
        fires = transduce_planned(plan, stack).reshape(-1).astype(bool)
        yield np.append(word_E[fires[source_E]], np.uint32(1 << 31)).astype(">u4")


def _spike_rows(fired_CN: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    """Return which neurons fire as ``spikes.bin`` has them, (C, bytes), the last neuron's bit first."""
    neurons = max(8, 1 << (fired_CN.shape[1] - 1).bit_length())
    padded = np.zeros((len(fired_CN), neurons), np.bool_)
    padded[:, : fired_CN.shape[1]] = fired_CN
    return np.ascontiguousarray(np.packbits(padded, axis=1, bitorder="little")[:, ::-1])


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    with atomic_path(path) as temporary, open(temporary, "w", encoding="ascii") as file:
        file.writelines(f"{line}\n" for line in lines)
