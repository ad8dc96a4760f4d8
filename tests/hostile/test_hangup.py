"""A terminal that is closed while a command is at work in it: what it was doing is saved, as with Ctrl-C."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from spikestill import cli
from spikestill.common.stage import StopRequest, interrupted_by_signals, stop_on_signal
from spikestill.dataset.format import BufferFile

TIMEOUT_S = 100


def in_a_terminal(words: list[str], folder: Path, ready: bytes) -> int:
    """Run a command as the leader of a terminal of its own, close the terminal once it says ``ready``; its status."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", "import fcntl, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
         # Whoever runs the tests may ignore it, as nohup does.
         "signal.signal(signal.SIGHUP, signal.SIG_DFL); "
         "from spikestill.cli import main; sys.exit(main(sys.argv[1:]))", *words],
        stdin=its, stdout=its, stderr=its, start_new_session=True, cwd=folder,
    )  # fmt: skip
    os.close(its)
    deadline = time.monotonic() + TIMEOUT_S
    os.set_blocking(ours, False)
    told = b""
    try:
        while ready not in told:
            assert process.poll() is None, told[-3000:].decode(errors="replace")
            assert time.monotonic() < deadline, told[-3000:]
            try:
                told += os.read(ours, 1 << 16)
            except (BlockingIOError, OSError):
                time.sleep(0.05)
    finally:
        time.sleep(1.0)
        os.close(ours)
    try:
        return process.wait(TIMEOUT_S)
    finally:
        process.kill()


def test_a_recording_whose_terminal_closes_keeps_what_it_has_and_goes_on(tmp_path, capsys):
    words = [
        "record",
        "pong",
        "--frames",
        "400000",
        "--num_envs",
        "2",
        "--flush_every",
        "64",
        "--run_dir",
        str(tmp_path),
    ]
    assert in_a_terminal(words, tmp_path, b"record") == cli.INTERRUPTED
    with BufferFile(tmp_path / "buffer.h5") as file:
        assert 0 < file.rows < 200_000
    assert not (tmp_path / ".lock").exists()
    assert cli.main([*words[:2], "--frames", "256", *words[4:], "--resume"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "ready", "left"),
    [
        (
            ["teach", "pong", "--steps", "100000", "--num_envs", "2"],
            b"teach",
            "teach-checkpoint.safetensors",
        ),
        (["play", "pong", "--seconds", "60"], b"\x1b[", "play.json"),
    ],
)
def test_others_save_too(tmp_path, words, ready, left):
    assert in_a_terminal([*words, "--run_dir", str(tmp_path)], tmp_path, ready) in (
        0,
        cli.INTERRUPTED,
    )
    assert (tmp_path / left).exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("verb", ["distill", "run"])
def test_a_distillation_is_saved_too_alone_and_in_a_pipeline(verb, copied, capsys):
    folder = copied("student")
    (folder / "student.safetensors").unlink()
    (folder / "recipe.yaml").write_text(
        "distill: {steps: 1000000, batch_size: 8, log_steps: 100, hint_components: 4}\n"
        "record: {frames: 192, num_envs: 2, flush_every: 64}\n"
    )
    words = ["run", "pong", "--config", "recipe.yaml"]
    if verb == "distill":
        words = ["distill", "--steps", "1000000", "--batch_size", "8", "--hint_components", "4"]
    else:
        for path in folder.iterdir():
            if path.name not in ("teacher.safetensors", "recipe.yaml"):
                path.unlink()
    assert in_a_terminal([*words, "--run_dir", str(folder)], folder, b"distill:   0%|") == cli.INTERRUPTED
    assert not (folder / ".lock").exists()
    assert cli.main(["inspect", str(folder / "distill-checkpoint.safetensors"), "--json"]) == 0
    assert 0 < json.loads(capsys.readouterr().out.splitlines()[-1])["step"] < 1_000_000
    if verb == "run":
        stages = json.loads((folder / "pipeline.json").read_text())["stages"]
        assert stages["record"]["finished"]
        assert not stages["distill"]["finished"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_every_signal_that_asks_for_an_end_is_heard(number, monkeypatch):
    monkeypatch.setattr("spikestill.common.stage.leave_terminal", lambda: None)
    before = signal.signal(number, signal.default_int_handler)  # under nohup it would be ignored
    try:
        with stop_on_signal() as stop:
            assert isinstance(stop, StopRequest)
            os.kill(os.getpid(), number)
            assert stop
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), number)
    finally:
        signal.signal(number, before)


def test_nohup_keeps_a_hangup_away():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupted_by_signals(), stop_on_signal() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_outside_a_stage_they_interrupt(number, monkeypatch):
    monkeypatch.setattr("spikestill.common.stage.leave_terminal", lambda: None)
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(KeyboardInterrupt), interrupted_by_signals():
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
