"""Compiling kernels: said once, and possible where nothing can be kept."""

from __future__ import annotations

from typing import Any

import pytest
from numba.core import event

from spikestill.common.compiling import Announcer, njit


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
