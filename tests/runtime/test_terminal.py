"""The terminal: the window is used whole, the cores are shown where it is wide enough, keys pause and end."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from spikestill.deploy.core_map import load
from spikestill.deploy.simulator import CoreSimulator
from spikestill.runtime.activity import core_grid
from spikestill.runtime.frame_ring import frame_dtype
from spikestill.runtime.scene import Actor, Scene
from spikestill.runtime.view import ENTER, HOME, LEAVE, TerminalView, shown_cells
from tests.nets import random_stack
from tests.runtime.artefacts import Files

ROOT = Path(__file__).resolve().parents[2]
ACTIONS = ("NOOP", "FIRE", "RIGHT", "LEFT", "RIGHTFIRE", "LEFTFIRE")
CONTROLLING = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
PLAYER = """
import sys
from pathlib import Path
from spikestill.configs.play import PlayConfig
from spikestill.runtime.play import run
folder = Path(sys.argv[1])
result = run(PlayConfig(core_map=Path(sys.argv[2]), seconds=100.0), folder)
(folder / "finished").write_text(str(result.finished))
"""
# What a shell does for the job in its foreground: it learns of a stop and takes the terminal, whose modes it leaves as
# it finds them. SIGUSR1 is `fg`, SIGUSR2 is `kill %1`.
SHELL = """
import os, signal, sys
for number in (signal.SIGTTOU, signal.SIGTSTP):
    signal.signal(number, signal.SIG_IGN)
if not (job := os.fork()):
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpgrp())
    for number in (signal.SIGTTOU, signal.SIGTSTP):
        signal.signal(number, signal.SIG_DFL)
    os.execv(sys.executable, [sys.executable, "-c", *sys.argv[1:]])
orders = {signal.SIGUSR1, signal.SIGUSR2}
signal.pthread_sigmask(signal.SIG_BLOCK, orders)
while True:
    _, status = os.waitpid(job, os.WUNTRACED)
    os.tcsetpgrp(0, os.getpgrp())
    if not os.WIFSTOPPED(status):
        sys.exit(os.waitstatus_to_exitcode(status))
    print(signal.Signals(os.WSTOPSIG(status)).name, flush=True)
    if signal.sigwait(orders) == signal.SIGUSR1:
        os.tcsetpgrp(0, job)
    else:
        os.killpg(job, signal.SIGTERM)
    os.killpg(job, signal.SIGCONT)
"""


class Playing(NamedTuple):
    """An agent on cores, what fired in one decision, uint64 (1, W), and how many cores it has."""

    actor: Actor
    packed_BW: npt.NDArray[np.uint64]
    cores: int


@pytest.fixture(scope="module")
def playing(pong: Files) -> Playing:
    simulator = CoreSimulator(core_map := load(pong.core_map))
    simulator.spikes(random_stack(3))
    actor = Actor("cores", "spikestill.runtime.activity:CorePicture", core_grid(core_map, simulator.layout))
    return Playing(actor, simulator.trace().packed_BW, core_map.cores)


def page(playing: Playing, agents: int, columns: int, lines: int) -> list[str]:
    """Return the lines of a page of ``agents`` that play on cores, without the sequences around it."""
    frame = np.zeros(1, frame_dtype(agents, playing.packed_BW.shape[1]))[0]
    for part in frame["sessions"]:
        part["trace"], part["scores"][:6] = playing.packed_BW[0], np.arange(6)
        part["screen"] = np.random.default_rng(0).integers(0, 256, (210, 160, 3))
    scene = Scene("pong", ACTIONS, 60.0, 4, (playing.actor,) * agents)
    view = TerminalView(sys.stderr, scene, "q ends")
    shown = view.page(frame, os.terminal_size((columns, lines)))
    assert shown.startswith(HOME)
    return shown.removeprefix(HOME).replace("\x1b[K", "").replace("\x1b[J", "").split("\r\n")


@pytest.mark.parametrize(
    ("agents", "size"), [*itertools.product((1, 2, 4), [(80, 24), (120, 40), (200, 50), (320, 90)])]
)
def test_a_page_fits_in_its_window(agents: int, size: tuple[int, int], playing: Playing) -> None:
    shown = page(playing, agents, *size)
    assert len(shown) <= size[1]
    assert max(map(shown_cells, shown)) <= size[0]


@pytest.mark.parametrize("size", [(120, 40), (200, 50), (320, 90)])
def test_a_wide_window_is_used_whole_and_shows_the_cores(size: tuple[int, int], playing: Playing) -> None:
    shown = page(playing, 1, *size)
    assert sum("▀" in line for line in shown) >= size[1] - 2
    text = "\n".join(shown)
    assert f"{playing.cores:,} cores" in text
    assert "q ends" in text


def test_a_narrow_window_leaves_the_cores_out(playing: Playing) -> None:
    text = "\n".join(page(playing, 1, 80, 24))
    assert f"{playing.cores:,} cores" not in text
    assert "rightfire" in text


class Terminal:
    """A terminal of 160 x 50 in which a game is played, by a shell's job or without a shell."""

    def __init__(self, folder: Path, pong: Files, *, shell: bool = False) -> None:
        self.descriptor, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
        program = [CONTROLLING + SHELL, PLAYER] if shell else [CONTROLLING + PLAYER]
        self.process = subprocess.Popen(
            [sys.executable, "-c", *program, str(folder), str(pong.core_map)],
            stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, cwd=ROOT, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self._shown = b""

    def modes(self) -> list[Any]:
        return termios.tcgetattr(self.descriptor)

    def stopped(self) -> str:
        """Return the signal that stops the job, once it does; what is shown until then is for the next reading.

        The terminal is read all the while, as a real one is: where nobody reads it, who writes there waits.
        """
        said = self.process.stdout
        assert said is not None
        while said.fileno() not in select.select([self.descriptor, said.fileno()], [], [])[0]:
            if not self._take():
                break
        return said.readline().decode().strip()

    def _take(self) -> bool:
        """Keep what is there to be read; return False where the terminal is closed."""
        try:
            self._shown += os.read(self.descriptor, 65536)
        except OSError:
            return False
        return True

    def press(self, key: str) -> None:
        os.write(self.descriptor, key.encode())

    def read(self, seconds: float, until: str = "") -> str:
        """Return what is shown until ``until`` is, or for so many seconds."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and not (until and until.encode() in self._shown):
            if select.select([self.descriptor], [], [], left)[0] and not self._take():
                break
        shown, self._shown = self._shown, b""
        return shown.decode(errors="replace")


def test_space_pauses_and_q_ends_the_game_in_a_terminal(tmp_path: Path, pong: Files) -> None:
    terminal = Terminal(tmp_path, pong)
    before = terminal.read(60.0, until="space pauses, q ends")
    assert "space pauses, q ends" in before
    assert "cores" in before
    terminal.press(" ")
    assert "paused" in terminal.read(60.0, until="paused")
    # The rest of the page comes, and then nothing: time stands still.
    assert any(terminal.read(1.0) == "" for _ in range(20))
    terminal.press(" ")
    assert HOME in terminal.read(60.0, until=HOME)
    terminal.press("q")
    terminal.read(100.0)  # until it is closed
    assert terminal.process.wait(20) == 0
    assert (tmp_path / "finished").read_text() == "True"
    told = json.loads((tmp_path / "play.json").read_text())
    assert not told["interrupted"]
    # The pause does not count.
    assert told["ticks"] == pytest.approx(60 * (told["seconds"] - told["lost_s"]), abs=6)


def test_ctrl_z_gives_the_terminal_back_and_fg_goes_on_where_the_time_stood(
    tmp_path: Path, pong: Files
) -> None:
    terminal = Terminal(tmp_path, pong, shell=True)
    found = terminal.modes()
    assert ENTER in terminal.read(60.0, until="space pauses, q ends")
    taken = terminal.modes()
    assert found[3] & termios.ECHO
    assert not taken[3] & (termios.ECHO | termios.ICANON)
    terminal.press("\x1a")
    assert terminal.stopped() == "SIGTSTP"
    assert terminal.read(3.0).endswith(LEAVE)
    assert terminal.modes() == found
    os.kill(terminal.process.pid, signal.SIGUSR1)
    assert ENTER in terminal.read(60.0, until=HOME)
    assert terminal.modes() == taken

    # A pause outlasts it, and its page is drawn again.
    terminal.press(" ")
    assert "paused" in terminal.read(60.0, until="paused")
    terminal.press("\x1a")
    assert terminal.stopped() == "SIGTSTP"
    assert terminal.read(1.0).endswith(LEAVE)
    os.kill(terminal.process.pid, signal.SIGUSR1)
    assert "paused" in terminal.read(60.0, until="paused").partition(ENTER)[2]
    terminal.press(" ")
    assert HOME in terminal.read(60.0, until=HOME)

    terminal.press("q")
    assert terminal.read(100.0).endswith(LEAVE)
    assert terminal.process.wait(20) == 0
    assert terminal.modes() == found
    told = json.loads((tmp_path / "play.json").read_text())
    assert told["ticks"] == pytest.approx(60 * (told["seconds"] - told["lost_s"]), abs=6)
    # Of the three seconds away nothing is late.
    assert max(told["latency_ms"]["max"], told["jitter_ms"]["max"], 1e3 * told["lost_s"]) < 2_900


def test_a_job_that_is_killed_while_it_is_stopped_saves_and_leaves_the_terminal_to_the_shell(
    tmp_path: Path, pong: Files
) -> None:
    terminal = Terminal(tmp_path, pong, shell=True)
    found = terminal.modes()
    terminal.read(60.0, until="space pauses, q ends")
    terminal.press("\x1a")
    assert terminal.stopped() == "SIGTSTP"
    os.kill(terminal.process.pid, signal.SIGUSR2)
    assert terminal.read(60.0).endswith(LEAVE)
    assert terminal.stopped() == ""
    assert terminal.process.wait(20) == 0
    assert terminal.modes() == found
    assert json.loads((tmp_path / "play.json").read_text())["interrupted"]


@pytest.mark.slow
def test_ctrl_z_where_no_shell_could_let_the_game_go_on_does_not_stop_it(tmp_path: Path, pong: Files) -> None:
    terminal = Terminal(tmp_path, pong)
    terminal.read(60.0, until="space pauses, q ends")
    terminal.press("\x1a")
    assert HOME in terminal.read(60.0, until=LEAVE + ENTER) + terminal.read(60.0, until=HOME)
    terminal.press("q")
    assert terminal.read(100.0).endswith(LEAVE)
    assert terminal.process.wait(20) == 0
