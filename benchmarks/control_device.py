"""Milliseconds and memory of SAC's update on a GPU by width, batch and format: Tables 10 and 11 of Björck 2021.

    python -m benchmarks.control_device

An update is the one of ``teach cheetah_run --algorithm sac --device cuda``, the copy of its transitions to the device
included; fp16 has all six methods. 500 updates warm up, 500 are timed by CUDA events, as there; memory is PyTorch's
peak in millions of bytes, cuBLAS's workspace (some 32 on Hopper, 8 elsewhere) included. The paper's are a V100's.
``--device cpu`` measures the host's own operations, where fp16 is emulated: milliseconds alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import numpy as np
import torch

from benchmarks.control import D, S, batch_of
from benchmarks.measurement import finish, named
from spikestill.common.errors import UserError
from spikestill.common.processor import compute_device, cores, keep_freed_memory
from spikestill.configs.control import ControlConfig
from spikestill.configs.environment import EnvironmentConfig
from spikestill.teacher.control.blas import one_thread
from spikestill.teacher.control.lanes import OtherThread, in_turn
from spikestill.teacher.control.learner import FloatLearner

PAPER = {
    "1024/1024": {"fp32": (16.63, 128), "fp16": (17.38, 77)},
    "1024/4096": {"fp32": (17.94, 320), "fp16": (16.99, 185)},
    "4096/1024": {"fp32": (58.22, 1265), "fp16": (20.58, 826)},
    "4096/4096": {"fp32": (202.38, 1973), "fp16": (45.64, 1163)},
}
"""Width and batch to milliseconds and megabytes by format (V100)."""


def measured(width: int, batch_size: int, precision: str, device: str, updates: int) -> dict[str, float]:
    """Return milliseconds of an update and, on a GPU, megabytes at the peak, after as many updates to warm up."""
    on_gpu = device == "cuda"
    config = ControlConfig(
        environment=EnvironmentConfig(game="cheetah_run"), precision=precision, hidden=(width, width),
        batch_size=batch_size, device="cuda" if on_gpu else "cpu",
    )  # fmt: skip
    learner = FloatLearner(config, S, D, 0, in_turn if on_gpu or cores() == 1 else OtherThread())
    rng = np.random.default_rng(0)
    batch = batch_of(rng, batch_size)

    def several() -> float:
        if not on_gpu:
            began = time.perf_counter()
            for _ in range(updates):
                learner.update(batch, rng)
            return 1e3 * (time.perf_counter() - began)
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(updates):
            learner.update(batch, rng)
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last)

    # All cores made the learner, for orthogonal weights of a wide layer take a while; on the host it computes by one
    # thread for each product.
    with one_thread():
        several()
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        found = {"ms": round(several() / updates, 3)}
    if on_gpu:
        found["mb"] = round(torch.cuda.max_memory_allocated() / 1e6, 1)
    return found


def main() -> None:
    """Measure and write ``benchmarks/results/control_device.json``."""
    parser = argparse.ArgumentParser(
        description=f"benchmarks.control_device: {__doc__}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--updates", type=int, default=500, help="to warm up, and again to time")
    parser.add_argument("--cells", nargs="+", default=list(PAPER), metavar="WIDTH/BATCH")
    parser.add_argument("--precisions", nargs="+", default=["fp32", "fp16", "bf16"])
    given = parser.parse_args()
    keep_freed_memory()
    try:
        figures: dict[str, Any] = {**named(compute_device(given.device))}
    except UserError as error:
        sys.exit(str(error))
    for cell in given.cells:
        width, batch_size = map(int, cell.split("/"))
        figures[cell] = {
            name: measured(width, batch_size, name, given.device, given.updates) for name in given.precisions
        }
        for name, (ms, mb) in PAPER.get(cell, {}).items():
            figures[cell][f"{name}, V100, published"] = {"ms": ms, "mb": mb}
        print(cell, figures[cell], flush=True)
    finish("control_device", figures)


if __name__ == "__main__":
    main()
