"""A process that looks on: frames go to it through a ring, and the loop never waits for it.

A thread beside the loop would share its interpreter: whenever the machine is busy and takes the processor
from a thread that draws, the game would wait for it. So drawing and serving have interpreters of their own, and
the loop only copies a frame into shared memory.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from spikestill.common.errors import UserError
from spikestill.runtime.frame_ring import STATES, FrameRing, frame_dtype, ring_bytes, shared_file
from spikestill.runtime.scene import Scene
from spikestill.runtime.session import Session, Tick

BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from importlib import import_module; import_module(sys.argv[2]).main()"
)
READY = b"R"
HALT_S = 2.0
"""How long a process may take to stop."""

ROOM_S = 0.001
"""Between two looks whether there is room for a frame, where one waits for it."""


class Onlooker:
    """A process that gets the frames. Frames that come while it is behind are dropped and counted.

    Args:
        module: its ``main()`` reads :class:`Seat` and reports.
        options: plain values for it.
        scene: the first one.
        words: words of packed spikes of an agent, at most.
        screen_shape: (H, W) of the games.
        heard: it sends commands back, which :meth:`commands` gives.

    Attributes:
        dropped: frames dropped.
        report: what it said at its end.

    Raises:
        UserError: it cannot start; the message says why.
    """

    def __init__(
        self,
        module: str,
        options: dict[str, Any],
        scene: Scene,
        words: int,
        screen_shape: tuple[int, int],
        *,
        heard: bool = False,
    ) -> None:
        self.dropped = 0
        self.report: dict[str, Any] = {}
        self._name, self._said = module.rpartition(".")[2], b""
        # Room for the actions and scores of another game or agent that may come on.
        sizes = len(scene.actors), words, max(18, len(scene.actions))
        dtype = frame_dtype(*sizes, screen_shape)
        memory = shared_file(ring_bytes(dtype))
        self._folder = Path(tempfile.mkdtemp(prefix="spikestill-scenes-"))
        self._scene = 0
        self._past: list[tuple[int, int]] = []
        """Scenes before, with how many frames had been handed over at the end of each."""
        scene.save(self._folder, 0)
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        passed = [memory, reader]
        self._commands, self._begun = -1, b""
        if heard:
            self._commands, answers = os.pipe()
            os.set_blocking(self._commands, False)
            os.set_blocking(answers, False)
            passed.append(answers)
            options = {**options, "commands": answers}
        arguments = [
            json.dumps(sys.path),
            module,
            str(memory),
            str(reader),
            json.dumps([*sizes, screen_shape]),
            str(self._folder),
        ]
        self._process = subprocess.Popen(
            [sys.executable, "-c", BOOT, *arguments, json.dumps(options)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            pass_fds=passed,
            # A Ctrl-C is for the game, which then ends the frames; the onlooker finishes its file.
            start_new_session=True,
        )
        self._ring = FrameRing(memory, writer, dtype)
        self._writer: int | None = writer
        for descriptor in passed:
            os.close(descriptor)
        assert self._process.stdout is not None
        # Anything else is the start of its report.
        self._said = self._process.stdout.read(1)
        if self._said != READY:
            self.close()

    def show(self, scene: Scene) -> None:
        """Let the frames from now on belong to ``scene``."""
        scene.save(self._folder, self._scene + 1)
        self._past.append((self._scene, self._ring.written))
        self._scene += 1
        # A frame that is still to be read needs its scene.
        while self._past and self._past[0][1] <= self._ring.read:
            number, _ = self._past.pop(0)
            (self._folder / f"{number}.npz").unlink(missing_ok=True)

    def commands(self) -> list[dict[str, Any]]:
        """Return the commands that came since the last call, without waiting."""
        if self._commands < 0:
            return []
        try:
            self._begun += os.read(self._commands, 65_536)
        except BlockingIOError:
            return []
        *whole, self._begun = self._begun.split(b"\n")
        return [json.loads(line) for line in whole]

    def offer(
        self, sessions: Sequence[Session], ticks: Sequence[Tick], *, paused: bool = False, wait: bool = False
    ) -> bool:
        """Hand over a frame, the last one again where ``paused``; return False where it was dropped.

        Args:
            sessions, ticks: what it shows.
            paused: the game stands still.
            wait: wait until there is room, in a game that no clock drives; else a frame without room is dropped.

        Raises:
            UserError: the onlooker failed, for example because the disk is full, or its process ended.
        """
        if self._writer is None:
            return False
        slot = self._ring.next_slot()
        while wait and slot is None and self._process.poll() is None:
            time.sleep(ROOM_S)
            slot = self._ring.next_slot()
        if slot is None:
            self.dropped += 1
            return False
        slot["scene"], slot["paused"] = self._scene, paused
        for part, session, tick in zip(slot["sessions"], sessions, ticks, strict=True):
            fill(part, session, tick)
        try:
            self._ring.publish()
        except BrokenPipeError as error:
            self.close()
            raise UserError(
                f"the {self._name} process ended before the game", "begin the play anew to have it back"
            ) from error
        return True

    def halt(self) -> bool:
        """Stop the process where it is, until :meth:`go_on`; return False where it has ended, or does not stop."""
        if self._writer is None:
            return False
        self._process.send_signal(signal.SIGSTOP)
        deadline_s = time.monotonic() + HALT_S
        while time.monotonic() < deadline_s:
            found = os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None:
                return found.si_code == os.CLD_STOPPED
            time.sleep(0.001)
        self.go_on()
        return False

    def go_on(self) -> None:
        """Let a process that was halted go on."""
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End the frames and let the process finish; does nothing the second time.

        Raises:
            UserError: the process failed.
        """
        if self._writer is None:
            return
        os.close(self._writer)
        if self._commands >= 0:
            os.close(self._commands)
        self._writer, self._commands = None, -1
        output, _ = self._process.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)
        try:
            self.report = json.loads((self._said + output).removeprefix(READY))
        except ValueError:
            self.report = {"error": f"the {self._name} process ended with status {self._process.returncode}"}
        if "error" in self.report:
            raise UserError(self.report["error"], self.report.get("remedy"))


def fill(part: np.void, session: Session, tick: Tick) -> None:
    """Write a session's part of a frame."""
    telemetry = session.telemetry
    part["frame"], part["game"], part["score"] = tick.frame, tick.game, tick.score
    part["action"] = tick.action if isinstance(tick.action, int) else -1
    part["decisions"], part["misses"] = telemetry.decisions, telemetry.misses
    part["agreed"], part["compared"] = session.agreed, session.compared
    part["late_ms"], part["joules"] = telemetry.late_s * 1e3, telemetry.joules
    part["state"] = STATES.index(session.state)
    part["answer"] = -1
    if tick.answer is not None:
        decision = tick.answer.decision
        scores = np.asarray(decision.scores[0]).reshape(-1)[: part["scores"].shape[0]]
        part["answer"], part["latency_ms"] = tick.answer.number, tick.answer.latency_s * 1e3
        part["votes"] = scores.dtype.kind in "iu"
        part["scores"][: len(scores)] = scores
        part["value"] = np.nan if decision.value is None else decision.value[0]
        seen = tick.answer.observations.get("stack")
        if seen is not None:
            part["seen"] = seen[0, -1]
        if decision.trace is not None and decision.trace.packed_BW.shape[1] <= part["trace"].shape[0]:
            packed_W = decision.trace.packed_BW[0]
            part["trace"][: len(packed_W)] = packed_W
    if session.leader is None:
        session.game.screen(part["screen"])
    else:
        session.leader.game.screen(part["screen"])


class Seat:
    """The onlooker's side: read from its command line.

    Attributes:
        options: what it was given.
        dtype: of the frames.
        ring: the frames.
    """

    def __init__(self) -> None:
        memory, pipe = int(sys.argv[3]), int(sys.argv[4])
        sessions, words, actions, screen_shape = json.loads(sys.argv[5])
        self._folder = Path(sys.argv[6])
        self.options: dict[str, Any] = json.loads(sys.argv[7])
        self.dtype = frame_dtype(sessions, words, actions, tuple(screen_shape))
        self.ring = FrameRing(memory, pipe, self.dtype)

    def scene(self, number: int) -> Scene:
        """Return a scene by the number that a frame has."""
        return Scene.load(self._folder, number)

    @staticmethod
    def ready() -> None:
        """Say that the start went well."""
        os.write(sys.stdout.fileno(), READY)

    @staticmethod
    def say(report: dict[str, Any]) -> None:
        """Say how it ended."""
        sys.stdout.buffer.write(json.dumps(report).encode())
        sys.stdout.buffer.flush()
