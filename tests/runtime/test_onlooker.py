"""A process that looks on: what it costs where it ends early, and scenes that are there as long as their frames."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spikestill.common.errors import UserError
from spikestill.common.policy import Decision
from spikestill.configs.environment import EnvironmentConfig
from spikestill.configs.play import PlayConfig
from spikestill.runtime.agents import RandomPolicy
from spikestill.runtime.clock import MonotonicClock
from spikestill.runtime.crew import scene_of
from spikestill.runtime.emulator import Emulator
from spikestill.runtime.loop import Pace
from spikestill.runtime.onlooker import Onlooker
from spikestill.runtime.page import Page
from spikestill.runtime.session import Session, Tick
from spikestill.runtime.telemetry import Telemetry
from spikestill.runtime.worker import Answer

client = pytest.importorskip("websockets.sync.client")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
LEAVING = """
from spikestill.runtime.onlooker import Seat
def main():
    seat = Seat()
    seat.ready()
    seat.say({})
"""
"""Sees no frame and finds nothing wrong with that."""
FULL = """
import resource
import numpy as np
from spikestill.runtime.mosaic import picture_of
from spikestill.runtime.onlooker import Seat
from spikestill.runtime.server import main
seat = Seat()
picture_of(seat.scene(0), seat.dtype).draw(np.zeros(1, seat.dtype)[0])  # compiles what draws, and keeps it
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
"""
"""Serves the page on a disk that is full."""
BARE = """
import sys
sys.modules["av"] = None
from spikestill.runtime.server import main
"""
"""Serves the page where PyAV is not installed."""


@pytest.fixture
def session() -> Iterator[Session]:
    with contextlib.closing(Emulator(EnvironmentConfig(game="pong"), 1)) as game:
        agent = RandomPolicy(game.spec.actions)
        yield Session("random", game, agent, MonotonicClock(), Telemetry())


def onlooker(module: str, session: Session) -> Onlooker:
    return Onlooker(module, {}, scene_of([session]), 0, session.game.screen_shape)


TICK = Tick(0, 0, 0, 0.0, 0.0, over=False, missed=False, answer=None)


def test_a_process_that_ends_early_is_told_once_and_gets_no_more(
    tmp_path: Path, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "leaving.py").write_text(LEAVING)
    monkeypatch.syspath_prepend(tmp_path)
    shown = onlooker("leaving", session)
    shown._process.wait()
    with pytest.raises(UserError, match="the leaving process ended before the game"):
        shown.offer([session], [TICK])
    assert not shown.offer([session], [TICK])
    shown.close()


def serving(module: str, session: Session, capfd: pytest.CaptureFixture[str]) -> tuple[Onlooker, str]:
    """Return the live page's process, which no game hears yet, and its address."""
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    options = {"host": "127.0.0.1", "port": 0, "token": ""}
    page = Onlooker(module, options, scene_of([session]), 0, session.game.screen_shape, heard=True)
    found = re.search(r"live page: http://(\S+)", capfd.readouterr().err)
    assert found
    return page, found[1]


@pytest.fixture
def served(session: Session, capfd: pytest.CaptureFixture[str]) -> Iterator[tuple[Onlooker, str]]:
    page, address = serving("spikestill.runtime.server", session, capfd)
    yield page, address
    with contextlib.suppress(UserError):
        page.close()


def watch(address: str) -> Any:
    return client.connect(f"ws://{address}ws", max_size=2**24)


def told(viewer: Any, kind: str, **wanted: Any) -> dict[str, Any]:
    """Return the next text message of a kind that has these values."""
    for message in viewer:
        if isinstance(message, str):
            found = json.loads(message)
            if found["type"] == kind and all(found.get(key) == value for key, value in wanted.items()):
                return dict(found)
    raise AssertionError(f"no {kind} with {wanted}")


def test_viewers_and_the_game_are_told_that_frames_cannot_be_shown(
    served: tuple[Onlooker, str], session: Session
) -> None:
    page, address = served
    with watch(address) as viewer:
        told(viewer, "scene")
        page.show(scene_of([session], notice="another one"))
        (page._folder / "1.npz").unlink()
        assert page.offer([session], [TICK])
        told(viewer, "end")
    page._process.wait()
    with pytest.raises(UserError, match=r"the frames could not be shown: FileNotFoundError: .*1\.npz"):
        page.offer([session], [TICK])


def test_a_scene_is_kept_until_its_frames_are_read_and_no_longer(
    served: tuple[Onlooker, str], session: Session
) -> None:
    page, address = served
    with watch(address) as viewer:
        assert page.halt()
        for number in range(8):
            page.show(scene_of([session], notice=f"scene {number}"))
            assert page.offer([session], [TICK])
        page.go_on()
        told(viewer, "scene", notice="scene 7")
        deadline = time.monotonic() + 20
        while page._ring.read < page._ring.written and time.monotonic() < deadline:
            time.sleep(0.01)
    page.show(scene_of([session]))
    assert sorted(path.name for path in page._folder.glob("*.npz")) == ["9.npz"]
    page.close()


def asked(page: Onlooker) -> list[dict[str, Any]]:
    """Return the commands that viewers send next."""
    deadline = time.monotonic() + 20
    while not (found := page.commands()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def force(action: int | None) -> dict[str, Any]:
    return {"do": "force", "agent": 0, "action": action}


def test_who_goes_gives_back_the_agents_in_whose_place_nobody_else_plays(
    served: tuple[Onlooker, str],
) -> None:
    page, address = served
    with watch(address) as stays:
        with watch(address) as first, watch(address) as second:
            for viewer in (first, second):
                viewer.send(json.dumps(force(2)))
                assert asked(page) == [force(2)]
            second.send(json.dumps(force(None)))
            assert asked(page) == [force(None)]
        assert asked(page) == [force(None)], "the first one went"
        stays.send(json.dumps(force(3)))
        assert asked(page) == [force(3)]
        with watch(address) as goes:
            goes.send(json.dumps(force(1)))
            assert asked(page) == [force(1)]
    assert asked(page) == [force(None)], "the last one went"
    with watch(address) as last:
        last.send(json.dumps({"do": "step"}))
        assert asked(page) == [{"do": "step"}], "nothing was given back in whose place another played"


@pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")
def test_a_browser_plays_on_in_a_new_scene_and_gives_back_an_agent_that_is_no_longer_there(
    served: tuple[Onlooker, str], session: Session
) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    page, address = served
    with playwright.sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page()
        tab.goto(f"http://{address}")
        tab.locator("summary").click()
        tab.get_by_role("button", name="Take over").click()
        assert asked(page) == [force(0)]
        tab.keyboard.down("ArrowRight")
        assert asked(page) == [force(2)]
        for name, notice, action, pressed in (("random", "one", 2, "true"), ("cores", "two", None, "false")):
            session.name = name
            page.show(scene_of([session], notice=notice))
            assert page.offer([session], [TICK])
            tab.get_by_text(notice, exact=True).wait_for(timeout=20_000)
            assert asked(page) == [force(action)]
            tab.locator("summary").click()
            assert tab.get_by_role("button", name="Take over").get_attribute("aria-pressed") == pressed
        browser.close()


def controls(viewer: Any, turn: Callable[[], object], **wanted: Any) -> dict[str, Any]:
    """Take turns until viewers are told of controls that have these values."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        turn()
        with contextlib.suppress(TimeoutError):
            message = viewer.recv(timeout=0.005)
            found = json.loads(message) if isinstance(message, str) else {}
            if found.get("type") == "controls" and all(found.get(name) == wanted[name] for name in wanted):
                return dict(found)
    raise AssertionError(f"no controls with {wanted}")


@pytest.mark.parametrize("stop", [True, False], ids=["at its end", "on its way"])
def test_viewers_are_told_why_nothing_is_recorded_and_may_record_again(
    stop: bool,
    tmp_path: Path,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "full.py").write_text(FULL)
    (tmp_path / "recordings").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "recordings"))
    page, address = serving("full", session, capfd)
    numbers, rng = itertools.count(), np.random.default_rng(0)

    def play() -> None:
        number, seen = next(numbers), rng.integers(0, 256, (1, 4, 84, 84), np.uint8)
        answer = Answer(number, Decision(np.zeros(1, int), np.eye(6)[[0]]), {"stack": seen}, 0.0, 0.0)
        page.offer([session], [dataclasses.replace(TICK, frame=number, answer=answer)], wait=True)

    with contextlib.closing(page), watch(address) as viewer:
        for _ in range(2):
            viewer.send(json.dumps({"do": "record"}))
            controls(viewer, play, recording="record")
            if stop:
                viewer.send(json.dumps({"do": "stop"}))
            while not controls(viewer, play, recording=None)["notice"].startswith("not recorded: "):
                pass
            assert not list((tmp_path / "recordings").iterdir())


def test_viewers_are_told_of_a_pause_whoever_asks_for_it_and_a_recording_goes_on(
    session: Session, capfd: pytest.CaptureFixture[str]
) -> None:
    pace = Pace()
    page = Page(PlayConfig(agent="random", serve=True, port=0), [session], pace)
    found = re.search(r"live page: http://(\S+)", capfd.readouterr().err)
    assert found
    numbers = itertools.count()

    def turn() -> None:
        page.turn([] if pace.paused else [dataclasses.replace(TICK, frame=next(numbers))])

    with contextlib.closing(page), watch(found[1]) as viewer:
        pace.paused = True
        turn()  # before the first frame there is none to show again
        pace.paused = False
        viewer.send(json.dumps({"do": "record"}))
        controls(viewer, turn, recording="record", paused=False)
        for paused in (True, False):
            pace.paused = paused  # as a key in the terminal does
            controls(viewer, turn, recording="record", paused=paused)
        for paused in (True, False):
            viewer.send(json.dumps({"do": "pause", "on": paused}))
            controls(viewer, turn, recording="record", paused=paused)
            assert pace.paused == paused
        viewer.send(json.dumps({"do": "stop"}))
        assert controls(viewer, turn, recording=None)["file"]


def test_viewers_are_told_what_to_install_for_an_mp4_and_the_page_goes_on(
    tmp_path: Path, session: Session, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bare.py").write_text(BARE)
    monkeypatch.syspath_prepend(tmp_path)
    page, address = serving("bare", session, capfd)
    with contextlib.closing(page), watch(address) as viewer:
        viewer.send(json.dumps({"do": "record"}))
        notice = ""
        while not notice:
            notice = controls(viewer, lambda: page.offer([session], [TICK]))["notice"]
        assert re.match(r"not recorded: av is not installed.*pip install 'spikestill\[video\]'", notice)
        viewer.send(json.dumps({"do": "gif"}))
        assert controls(viewer, lambda: page.offer([session], [TICK]), recording="gif")
