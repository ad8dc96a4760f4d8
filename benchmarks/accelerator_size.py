"""What FIXAR's accelerator takes of an FPGA, part by part: Table I of Yang 2021.

    python -m benchmarks.accelerator_size [--family xcup] [--cores 2] [--side 16] [--parts element core]

Each part is synthesised alone by yosys (``synth_xilinx``), the parts inside it as black boxes, and counted as often as
the accelerator has it; together the parts are the whole of it but its memories of lines. Nothing is placed, so there is
no clock. Takes minutes a part. Writes ``benchmarks/results/accelerator_size-FAMILY-CORESxSIDE.json``.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.gates import FAMILIES, summed
from benchmarks.measurement import finish
from spikestill.configs.accelerator import ArraySpec
from spikestill.deploy.accelerator.bench import tanh_image
from spikestill.deploy.accelerator.export import SOURCES

UNPACKED = (
    "memory_dff; techmap -map +/mul2dsp.v -map +/xilinx/xc7_dsp_map.v -D DSP_A_MAXWIDTH=25 -D DSP_B_MAXWIDTH=18 "
    "-D DSP_A_MAXWIDTH_PARTIAL=18 -D DSP_A_MINWIDTH=2 -D DSP_B_MINWIDTH=2 -D DSP_Y_MINWIDTH=9 -D DSP_SIGNEDONLY=1 "
    "-D DSP_NAME=$__MUL25X18; select a:mul2dsp; setattr -unset mul2dsp; opt_expr -fine; wreduce; select -clear; "
    "chtype -set $mul t:$__soft_mul"
)
"""The optimiser lane's DSPs of 7 series without registers packed into them: yosys 0.23 does not end that search."""


class Part(NamedTuple):
    """A module, what it is made of, what in it is counted elsewhere, which sizes it takes, how many of it there are."""

    top: str
    sources: tuple[str, ...]
    boxes: tuple[str, ...]
    sizes: tuple[str, ...]
    number: int


def parts(spec: ArraySpec) -> dict[str, Part]:
    """Return what the accelerator of this size is made of.

    ``core`` is its line buffer, column sums and accumulators; ``accelerator`` addresses, sums over the cores, words of
    a job and wiring.
    """
    lanes = spec.side * max(2, spec.cores)
    units = ("core", "finish_lane", "adam_lane", "word_unit", "controller", "memory")
    return {
        "element": Part("element", ("element",), (), (), spec.elements),
        "controller": Part("controller", ("controller",), (), ("CORES", "SIDE"), 1),
        "word unit": Part("word_unit", ("word_unit",), (), ("SIDE",), 1),
        "output lane": Part("finish_lane", ("finish_lane", "divider"), (), (), lanes),
        "optimiser lane": Part("adam_lane", ("adam_lane", "divider", "root"), (), (), spec.side),
        "accelerator": Part("accelerator", ("accelerator",), units, ("CORES", "SIDE"), 1),
        "core": Part("core", ("core", "array"), ("element",), ("SIDE",), spec.cores),
    }


def synthesised(part: Part, spec: ArraySpec, family: str, folder: Path) -> dict[str, int]:
    """Return yosys' count of every cell of one ``part``."""
    (folder / "tanh.hex").write_text("".join(f"{entry}\n" for entry in tanh_image()), "ascii")
    boxes = " ".join(f"{SOURCES / name}.sv" for name in part.boxes)
    sources = " ".join(f"{SOURCES / name}.sv" for name in part.sources)
    values = {"CORES": spec.cores, "SIDE": spec.side}
    sizes = "".join(f"chparam -set {name} {values[name]} {part.top}; " for name in part.sizes)
    script = f"read_verilog -sv -lib {boxes}; " if boxes else ""
    script += f"read_verilog -sv {sources}; {sizes}"
    command = f"synth_xilinx -top {part.top} -family {family} -noiopad -flatten"
    if (part.top, family) == ("adam_lane", "xc7"):
        script += f"{command} -run begin:map_dsp; {UNPACKED}; {command} -run coarse:; stat"
    else:
        script += f"{command}; stat"
    done = subprocess.run(["yosys", "-p", script], cwd=folder, capture_output=True, text=True, check=True)
    table = done.stdout[done.stdout.rindex("Number of cells:") :]
    return {cell: int(count) for cell, count in re.findall(r"^ {5}([A-Z]\w+) +(\d+)$", table, re.MULTILINE)}


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--family", default="xcup", choices=list(FAMILIES))
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--side", type=int, default=16)
    parser.add_argument("--parts", nargs="+", choices=list(parts(ArraySpec())))
    chosen = parser.parse_args()
    spec = ArraySpec(cores=chosen.cores, side=chosen.side)
    rows, total = {}, dict.fromkeys(summed({}), 0)
    with tempfile.TemporaryDirectory() as scratch:
        for name, part in parts(spec).items():
            if chosen.parts and name not in chosen.parts:
                continue
            began = time.perf_counter()
            cells = synthesised(part, spec, chosen.family, Path(scratch))
            one = summed(cells)
            rows[name] = {
                "number": part.number, "one": one, "cells": cells, "seconds": round(time.perf_counter() - began)
            }  # fmt: skip
            total = {key: total[key] + one[key] * part.number for key in total}
            print(name, part.number, one, flush=True)
    finish(f"accelerator_size-{chosen.family}-{spec.cores}x{spec.side}", {
        "family": FAMILIES[chosen.family], "parts": rows, "total": total,
        "yosys": subprocess.check_output(["yosys", "-V"], text=True).strip(),
    })  # fmt: skip


if __name__ == "__main__":
    main()
