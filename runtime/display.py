"""The display process: draws the terminal view and the video apart from the game.

A thread beside the loop would share its interpreter: whenever the machine is busy and takes the processor
from a thread that draws, the game would wait for it. So drawing has an interpreter of its own, and
the loop only copies a frame into shared memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.common.atari import MAX_ACTIONS
from spikestill.common.errors import UserError
from spikestill.runtime.clock import step_back
from spikestill.runtime.frame_ring import FrameRing, shared_file
from spikestill.runtime.loop import Tick
from spikestill.runtime.telemetry import Telemetry

BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from spikestill.runtime.display import main; main()"
NICENESS = 10
"""Drawing stands behind the game and the agent."""
READY = b"R"


@dataclasses.dataclass(frozen=True)
class DisplayOptions:
    """What to draw: plain values, sent to the process as JSON.

    Attributes:
        game: the game's name.
        agent: the agent's name.
        actions: names of the actions.
        core_map: file of the core map whose cores are shown, None: none.
        video: MP4 to write, None: none.
        terminal: draw on standard error.
    """

    game: str
    agent: str
    actions: list[str]
    core_map: str | None
    video: str | None
    terminal: bool


class Display:
    """The process that draws. Frames that come while it is behind are dropped and counted.

    Args:
        options: what to draw.

    Attributes:
        dropped: frames dropped.
        frames: frames of the video, known once it is closed.

    Raises:
        UserError: it cannot start; the message says why.
    """

    def __init__(self, options: DisplayOptions) -> None:
        self.dropped = self.frames = 0
        self._answer = -1
        memory = shared_file()
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        arguments = [json.dumps(sys.path), str(memory), str(reader), json.dumps(dataclasses.asdict(options))]
        self._process = subprocess.Popen(
            [sys.executable, "-c", BOOT, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            pass_fds=(memory, reader),
            # A Ctrl-C is for the game, which then ends the frames; the display finishes its file.
            start_new_session=True,
        )
        self._ring = FrameRing(memory, writer)
        self._writer: int | None = writer
        os.close(memory)
        os.close(reader)
        assert self._process.stdout is not None
        # Anything else is the start of its report.
        self._said = self._process.stdout.read(1)
        if self._said != READY:
            self.close()

    def offer(
        self, screen: Callable[[npt.NDArray[np.uint8]], None], tick: Tick, telemetry: Telemetry
    ) -> bool:
        """Hand over a frame without waiting; return False where it was dropped.

        Args:
            screen: writes the screen into the uint8 (210, 160, 3) that it is given.
            tick: the loop's tick of that frame.
            telemetry: of the loop.

        Raises:
            UserError: the display failed, for example because the disk is full.
        """
        slot = self._ring.next_slot()
        if slot is None:
            self.dropped += 1
            return False
        slot["frame"], slot["game"], slot["action"] = tick.frame, tick.game, tick.action
        slot["score"] = tick.score
        slot["decisions"], slot["misses"] = telemetry.decisions, telemetry.misses
        slot["answer"] = -1
        if tick.answer is not None:
            scores = tick.answer.decision.scores
            slot["answer"], slot["latency_ms"] = tick.answer.number, tick.answer.latency_s * 1e3
            slot["votes"] = scores.dtype.kind in "iu"
            slot["scores"][: len(scores)] = scores
            slot["stack"] = tick.answer.stack_CHW
        screen(slot["screen"])
        try:
            self._ring.publish()
        except BrokenPipeError:
            self.close()
        return True

    def close(self) -> None:
        """End the frames and let the process finish; does nothing the second time.

        Raises:
            UserError: the display failed.
        """
        if self._writer is None:
            return
        os.close(self._writer)
        self._writer = None
        output, _ = self._process.communicate()
        try:
            report: dict[str, Any] = json.loads((self._said + output).removeprefix(READY))
        except ValueError:
            report = {"error": f"the display process ended with status {self._process.returncode}"}
        if "error" in report:
            raise UserError(report["error"], report.get("remedy"))
        self.frames = int(report["frames"])


def main() -> None:
    """Draw what comes through the ring named on the command line; report as JSON on standard output."""
    step_back(NICENESS)
    memory, pipe = int(sys.argv[2]), int(sys.argv[3])
    options = DisplayOptions(**json.loads(sys.argv[4]))
    assert len(options.actions) <= MAX_ACTIONS
    output = sys.stdout.buffer
    try:
        report: dict[str, Any] = {"frames": _draw(FrameRing(memory, pipe), options)}
    except UserError as error:
        report = {"error": error.what, "remedy": error.remedy}
    except OSError as error:
        report = {"error": f"{options.video}: {error.strerror or error}", "remedy": "choose another place"}
    output.write(json.dumps(report).encode())
    output.flush()


def _draw(ring: FrameRing, options: DisplayOptions) -> int:
    """Draw every frame of ``ring``; return how many the video has."""
    with contextlib.ExitStack() as stack:
        video = view = None
        if options.video:
            from spikestill.runtime.panel import Panel
            from spikestill.runtime.recording import VideoWriter

            panel = Panel(options.game, options.agent, options.actions, _picture(options.core_map))
            video = stack.enter_context(VideoWriter(Path(options.video)))
        if options.terminal:
            from spikestill.runtime.view import TerminalView

            title = f"{options.game} · {options.agent}"
            view = stack.enter_context(TerminalView(sys.stderr, title, options.actions))
        os.write(sys.stdout.fileno(), READY)
        first: int | None = None
        for frame in ring.frames():
            first = int(frame["frame"]) if first is None else first
            if view:
                view.show(frame)
            if video:
                video.add(panel.draw(frame), int(frame["frame"]) - first)
    return video.frames if video else 0


def _picture(core_map: str | None) -> Callable[[np.void], tuple[npt.NDArray[np.uint8], str]]:
    if core_map is None:
        from spikestill.runtime.panel import seen_picture

        return seen_picture
    from spikestill.deploy.core_map import load
    from spikestill.runtime.activity import CorePicture

    return CorePicture(load(Path(core_map)))
