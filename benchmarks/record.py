"""``record`` frames/s beside the bare vector environment, in one run.

    python -m benchmarks.record --teacher runs/pong/teacher.safetensors [--frames 16384] [--repeats 5]

Medians over the repeats, each of which measures in turn (a) the bare vector
environment stepped with random actions, all cores; (b) the same and the teacher's Q-values, one after the
other; (c) ``record``, which also packs and writes; (d) stacks/s of the reader from memory and from the file.
CPU seconds stand beside wall-clock ones, for a machine that does something else at the same time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.measurement import finish
from spikestill.configs.record import RecordConfig
from spikestill.dataset.reader import BufferReader
from spikestill.dataset.recorder import run
from spikestill.teacher.atari.environment import VectorGames
from spikestill.teacher.policy import Teacher, load_teacher

BATCH = 128


def play(config: RecordConfig, policy: Teacher | None) -> Callable[[], int]:
    """Return a function that plays ``config.frames`` steps, with or without the teacher, and counts them."""

    def work() -> int:
        envs = VectorGames(config.environment, config.num_envs)
        rng = np.random.default_rng(0)
        observation, _ = envs.reset(0)
        rows = config.frames // config.num_envs
        for _ in range(rows):
            action = rng.integers(0, envs.actions, config.num_envs)
            if policy is not None:
                greedy = policy.q_values(observation).argmax(axis=1)
                action = np.where(rng.random(config.num_envs) < config.epsilon, action, greedy)
            observation = envs.step(action)[0]
        envs.close()
        return rows * config.num_envs

    return work


def sampling(path: Path, memory: int | None, batches: int) -> Callable[[], int]:
    """Return a function that draws batches and counts their stacks."""
    reader = BufferReader(path, memory)
    rng = np.random.default_rng(0)

    def work() -> int:
        for _ in range(batches):
            reader.sample(rng, BATCH)
        return batches * BATCH

    return work


def measure(work: Callable[[], int]) -> dict[str, float]:
    """Return frames a second of wall clock, and of CPU time of all threads."""
    wall, cpu = time.perf_counter(), time.process_time()
    count = work()
    return {"per_s": count / (time.perf_counter() - wall), "per_cpu_s": count / (time.process_time() - cpu)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--teacher", type=Path, required=True)
    parser.add_argument("--frames", type=int, default=16_384)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    policy = load_teacher(options.teacher)
    config = RecordConfig(teacher=options.teacher, frames=options.frames)
    found: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "buffer.h5"

        def recording() -> int:
            path.unlink(missing_ok=True)
            return int(run(config, Path(folder)).summary["frames"])

        for _ in range(options.repeats):
            for name, work in (
                ("bare_env", play(config, None)),
                ("env_then_teacher", play(config, policy)),
                ("record", recording),
            ):
                found.setdefault(name, []).append(measure(work))
            found.setdefault("read_memory", []).append(measure(sampling(path, None, 40)))
            found.setdefault("read_file", []).append(measure(sampling(path, 0, 4)))
        size = path.stat().st_size
    medians = {
        name: {key: round(statistics.median(run[key] for run in runs), 1) for key in runs[0]}
        for name, runs in found.items()
    }
    share = medians["record"]["per_s"] / medians["bare_env"]["per_s"]
    finish(
        "record",
        {
            "medians": medians,
            "record_share_of_bare_env": round(share, 3),
            "bytes_per_frame": round(size / options.frames, 1),
            "load": os.getloadavg()[0],
            "runs": found,
        },
    )


if __name__ == "__main__":
    main()
