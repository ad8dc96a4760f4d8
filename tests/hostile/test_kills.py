"""Kills and signals while a command is at work: what it leaves is whole, and the same command then does it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spikestill import cli
from tests.hostile import readers

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 300
FEW = ["--frames", "64", "--naive_frames", "16", "--lava_frames", "0", "--stock_frames", "0"]
COMMANDS = {
    "map": (["map", "--hardware", "ns1e"], "core_map.h5"),
    "verify": (["verify", *FEW], "verify.json"),
    "evaluate": (
        [
            "evaluate",
            "pong",
            "--agent",
            "student",
            "--episodes",
            "2",
            "--num_envs",
            "2",
            "--compare",
            "false",
        ],
        "evaluate.json",
    ),
    "play": (
        ["play", "pong", "--agent", "cores", "--seconds", "3", "--view", "none", "--record", "game.mp4"],
        "play.json",
    ),
    "run": (["run", "pong", "--config", "pipeline.yaml"], "pipeline.json"),
}
"""Verb to its words and what it makes."""


def struck(words: list[str], folder: Path, number: signal.Signals, after_s: float) -> int:
    """Run a command in a process of its own and signal it some time after it took the folder's lock; its status."""
    process = subprocess.Popen(
        [sys.executable, "-c",
         # Whoever runs the tests may ignore it, as nohup does.
         "import signal, sys; signal.signal(signal.SIGHUP, signal.SIG_DFL); "
         "signal.signal(signal.SIGINT, signal.default_int_handler); "
         "from spikestill.cli import main; sys.exit(main(sys.argv[1:]))", *words, "--run_dir", "."],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=(folder.parent / "told").open("w"),
    )  # fmt: skip
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while process.poll() is None and not list(folder.glob(".lock*")) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(after_s)
        process.send_signal(number)
        return process.wait(TIMEOUT_S)
    finally:
        process.kill()
        process.wait()


def check_whole(folder: Path, made: str) -> None:
    """Assert that what lies in the folder can be read."""
    path = folder / made
    if path.exists() and made.endswith(".json"):
        assert isinstance(json.loads(path.read_text()), dict)
    elif path.exists():
        readers.core_map(folder)
    if made == "pipeline.json":
        for name in ("core_map.h5", "buffer.h5", "student.safetensors"):
            if (folder / name).exists():
                assert cli.main(["inspect", str(folder / name)]) == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("verb", [verb for verb in COMMANDS if verb != "run"])
def test_a_command_that_is_struck_leaves_what_is_whole_and_is_done_again(verb, number, copied):
    folder = copied("student")
    words, made = COMMANDS[verb]
    (folder / made).unlink(missing_ok=True)
    status = struck(words, folder, number, 0.3)
    told = (folder.parent / "told").read_text()
    assert status in (0, cli.INTERRUPTED, -number), told
    assert "Traceback" not in told
    assert "unexpected" not in told
    if number != signal.SIGKILL:
        assert status >= 0, told
        assert not list(folder.glob(".lock*"))
        assert not list(folder.glob("*.tmp*"))
    check_whole(folder, made)
    (folder / made).unlink(missing_ok=True)
    assert struck(words, folder, signal.SIGCONT, 0.0) == 0, (folder.parent / "told").read_text()
    check_whole(folder, made)
    assert (folder / made).is_file()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_pipeline_that_is_struck_again_and_again_comes_to_its_end(number, copied):
    whole = copied("pipeline")
    # All but the teacher and the recipe: it begins anew.
    for path in whole.iterdir():
        if path.name not in ("teacher.safetensors", "pipeline.yaml"):
            path.unlink()
    words, made = COMMANDS["run"]
    for after_s in (0.5, 4.0, 8.0):
        status = struck(words, whole, number, after_s)
        told = (whole.parent / "told").read_text()
        assert status in (0, cli.INTERRUPTED, -number), told
        assert "Traceback" not in told
        assert "unexpected" not in told
        if number != signal.SIGKILL:
            assert status >= 0, told
            assert not list(whole.glob(".lock*"))
            assert not list(whole.glob("*.tmp*"))
        check_whole(whole, made)
    assert struck(words, whole, signal.SIGCONT, 0.0) == 0, (whole.parent / "told").read_text()
    stages = json.loads((whole / made).read_text())["stages"]
    assert all(stage["finished"] for stage in stages.values())
    assert (whole / "report.html").is_file()
