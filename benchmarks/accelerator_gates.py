"""A trained fixed-point agent in gates and in C, on its own task: how much differs from its own integers.

    python -m benchmarks.accelerator_gates --agent runs/cheetah/teacher.safetensors [--updates 1]

The agent plays its task with its exploration; what it meets are the observations and transitions. Verilator plays the
paper's 2 x 16 x 16 elements: actions without noise and with it, whole updates, every line of every result compared,
every job's cycles. The exported C plays the observations. Writes
``benchmarks/results/accelerator_gates-PRECISION.json``.
"""

from __future__ import annotations

import argparse
import re
import resource
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.measurement import finish
from spikestill.common.environment import Box, environment
from spikestill.configs.accelerator import ArraySpec
from spikestill.configs.environment import EnvironmentConfig
from spikestill.deploy.accelerator import export
from spikestill.deploy.exports import c_actor
from spikestill.teacher.control import fixed_ddpg, fixed_file
from spikestill.teacher.control.fixed_ddpg import Batch, FixedState
from spikestill.teacher.control.play import joined, within

STRICT = ("-std=c99", "-O2", "-Wall", "-Wextra", "-pedantic", "-Werror")


def played(state: FixedState, task: str, steps: int, seed: int) -> Batch:
    """Return ``steps`` transitions of the agent, exploring, in its task."""
    spec = environment(task)
    assert isinstance(spec.actions, Box)
    envs = spec.make(EnvironmentConfig(game=task), 1, 0)
    obs_1S = joined(envs.reset(np.array([seed])))
    rows: list[tuple[Any, ...]] = []
    ended = False
    while len(rows) < steps:
        state, action_1A = fixed_ddpg.act(state, obs_1S, True)
        envs.send(within(spec.actions, action_1A))
        following, reward, terminated, truncated = envs.receive()
        if not ended:
            rows.append((obs_1S[0], action_1A[0], reward[0], not terminated[0], joined(following)[0]))
        ended = bool(terminated[0] or truncated[0])
        obs_1S = joined(following)
    envs.close()
    return Batch(*(np.array(column) for column in zip(*rows, strict=True)))


def in_gates(folder: Path, layout: dict[str, Any], program: Path | None) -> dict[str, Any]:
    """Play the export in ``folder`` by ``program``, or build it first; return what came of it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    command = "./play.sh" if program is None else str(program.resolve())
    done = subprocess.run([command], cwd=folder, capture_output=True, text=True, check=True)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    found = re.search(r"PLAYED (\d+) jobs, (\d+) lines compared, (\d+) differences", done.stdout)
    assert found is not None
    cycles = [int(each) for each in re.findall(r"cycles (\d+)\n", done.stdout)]
    return {
        "jobs": int(found[1]), "lines_compared": int(found[2]), "differ": int(found[3]), "cycles": sum(cycles),
        "cycles_foretold": layout["cycles"], "accumulator_bits": layout["accumulator_bits"],
        "processor_seconds": round(spent),
        "verilator": subprocess.check_output(["verilator", "--version"], text=True).strip(),
    }  # fmt: skip


def in_c(state: FixedState, obs_BS: npt.NDArray[Any], folder: Path) -> dict[str, Any]:
    """Return how many of the actions for ``obs_BS`` the exported C gives otherwise."""
    memory = c_actor.write(state, obs_BS, folder)
    subprocess.run(["cc", *STRICT, "-o", "actor", "actor.c"], cwd=folder, check=True)
    with (folder / "frames.bin").open("rb") as file:
        done = subprocess.run(
            ["./actor", "--check"], cwd=folder, stdin=file, capture_output=True, text=True, check=False
        )
    found = re.search(r"(\d+) observations, (\d+) differ", done.stdout)
    assert found is not None
    return {
        "observations": int(found[1]), "differ": int(found[2]), "constant_bytes": memory.constant_bytes,
        "working_bytes": memory.working_bytes,
    }  # fmt: skip


def main() -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agent", type=Path, required=True)
    parser.add_argument("--updates", type=int, default=1)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--observations", type=int, default=64, help="whose actions the gates compute")
    parser.add_argument("--steps", type=int, default=10_000, help="of play; the C program's observations")
    parser.add_argument(
        "--program",
        type=Path,
        help="obj_dir/Vtest_bench of an export of the same parameters, not to build it again",
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    agent = fixed_file.read(options.agent)
    state = agent.state
    whole = played(state, agent.environment, options.steps, options.seed)
    random = np.random.default_rng(options.seed)
    batches = [
        Batch(*(column[chosen] for column in whole))
        for chosen in random.integers(0, options.steps, (options.updates, options.batch_size))
    ]
    with tempfile.TemporaryDirectory() as scratch:
        rtl, c = Path(scratch) / "rtl", Path(scratch) / "c"
        some = np.linspace(0, options.steps - 1, options.observations, dtype=int)
        layout = export.write_script(state, rtl, ArraySpec(), whole.obs_BS[some], batches)
        program = in_c(state, whole.obs_BS, c)
        gates = in_gates(rtl, layout, options.program)
    finish(f"accelerator_gates-{'half' if state.quantised else 'full'}", {
        "environment": agent.environment, "updates_of_training": state.updates, "activations_16_bits": state.quantised,
        "batch": options.batch_size, "updates": options.updates, "observations": options.observations,
        "return_of_play": round(float(whole.reward_B[:1000].sum()), 1), "gates": gates, "c": program,
    })  # fmt: skip


if __name__ == "__main__":
    main()
