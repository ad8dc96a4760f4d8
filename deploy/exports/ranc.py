"""A core map as input of RANC's simulator (Mack 2020): cores, and the packets of some frames.

A tick of RANC: V += sum of the weights of the active connected axons; V += leak; fires iff V >= the positive
threshold. With leak -theta, both thresholds and the reset potential 0 and reset mode 0 that is a core map's neuron.
A packet listed at tick i with destination tick d is integrated in tick i + 1 + d, a firing of tick t at t + 1 + d:
a core map's delay of n ticks is d = n - 1. A frame enters at the tick of its number, one frame a tick, and its votes
are on the output's line ``ticks`` later. The grid's last row is the output bus's; chips lie side by side on the grid,
``layout.json`` says where their borders are. Format: RANC's simulator, README.

Axis suffixes: C cores, N neurons of a core, A axons of a core, B frames.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
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
from spikestill.deploy.transduction import plan_transduction, transduce_planned
from spikestill.deploy.validate import reach

INPUT, CONFIG, LAYOUT = "input.json", "config.json", "layout.json"
RANC = hardware("ranc")
NEVER_THRESHOLD = 1
"""Positive threshold of a neuron that is not used: without connections and leak its potential stays 0."""
RTL_POTENTIAL = signed(RANC.potential_bits)
RTL_AXON = (0, RANC.axons - 1)
SCHEDULER = (RANC.min_delay - 1, RANC.max_delay - 1)
CORE_BYTES = 200_000
"""Of a core's JSON, about: the connections alone are two characters each."""


def write(core_map: CoreMap, replay: Replay, folder: Path) -> dict[str, Any]:
    """Write ``input.json``, ``config.json`` and ``layout.json`` into ``folder``; return what layout.json says.

    Raises:
        UserError: a parameter exceeds RANC's width: layer, core and neuron are named; the folder holds other files;
            the disk is full.
    """
    ranges = check_ranges(core_map)
    x_C, y_C = core_map.spec.on_grid(core_map.chip_C, core_map.x_C, core_map.y_C)
    bus = output_bus(y_C)
    config = {
        "num_neurons": core_map.spec.neurons,
        "num_axons": core_map.spec.axons,
        "num_cores_x": int(x_C.max()) + 1,
        "num_cores_y": bus[1] + 1,
        "num_weights": RANC.axon_types,
        "max_tick_offset": SCHEDULER[1] + 2,
        "neuron_reset_type": 0,
        "neuron_block_trace_verbosity": 0,
        "core_controller_trace_verbosity": 0,
        "scheduler_trace_verbosity": 0,
    }
    outputs = len(core_map.output_core_V)
    layout = {
        "game": core_map.game,
        "games": legal_to_plain(core_map.legal),
        "frames": len(replay),
        "frame_source": replay.source,
        "frame_index": replay.indices_B.tolist(),
        "ticks": core_map.ticks,
        "ticks_to_run": len(replay) + core_map.ticks + 1,
        "votes": f"line f + {core_map.ticks} of the output, counted from 0, holds frame f; output j votes for "
        "output_action[j]; the file begins with a byte order mark",
        "expected_votes": replay.votes_BA.tolist(),
        "output_action": core_map.output_action_V.tolist(),
        "chips": _chips(core_map, x_C, y_C),
        "verdict": verdict(ranges),
        "ranges": ranges,
    }
    own(folder, (INPUT, CONFIG, LAYOUT))
    size = core_map.cores * CORE_BYTES / 1e6
    print(f"RANC's format takes about {size:,.0f} MB for {core_map.cores:,} cores", file=sys.stderr)
    with (
        atomic_path(folder / INPUT) as temporary,
        open(temporary, "w", encoding="ascii") as file,
        Progress("export", core_map.cores, "cores") as bar,
    ):
        file.write('{"packets": [')
        for index, packets in enumerate(_packets(core_map, replay.stacks_BCHW, x_C, y_C)):
            file.write((",\n" if index else "\n") + packets)
        file.write(f'],\n"output_bus": {{"coordinates": {bus}, "num_outputs": {outputs}}},\n"cores": [')
        for index, core in enumerate(_cores(core_map, x_C, y_C, bus)):
            file.write((",\n" if index else "\n") + core)
            bar.advance(1)
        file.write("]}\n")
    write_text(folder / CONFIG, json.dumps(config, indent=1) + "\n")
    write_text(folder / LAYOUT, json.dumps(layout) + "\n")
    return layout


def verdict(ranges: list[dict[str, Any]]) -> str:
    """Return in words who can play what :func:`check_ranges` let through."""
    wide = [row for row in ranges if not row["fits"]]
    if not wide:
        return "RANC's simulator can play it, and so can RANC's RTL"
    row = wide[0]
    return (
        f"RANC's simulator can play it. RANC's RTL cannot, for it has room for {row['allowed'][1] + 1} outputs and "
        f"this has {row['high'] + 1:,}"
    )


def output_bus(y_C: npt.NDArray[np.int64]) -> list[int]:
    """Return (x, y) of the output's bus: the first place of the row behind the last core's."""
    return [0, int(y_C.max()) + 1]


def check_ranges(core_map: CoreMap) -> list[dict[str, Any]]:
    """Return what the map asks of RANC's fields and what they hold, one row a field.

    A row has ``field``, ``low``, ``high``, ``allowed`` [low, high] and ``fits``. The simulator counts potentials in
    wide integers, RTL in signed 9 bits; only the number of outputs may exceed the RTL's field.

    Raises:
        UserError: leak, potential, offset, axon or delay does not fit; the first offender is named.
    """
    assert RANC.max_offset is not None
    offset = (-RANC.max_offset - 1, RANC.max_offset)
    used = core_map.used_CN
    driving = core_map.dest_core_CN != NONE
    smallest, largest = reach(core_map)
    leak = -core_map.theta_CN
    # The potential before and after the leak is added.
    least, most = smallest + np.minimum(leak, 0), largest + np.maximum(leak, 0)
    x_C, y_C = core_map.spec.on_grid(core_map.chip_C, core_map.x_C, core_map.y_C)
    target = np.where(driving, core_map.dest_core_CN, np.arange(core_map.cores)[:, None])
    voting = np.zeros_like(driving)
    voting[core_map.output_core_V, core_map.output_neuron_V] = True
    bus_x, bus_y = output_bus(y_C)
    dx = np.where(voting, bus_x, x_C[target]) - x_C[:, None]
    dy = np.where(voting, bus_y, y_C[target]) - y_C[:, None]
    tick = core_map.dest_delay_CN.astype(np.int64) - 1
    rows = []
    for field, low, high, mask, allowed in (
        ("leak", leak, leak, used, RTL_POTENTIAL),
        ("potential", least, most, used, RTL_POTENTIAL),
        ("dx", dx, dx, driving | voting, offset),
        ("dy", dy, dy, driving | voting, offset),
        ("destination_axon", core_map.dest_axon_CN, core_map.dest_axon_CN, driving, RTL_AXON),
        ("destination_tick", tick, tick, driving, SCHEDULER),
    ):
        bad = mask & ((low < allowed[0]) | (high > allowed[1]))
        if bad.any():
            core, neuron = np.argwhere(bad)[0]
            raise UserError(
                f"layer {core_map.core_layer_C[core]}, core {core}, neuron {neuron}: {field} "
                f"{low[core, neuron]}..{high[core, neuron]}, RANC holds {allowed[0]}..{allowed[1]}",
                "map the student again with `spikestill map --hardware ranc`",
            )
        bounds = (int(low[mask].min()), int(high[mask].max())) if mask.any() else (0, 0)
        rows.append(_row(field, bounds, allowed))
    for field, value, allowed in (
        ("input_axon", core_map.input_axon_E, RTL_AXON),
        ("input_tick", core_map.input_delay_E.astype(np.int64) - 1, SCHEDULER),
    ):  # fmt: skip
        wrong = np.flatnonzero((value < allowed[0]) | (value > allowed[1]))
        if len(wrong):
            raise UserError(
                f"input {wrong[0]}, to core {core_map.input_core_E[wrong[0]]}: {field} {value[wrong[0]]}, RANC holds "
                f"{allowed[0]}..{allowed[1]}",
                "map the student again with `spikestill map --hardware ranc`",
            )
        bounds = (int(value.min()), int(value.max())) if len(value) else (0, 0)
        rows.append(_row(field, bounds, allowed))
    rows.append(_row("output", (0, len(core_map.output_core_V) - 1), RTL_AXON))
    return rows


def _row(field: str, bounds: tuple[int, int], allowed: tuple[int, int]) -> dict[str, Any]:
    fits = allowed[0] <= bounds[0] and bounds[1] <= allowed[1]
    return {"field": field, "low": bounds[0], "high": bounds[1], "allowed": list(allowed), "fits": fits}


def _chips(core_map: CoreMap, x_C: npt.NDArray[np.int64], y_C: npt.NDArray[np.int64]) -> list[dict[str, int]]:
    """Return the corners of every chip in use on the grid."""
    spec = core_map.spec
    corners = []
    for chip in np.unique(core_map.chip_C).tolist():
        x, y = chip % spec.chips_x * spec.cores_x, chip // spec.chips_x * spec.cores_y
        corners.append({
            "chip": chip, "first_x": x, "first_y": y, "last_x": x + spec.cores_x - 1, "last_y": y + spec.cores_y - 1,
            "cores": int((core_map.chip_C == chip).sum()),
        })  # fmt: skip
    return corners


def _packets(
    core_map: CoreMap,
    stacks_BCHW: npt.NDArray[np.uint8],
    x_C: npt.NDArray[np.int64],
    y_C: npt.NDArray[np.int64],
) -> Iterator[str]:
    """Yield each tick's packets as JSON: a frame's while there are any, then none until the last votes are out."""
    plan = plan_transduction(core_map.transduction, core_map.input_shape)
    entry_source = core_map.input_source_E
    text = np.array([
        f'{{"destination_core": [{x_C[core]}, {y_C[core]}], "destination_axon": {axon}, '
        f'"destination_tick": {delay - 1}}}'
        for core, axon, delay in zip(
            core_map.input_core_E.tolist(), core_map.input_axon_E.tolist(), core_map.input_delay_E.tolist(), strict=True
        )
    ])  # fmt: skip
    for stack in stacks_BCHW:
        fires = transduce_planned(plan, np.ascontiguousarray(stack)).reshape(-1).astype(bool)
        yield "[" + ", ".join(text[fires[entry_source]].tolist()) + "]"
    for _ in range(core_map.ticks + 1):
        yield "[]"


def _cores(
    core_map: CoreMap, x_C: npt.NDArray[np.int64], y_C: npt.NDArray[np.int64], bus: list[int]
) -> Iterator[str]:
    """Yield each core as JSON."""
    axons = core_map.spec.axons
    weights = json.dumps([*core_map.weight_Y.tolist(), *[0] * (RANC.axon_types - len(core_map.weight_Y))])
    head = f'{{"reset_potential": 0, "weights": {weights}, "leak": '
    tail = ', "current_potential": 0, "reset_mode": 0}'
    idle = (
        f'{head}0, "positive_threshold": {NEVER_THRESHOLD}, "negative_threshold": 0, '
        f'"destination_core_offset": [0, 0], "destination_axon": 0, "destination_tick": 0{tail}'
    )
    output = np.full(core_map.used_CN.shape, NONE, np.int64)
    output[core_map.output_core_V, core_map.output_neuron_V] = np.arange(len(core_map.output_core_V))
    crossbars: dict[int, str] = {}
    for core in range(core_map.cores):
        crossbar = int(core_map.core_crossbar_C[core])
        if crossbar not in crossbars:
            crossbars[crossbar] = _connections(core_map.crossbar_XNW[crossbar], axons)
        neurons = []
        for used, theta, to, axon, delay, out in zip(
            core_map.used_CN[core].tolist(), core_map.theta_CN[core].tolist(), core_map.dest_core_CN[core].tolist(),
            core_map.dest_axon_CN[core].tolist(), core_map.dest_delay_CN[core].tolist(), output[core].tolist(),
            strict=True,
        ):  # fmt: skip
            if not used or (to == NONE and out == NONE):
                neurons.append(idle)
                continue
            x, y = bus if out != NONE else (int(x_C[to]), int(y_C[to]))
            neurons.append(
                f'{head}{-theta}, "positive_threshold": 0, "negative_threshold": 0, "destination_core_offset": '
                f'[{x - x_C[core]}, {y - y_C[core]}], "destination_axon": {axon if out == NONE else out}, '
                f'"destination_tick": {delay - 1 if out == NONE else 0}{tail}'
            )
        yield (
            f'{{"axons": {core_map.axon_type_CA[core].tolist()},\n"neurons": [{", ".join(neurons)}],\n'
            f'"connections": {crossbars[crossbar]},\n"coordinates": [{x_C[core]}, {y_C[core]}]}}'
        )


def _connections(crossbar_NW: npt.NDArray[np.uint64], axons: int) -> str:
    bits_NA = np.unpackbits(crossbar_NW.view(np.uint8), axis=1, bitorder="little")[:, :axons]
    text_NA2 = np.full((*bits_NA.shape, 2), ord(","), np.uint8)
    text_NA2[:, :, 0] = bits_NA + ord("0")
    rows = [row.tobytes()[:-1].decode("ascii") for row in text_NA2]
    return "[" + ",".join(f"[{row}]" for row in rows) + "]"
