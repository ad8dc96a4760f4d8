"""Every number format of ``teach --precision`` from the same start: loss, time, memory, gradients that underflow.

    python -m benchmarks.precision [--updates 2000]

The same replay (20,000 steps of Pong, played by the zoo's teacher with epsilon 0.3), the same first weights, the same
batches of 32, drawing them included; target copied every 250 updates. Each format runs in a process of its own, so that
its peak memory is its own. A gradient *underflows* where fp32 gives a number other than 0 at the same weights and
batch, and the format gives 0. Formats that the machine does not multiply in are emulated where they can be: their time
says nothing, their loss does; those that are refused are listed with the reason. Writes
``benchmarks/results/precision.json``, on a GPU ``precision-cuda.json``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measurement import finish, in_a_process, named
from spikestill.common.errors import UserError
from spikestill.common.precision.formats import FORMATS, number_format
from spikestill.common.processor import compute_device, cores, keep_freed_memory
from spikestill.common.zoo import zoo_path
from spikestill.configs.environment import EnvironmentConfig
from spikestill.configs.teach import TeachConfig
from spikestill.teacher.atari import q_network
from spikestill.teacher.atari.actor import Actor
from spikestill.teacher.atari.device_learner import DeviceLearner
from spikestill.teacher.atari.device_replay import DeviceReplay
from spikestill.teacher.atari.host_learner import HostLearner
from spikestill.teacher.atari.learner import Learner
from spikestill.teacher.atari.q_network import Weights
from spikestill.teacher.atari.replay import Batch, Replay
from spikestill.teacher.checkpoint import read_teacher

STEPS, ENVS, BATCH = 20_000, 16, 32
TARGET_UPDATES = 250
RATE = 1e-4


def config_of(precision: str) -> TeachConfig:
    """Return the options that all formats share."""
    return TeachConfig(
        environment=EnvironmentConfig(game="pong"), precision=precision, num_envs=ENVS, update_period=ENVS,  # type: ignore[arg-type]
        batch_size=BATCH, n_step=3, priority_exponent=0.0, replay_capacity=STEPS, device="auto",
    )  # fmt: skip


def empty_replay() -> Replay:
    """Return the replay that all formats share, without what was played."""
    config = config_of("fp32")
    return Replay(config.replay_capacity, ENVS, config.n_step, config.discount, 0.0)


def played() -> Replay:
    """Return the replay that all formats learn from."""
    weights, *_ = read_teacher(zoo_path("pong", "teacher.safetensors"))
    actor = Actor(config_of("fp32"))
    replay = empty_replay()
    for _ in range(STEPS // ENVS):
        found = actor.act(weights, 0.0, 0.3)
        replay.append(found.frame, found.action, found.reward, found.done, found.valid, found.start)
    actor.close()
    return replay


def resident(field: str) -> int:
    """Return the process's memory in KiB: ``VmRSS`` now, ``VmHWM`` at its peak."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split(f"{field}:")[1].split()[0])


def learning(precision: str, replay: Replay) -> Learner:
    """Return the learner that ``teach`` would have in this format: on a GPU the captured one."""
    config = config_of(precision)
    device = compute_device(config.device)
    if device.type != "cuda":
        return HostLearner(config, 6, replay, cores())
    on_device = DeviceReplay(STEPS, ENVS, config.n_step, config.discount, 0.0, device)
    on_device.set_state(replay.state())
    return DeviceLearner(config, 6, on_device)


def gradients(precision: str, trained: Learner, replay: Replay, batch: Batch) -> Weights:
    """Return the batch's gradients in a format, at the weights, target and loss scale of ``trained``."""
    learner = HostLearner(config_of(precision), 6, replay, cores())
    learner.begin_with({name: weight.detach().clone() for name, weight in trained.master.items()})
    learner.pixel_offset, learner.scale.value = trained.pixel_offset, trained.scale.value
    learner.target = q_network.working_copy(
        trained.target, learner.format.body, learner.format.head, requires_grad=False
    )
    found, *_ = learner.gradients(batch)
    learner.close()
    return found


def underflow(trained: Learner, replay: Replay, batch: Batch) -> float:
    """Return the fraction of the fp32 gradient's non-zero entries that the learner's format loses."""
    # One after the other: a learner sets what its format needs for the whole process.
    wanted = gradients("fp32", trained, replay, batch)
    have = gradients(trained.format.name, trained, replay, batch)
    living = sum(int((part != 0).sum()) for part in wanted.values())
    lost = sum(int(((part != 0) & (have[name] == 0)).sum()) for name, part in wanted.items())
    return lost / living


def train(precision: str, updates: int, path: str) -> dict[str, Any]:
    """Train in one format on the replay at ``path``; return its figures."""
    torch.set_num_threads(1)
    replay = empty_replay()
    with np.load(path) as arrays:
        replay.set_state(dict(arrays))
    # The peak is of the training, not of the second copy that reading takes.
    keep_freed_memory()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    learner = learning(precision, replay)
    learner.center(90.0)
    rng = np.random.default_rng(0)
    base = resident("VmRSS")
    losses, skipped, seconds = [], 0, []
    for update in range(updates):
        began = time.perf_counter()
        [report] = learner.learn(rng, 1, 0.0, RATE)
        seconds.append(time.perf_counter() - began)
        losses.append(report.loss)
        skipped += report.skipped
        if (update + 1) % TARGET_UPDATES == 0:
            learner.refresh_target()
    peak = resident("VmHWM")
    if learner.device.type == "cuda":
        peak, base = torch.cuda.max_memory_allocated() // 1024, 0
    found = {
        "emulated": learner.format.emulated,
        "ms_an_update": round(1e3 * float(np.median(seconds)), 2),
        "peak_mib_of_training": round((peak - base) / 1024, 1),
        "skipped_updates": skipped,
        "loss_scale": learner.scale.value,
        "underflow": underflow(learner, replay, replay.sample(rng, 256, 0.0)),
        "loss_by_quarter": [round(float(np.mean(part)), 6) for part in np.array_split(losses, 4)],
    }
    learner.close()
    return found


def in_every_format(updates: int, path: str, device: torch.device) -> dict[str, Any]:
    """Return what each format, in a process of its own, learns from the replay at ``path``."""
    figures: dict[str, Any] = {}
    for name in FORMATS:
        try:
            number_format(name, device)
        except UserError as error:
            figures[name] = {"refused": error.what}
            continue
        arguments = ("--only", name, "--updates", str(updates), "--replay", path)
        figures[name] = in_a_process(name, "benchmarks.precision", *arguments)
        print(name, figures[name], flush=True)
    return figures


def main() -> None:
    """Run every format in turn and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--only", choices=sorted(FORMATS), help=argparse.SUPPRESS)
    parser.add_argument("--replay", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(train(options.only, options.updates, options.replay)))
        return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    figures: dict[str, Any] = {"updates": options.updates, "batch": BATCH, **named(device)}
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "replay.npz")
        torch.set_num_threads(1)
        np.savez(path, **played().state())  # type: ignore[arg-type]
        figures["formats"] = in_every_format(options.updates, path, device)
    finish("precision" if device.type == "cpu" else "precision-cuda", figures)


if __name__ == "__main__":
    main()
