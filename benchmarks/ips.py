"""FIXAR's IPS, batch times whole steps a second: environment, action and update of DDPG 400-300 on HalfCheetah.

    python -m benchmarks.ips [--seconds 2]

A step is what ``teach`` does for one: it acts with noise, steps the simulator, keeps the transition, draws a batch and
updates. ``fixar`` is measured after its quantisation delay, as the paper's platform was. Beside them stand Yang 2021's
figures; that of its CPU and GPU is derived, from 25,293.3 and "2.7 times". Writes ``benchmarks/results/ips.json``.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from typing import Any

from benchmarks.measurement import finish, stand_in
from spikestill.common.processor import cores, keep_freed_memory
from spikestill.configs.control import ControlConfig
from spikestill.configs.environment import EnvironmentConfig
from spikestill.teacher.control.blas import one_thread
from spikestill.teacher.control.lanes import OtherThread, in_turn, quick_turns
from spikestill.teacher.control.teach import Training

BATCHES = (64, 128, 256, 512)
PRECISIONS = ("fp32", "fixed32", "fixar")
PAPER = {
    "platform_ips": 25_293.3, "cpu_and_gpu_ips_derived": round(25_293.3 / 2.7, 1), "accelerator_alone_ips": 53_826.8,
}  # fmt: skip
SEED_STEPS, FIRST = 600, 20
"""Steps before the first update, and steps with updates before the clock runs: kernels compile, fixar quantises."""


def config_of(precision: str, batch: int) -> ControlConfig:
    """Return the training that is measured."""
    return ControlConfig(
        environment=EnvironmentConfig(game="half_cheetah"), algorithm="ddpg", precision=precision, hidden=(400, 300),
        batch_size=batch, seed_steps=SEED_STEPS, quantisation_delay=FIRST // 2,
    )  # fmt: skip


def steps_per_s(config: ControlConfig, seconds: float) -> float:
    """Return whole steps a second of one agent on all cores, the best of three stretches."""
    other = OtherThread() if cores() > 1 else None
    with contextlib.closing(Training(config, 0, other or in_turn)) as training:
        training.advance(SEED_STEPS + FIRST)
        best = 0.0
        for _ in range(3):
            began, first = time.perf_counter(), training.step
            while time.perf_counter() - began < seconds / 3:
                training.advance(training.step + 5)
            best = max(best, (training.step - first) / (time.perf_counter() - began))
    if other is not None:
        other.close()
    return best


def acting_steps_per_s(precision: str, seconds: float) -> float:
    """Return steps a second without updates: the agent acts, the simulator steps."""
    with contextlib.closing(Training(config_of(precision, 64), 0)) as training:
        training.updates = 1 << 60  # none is due
        training.advance(SEED_STEPS + FIRST)
        began, first = time.perf_counter(), training.step
        while time.perf_counter() - began < seconds:
            training.advance(training.step + 50)
        return (training.step - first) / (time.perf_counter() - began)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        description=f"benchmarks.ips: {__doc__}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--name", default="ips", help="of the result's file")
    given = parser.parse_args()
    seconds = given.seconds
    keep_freed_memory()
    rows = []
    with one_thread(), quick_turns():
        acting = {name: round(acting_steps_per_s(name, seconds / 2), 1) for name in PRECISIONS}
        for batch in BATCHES:
            row: dict[str, Any] = {"batch": batch}
            for name in PRECISIONS:
                found = steps_per_s(config_of(name, batch), seconds)
                row |= {f"{name}_steps_per_s": round(found, 1), f"{name}_ips": round(batch * found)}
            rows.append(row)
    finish(
        given.name,
        {
            "stand_in": stand_in(),
            "steps": rows,
            "acting_alone_steps_per_s": acting,
            "paper": PAPER,
            "threads": cores(),
        },
    )


if __name__ == "__main__":
    main()
