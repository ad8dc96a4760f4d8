"""What every benchmark writes beside its figures: machine, commit, versions, command."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spikestill.common.processor import cores, native_bf16
from spikestill.common.provenance import git_commit, processor, versions

if TYPE_CHECKING:
    import torch

TRACKED = Path(__file__).parent / "results"
"""The results that the repository keeps and the documentation cites."""
RESULTS = TRACKED if os.environ.get("SPIKESTILL_TRACKED_RESULTS") else Path("runs") / "benchmarks"
"""Where this run writes: beside the repository's results, unless it is asked to replace those."""

NATURE_PRODUCTS = (20 * 20 * 256 * 32, 9 * 9 * 512 * 64, 7 * 7 * 576 * 64, 3_136 * 512, 512 * 6)
"""Multiply-adds of the teacher's layers, one stack of frames, six actions; hints take all but the last."""
STAND_IN = (
    "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "NUMBA_CPU_NAME", "OPENBLAS_CORETYPE",
    "NPY_DISABLE_CPU_FEATURES",
)  # fmt: skip


def stand_in() -> dict[str, str]:
    """Return the variables with which this processor stands in for a lesser one; empty: it is itself."""
    return {name: os.environ[name] for name in STAND_IN if name in os.environ}


def made() -> dict[str, str]:
    """Return the commit, the command and the date of a run: each part of a result that takes several has its own."""
    return {
        "commit": git_commit(),
        "command": " ".join(["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def named(device: torch.device) -> dict[str, str]:
    """Return what a result says of the device that computed: its type and, of a GPU, its name."""
    if device.type == "cpu":
        return {"device": "cpu"}
    import torch

    return {"device": device.type, "gpu": torch.cuda.get_device_name(device)}


def record(figures: dict[str, Any]) -> dict[str, Any]:
    """Return ``figures`` with the machine, the commit, the versions and the command that made them."""
    return {
        "figures": figures,
        "machine": {
            "processor": processor(),
            "cores": cores(),
            "bf16": native_bf16(),
            "load": round(os.getloadavg()[0], 2),
            "system": platform.system(),
        },
        "versions": versions(),
        **made(),
    }


def finish(name: str, figures: dict[str, Any]) -> None:
    """Print the record and write it to ``runs/benchmarks/NAME.json``, or to the tracked results if
    SPIKESTILL_TRACKED_RESULTS is set."""
    text = json.dumps(record(figures), indent=2)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    print(text)


def in_a_process(name: str, module: str, *arguments: str) -> dict[str, Any]:
    """Return what a benchmark prints last, as JSON, measured in a new process.

    Args:
        name: of what is measured, for the error.
        module: of ours, as ``python -m`` takes it.
        arguments: its own.
    """
    command = [sys.executable, "-m", module, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(f"{name} failed:\n{run.stderr}")
    figures: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return figures


def median_rate(work: Callable[[], int], seconds: float, repeats: int) -> float:
    """Return the median over ``repeats`` of units per second, ``work`` done again and again for ``seconds``."""
    rates = []
    for _ in range(repeats):
        began, done = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            done += work()
        rates.append(done / (time.perf_counter() - began))
    return statistics.median(rates)
