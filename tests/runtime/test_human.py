"""A person as an agent: what held keys mean, and a game played by keys typed in a real terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from spikestill.common.environment import environment
from spikestill.common.errors import UserError
from spikestill.configs.play import EvaluateConfig, PlayConfig
from spikestill.runtime.human import HELD_S, HumanPolicy, action_of, make_human
from spikestill.runtime.keyboard import split
from spikestill.runtime.play import check_person

ROOT = Path(__file__).resolve().parents[2]
PONG = ("NOOP", "FIRE", "RIGHT", "LEFT", "RIGHTFIRE", "LEFTFIRE")


@pytest.mark.parametrize(
    ("keys", "actions", "name"),
    [
        (set(), PONG, "NOOP"),
        ({"ArrowLeft"}, PONG, "LEFT"),
        ({"ArrowLeft", " "}, PONG, "LEFTFIRE"),
        ({"ArrowUp", "ArrowLeft", " "}, PONG, "LEFTFIRE"),
        ({"ArrowUp", "x"}, PONG, "NOOP"),
        ({"ArrowUp", "ArrowRight"}, ("NOOP", "UP", "RIGHT", "UPRIGHT"), "UPRIGHT"),
    ],
)
def test_held_keys_mean_the_nearest_action_of_the_game(
    keys: set[str], actions: tuple[str, ...], name: str
) -> None:
    assert actions[action_of(keys, actions)] == name


def test_typed_bytes_are_keys_and_what_is_unknown_is_none() -> None:
    assert split(b"\x1b[A\x1bOD q\x1b") == ["ArrowUp", "ArrowLeft", " ", "q", "Escape"]
    assert split(b"\x1b[15~p\xc3\xa9") == ["p"]


def test_a_key_counts_as_held_for_a_while_and_then_no_more() -> None:
    person = HumanPolicy(PONG)
    person.press("ArrowLeft", now_s=5.0)
    assert person.held(now_s=5.0 + 0.9 * HELD_S) == {"ArrowLeft"}
    assert person.held(now_s=5.0 + 1.1 * HELD_S) == set()


def test_without_a_keyboard_nobody_plays_and_no_score_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UserError, match=r"agent human needs a keyboard.*[Pp]lay in a terminal"):
        check_person(PlayConfig(agent="cores,human"))
    check_person(PlayConfig(agent="human", serve=True))
    with pytest.raises(UserError, match=r"^agent is 'human'"):
        EvaluateConfig(agent="human")
    assert isinstance(make_human({}, environment("breakout")), HumanPolicy)


def test_keys_typed_in_a_terminal_play_the_game(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    script = (
        "import sys; from pathlib import Path; from spikestill.configs.play import PlayConfig\n"
        "from spikestill.runtime.play import run\n"
        "folder = Path(sys.argv[1])\n"
        "run(PlayConfig(agent='human', seconds=2.0, view='none', telemetry=folder / 'log.jsonl'), folder)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n{script}", str(tmp_path)],
        stdin=theirs, stderr=subprocess.DEVNULL, cwd=ROOT, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        os.write(ours, b"\x1b[D")
        time.sleep(0.05)
    os.close(ours)
    assert process.wait(10) == 0
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    played = np.array([line["action"] for line in lines])
    assert (played == PONG.index("LEFT")).mean() > 0.5
