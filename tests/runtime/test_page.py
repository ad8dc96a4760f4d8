"""The live page: who may look on, what viewers may send, viewers that never read, and the page in a browser."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from spikestill.common.errors import UserError
from spikestill.runtime.admission import allowed, listen, loopback
from spikestill.runtime.controls import checked
from spikestill.runtime.perturb import BODY
from spikestill.runtime.server import MOST_UNSEEN, SHOWN
from tests.runtime.artefacts import Files

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
client = pytest.importorskip("websockets.sync.client")
ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SCRIPT = """
import sys
from pathlib import Path
from spikestill.configs.play import PlayConfig
from spikestill.runtime.play import run
config = PlayConfig(agent="cores,student", core_map=Path(sys.argv[1]), student=Path(sys.argv[2]), view="none",
    serve=True, port=0, host=sys.argv[4], seconds=float(sys.argv[5]))
result = run(config, Path(sys.argv[3]))
"""
CONTROL = """
import sys
from pathlib import Path
from spikestill.configs.environment import EnvironmentConfig
from spikestill.configs.play import ControlPlayConfig
from spikestill.runtime.play import run
config = ControlPlayConfig(environment=EnvironmentConfig(game="half_cheetah"), agent="teacher,random", view="none",
    serve=True, port=0, seconds=600, lockstep=True)
run(config, Path(sys.argv[1]))
"""
"""The zoo's agent in fixed point beside random play."""
SEEN = """() => {
  const rows = [...document.querySelectorAll("article")].map(article => [...article.querySelectorAll(".votes div")].map(
    bar => { const box = bar.getBoundingClientRect(), fill = bar.firstChild.getBoundingClientRect();
      return {name: bar.previousSibling.textContent, number: bar.nextSibling.textContent, title: bar.title,
        share: fill.width / box.width, width: box.width,
        out: Math.max(fill.right - box.right, box.left - fill.left, bar.nextSibling.getBoundingClientRect().right -
          bar.closest("article").getBoundingClientRect().right)}; }));
  const read = name => [...document.querySelectorAll(name)].map(each => each.textContent);
  return {rows, values: read(".votes .value"), scores: read(".score"), figures: read(".figures")};
}"""
"""What a viewer sees of the numbers at one moment, in JavaScript."""


class Served:
    """A play that serves its page, in a process of its own."""

    def __init__(self, folder: Path, pong: Files, host: str = "127.0.0.1", seconds: float = 600) -> None:
        self.begin(SCRIPT, str(pong.core_map), str(pong.student), str(folder), host, str(seconds))

    def begin(self, script: str, *arguments: str) -> None:
        """Run a script that serves a page, and find where."""
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, *arguments], cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        found = None
        while found is None and (line := self.process.stderr.readline()):
            found = re.search(r"live page: (http://\S+:(\d+)/(\?token=\S+)?)", line)
        assert found, "no page"
        self.url, self.port, self.query = found[1], int(found[2]), found[3] or ""

    def get(self, path: str = "/", **headers: str) -> tuple[int, str]:
        try:
            with urlopen(
                Request(f"http://127.0.0.1:{self.port}{path}", headers=headers), timeout=20
            ) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()

    def watch(self, query: str = "") -> Any:
        return client.connect(f"ws://127.0.0.1:{self.port}/ws{query}", max_size=2**24)

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(30)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, pong: Files) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("served"), pong)
    yield made
    made.stop()


def frames(viewer: Any, count: int) -> Iterator[dict[str, Any]]:
    """Yield the headers of the next frames; lengths must add up."""
    while count:
        message = viewer.recv(timeout=20)
        if isinstance(message, str):
            continue
        (size,) = struct.unpack("<I", message[:4])
        header = json.loads(message[4 : 4 + size])
        blobs = sum(each["png"] + each.get("cores", 0) for each in header["agents"])
        assert len(message) == 4 + size + blobs
        count -= 1
        yield header


def until(viewer: Any, kind: str, **wanted: Any) -> dict[str, Any]:
    """Return the next text message of a kind that has these values."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        message = viewer.recv(timeout=20)
        if isinstance(message, str):
            found = json.loads(message)
            if found["type"] == kind and all(found.get(key) == value for key, value in wanted.items()):
                return dict(found)
    raise AssertionError(f"no {kind} with {wanted}")


def test_a_viewer_gets_the_scene_and_every_agents_figures(served: Served) -> None:
    with served.watch() as viewer:
        scene = until(viewer, "scene")
        assert [agent["name"] for agent in scene["agents"]] == ["cores", "student"]
        assert scene["agents"][0]["cores"]["column"]
        seen = list(frames(viewer, 40))
    numbers = [each["agents"][0]["frame"] for each in seen]
    assert numbers == sorted(numbers)
    assert any("cores" in each["agents"][0] for each in seen)
    assert any(len(each["agents"][1].get("scores", [])) == 6 for each in seen)
    status, text = served.get("/metrics")
    assert status == 200
    for name in ("decisions_total", "joules_total", "latency_seconds_count"):
        assert re.search(rf'spikestill_{name}\{{agent="cores",index="0"\}} [1-9]?\d*\.?\d*[1-9]', text), text


def test_viewers_pause_step_take_over_and_disturb(served: Served) -> None:
    with served.watch() as viewer:
        until(viewer, "controls")
        viewer.send(json.dumps({"do": "pause", "on": True}))
        until(viewer, "controls", paused=True)
        time.sleep(0.5)
        with served.watch() as late:
            (held,) = frames(late, 1)
        with served.watch() as late:
            assert next(frames(late, 1))["agents"][0]["frame"] == held["agents"][0]["frame"]
        viewer.send(json.dumps({"do": "step"}))
        viewer.send(json.dumps({"do": "pause", "on": False}))
        until(viewer, "controls", paused=False)
        viewer.send(json.dumps({"do": "perturb", "agent": 0, "kind": "dead_cores", "amount": 0.5}))
        viewer.send(json.dumps({"do": "perturb", "agent": 1, "kind": "noise", "amount": 0.25}))
        notes: list[str] = []
        while notes != ["dead_cores 0.5", "noise 0.25"]:
            told = until(viewer, "scene")["agents"]
            notes = [agent["note"] for agent in told]
        assert [kind for kind in told[0]["kinds"] if kind not in told[1]["kinds"]] == list(BODY)
        viewer.send(json.dumps({"do": "perturb", "agent": 1, "kind": "flips", "amount": 0.1}))
        assert (
            "no cores to damage" in until(viewer, "scene", notice="student has no cores to damage")["notice"]
        )
        viewer.send(json.dumps({"do": "agent", "agent": 1, "name": "random"}))
        while until(viewer, "scene")["agents"][1]["name"] != "random":
            pass
        assert all(each["agents"][1]["state"] == 0 for each in frames(viewer, 20))


@pytest.mark.parametrize(
    ("rubbish", "text"),
    [
        ("{", "no JSON"),
        ("[" * 1500, "no JSON"),
        ('"pause"', "a command is an object"),
        ('{"do": "pase", "on": true}', "did you mean 'pause'"),
        ('{"do": "speed", "value": 1e9}', "value is 1000000000.0"),
        ('{"do": "force", "agent": 7, "action": 0}', "agent is 7"),
        ('{"do": "agent", "agent": 0, "name": "../etc/passwd"}', "name is '../etc/passwd'"),
    ],
)
def test_rubbish_is_refused_and_nothing_else_happens(served: Served, rubbish: str, text: str) -> None:
    with served.watch() as viewer:
        viewer.send(rubbish)
        assert text.lower() in until(viewer, "refused")["text"].lower()
        assert list(frames(viewer, 2))


def test_a_message_too_long_ends_that_viewer_alone(served: Served) -> None:
    with served.watch() as good, served.watch() as bad:
        bad.send("x" * 5_000)
        with pytest.raises(Exception, match=r"1009|too big|message"):
            list(frames(bad, 100_000))
        assert len(list(frames(good, 10))) == 10


def test_a_viewer_that_never_reads_slows_nobody(served: Served) -> None:
    deaf = []
    for _ in range(3):
        raw = socket.create_connection(("127.0.0.1", served.port))
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.sendall(
            f"GET /ws HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        deaf.append(raw)
    with served.watch() as viewer:
        first, *_, last = frames(viewer, 90)
    assert last["agents"][0]["frame"] - first["agents"][0]["frame"] < 600
    for raw in deaf:
        raw.close()


def test_strangers_are_kept_out(served: Served, tmp_path: Path, pong: Files) -> None:
    assert served.get("/")[0] == 200
    assert served.get("/", Origin="http://evil.example")[0] == 403
    assert served.get("/", Host="evil.example")[0] == 403
    with (
        pytest.raises(Exception, match="403"),
        client.connect(f"ws://127.0.0.1:{served.port}/ws", origin="http://evil.example"),
    ):
        pass
    open_ = Served(tmp_path, pong, "0.0.0.0")
    try:
        assert open_.query
        assert (open_.get("/")[0], open_.get("/metrics")[0]) == (403, 403)
        assert open_.get(f"/{open_.query[:-1]}")[0] == 403
        assert open_.get(f"/{open_.query}")[0] == 200
        with open_.watch(open_.query) as viewer:
            assert until(viewer, "scene")["game"] == "pong"
    finally:
        open_.stop()


def test_no_more_than_a_few_frames_wait_for_a_viewer_that_says_what_it_has_shown(served: Served) -> None:
    def arriving(seconds: float) -> int:
        """Return how many frames come within so many seconds."""
        found, until_s = 0, time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                found += not isinstance(viewer.recv(timeout=left_s), str)
        return found

    with served.watch() as viewer:
        next(frames(viewer, 1))
        viewer.send(SHOWN)
        # Those that were sent before it said so are among them.
        waiting = arriving(3.0)
        assert waiting >= MOST_UNSEEN
        assert arriving(1.0) == 0
        for _ in range(waiting - MOST_UNSEEN + 1):
            viewer.send(SHOWN)
        assert arriving(1.0) == 1


def test_tokens_and_hosts() -> None:
    here = {"host": "127.0.0.1:8000"}
    assert allowed("127.0.0.1", "", {**here, "origin": "http://127.0.0.1:8000"}, {})
    assert not allowed("0.0.0.0", "secret", here, {})
    assert not allowed("0.0.0.0", "secret", here, {"token": "secrets"})
    assert allowed("0.0.0.0", "secret", {"host": "board.local:8000"}, {"token": "secret"})
    assert loopback("::1")
    assert not loopback("127.0.0.1.evil.example")


def test_a_port_in_use_is_told() -> None:
    taken = listen("127.0.0.1", 0)
    with pytest.raises(UserError, match=r"cannot serve there .*in use.*another --port"):
        listen("127.0.0.1", taken.getsockname()[1])
    taken.close()


def test_a_machine_without_the_addresses_of_a_host_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_socket(*_: Any) -> None:
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))

    monkeypatch.setattr(socket, "socket", no_socket)
    with pytest.raises(UserError, match=r"^::1:8000: cannot serve there \(Address family .*another --host"):
        listen("::1", 8000)


def test_a_command_keeps_only_what_belongs_to_it() -> None:
    assert checked({"do": "step", "more": 1}, 1, 6) == {"do": "step"}
    assert checked({"do": "force", "agent": 0, "action": None}, 1, 6)["action"] is None
    with pytest.raises(UserError, match="action is True"):
        checked({"do": "force", "agent": 0, "action": True}, 1, 6)
    with pytest.raises(UserError, match="value is nan"):
        checked({"do": "speed", "value": float("nan")}, 1, 6)


@pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")
def test_the_page_in_a_browser_plays_obeys_and_comes_back(tmp_path: Path, pong: Files) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    served = Served(tmp_path, pong)
    try:
        with playwright.sync_playwright() as browsers:
            browser = browsers.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            for width, scheme in ((1400, "light"), (400, "dark")):
                page, wrong = opened(browser, served.url, width, scheme)
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                assert page.locator("article").count() == 2
                page.get_by_role("button", name="Pause").click()
                stands_still(page)
                page.get_by_role("button", name="Step").click()
                page.keyboard.press("p")
                plays(page)
                page.locator("summary").first.click()
                page.get_by_role("button", name="Take over").first.click()
                page.keyboard.down("ArrowUp")
                page.keyboard.up("ArrowUp")
                page.keyboard.press("Escape")
                assert "the agents play" in page.locator("#said").inner_text()
                assert not wrong
            os.kill(served.process.pid, 15)
            page.get_by_text("the game has ended").wait_for(timeout=20_000)
            browser.close()
    finally:
        served.stop()


class ServedControl(Served):
    """A control task that is played by two agents."""

    def __init__(self, folder: Path) -> None:
        self.begin(CONTROL, str(folder))


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")
@pytest.mark.skipif(find_spec("mujoco") is None, reason="needs MuJoCo: pip install 'spikestill[control]'")
def test_numbers_of_control_agents_stand_in_a_browser_beside_bars_within_their_bounds(tmp_path: Path) -> None:
    from spikestill.teacher.control.simulator import choose_gl

    if not choose_gl():
        pytest.skip("no OpenGL library: apt-get install libosmesa6")
    playwright = pytest.importorskip("playwright.sync_api")
    served = ServedControl(tmp_path)
    try:
        with playwright.sync_playwright() as browsers:
            browser = browsers.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            for width, scheme in ((1400, "light"), (400, "dark")):
                page, wrong = opened(browser, served.url, width, scheme)
                widths = set()
                for _ in range(10):
                    page.wait_for_timeout(60)
                    seen = page.evaluate(SEEN)
                    assert [len(rows) for rows in seen["rows"]] == [6, 6]
                    for row in (row for rows in seen["rows"] for row in rows):
                        assert re.fullmatch(r"-?[01]\.\d\d", row["number"])
                        assert row["share"] == pytest.approx((float(row["number"]) + 1) / 2, abs=0.02)
                        assert row["title"] == "-1 to 1"
                        assert row["out"] <= 0.5
                        widths.add(round(row["width"]))
                    assert [row["name"] for row in seen["rows"][0]] == [f"action {n}" for n in range(6)]
                    assert re.fullmatch(r"-?\d+\.\d\d", seen["values"][0])
                    assert seen["values"][1] == "–"
                    assert all(re.fullmatch(r"-?\d+(\.\d)?", score) for score in seen["scores"])
                    # Two agents' numbers never agree to the last bit, so that is not told.
                    assert not any(re.search("NaN|value|agrees", line) for line in seen["figures"])
                assert len(widths) == 1  # numbers that grow move no bar
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                page.locator("summary").first.click()
                assert page.get_by_role("button", name="Take over").first.is_disabled()
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                spoken = page.locator(".votes").first.get_attribute("aria-label")
                assert re.fullmatch(r"numbers: (action \d \S+, ){5}action 5 \S+; value \S+", spoken)
                kinds = page.locator("article").first.locator("label", has_text="Disturb").locator("option")
                assert kinds.all_inner_texts() == ["noise", "sticky"], "no pictures and no cores"
                amount = f"{width / 4000:.2f}"  # another one than in the other browser
                page.evaluate(
                    """amount => { const range = document.querySelector("article input[type=range]");
                    range.value = amount; range.dispatchEvent(new Event("change")); }""",
                    amount,
                )
                page.locator(".note", has_text=f"noise {float(amount):g}").wait_for()
                assert float(page.locator("article input[type=range]").first.input_value()) == float(amount)
                assert not wrong
            browser.close()
    finally:
        served.stop()


def opened(browser: Any, url: str, width: int, scheme: str) -> tuple[Any, list[str]]:
    """Return the live page in a window of its own once it plays, and the errors that it will have had."""
    page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(url)
    plays(page)
    return page, wrong


def plays(page: Any) -> None:
    """Return once the page shows new frames."""
    before = page.evaluate("window.frames_shown")
    for _ in range(200):
        if page.evaluate("window.frames_shown") > before + 5:
            return
        page.wait_for_timeout(100)
    raise AssertionError("the page stands still")


def stands_still(page: Any) -> None:
    """Return once the page shows no new frames: what was on its way when the game stopped has come."""
    for _ in range(40):
        before = page.evaluate("window.frames_shown")
        page.wait_for_timeout(500)
        if page.evaluate("window.frames_shown") == before:
            return
    raise AssertionError("the page goes on")


class Line:
    """A line between a browser and the page that can be cut: a relay of TCP on a port of its own."""

    def __init__(self, port: int) -> None:
        self._far, self._ends, self.cut = port, set[socket.socket](), False
        self._door = listen("127.0.0.1", 0)
        self.port = self._door.getsockname()[1]
        threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self) -> None:
        while True:
            near, _ = self._door.accept()
            if self.cut:
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self._far))
            except OSError:
                near.close()
                continue
            self._ends |= {near, far}
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def drop(self) -> None:
        """Cut what is connected and take nothing new."""
        self.cut = True
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._ends.clear()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")
def test_a_browser_comes_back_switches_saves_and_plays_itself(tmp_path: Path, pong: Files) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    served = Served(tmp_path, pong)
    line = Line(served.port)
    try:
        with playwright.sync_playwright() as browsers:
            browser = browsers.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            wrong: list[str] = []
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.goto(f"http://127.0.0.1:{line.port}/")
            plays(page)
            line.drop()
            page.get_by_text("connection lost: what you see is old").wait_for(timeout=10_000)
            line.cut = False
            page.get_by_text("live", exact=True).wait_for(timeout=20_000)
            plays(page)

            for name, magic in (("Save a GIF (5 s)", b"GIF89a"), ("Record MP4", b"ftyp")):
                before = page.locator("#file").inner_text()
                page.get_by_role("button", name=name).click()
                if magic == b"ftyp":
                    page.wait_for_timeout(2_000)
                    page.get_by_role("button", name=name).click()
                page.wait_for_function(
                    "before => document.getElementById('file').textContent !== before",
                    arg=before,
                    timeout=120_000,
                )
                with page.expect_download() as download:
                    page.locator("#file").click()
                assert magic in Path(download.value.path()).read_bytes()[:32]

            first = page.locator("article").first
            first.locator("summary").click()
            first.get_by_label("Agent").select_option("human")
            page.get_by_role("article", name="agent human").wait_for(timeout=30_000)
            page.locator("h1").click()
            page.keyboard.down("ArrowUp")
            page.get_by_text("you play in place of human").wait_for(timeout=5_000)
            pressed = page.get_by_role("article", name="agent human").get_by_role("button", name="Play")
            page.locator("summary").first.click()
            assert pressed.get_attribute("aria-pressed") == "true"
            page.keyboard.up("ArrowUp")
            page.keyboard.press("Escape")

            page.get_by_label("Game").select_option("breakout")
            page.wait_for_function(
                "document.getElementById('said').textContent.includes('breakout')", timeout=60_000
            )
            plays(page)
            assert not wrong
            browser.close()
    finally:
        served.stop()
