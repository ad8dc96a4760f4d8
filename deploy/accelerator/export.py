"""``spikestill export rtl`` of a fixed-point agent: the SystemVerilog with its memory images, and a script to play.

The folder holds the modules, ``weights.hex`` and ``tanh.hex`` (memory images), ``script.txt`` for the test bench (the
actor's actions for some observations, without noise and with it, and updates, with every line that must come of
them), ``layout.json`` and ``play.sh``, which builds and plays it with Verilator.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from spikestill.common.errors import UserError
from spikestill.configs.accelerator import ArraySpec
from spikestill.deploy.accelerator import schedule
from spikestill.deploy.accelerator.bench import ACTIVATION, ERROR, Bench, line_hex, tanh_image
from spikestill.deploy.exports.folder import own
from spikestill.teacher.control import fixed_ddpg
from spikestill.teacher.control.fixed_ddpg import ACTOR, CRITIC, Batch, FixedState

MODULES = (
    "element.sv", "array.sv", "core.sv", "divider.sv", "root.sv", "adam_lane.sv", "finish_lane.sv", "memory.sv",
    "word_unit.sv", "controller.sv", "accelerator.sv", "test_bench.sv",
)  # fmt: skip
SOURCES = Path(__file__).resolve().parent / "rtl"
IMAGES = ("weights.hex", "tanh.hex", "script.txt", "layout.json", "play.sh")
WIDEST_LINES = 1 << 20
"""Lines that an address of the SystemVerilog reaches."""


def write(
    state: FixedState, folder: Path, spec: ArraySpec, observations: int, updates: int, batch: int, seed: int
) -> dict[str, Any]:
    """Write the export; return what ``layout.json`` says.

    Args:
        state: the agent.
        folder: for the export alone.
        spec: the accelerator.
        observations: actions that the script asks for, in one batch.
        updates: whole updates that it plays.
        batch: transitions of an update, a power of two.
        seed: of observations and transitions, drawn near-normal with deviation 1.

    Raises:
        UserError: the agent's arithmetic is not the accelerator's, it does not fit, or the folder holds other files.
    """
    check(state, spec, max(batch if updates else 1, observations))
    own(folder, (*MODULES, *IMAGES, "obj_dir/"))
    networks = {
        name: (state.sizes(name), each.weight_N, each.target_N, each.m_N, each.v_N)
        for name, each in ((ACTOR, state.actor), (CRITIC, state.critic))
    }
    bench = Bench(spec, networks, state.formats)
    random = np.random.default_rng(seed)
    if observations:
        state, _ = fixed_ddpg.act(
            state, random.normal(size=(observations, state.observation_size)), True, bench
        )
    for _ in range(updates):
        state, _ = fixed_ddpg.update(state, transitions(state, batch, random), bench)
    script = bench.finish()
    sizes = {
        "CORES": spec.cores, "SIDE": spec.side, "STREAM_BITS": _bits(max(batch, observations), 4),
        "PARAMETER_LINES": 1 << _bits(bench.parameter_lines, 4),
        "VECTOR_LINES": 1 << _bits(max(bench.vector_lines[ACTIVATION], bench.vector_lines[ERROR]), 4),
    }  # fmt: skip
    for name in MODULES:
        shutil.copyfile(SOURCES / name, folder / name)
    (folder / "weights.hex").write_text("".join(f"{line_hex(line)}\n" for line in bench.weights), "ascii")
    (folder / "tanh.hex").write_text("".join(f"{entry}\n" for entry in tanh_image()), "ascii")
    (folder / "script.txt").write_text("".join(f"{line}\n" for line in script), "ascii")
    (folder / "play.sh").write_text(build_command(sizes) + "./obj_dir/Vtest_bench\n", "ascii")
    (folder / "play.sh").chmod(0o755)
    layout = {
        "parameters": sizes, "spec": dataclasses.asdict(spec), "actor": list(state.sizes(ACTOR)),
        "critic": list(state.sizes(CRITIC)), "observations": observations, "updates": updates, "batch": batch,
        "jobs": len(bench.jobs), "cycles": sum(job.cycles for job in bench.jobs),
        "compared_lines": sum(line.startswith("C") for line in script), "accumulator_bits": bench.peak,
    }  # fmt: skip
    (folder / "layout.json").write_text(json.dumps(layout, indent=2) + "\n", "ascii")
    return layout


def build_command(sizes: dict[str, int]) -> str:
    """Return the shell script that builds the test bench with Verilator 5."""
    flags = " ".join(f"-G{name}={value}" for name, value in sizes.items())
    return (
        "#!/bin/sh\nset -e\n"
        "verilator --binary -Wno-fatal -Wno-WIDTH -Wno-BLKSEQ -O3 --unroll-count 256 --unroll-stmts 1000000 \\\n"
        f"  -CFLAGS -O1 -j 2 --top-module test_bench {flags} {' '.join(MODULES)}\n"
    )


def _bits(count: int, least: int) -> int:
    return max(least, (count - 1).bit_length())


def check(state: FixedState, spec: ArraySpec, batch: int) -> None:
    """Raise UserError unless the accelerator computes what this agent does, and holds it.

    Raises:
        UserError: another variant's widths, Adam in another form, too many parameters or vectors.
    """
    config, formats = state.config, state.formats
    if formats.bits != 32:
        raise UserError(
            f"a {config.variant} agent keeps weights and gradients in {formats.bits} bits, the accelerator in 32",
            "export an agent of --precision fixed32 or fixar",
        )
    if config.second_moment != "plain" or config.rounding != "nearest":
        raise UserError(
            f"the agent's Adam has the {config.second_moment} form and rounds {config.rounding}; the optimiser's lanes "
            "hold the plain form and round to nearest",
            "train with --second_moment plain --rounding nearest",
        )
    if batch > spec.batch:
        raise UserError(
            f"{batch} vectors at a time: the accelerator's activation memory holds {spec.batch}",
            f"give a batch of {spec.batch} or less",
        )
    held = sum(schedule.parameter_lines(spec, state.sizes(name)) for name in (ACTOR, CRITIC))
    if held > WIDEST_LINES:
        raise UserError(
            f"the networks take {held} lines of {spec.side} words, {WIDEST_LINES} is what an address reaches",
            "give an agent with narrower layers",
        )


def transitions(state: FixedState, batch: int, random: np.random.Generator) -> Batch:
    """Return random transitions of the agent's sizes."""
    shape = batch, state.observation_size
    return Batch(
        random.normal(size=shape), random.uniform(-1, 1, (batch, state.action_size)), random.normal(size=batch),
        random.random(batch) > 0.1, random.normal(size=shape),
    )  # fmt: skip
