"""What this machine can do, and the command that installs what is missing."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spikestill.common.extras import EXTRAS, installed
from spikestill.common.processor import cores
from spikestill.common.stage import StageResult
from spikestill.configs.pipeline import DoctorConfig

GIB = 1 << 30
WANTED_DISK_GIB, WANTED_RAM_GIB = 4.0, 4.0
NEEDED = ("numpy", "numba", "h5py", "ale-py", "gymnasium", "safetensors", "nir")
OK, SLOWER, OPTIONAL, MISSING = "ok", "without it: slower", "optional", "missing"


def run(config: DoctorConfig, run_dir: Path, *, resume: bool = False) -> StageResult:
    """Return one row for each thing that is looked at: ``what``, ``found``, ``verdict``, ``remedy``.

    ``ready`` is True where nothing is missing; what an extra gives is optional.
    """
    checks = [
        dict(zip(("what", "found", "verdict", "remedy"), row, strict=True))
        for row in (*_machine(), *_packages(), *_accelerators())
    ]
    missing = [check["what"] for check in checks if check["verdict"] == MISSING]
    return StageResult(Path(sys.executable), {"checks": checks, "missing": missing, "ready": not missing})


def _machine() -> Iterator[tuple[str, Any, str, str]]:
    fits = (3, 10) <= sys.version_info[:2] <= (3, 13)
    yield (
        "Python",
        platform.python_version(),
        OK if fits else MISSING,
        "" if fits else "install Python 3.10-3.13",
    )
    yield "cores", f"{cores()}", OK, ""
    flags = cpu_flags()
    for flag, use in (("avx512f", "wide vectors"), ("avx512_vpopcntdq", "popcount"), ("avx512_bf16", "bf16")):
        yield f"{flag} ({use})", "yes" if flag in flags else "no", OK if flag in flags else SLOWER, ""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    enough = memory >= WANTED_RAM_GIB
    yield (
        "memory",
        f"{memory:.1f} GiB",
        OK if enough else MISSING,
        "" if enough else f"{WANTED_RAM_GIB:g} GiB",
    )
    free = shutil.disk_usage(".").free / GIB
    enough = free >= WANTED_DISK_GIB
    remedy = "" if enough else f"free {WANTED_DISK_GIB:g} GiB, or work in another folder"
    yield "disk here", f"{free:.1f} GiB free", OK if enough else MISSING, remedy


def cpu_flags() -> set[str]:
    """Return the processor's feature flags, empty where the system does not list them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    return set(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), []))


def _packages() -> Iterator[tuple[str, Any, str, str]]:
    for name in NEEDED:
        found = installed(name)
        yield name, found or "no", OK if found else MISSING, "" if found else f"pip install {name}"
    for name, extra in EXTRAS.items():
        absent = extra.absent()
        if absent:
            yield f"extra [{name}]", f"no {', '.join(absent)}", OPTIONAL, f"to {extra.gives}: {extra.install}"
        else:
            found = ", ".join(f"{package} {installed(package)}" for package in extra.packages.values())
            yield f"extra [{name}]", found, OK, ""


def _accelerators() -> Iterator[tuple[str, Any, str, str]]:
    if importlib.util.find_spec("torch") is None:
        return
    import torch

    if torch.cuda.is_available():
        yield "CUDA", torch.cuda.get_device_name(0), OK, ""
    elif torch.version.cuda:
        yield "CUDA", "no device", SLOWER, ""
    else:
        yield "CUDA", f"torch {torch.__version__} has none", SLOWER, ""
