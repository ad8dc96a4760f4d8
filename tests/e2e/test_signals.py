"""Stages without a checkpoint, interrupted or killed: they leave no artefact, and the same command makes it whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from spikestill import cli
from spikestill.common.provenance import Provenance
from spikestill.configs.hardware import hardware
from spikestill.deploy.core_map import load as load_core_map
from spikestill.deploy.mapping import map_net
from spikestill.student.architectures import LayerSpec
from spikestill.student.integer_net import save
from tests.nets import random_net

NET = random_net((LayerSpec(8, 8, 8, 0, 1), LayerSpec(16, 4, 3, 1, 2), LayerSpec(24, 1, 1, 0, 2)), seed=3)
COMMANDS = {
    "map": ["map"],
    "verify": [
        "verify",
        "--frames",
        "40",
        "--naive_frames",
        "2",
        "--lava_frames",
        "0",
        "--stock_frames",
        "0",
    ],
    "evaluate": ["evaluate", "pong", "--agent", "student", "--episodes", "1", "--compare", "false"],
}
ARTEFACTS = {"map": "core_map.h5", "verify": "verify.json", "evaluate": "evaluate.json"}


def started(words: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """Return the command's process, in the midst of its stage: its options are written down, its artefact is not."""
    with open(folder / "stderr", "wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "spikestill", *words], stdout=subprocess.DEVNULL, stderr=stderr
        )
    deadline = time.monotonic() + 120
    while not (folder / f"{words[0]}.config.yaml").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("verb", COMMANDS)
def test_the_same_command_makes_it_whole(
    verb: str, number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(NET, tmp_path / "student.safetensors", Provenance.of({}, 0))
    words = [*COMMANDS[verb], "--run_dir", str(tmp_path)]
    process = started(words, tmp_path)
    os.kill(process.pid, number)
    # Where the interrupt meets an extension that is being imported, CPython ends by the signal though it was caught.
    # A shell sees 130 both ways.
    status, told = process.wait(60), (tmp_path / "stderr").read_text()
    assert status in ((-number,) if number == signal.SIGKILL else (-number, cli.INTERRUPTED)), told
    assert number == signal.SIGKILL or "Traceback" not in told
    assert not (tmp_path / ARTEFACTS[verb]).exists()
    assert (tmp_path / f"{verb}.config.yaml").exists() == (number == signal.SIGKILL)
    assert cli.main([*words, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["finished"] is True
    if verb == "map":
        found, wanted = load_core_map(tmp_path / "core_map.h5"), map_net(NET, hardware("truenorth"))
        np.testing.assert_array_equal(found.crossbar_XNW, wanted.crossbar_XNW)
        np.testing.assert_array_equal(found.dest_core_CN, wanted.dest_core_CN)
    else:
        document = json.loads((tmp_path / ARTEFACTS[verb]).read_text())
        assert document["schema"] == f"spikestill.{verb}"
        assert document["version"] == 1
