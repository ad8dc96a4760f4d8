"""Training steps on FIXAR's accelerator and on this processor: figures 8, 9 and 10 of Yang 2021.

    python -m benchmarks.accelerator_time [--seconds 1]

The accelerator's time is its cycles at 164 MHz (``schedule.py``, which the SystemVerilog keeps to); environment, host
and processor are timed here. *Host* is what it does for an update: real numbers to integers, the critic's inputs side
by side, their 16-bit format. A bus's time is in nothing: there is no board. Writes
``benchmarks/results/accelerator_time.json``.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from benchmarks.fixed_point import BATCHES, batch_of, integers, plain, rate
from benchmarks.measurement import finish
from spikestill.common.environment import environment
from spikestill.common.precision import fixed_fast
from spikestill.common.precision.fixed import Affine
from spikestill.common.processor import cores
from spikestill.configs.environment import EnvironmentConfig
from spikestill.configs.fixed_point import FixedPointConfig
from spikestill.deploy.accelerator import costs, schedule
from spikestill.teacher.control import fixed_ddpg

TASKS = {"half_cheetah": (17, 6), "hopper": (11, 3), "swimmer": (8, 2)}
"""Task to the numbers of an observation and of an action."""
WORD_BYTES = 4


def environment_ms(task: str, seconds: float) -> float:
    """Return milliseconds of one step of ``task``, random actions, resets included."""
    envs = environment(task).make(EnvironmentConfig(game=task), 1, 0)
    random = np.random.default_rng(0)
    envs.reset(np.zeros(1, np.int64))

    def step() -> None:
        envs.send(random.uniform(-1, 1, (1, TASKS[task][1])))
        envs.receive()

    found = 1e3 / rate(step, seconds)
    envs.close()
    return found


def host_ms(size: int, seconds: float) -> float:
    """Return milliseconds of the host's part of a HalfCheetah update in half precision."""
    word = FixedPointConfig().formats.word(FixedPointConfig().formats.activation)
    batch, affine = batch_of(size), Affine.of(-(1 << 22), 1 << 22)

    def work() -> None:
        obs, action, following = (
            word.quantise(x) for x in (batch.obs_BS, batch.action_BA, batch.next_obs_BS)
        )
        word.quantise(batch.reward_B)
        for first in (obs, following, obs):
            fixed_fast.quantise(first, affine)
            fixed_fast.quantise(np.concatenate([first, action], 1), affine)

    return 1e3 / rate(work, seconds)


def action_ms(seconds: float) -> float:
    """Return milliseconds of an action with noise in fixed point on this processor, HalfCheetah's."""
    state = fixed_ddpg.initial_state(FixedPointConfig(), 17, 6, seed=0)
    obs_1S = np.zeros((1, 17), np.float32)
    return 1e3 / rate(lambda: fixed_ddpg.act(state, obs_1S, True), seconds)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    seconds = parser.parse_args().seconds
    environments = {task: environment_ms(task, seconds) for task in TASKS}
    accelerator: dict[str, Any] = {}
    for task, (observation, numbers) in TASKS.items():
        state = fixed_ddpg.initial_state(FixedPointConfig(), observation, numbers, seed=0)
        accelerator[task] = costs.estimate(state)["training"]
    exploring = schedule.pass_forward(schedule.PAPER, (17, 400, 300, 6), 1, half=False)
    exploring.append(schedule.by_word(schedule.PAPER, "noise", 6, 1))
    action = {
        "accelerator": sum(job.cycles for job in exploring) / schedule.PAPER.clock_hz * 1e3,
        "processor": action_ms(seconds),
    }
    rows = []
    for index, size in enumerate(BATCHES):
        fixar, fp32, host = integers("fixar", size, seconds), plain(size, seconds), host_ms(size, seconds)
        row: dict[str, Any] = {
            "batch": size, "environment_ms": environments["half_cheetah"], "host_ms": host,
            "bytes_to_the_accelerator": size * WORD_BYTES * (2 * 17 + 6 + 2),
            "processor_fixar_ms": 1e3 / fixar, "processor_fp32_ms": 1e3 / fp32,
        }  # fmt: skip
        for precision, each in accelerator["half_cheetah"].items():
            row[f"accelerator_{precision}_ms"] = each[index]["cycles"] / schedule.PAPER.clock_hz * 1e3
        for name in ("accelerator_full", "accelerator_half", "processor_fixar", "processor_fp32"):
            machine = name.split("_")[0]
            spent = row[f"{name}_ms"] + row["environment_ms"] + action[machine]
            spent += host if machine == "accelerator" else 0
            row[f"{name}_ips_of_the_platform"] = round(size / spent * 1e3)
        rows.append(row)
    finish("accelerator_time", {
        "threads": cores(), "environment_ms": environments, "action_ms": action, "half_cheetah": rows,
        "accelerator": accelerator,
    })  # fmt: skip


if __name__ == "__main__":
    main()
