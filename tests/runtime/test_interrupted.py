"""What happens to a running game from outside: a suspended machine, a clock that is set, a disk that fills up."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spikestill.common.errors import UserError
from spikestill.configs.play import PlayConfig
from spikestill.runtime.play import run

ROOT = Path(__file__).resolve().parents[2]


def test_a_suspended_game_goes_on_and_says_what_it_lost(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from spikestill.configs.play import PlayConfig\n"
        "from spikestill.runtime.play import run\n"
        "folder = Path(sys.argv[1])\n"
        "config = PlayConfig(agent='random', seconds=4.0, view='none', telemetry=folder / 'log')\n"
        "run(config, folder)"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT)
    deadline = time.monotonic() + 60
    while not (tmp_path / "log").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(1.2)
    os.kill(process.pid, signal.SIGCONT)
    assert process.wait(60) == 0
    summary = json.loads((tmp_path / "play.json").read_text())
    assert summary["lost_s"] > 0.9
    # What was lost is not caught up: the game kept to the clock before and after.
    assert summary["ticks"] == pytest.approx(60 * (summary["seconds"] - summary["lost_s"]), abs=20)


def test_a_clock_that_is_set_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1e9, 2e9, 5.0, 3e9] * 10_000)
    monkeypatch.setattr(time, "time", lambda: next(times))
    config = PlayConfig(agent="random", seconds=1.0, view="none", telemetry=tmp_path / "log.jsonl")
    summary = run(config, tmp_path).summary
    assert 1.0 <= summary["seconds"] < 3.0
    assert summary["ticks"] == pytest.approx(60 * (summary["seconds"] - summary["lost_s"]), abs=5)


def test_a_disk_that_fills_up_under_the_log_costs_the_log_and_not_what_was_measured(tmp_path: Path) -> None:
    config = PlayConfig(
        agent="random", episodes=1, max_speed=True, view="none", telemetry=tmp_path / "log.jsonl"
    )
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, limits[1]))
    try:
        with pytest.raises(UserError, match=r"log\.jsonl: File too large"):
            run(config, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    summary = json.loads((tmp_path / "play.json").read_text())
    assert summary["decisions"] > 50
    assert summary["interrupted"]
