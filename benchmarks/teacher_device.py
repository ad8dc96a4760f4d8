"""Where a round of ``teach`` spends its time on a GPU: emulators, acting (theirs included), storing, learning.

    python -m benchmarks.teacher_device

Breakout, 128 games and the format of ``--precision auto``, eight updates a round where the recipe ``teach-gpu`` has
four. A round acts beside its updates and then stores, so it takes the longer of the two and the storing; each part is
also timed by itself. Updates are timed by batch, with priorities and without. ``--profile`` prints the kernels of one
update. Give a GPU that nothing else uses. ``--device cpu`` tries the benchmark itself: the host's learner is another
one.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.measurement import finish, named
from spikestill.common.errors import UserError
from spikestill.common.processor import compute_device, cores
from spikestill.configs.environment import EnvironmentConfig
from spikestill.configs.teach import TeachConfig
from spikestill.teacher.atari.actor import Actor
from spikestill.teacher.atari.device_learner import DeviceLearner
from spikestill.teacher.atari.teach import Training

GAMES, UPDATES = 128, 8
BEGUN = 4_000
"""Steps before anything is timed: the graph is captured by then."""


def milliseconds(work: Callable[[], object], times: int, device: torch.device) -> float:
    """Return the median time of ``work``, once it is warm, the device's part included."""
    found = []
    for _ in range(times + 1):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        found.append(1e3 * (time.perf_counter() - began))
    return round(statistics.median(found[1:]), 2)


def emulators(config: TeachConfig, threads: int, times: int) -> float:
    """Return the milliseconds of a step of all games."""
    actor, rng = Actor(config, threads), np.random.default_rng(0)
    found = milliseconds(
        lambda: actor.envs.step(rng.integers(0, actor.actions, GAMES)), times, torch.device("cpu")
    )
    actor.close()
    return found


def parts(config: TeachConfig, times: int, *, profile: bool) -> dict[str, float]:
    """Return the milliseconds of a round and of its parts."""
    training, device = Training(config), compute_device(config.device)
    while training.step < BEGUN:
        training.round()

    learner = training.learner

    def act() -> Any:
        seen = learner.acting_weights(), learner.pixel_offset
        return training.pool.submit(training._act, *seen, 0.02).result()

    def store() -> None:
        for transition in played:
            training._store(transition)

    played = act()
    found = {
        "learning_an_update": round(milliseconds(training._learn, times, device) / UPDATES, 3),
        "acting": milliseconds(act, times, device),
        "storing": milliseconds(store, times, device),
        "round": milliseconds(training.round, times, device),
    }
    if profile and isinstance(learner, DeviceLearner):
        learner.index.zero_()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            learner._update()
            torch.cuda.synchronize()
        print(seen.key_averages().table(sort_by="cuda_time_total", row_limit=30, max_name_column_width=70))
    training.close()
    return found


def main() -> None:
    """Measure and write ``benchmarks/results/teacher_device.json``."""
    parser = argparse.ArgumentParser(
        description=f"benchmarks.teacher_device: {__doc__}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--capacity", type=int, default=1_000_000, help="frames of the replay")
    parser.add_argument("--times", type=int, default=20, help="each part is timed, for its median")
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    try:
        device = compute_device(given.device)
    except UserError as error:
        sys.exit(str(error))
    config = TeachConfig(
        environment=EnvironmentConfig(game="breakout"), device=given.device, num_envs=GAMES,
        update_period=GAMES // UPDATES, replay_capacity=given.capacity, replay_start=2_000, epsilon_steps=10,
    )  # fmt: skip
    threads = max(1, cores() - 2)
    figures: dict[str, Any] = {**named(device), "games": GAMES, "updates_a_round": UPDATES}
    figures["emulators"] = {
        str(each): emulators(config, each, given.times) for each in (threads // 2 or 1, threads)
    }
    print("emulators", figures["emulators"], flush=True)
    for alpha in (0.5, 0.0):
        for batch in given.batches:
            name = f"batch {batch}, {'priorities' if alpha else 'uniform'}"
            chosen = dataclasses.replace(config, batch_size=batch, priority_exponent=alpha)
            figures[name] = parts(chosen, given.times, profile=given.profile)
            print(name, figures[name], flush=True)
    finish("teacher_device", figures)


if __name__ == "__main__":
    main()
