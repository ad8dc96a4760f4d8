"""What this machine computes natively."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from spikestill.common.errors import UserError

if TYPE_CHECKING:
    import torch


WITHOUT_BF16 = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_VNNI")
"""What oneDNN, which computes PyTorch's products, may be held to by ONEDNN_MAX_CPU_ISA and then has no bf16."""


def native_bf16() -> bool:
    """Return True where the CPU multiplies bfloat16 natively (AVX-512 BF16 or AMX), and oneDNN may let it."""
    if os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() in WITHOUT_BF16:
        return False
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="ignore")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory instead of giving it back to the kernel after every large tensor.

    By default each tensor over 128 KiB is mapped and unmapped anew, and its pages fault again: in a
    virtual machine that took 20 ms of a 50 ms update. Elsewhere than on glibc this does nothing.
    """
    import ctypes

    m_trim_threshold, m_mmap_threshold, m_arena_max = -1, -3, -8
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(m_mmap_threshold, 32 << 20)
    mallopt(m_trim_threshold, 2**31 - 1)
    mallopt(m_arena_max, 1)


def yield_to_others() -> None:
    """Lower the priority of the calling thread and of those it will start to nice 5, where the system has such a thing.

    For work that is only needed later, beside threads that everything waits for. Not lower than 5: beside a second
    program such a thread would hardly run.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(5, os.getpriority(os.PRIO_PROCESS, thread)))


def compute_device(name: str) -> torch.device:
    """Return the device that ``auto``, ``cpu`` or ``cuda`` means here.

    Raises:
        UserError: CUDA was asked for and there is none.
    """
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda: PyTorch sees no CUDA device on this machine", "give --device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")
