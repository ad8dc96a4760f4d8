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
WITHOUT_AMX = (*WITHOUT_BF16, "AVX512_CORE_BF16", "AVX512_CORE_FP16", "AVX10_1_512")
"""And then has no AMX."""


def native_bf16() -> bool:
    """Return True where the CPU multiplies bfloat16 natively (AVX-512 BF16 or AMX), and oneDNN may let it."""
    return _allowed(WITHOUT_BF16) and _has("avx512_bf16", "amx_bf16")


def fast_bf16() -> bool:
    """Return True where the CPU multiplies bfloat16 faster than fp32: by AMX, or by AVX-512 BF16 on an AMD.

    On an Intel Xeon whose AMX is hidden from its virtual machine products take twice as long as in fp32, 158 GFLOP/s
    beside 302, and a student's training 15 % longer (docs/benchmarks.md).
    """
    return (_allowed(WITHOUT_AMX) and _has("amx_bf16")) or fast_pairs()


def fast_pairs() -> bool:
    """Return True where AVX-512 BF16, pairs of bf16 a lane, multiplies faster than fp32 instructions do: on an AMD."""
    return native_bf16() and _has("AuthenticAMD")


def _allowed(without: tuple[str, ...]) -> bool:
    return os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() not in without


def _has(*words: str) -> bool:
    """Return True where one of these is among what the kernel says of the processor."""
    try:
        told = set(Path("/proc/cpuinfo").read_text(encoding="ascii", errors="ignore").split())
    except OSError:
        return False
    return not told.isdisjoint(words)


def cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory instead of giving it back to the kernel after every large tensor.

    By default each tensor over 128 KiB is mapped and unmapped anew, and its pages fault again: in a
    virtual machine that took 20 ms of a 50 ms update. The threshold can be raised to 32 MiB at most, which tensors of
    the larger students pass, so nothing is mapped by itself. Elsewhere than on glibc this does nothing.
    """
    import ctypes

    m_trim_threshold, m_mmap_max, m_arena_max = -1, -4, -8
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(m_mmap_max, 0)
    mallopt(m_trim_threshold, -1)
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
