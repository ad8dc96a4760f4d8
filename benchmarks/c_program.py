"""Frames a second of the exported C program and of the packed kernel, on one thread, one frame after another.

    python -m benchmarks.c_program [--student student.safetensors]

Both play the same frames, whose votes are compared first. The program measures its own processor time (``--speed``:
votes only), the kernel is timed here; rounds alternate, the median counts. Writes ``benchmarks/results/c-NET.json``.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.measurement import finish
from spikestill.common.zoo import zoo_path
from spikestill.deploy.exports import c_program
from spikestill.deploy.exports.replay import Replay
from spikestill.deploy.packed_kernel import PackedNet
from spikestill.student.integer_net import load

FRAMES, ROUNDS = 200, 7
FLAGS = {
    "cc -O2": ("-O2",),
    "cc -O2 -mpopcnt": ("-O2", "-mpopcnt"),
    "cc -O3": ("-O3",),
    "cc -O3 -march=native": ("-O3", "-march=native"),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--student", type=Path, default=zoo_path("pong", "student-1chip.safetensors"))
    student = parser.parse_args().student
    net, _ = load(student)
    packed = PackedNet(net)
    stacks = np.random.default_rng(0).integers(0, 256, (FRAMES, *net.input_shape), np.uint8)
    votes = np.stack([packed.votes(stack) for stack in stacks])
    rates: dict[str, list[float]] = {name: [] for name in (*FLAGS, "packed kernel")}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        memory = c_program.write(net, Replay(stacks, votes, "random", np.arange(FRAMES)), folder / "c")
        source, frames = folder / "c" / c_program.PROGRAM, folder / "c" / c_program.FRAMES
        for name, flags in FLAGS.items():
            command = ["cc", "-std=c99", *flags, "-o", str(folder / name.replace(" ", "")), str(source)]
            subprocess.run(command, check=True)
        for _ in range(ROUNDS):
            for name in FLAGS:
                with frames.open("rb") as file:
                    done = subprocess.run(
                        [folder / name.replace(" ", ""), "--speed"],
                        stdin=file,
                        capture_output=True,
                        check=True,
                    )
                found = re.search(rb"(\d+) frames/s", done.stdout)
                assert found is not None
                rates[name].append(float(found[1]))
            began = time.process_time()
            for stack in stacks:
                packed.votes(stack)
            rates["packed kernel"].append(FRAMES / (time.process_time() - began))
    compiler = subprocess.run(["cc", "--version"], capture_output=True, text=True, check=True).stdout
    finish(f"c-{student.stem}", {
        "student": student.name,
        "compiler": compiler.splitlines()[0],
        "constant_bytes": memory.constant_bytes,
        "working_bytes": memory.working_bytes,
        "frames_per_s": {name: round(statistics.median(each)) for name, each in rates.items()},
        "rounds": ROUNDS,
        "frames_per_round": FRAMES,
    })  # fmt: skip


if __name__ == "__main__":
    main()
