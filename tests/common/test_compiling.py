"""Compiling kernels: said once, and possible where nothing can be kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from numba.core import event

from spikestill.common.compiling import Announcer, njit
from spikestill.common.precision import fixed_fast
from spikestill.student import pair_kernel
from spikestill.teacher.control import program_kernel


def kernel(name: str, cache: bool = False) -> Any:
    """Return a compiled function of ours that lies in no file, so that numba finds no place to keep it."""
    names: dict[str, Any] = {"__name__": name}
    exec("def twice(x):\n    return 2 * x", names)
    return njit(cache=cache)(names["twice"])


def test_the_first_kernel_of_ours_is_announced_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    with event.install_listener("numba:compile", Announcer()):
        kernel("somebody.else")(1)
        assert capsys.readouterr().err == ""
        kernel("spikestill.first")(1)
        assert capsys.readouterr().err.startswith("spikestill: compiles kernels for this processor")
        kernel("spikestill.second")(1)
        assert capsys.readouterr().err == ""


def test_a_kernel_that_cannot_be_kept_is_compiled_in_every_run() -> None:
    assert kernel("spikestill.nowhere", cache=True)(21) == 42


INNER = """
from spikestill.common.compiling import njit

@njit(cache=True)
def inner(x):
    return x + {by}
"""
OUTER = """
import spikestill.common.compiling as compiling
compiling.OURS = "kept_"
import kept_inner

@compiling.njit(cache=True)
def outer(x):
    return kept_inner.inner(x)
print(outer(3), sum(outer.stats.cache_hits.values()))
"""


def test_a_kernel_is_kept_until_what_it_calls_is_edited(tmp_path: Path) -> None:
    (tmp_path / "kept_outer.py").write_text(OUTER)

    def found() -> list[int]:
        done = subprocess.run(
            [sys.executable, "-m", "kept_outer"], cwd=tmp_path, capture_output=True, text=True, check=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        return [int(word) for word in done.stdout.split()]

    (tmp_path / "kept_inner.py").write_text(INNER.format(by=10))
    assert [found(), found()] == [[13, 0], [13, 1]]
    (tmp_path / "kept_inner.py").write_text(INNER.format(by=2000))
    assert [found(), found()] == [[2003, 0], [2003, 1]]


@pytest.mark.parametrize("module", [program_kernel, fixed_fast, pair_kernel])
def test_every_kernel_is_kept_where_a_folder_can_be_written(module: ModuleType) -> None:
    kernels = [each for each in vars(module).values() if hasattr(each, "py_func")]
    assert len(kernels) > 3
    assert all(kernel.stats.cache_path for kernel in kernels)
