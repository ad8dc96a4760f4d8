"""The base install: what works without PyTorch, SciPy, PyAV, Lava and the other extras."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spikestill.common.extras import EXTRAS
from spikestill.common.zoo import zoo_path

ABSENT = sorted({module for extra in EXTRAS.values() for module in extra.packages})
WITHOUT_EXTRAS = f"""
import importlib.machinery, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

import importlib.util
whole = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in {ABSENT!r} else whole(name, package)
sys.meta_path.insert(0, Absent())
from spikestill.cli import main
sys.exit(main(sys.argv[1:]))
"""


def spikestill(*words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS, *words],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert run.returncode == status, run.stderr
    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("base")
    shutil.copy(zoo_path("pong", "student-1chip.safetensors"), made / "student.safetensors")
    shutil.copy(zoo_path("pong", "core_map-1chip.h5"), made / "core_map.h5")
    return made


def test_it_plays(folder: Path) -> None:
    words = ["play", "pong", "--seconds", "1", "--view", "none", "--json", "--run_dir", str(folder / "play")]
    assert json.loads(spikestill(*words).stdout)["decisions"] > 5


def test_verify_compares_with_the_numpy_loop(folder: Path) -> None:
    found = json.loads(spikestill("verify", "--run_dir", str(folder), "--frames", "6", "--json").stdout)
    assert found["ok"] is True
    assert found["rungs"][0] == {**found["rungs"][0], "name": "naive", "frames": 6}
    rungs = {rung["name"]: rung for rung in found["rungs"][1:]}
    assert (rungs["packed"]["frames"], rungs["cores"]["frames"]) == (6, 6)
    assert "PyTorch is not installed" in rungs["naive"]["skipped"]


def test_it_estimates_exports_and_inspects(folder: Path) -> None:
    estimate = spikestill("estimate", "--run_dir", str(folder), "--frames", "3", "--json").stdout
    assert json.loads(estimate)["frames"] == 3
    for form in ("nir", "netx", "c"):
        spikestill("export", form, "--run_dir", str(folder), "--frames", "2")
    spikestill("inspect", str(folder / "core_map.h5"))


def test_evaluate_leaves_the_teacher_out_and_says_so(folder: Path) -> None:
    words = [
        "evaluate",
        "pong",
        "--agent",
        "random",
        "--episodes",
        "1",
        "--json",
        "--run_dir",
        str(folder / "e"),
    ]
    run = spikestill(*words)
    assert EXTRAS["train"].install in run.stderr
    assert "teacher" not in json.loads(run.stdout)


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["teach", "pong"], "train"),
        (["play", "pong", "--agent", "teacher"], "train"),
        (["play", "pong", "--seconds", "1", "--record", "game.mp4"], "video"),
        (["play", "pong", "--agent", "lava"], "lava"),
        (["play", "pong", "--seconds", "1", "--serve"], "serve"),
        (["play", "cheetah_run", "--agent", "random"], "control"),
        (["sweep", "table2"], "sweep"),
    ],
)
def test_what_an_absent_extra_costs_is_said_with_its_one_command(
    words: list[str], extra: str, folder: Path
) -> None:
    run = spikestill(*words, "--run_dir", str(folder / "x"), status=1)
    assert run.stderr.count("\n") <= 2
    assert EXTRAS[extra].install in run.stderr
