"""Updates a second of several seeds of a control agent: threads of one process, and a process each.

    python -m benchmarks.control_seeds

``teach --seeds N`` trains N seeds in one process, by turns on as many threads as there are cores. A sweep trains each
in a process of its own. Which is faster depends on how large the agent is: between its updates a seed holds the
interpreter's lock. Random transitions of HalfCheetah's sizes; the simulator and the replay are not in it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks.control import D, S, batch_of
from benchmarks.measurement import finish, in_a_process, median_rate, stand_in
from spikestill.common.precision import sharing
from spikestill.common.processor import cores, keep_freed_memory
from spikestill.configs.control import ControlConfig
from spikestill.configs.environment import EnvironmentConfig
from spikestill.teacher.control.blas import one_thread
from spikestill.teacher.control.lanes import OtherThread, by_turns, in_turn, quick_turns
from spikestill.teacher.control.learner import make_learner
from spikestill.teacher.control.teach import TURN_STEPS, spread, threads_each

AGENTS: dict[str, dict[str, Any]] = {
    "sac, 256 x 256, batch 256, fp32": {"hidden": (256, 256), "batch_size": 256},
    "sac, 256 x 256, batch 256, fp16": {"hidden": (256, 256), "batch_size": 256, "precision": "fp16"},
    "sac, 64 x 64, batch 64, fp32": {"hidden": (64, 64), "batch_size": 64},
    "sac, 64 x 64, batch 64, fp16": {"hidden": (64, 64), "batch_size": 64, "precision": "fp16"},
    "ddpg, 400 x 300, batch 64, fp32": {"algorithm": "ddpg", "hidden": (400, 300), "batch_size": 64},
    "ddpg, 400 x 300, batch 64, fixar": {
        "algorithm": "ddpg", "hidden": (400, 300), "batch_size": 64, "precision": "fixar",
    },
}  # fmt: skip
TURNS = 10
"""Of a seed until it waits for the others, as in ``teach``, each of ``TURN_STEPS`` updates."""


def config_of(agent: str) -> ControlConfig:
    """Return the options of a measured agent."""
    return ControlConfig(environment=EnvironmentConfig(game="half_cheetah"), **AGENTS[agent])


def updates_per_s(agent: str, seeds: int, seconds: float) -> float:
    """Return updates a second of all seeds together, as ``teach --seeds`` trains them in one process."""
    config = dataclasses.replace(config_of(agent), seeds=seeds)
    lanes, workers = spread(config)
    both = OtherThread() if lanes else in_turn
    learners = [make_learner(config, S, D, seed, both) for seed in range(seeds)]
    batch = batch_of(np.random.default_rng(0), config.batch_size)

    rngs = [np.random.default_rng(seed) for seed in range(seeds)]

    left = [0] * seeds

    def turn(index: int) -> bool:
        for _ in range(TURN_STEPS):
            learners[index].update(batch, rngs[index])
        left[index] -= 1
        return left[index] > 0

    with (
        ThreadPoolExecutor(workers, initializer=lambda: np.seterr(all="ignore")) as pool,
        one_thread(),
        quick_turns(),
        sharing.at_most(threads_each(config)),
    ):

        def work() -> int:
            left[:] = [TURNS] * seeds
            by_turns(pool, range(seeds), turn)
            return TURNS * TURN_STEPS * seeds

        work()
        found = median_rate(work, seconds, 1)
    if isinstance(both, OtherThread):
        both.close()
    return found


def alone(agent: str, seconds: float) -> float:
    """Return updates a second of one seed on one thread."""
    config = config_of(agent)
    learner, rng = make_learner(config, S, D, 0, in_turn), np.random.default_rng(0)
    batch = batch_of(rng, config.batch_size)

    def work() -> int:
        learner.update(batch, rng)
        return 1

    with one_thread(), sharing.at_most(1):
        work()
        return median_rate(work, seconds, 1)


def in_processes(agent: str, seconds: float) -> float:
    """Return updates a second of one seed in a process of one thread, of as many processes as there are cores."""
    words = ("--child", agent, "--seconds", str(seconds))
    with ThreadPoolExecutor(cores()) as pool:
        each = [pool.submit(in_a_process, agent, "benchmarks.control_seeds", *words) for _ in range(cores())]
        return sum(float(found.result()["updates_per_s"]) for found in each)


def main() -> None:
    """Measure and write ``benchmarks/results/control_seeds.json``."""
    parser = argparse.ArgumentParser(
        description=f"benchmarks.control_seeds: {__doc__}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    keep_freed_memory()
    if given.child:
        print(json.dumps({"updates_per_s": alone(given.child, given.seconds)}))
        return
    figures: dict[str, Any] = {"stand_in": stand_in(), "cores": cores()}
    for agent in AGENTS:
        rates: dict[str, list[float]] = {}
        for _ in range(given.repeats):
            for seeds in (1, 2, 3):
                rates.setdefault(f"{seeds} in a process", []).append(
                    updates_per_s(agent, seeds, given.seconds)
                )
            rates.setdefault(f"{cores()}, a process each", []).append(in_processes(agent, given.seconds))
        figures[agent] = {name: round(statistics.median(found), 1) for name, found in rates.items()}
        print(agent, figures[agent], flush=True)
    finish("control_seeds", figures)


if __name__ == "__main__":
    main()
