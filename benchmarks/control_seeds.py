"""Updates a second of several seeds of a control agent: threads of one process, and a process each.

    python -m benchmarks.control_seeds

``teach --seeds N`` trains N seeds in one process, a thread each. A sweep trains each in a process of its own. Which is
faster depends on how large the agent is: between products Python holds its interpreter's lock, so that the threads of
small agents wait for each other. Random transitions of HalfCheetah's sizes; the simulator and the replay are not in it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks.control import D, S, batch_of
from benchmarks.measurement import finish, in_a_process, stand_in
from spikestill.common.precision import fixed_fast
from spikestill.common.processor import cores, keep_freed_memory
from spikestill.configs.control import ControlConfig
from spikestill.configs.environment import EnvironmentConfig
from spikestill.teacher.control.blas import one_thread
from spikestill.teacher.control.lanes import OtherThread, in_turn, quick_turns
from spikestill.teacher.control.learner import make_learner

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


def updates_per_s(agent: str, seeds: int, seconds: float) -> float:
    """Return updates a second of all seeds together, a thread each; of one alone on all cores of this process."""
    config = ControlConfig(environment=EnvironmentConfig(game="half_cheetah"), **AGENTS[agent])
    both = OtherThread() if seeds == 1 and cores() > 1 else in_turn
    learners = [make_learner(config, S, D, seed, both) for seed in range(seeds)]
    batch = batch_of(np.random.default_rng(0), config.batch_size)

    def work(index: int, until: float) -> int:
        rng, done = np.random.default_rng(index), 0
        while time.perf_counter() < until:
            learners[index].update(batch, rng)
            done += 1
        return done

    with (
        ThreadPoolExecutor(seeds, initializer=lambda: np.seterr(all="ignore")) as pool,
        one_thread(),
        quick_turns(),
        fixed_fast.at_most(0),
    ):
        list(pool.map(lambda index: work(index, time.perf_counter() + 0.1), range(seeds)))
        began = time.perf_counter()
        done = sum(pool.map(lambda index: work(index, began + seconds), range(seeds)))
        return done / (time.perf_counter() - began)


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
        print(json.dumps({"updates_per_s": one_alone(given.child, given.seconds)}))
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


def one_alone(agent: str, seconds: float) -> float:
    """Return updates a second of one seed on one thread."""
    config = ControlConfig(environment=EnvironmentConfig(game="half_cheetah"), **AGENTS[agent])
    learner, rng = make_learner(config, S, D, 0, in_turn), np.random.default_rng(0)
    batch, done = batch_of(rng, config.batch_size), 0
    with one_thread(), fixed_fast.at_most(1):
        for _ in range(3):
            learner.update(batch, rng)
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            learner.update(batch, rng)
            done += 1
        return done / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
