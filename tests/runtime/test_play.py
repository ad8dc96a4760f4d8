"""The play stage in real time: five seconds, Ctrl-C, kill -9, a terminal."""

from __future__ import annotations

import dataclasses
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import av
import pytest

from spikestill.common.errors import UserError
from spikestill.configs.environment import EnvironmentConfig
from spikestill.configs.play import PlayConfig
from spikestill.runtime.display import Display
from spikestill.runtime.panel import HEIGHT, WIDTH
from spikestill.runtime.play import run
from spikestill.runtime.view import ENTER, LEAVE, half_blocks
from tests.runtime.artefacts import Files

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys
from pathlib import Path
from spikestill.configs.play import PlayConfig
from spikestill.runtime.play import run
folder = Path(sys.argv[1])
record = folder / "game.mp4" if sys.argv[4] == "record" else None
config = PlayConfig(core_map=Path(sys.argv[2]), seconds=float(sys.argv[3]), record=record)
print("finished", run(config, folder).finished)
"""
SMALL_BOARD = """
import contextlib, json, os, sys, threading, time
from pathlib import Path
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from spikestill.configs.play import PlayConfig
from spikestill.runtime.play import run
most = {}
def look():
    words = Path("/proc/self/cmdline").read_bytes()
    while True:
        mine = [each for task in Path("/proc/self/task").glob("*/children") for each in task.read_text().split()]
        for process in ("self", *mine):
            with contextlib.suppress(OSError):  # it has ended
                # A child that has begun no program of its own yet has this one's memory, shared.
                if process != "self" and Path(f"/proc/{process}/cmdline").read_bytes() == words:
                    continue
                for line in Path(f"/proc/{process}/status").read_text().splitlines():
                    if line.startswith("VmHWM:"):
                        most[process] = int(line.split()[1]) / 1024
        time.sleep(0.5)
threading.Thread(target=look, daemon=True).start()
config = PlayConfig(core_map=Path(sys.argv[2]), seconds=4.0, view="none", serve=True, port=0)
found = run(config, Path(sys.argv[1])).summary
time.sleep(1)
print(json.dumps({**found, "resident_mb": most, "torch": "torch" in sys.modules}))
"""


def decode(path: Path) -> int:
    """Return how many frames of the right size the video has."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert (stream.width, stream.height) == (WIDTH, HEIGHT)
        return sum(1 for _ in container.decode(stream))


def start(
    folder: Path, pong: Files, seconds: float, record: bool, **options: object
) -> subprocess.Popen[bytes]:
    arguments = [str(folder), str(pong.core_map), str(seconds), "record" if record else "none"]
    return subprocess.Popen([sys.executable, "-c", SCRIPT, *arguments], cwd=ROOT, **options)  # type: ignore[call-overload]


def wait_for_video(folder: Path, process: subprocess.Popen[bytes]) -> None:
    """Return a second after the video was begun."""
    deadline = time.monotonic() + 60
    while not list(folder.glob(".game.mp4.*")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(2.0)


def test_five_seconds_at_sixty_frames_a_second_with_a_video(tmp_path: Path, pong: Files) -> None:
    video = tmp_path / "game.mp4"
    environment = EnvironmentConfig(game="pong", frame_skip=2)
    config = PlayConfig(
        environment=environment, core_map=pong.core_map, seconds=5.0, record=video, view="none"
    )
    result = run(config, tmp_path)
    summary = json.loads((tmp_path / "play.json").read_text())
    assert result.finished
    assert result.artefact == tmp_path / "play.json"
    assert (summary.pop("schema"), summary.pop("version")) == ("spikestill.play", 1)
    assert {**summary, "provenance": None} == {**result.summary, "provenance": None}
    # The emulator keeps to the wall clock whatever the agent and the machine do.
    assert summary["ticks"] == pytest.approx(60 * (summary["seconds"] - summary["lost_s"]), abs=3)
    assert 5.0 <= summary["seconds"] < 6.0
    answered = sum(summary["histogram"]["counts"])
    assert summary["decisions"] == pytest.approx(summary["ticks"] / 2, abs=3)
    assert summary["decisions"] - summary["misses"] <= answered
    assert 0 < summary["latency_ms"]["p50"] <= summary["latency_ms"]["p99"] <= summary["latency_ms"]["max"]
    assert summary["video_frames"] + summary["dropped_video_frames"] == summary["ticks"]
    assert decode(video) == summary["video_frames"] > 0
    assert list(summary["provenance"]["parents"]) == ["core_map"]


@pytest.mark.slow
def test_a_game_without_a_clock_waits_for_its_video(tmp_path: Path) -> None:
    video = tmp_path / "game.mp4"
    config = PlayConfig(agent="random", max_speed=True, seconds=4.0, record=video, view="none")
    summary = run(config, tmp_path).summary
    assert summary["dropped_video_frames"] == 0
    assert decode(video) == summary["video_frames"] == summary["ticks"] > 100


@pytest.mark.parametrize("option", [pytest.param("trace", marks=pytest.mark.slow), "telemetry"])
def test_a_log_or_trace_replaces_its_own_kind_alone(tmp_path: Path, pong: Files, option: str) -> None:
    target = tmp_path / "kept"
    config = PlayConfig(agent="random", max_speed=True, seconds=0.2, view="none", **{option: target})
    for _ in range(2):
        run(config, tmp_path)
    (tmp_path / "damaged.h5").write_bytes(pong.core_map.read_bytes()[:3000])
    artefacts = (pong.student, pong.core_map, tmp_path / "play.json", tmp_path / "damaged.h5")
    for artefact in artefacts:
        target.write_bytes(artefact.read_bytes())
        with pytest.raises(
            UserError, match=r"kept: is there already, is no (trace|log of decisions), and would be"
        ):
            run(config, tmp_path)
        assert target.read_bytes() == artefact.read_bytes()
    target.unlink()
    (target / "sub").mkdir(parents=True)
    with pytest.raises(UserError, match="kept: is a folder"):
        run(config, tmp_path)
    (tmp_path / "file").touch()
    wrong = dataclasses.replace(config, **{option: tmp_path / "file" / "kept"})
    with pytest.raises(UserError, match=r"kept: no .* can be written there"):
        run(wrong, tmp_path)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_on_one_core_without_pytorch_the_game_keeps_its_frames_and_misses_are_told(
    tmp_path: Path, pong: Files
) -> None:
    pytest.importorskip("uvicorn")
    command = [sys.executable, "-c", SMALL_BOARD, str(tmp_path), str(pong.core_map)]
    found = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=240).stdout)
    assert found["ticks"] == pytest.approx(60 * (found["seconds"] - found["lost_s"]), abs=3)
    assert 0 <= found["misses"] <= found["decisions"]
    assert found["decisions"] > 0
    assert not found["torch"]
    # The game's process, and the page's.
    assert len(found["resident_mb"]) >= 2
    assert sum(found["resident_mb"].values()) < 400, found["resident_mb"]


def test_a_display_that_fails_costs_the_video_and_not_what_was_measured(
    tmp_path: Path, pong: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dying(Display):
        def offer(self, *arguments: Any, **options: Any) -> bool:
            if arguments[1][0].frame == 60:
                self._process.kill()
                self._process.wait()
            return super().offer(*arguments, **options)

    monkeypatch.setattr("spikestill.runtime.play.Display", Dying)
    config = PlayConfig(core_map=pong.core_map, seconds=20.0, record=tmp_path / "game.mp4", view="none")
    with pytest.raises(UserError, match="the display process ended with status -9"):
        run(config, tmp_path)
    summary = json.loads((tmp_path / "play.json").read_text())
    assert 60 < summary["ticks"] < 600
    assert summary["decisions"] > 10
    assert (summary["video"], summary["video_frames"], summary["interrupted"]) == (None, 0, True)


def test_ctrl_c_ends_the_video_and_the_report_cleanly(tmp_path: Path, pong: Files) -> None:
    process = start(tmp_path, pong, 600, True, stdout=subprocess.PIPE, start_new_session=True)
    wait_for_video(tmp_path, process)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert output.split() == [b"finished", b"False"]
    summary = json.loads((tmp_path / "play.json").read_text())
    assert summary["interrupted"]
    assert decode(tmp_path / "game.mp4") == summary["video_frames"] > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["game.mp4", "play.json"]


def test_after_kill_9_the_video_so_far_is_whole(tmp_path: Path, pong: Files) -> None:
    process = start(tmp_path, pong, 600, True, start_new_session=True)
    wait_for_video(tmp_path, process)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while not (tmp_path / "game.mp4").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert decode(tmp_path / "game.mp4") > 0


def test_a_terminal_shows_the_game_and_is_given_back(tmp_path: Path, pong: Files) -> None:
    ours, theirs = pty.openpty()
    process = start(tmp_path, pong, 1.5, False, stderr=theirs, stdout=subprocess.DEVNULL)
    os.close(theirs)
    shown = b""
    while True:
        try:
            block = os.read(ours, 65536)
        except OSError:
            break
        shown += block
    os.close(ours)
    assert process.wait() == 0
    text = shown.decode()
    assert text.count(ENTER) == text.count(LEAVE) == 1
    assert text.index(ENTER) < text.index("▀") < text.index(LEAVE)
    for word in ("pong · cores", "score", "rightfire", "latency", "misses "):
        assert word in text
    assert text.count("\x1b[H") >= 5


def test_half_blocks_write_colours_only_where_they_change() -> None:
    import numpy as np

    picture = np.zeros((4, 3, 3), np.uint8)
    picture[1, 2] = (1, 2, 3)
    first, second = half_blocks(picture)
    black = "\x1b[38;2;0;0;0;48;2;0;0;0m"
    assert first == f"{black}▀▀\x1b[38;2;0;0;0;48;2;1;2;3m▀"
    assert second == f"{black}▀▀▀"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"seconds": 0.0}, r"^seconds is 0\.0, its range is"),
        ({"episodes": 0}, r"^episodes is 0"),
        ({"epsilon": 1.5}, r"^epsilon is 1\.5, its range is 0\.\.1"),
        ({"seed": -1}, r"^seed is -1"),
        ({"record": Path("game.avi")}, r"'game\.avi', only \.mp4 and \.gif are written"),
    ],
)
def test_impossible_options_are_refused(fields: dict[str, object], text: str) -> None:
    with pytest.raises(UserError, match=text):
        PlayConfig(**fields)
