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
import numpy.typing as npt

from spikestill.common.errors import UserError
from spikestill.common.precision.fixed import TERMS
from spikestill.configs.accelerator import ArraySpec
from spikestill.deploy.accelerator import schedule
from spikestill.deploy.accelerator.bench import Bench, line_hex, tanh_image
from spikestill.deploy.accelerator.schedule import WIDEST_LINES
from spikestill.deploy.exports.folder import own
from spikestill.teacher.control import fixed_ddpg
from spikestill.teacher.control.fixed_ddpg import ACTOR, CRITIC, Batch, FixedState

MODULES = (
    "element.sv", "array.sv", "core.sv", "divider.sv", "root.sv", "adam_lane.sv", "finish_lane.sv", "memory.sv",
    "word_unit.sv", "controller.sv", "accelerator.sv", "test_bench.sv",
)  # fmt: skip
SOURCES = Path(__file__).resolve().parent / "rtl"
IMAGES = ("weights.hex", "tanh.hex", "script.txt", "layout.json", "play.sh")


def write(
    state: FixedState, folder: Path, spec: ArraySpec, observations: int, updates: int, batch: int, seed: int
) -> dict[str, Any]:
    """Write the export with random observations and transitions; return what ``layout.json`` says.

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
    random = np.random.default_rng(seed)
    obs_BS = random.normal(size=(observations, state.observation_size))
    return write_script(
        state, folder, spec, obs_BS, [transitions(state, batch, random) for _ in range(updates)]
    )


def write_script(
    state: FixedState, folder: Path, spec: ArraySpec, obs_BS: npt.NDArray[Any], batches: list[Batch]
) -> dict[str, Any]:
    """Write the export; return what ``layout.json`` says.

    Args:
        state: the agent.
        folder: for the export alone.
        spec: the accelerator.
        obs_BS: observations whose actions the script asks for, maybe none.
        batches: transitions of each update that it plays.

    Raises:
        UserError: the agent's arithmetic is not the accelerator's, it does not fit, or the folder holds other files.
    """
    batch = max([1, *(len(each.reward_B) for each in batches)])
    check(state, spec, max(batch, len(obs_BS)))
    own(folder, (*MODULES, *IMAGES, "obj_dir/"))
    networks = {
        name: (state.sizes(name), each.weight_N, each.target_N, each.m_N, each.v_N)
        for name, each in ((ACTOR, state.actor), (CRITIC, state.critic))
    }
    bench = Bench(spec, networks, state.formats)
    agent, compared = state, 0
    with (folder / "script.txt").open("w", encoding="ascii") as script:

        def write_down() -> int:
            lines = bench.taken()
            script.writelines(f"{line}\n" for line in lines)
            return sum(line.startswith("C") for line in lines)

        if len(obs_BS):
            agent, _ = fixed_ddpg.act(agent, obs_BS, True, bench)
        compared += write_down()
        for each in batches:
            agent, _ = fixed_ddpg.update(agent, each, bench)
            compared += write_down()
    sizes = {
        "CORES": spec.cores, "SIDE": spec.side, "STREAM_BITS": _bits(max(batch, len(obs_BS)), 4),
        "PARAMETER_LINES": 1 << _bits(bench.parameter_lines, 4),
        "VECTOR_LINES": 1 << _bits(bench.most_vector_lines, 4),
    }  # fmt: skip
    for name in MODULES:
        shutil.copyfile(SOURCES / name, folder / name)
    (folder / "weights.hex").write_text("".join(f"{line_hex(line)}\n" for line in bench.weights), "ascii")
    (folder / "tanh.hex").write_text("".join(f"{entry}\n" for entry in tanh_image()), "ascii")
    (folder / "play.sh").write_text(build_command(sizes) + "./obj_dir/Vtest_bench\n", "ascii")
    (folder / "play.sh").chmod(0o755)
    layout = {
        "parameters": sizes, "spec": dataclasses.asdict(spec), "actor": list(state.sizes(ACTOR)),
        "critic": list(state.sizes(CRITIC)), "observations": len(obs_BS), "updates": len(batches), "batch": batch,
        "jobs": len(bench.jobs), "cycles": sum(job.cycles for job in bench.jobs),
        "compared_lines": compared, "accumulator_bits": bench.peak,
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
        UserError: another variant's widths, Adam in another form, too many parameters or vectors, sums that could wrap.
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
    if formats.error < formats.activation:
        raise UserError(
            f"the agent's errors have {formats.error} binary places, its activations {formats.activation}; the "
            "accelerator's errors have as many at least",
            f"train with --headroom {config.headroom - (formats.activation - formats.error)} or less",
        )
    if batch > spec.batch:
        raise UserError(
            f"{batch} vectors at a time: the accelerator's activation memory holds {spec.batch}",
            f"give a batch of {spec.batch} or less",
        )
    for name in (ACTOR, CRITIC):
        widest = max(state.sizes(name)[:-1])
        if widest > TERMS:
            raise UserError(
                f"{name}: a layer of {widest} inputs, the 64-bit accumulators hold sums of {TERMS} products",
                "give an agent with narrower layers",
            )
    held = sum(schedule.parameter_lines(spec, state.sizes(name)) for name in (ACTOR, CRITIC))
    if held > WIDEST_LINES:
        raise UserError(
            f"the networks take {held:,} lines of {spec.side} words, {WIDEST_LINES:,} is what an address reaches",
            "give an agent with narrower layers, or a larger --accelerator.side",
        )
    filled = schedule.update_lines(spec, state.sizes(ACTOR), state.sizes(CRITIC), batch)
    if filled > WIDEST_LINES:
        raise UserError(
            f"an update of {batch} vectors fills {filled:,} lines of a bank of activations, {WIDEST_LINES:,} is what "
            "an address reaches",
            "give a smaller batch, or a larger --accelerator.side",
        )


def transitions(state: FixedState, batch: int, random: np.random.Generator) -> Batch:
    """Return random transitions of the agent's sizes."""
    shape = batch, state.observation_size
    return Batch(
        random.normal(size=shape), random.uniform(-1, 1, (batch, state.action_size)), random.normal(size=batch),
        random.random(batch) > 0.1, random.normal(size=shape),
    )  # fmt: skip
