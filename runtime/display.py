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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.common.agents import resolve
from spikestill.common.atari import MAX_ACTIONS
from spikestill.common.errors import UserError
from spikestill.runtime.clock import step_back
from spikestill.runtime.frame_ring import FrameRing, frame_dtype, ring_bytes, shared_file
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
        picture: what draws the agent's inside, ``module:function``, '' for what the agent sees.
        words: words of packed spikes that come with a frame.
        video: MP4 to write, None: none.
        terminal: draw on standard error.
    """

    game: str
    agent: str
    actions: list[str]
    picture: str
    words: int
    video: str | None
    terminal: bool


class Display:
    """The process that draws. Frames that come while it is behind are dropped and counted.

    Args:
        options: what to draw.
        layout: what draws the agent's inside needs to know.

    Attributes:
        dropped: frames dropped.
        frames: frames of the video, known once it is closed.

    Raises:
        UserError: it cannot start; the message says why.
    """

    def __init__(self, options: DisplayOptions, layout: Mapping[str, npt.NDArray[Any]]) -> None:
        self.dropped = self.frames = 0
        dtype = frame_dtype(options.words)
        memory = shared_file(ring_bytes(dtype))
        places = shared_file(0)
        with os.fdopen(os.dup(places), "wb") as file:
            np.savez(file, **dict(layout))  # type: ignore[arg-type]
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        arguments = [json.dumps(sys.path), str(memory), str(places), str(reader)]
        arguments.append(json.dumps(dataclasses.asdict(options)))
        self._process = subprocess.Popen(
            [sys.executable, "-c", BOOT, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            pass_fds=(memory, places, reader),
            # A Ctrl-C is for the game, which then ends the frames; the display finishes its file.
            start_new_session=True,
        )
        self._ring = FrameRing(memory, writer, dtype)
        self._writer: int | None = writer
        for descriptor in (memory, places, reader):
            os.close(descriptor)
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
            decision = tick.answer.decision
            scores = decision.scores[0]
            slot["answer"], slot["latency_ms"] = tick.answer.number, tick.answer.latency_s * 1e3
            slot["votes"] = scores.dtype.kind in "iu"
            slot["scores"][: len(scores)] = scores
            slot["seen"] = tick.answer.observations["stack"][0, -1]
            if decision.trace is not None:
                slot["trace"] = decision.trace.packed_BW[0, : slot["trace"].shape[0]]
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
    memory, places, pipe = (int(word) for word in sys.argv[2:5])
    options = DisplayOptions(**json.loads(sys.argv[5]))
    assert len(options.actions) <= MAX_ACTIONS
    output, dtype = sys.stdout.buffer, frame_dtype(options.words)
    try:
        report: dict[str, Any] = {"frames": _draw(FrameRing(memory, pipe, dtype), options, places, dtype)}
    except UserError as error:
        report = {"error": error.what, "remedy": error.remedy}
    except OSError as error:
        # Whatever failed has its own name where it is a file; the video's where FFmpeg does not say.
        name = error.filename or options.video or "the display"
        report = {"error": f"{name}: {error.strerror or error}", "remedy": "choose another place"}
    output.write(json.dumps(report).encode())
    output.flush()


def _draw(ring: FrameRing, options: DisplayOptions, places: int, dtype: np.dtype[np.void]) -> int:
    """Draw every frame of ``ring``; return how many the video has."""
    with contextlib.ExitStack() as stack:
        video = view = None
        if options.video:
            from spikestill.runtime.panel import Panel, seen_picture
            from spikestill.runtime.recording import VideoWriter

            with os.fdopen(places, "rb") as file:
                file.seek(0)
                layout = dict(np.load(file))
            draw = resolve(options.picture)(layout) if options.picture else seen_picture
            panel = Panel(options.game, options.agent, options.actions, draw, dtype)
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
