"""What one neurosynaptic core takes of an FPGA, and how fast Verilator plays the shipped Pong student in gates.

    python -m benchmarks.gates [--frames 20] [--buffer runs/pong/buffer.h5] [--no-synthesis]

Counts are yosys' (``synth_xilinx``), of ``core_array`` with one core, the images of one core of the shipped map in its
block memory; a mapping without placement, so no clock. Writes ``benchmarks/results/gates.json``.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import subprocess
import tempfile
import time
from itertools import islice
from pathlib import Path

import numpy as np

from benchmarks.measurement import finish
from spikestill.common.zoo import zoo_path
from spikestill.deploy.core_map import CoreMap, load
from spikestill.deploy.exports import gates
from spikestill.deploy.exports.replay import Replay
from spikestill.deploy.frames import Frames
from spikestill.deploy.simulator import CoreSimulator

FAMILIES = {"xcup": "UltraScale+ (Alveo U50)", "xc7": "7 series (Artix-7)"}
LUTS_OF_RAM = {"RAM32M16": 8, "RAM32M": 4, "RAM64M8": 8, "RAM64M": 4, "SRL16E": 1, "SRLC32E": 1}


def synthesised(core_map: CoreMap, core: int, family: str, folder: Path) -> dict[str, int]:
    """Return yosys' count of every cell for one core of ``core_map``, whose images are written into ``folder``."""
    folder.mkdir(exist_ok=True)
    blocks = core_map.core_crossbar_C[core], core, core, core
    for name, lines, block in zip(gates.IMAGES, gates.images(core_map), blocks, strict=True):
        rows = core_map.spec.neurons if name in ("crossbar.mem", "neuron.mem") else 1
        plain = (line for line in lines if not line.startswith("//"))
        chosen = list(islice(plain, int(block) * rows, int(block) * rows + rows))
        if name == "core.mem":
            # The crossbar is the only one here.
            last = (core_map.spec.neurons - 1).bit_length()
            chosen = [f"{int(chosen[0], 16) & ((1 << last) - 1):x}"]
        (folder / name).write_text("\n".join(chosen) + "\n", encoding="ascii")
    sources = " ".join(str(gates.SOURCES / name) for name in gates.MODULES if name != "testbench.sv")
    script = f"read_verilog -sv -DSYNTHESIS {sources}; synth_xilinx -top core_array -family {family} -flatten; stat"
    done = subprocess.run(["yosys", "-p", script], cwd=folder, capture_output=True, text=True, check=True)
    table = done.stdout[done.stdout.rindex("Number of cells:") :]
    return {cell: int(count) for cell, count in re.findall(r"^ {5}([A-Z]\w+) +(\d+)$", table, re.MULTILINE)}


def summed(cells: dict[str, int]) -> dict[str, int]:
    """Return LUTs (logic, and those used as memory), flip-flops, DSPs and 36-kbit blocks times two."""
    return {
        "lut": sum(count for cell, count in cells.items() if cell.startswith("LUT")),
        "lut_memory": sum(LUTS_OF_RAM.get(cell, 0) * count for cell, count in cells.items()),
        "ff": sum(count for cell, count in cells.items() if cell.startswith("FD")),
        "dsp": sum(count for cell, count in cells.items() if cell.startswith("DSP")),
        "bram18": sum(
            (2 if "36" in cell else 1) * count for cell, count in cells.items() if cell.startswith("RAMB")
        ),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", type=int, default=20, help="frames that Verilator plays")
    parser.add_argument(
        "--buffer", type=Path, help="what `record` wrote, to take frames from; else random pixels"
    )
    parser.add_argument("--no-synthesis", action="store_true", help="play alone, yosys counts nothing")
    options = parser.parse_args()
    path = zoo_path("pong", "core_map-1chip.h5")
    core_map, buffers = load(path), [options.buffer] if options.buffer else []
    with contextlib.closing(
        Frames(buffers, options.frames, 0, core_map.game, core_map.input_shape, path)
    ) as drawn:
        source, stacks = drawn.source, np.ascontiguousarray(drawn.stacks(0, len(drawn)))
    frames = len(stacks)
    votes = CoreSimulator(core_map).pipelined(stacks)
    families = [] if options.no_synthesis else list(FAMILIES)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        cells = {family: synthesised(core_map, 0, family, folder / family) for family in families}
        layout = gates.write(core_map, Replay(stacks, votes, source, np.arange(frames)), folder / "rtl")
        build, play = gates.BUILD.split(" && ")
        began = time.perf_counter()
        subprocess.run(build, shell=True, cwd=folder / "rtl", capture_output=True, check=True)
        built_s = time.perf_counter() - began
        began = time.perf_counter()
        done = subprocess.run(
            play, shell=True, cwd=folder / "rtl", capture_output=True, text=True, check=True
        )
        played_s = time.perf_counter() - began
    found = re.search(r"(\d+) ticks, (\d+) spikes, (\d+) cycles", done.stdout)
    assert found is not None
    finish("gates", {
        "one_core": {FAMILIES[family]: summed(each) | {"cells": each} for family, each in cells.items()},
        "cores": core_map.cores,
        "crossbars": layout["crossbars"],
        "cycles_a_tick": layout["cycles_a_tick"],
        "frames": frames,
        "frame_source": source,
        "spikes": int(found[2]),
        "ticks": int(found[1]),
        "cycles": int(found[3]),
        "differ": re.findall(r"\d+ spikes differ, \d+ votes differ", done.stdout)[0],
        "verilator": subprocess.check_output(["verilator", "--version"], text=True).strip(),
        "yosys": subprocess.check_output(["yosys", "-V"], text=True).strip(),
        "build_s": round(built_s, 1),
        "play_s": round(played_s, 2),
        "cycles_per_s": round(int(found[3]) / played_s),
    })  # fmt: skip


if __name__ == "__main__":
    main()
