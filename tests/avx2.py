"""A processor with AVX2 only, for which another x86 processor stands in."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from spikestill.common.vectors import vector_lanes

ENVIRONMENT = {
    "NUMBA_CPU_NAME": "znver3",
    "NUMBA_CPU_FEATURES": "+avx,+avx2,+bmi,+bmi2,+cmov,+cx16,+cx8,+f16c,+fma,+fxsr,+lzcnt,+mmx,+movbe,+popcnt,"
    "+sse,+sse2,+sse3,+sse4.1,+sse4.2,+ssse3,+xsave",
    "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}  # fmt: skip


def pass_once_more(file: str, names: str) -> None:
    """Run the tests of ``file`` that ``names`` selects on such a processor; skip where this one is it."""
    if vector_lanes() == 8:
        pytest.skip("this processor has AVX2 only, and has just done it")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", names, file],
        env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
