"""The names that a Python user works with, imported when they are used."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

PACKAGES = ("common", "configs", "teacher", "dataset", "student", "deploy", "runtime")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_exported_name_is_there_and_documented(package: str) -> None:
    module = importlib.import_module(f"spikestill.{package}")
    assert module.__all__
    for name in module.__all__:
        assert getattr(module, name).__doc__, name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'; it exports "):
        module.nothing  # noqa: B018


def test_importing_every_package_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        + "".join(f"import spikestill.{package}\n" for package in PACKAGES)
        + "print([name for name in ('torch', 'numpy', 'numba', 'h5py', 'ale_py') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_an_unknown_name_of_the_whole_is_refused() -> None:
    import spikestill

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        spikestill.nothing  # noqa: B018
