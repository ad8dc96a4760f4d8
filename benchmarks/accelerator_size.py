"""What FIXAR's accelerator takes of an FPGA, part by part: Table I of Yang 2021.

    python -m benchmarks.accelerator_size [--family xcup] [--parts element core]

Each part is synthesised alone by yosys (``synth_xilinx``), the parts inside it as black boxes, and counted as often as
the accelerator of 2 x 16 x 16 elements has it; together the parts are the whole of it but its memories of lines.
Nothing is placed, so there is no clock. Takes minutes a part. Writes ``benchmarks/results/accelerator_size.json``.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.gates import FAMILIES, summed
from benchmarks.measurement import finish
from spikestill.deploy.accelerator.bench import tanh_image
from spikestill.deploy.accelerator.export import SOURCES
from spikestill.deploy.accelerator.schedule import PAPER


class Part(NamedTuple):
    """A module, what it is made of, what in it is counted elsewhere, and how many of it there are."""

    top: str
    sources: tuple[str, ...]
    boxes: tuple[str, ...]
    number: int


_LANES = PAPER.side * max(2, PAPER.cores)
_UNITS = ("core", "finish_lane", "adam_lane", "word_unit", "controller", "memory")
PARTS = {
    "element": Part("element", ("element",), (), PAPER.elements),
    "core": Part("core", ("core", "array"), ("element",), PAPER.cores),
    "output lane": Part("finish_lane", ("finish_lane", "divider"), (), _LANES),
    "optimiser lane": Part("adam_lane", ("adam_lane", "divider", "root"), (), PAPER.side),
    "word unit": Part("word_unit", ("word_unit",), (), 1),
    "controller": Part("controller", ("controller",), (), 1),
    "accelerator": Part("accelerator", ("accelerator",), _UNITS, 1),
}
"""Part to its module. ``core`` is its line buffer, column sums and accumulators; ``accelerator`` addresses, sums over
the cores, words of a job and wiring."""


def synthesised(part: Part, family: str, folder: Path) -> dict[str, int]:
    """Return yosys' count of every cell of one ``part``."""
    (folder / "tanh.hex").write_text("".join(f"{entry}\n" for entry in tanh_image()), "ascii")
    boxes = " ".join(f"{SOURCES / name}.sv" for name in part.boxes)
    sources = " ".join(f"{SOURCES / name}.sv" for name in part.sources)
    script = (f"read_verilog -sv -lib {boxes}; " if boxes else "") + (
        f"read_verilog -sv {sources}; synth_xilinx -top {part.top} -family {family} -noiopad -flatten; stat"
    )
    done = subprocess.run(["yosys", "-p", script], cwd=folder, capture_output=True, text=True, check=True)
    table = done.stdout[done.stdout.rindex("Number of cells:") :]
    return {cell: int(count) for cell, count in re.findall(r"^ {5}([A-Z]\w+) +(\d+)$", table, re.MULTILINE)}


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--family", nargs="+", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    chosen = parser.parse_args()
    figures: dict[str, Any] = {"yosys": subprocess.check_output(["yosys", "-V"], text=True).strip()}
    with tempfile.TemporaryDirectory() as scratch:
        for family in chosen.family:
            rows, total = {}, dict.fromkeys(summed({}), 0)
            for name in chosen.parts:
                began = time.perf_counter()
                cells = synthesised(PARTS[name], family, Path(scratch))
                one, count = summed(cells), PARTS[name].number
                rows[name] = {
                    "count": count, "one": one, "cells": cells, "seconds": round(time.perf_counter() - began)
                }  # fmt: skip
                total = {key: total[key] + one[key] * count for key in total}
                print(family, name, count, one, flush=True)
            figures[FAMILIES[family]] = {"parts": rows, "total": total}
    finish("accelerator_size", figures)


if __name__ == "__main__":
    main()
