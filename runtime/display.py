"""The process that draws: the terminal view, the video, the GIF."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spikestill.common.errors import UserError
from spikestill.runtime.clock import step_back
from spikestill.runtime.onlooker import Onlooker, Seat
from spikestill.runtime.scene import Scene

if TYPE_CHECKING:
    from spikestill.runtime.recording import GifWriter, VideoWriter
    from spikestill.runtime.view import TerminalView

NICENESS = 10
"""Drawing stands behind the game and the agents."""


@dataclasses.dataclass(frozen=True)
class DisplayOptions:
    """What to draw: plain values, sent to the process as JSON.

    Attributes:
        record: MP4 or GIF to write, None: none.
        terminal: draw on standard error.
        keys: which keys do what, for the terminal; '' where none is heard.
    """

    record: str | None
    terminal: bool
    keys: str = ""


class Display(Onlooker):
    """The process that draws; see :class:`Onlooker`."""

    def __init__(
        self, options: DisplayOptions, scene: Scene, words: int, screen_shape: tuple[int, int]
    ) -> None:
        super().__init__(
            "spikestill.runtime.display", dataclasses.asdict(options), scene, words, screen_shape
        )

    @property
    def frames(self) -> int:
        """Frames of the video, known once it is closed."""
        return int(self.report.get("frames", 0))


def main() -> None:
    """Draw what comes through the ring named on the command line; report as JSON on standard output."""
    step_back(NICENESS)
    seat = Seat()
    options = DisplayOptions(**seat.options)
    try:
        report: dict[str, Any] = {"frames": _draw(seat, options)}
    except UserError as error:
        report = {"error": error.what, "remedy": error.remedy}
    except OSError as error:
        # Whatever failed has its own name where it is a file; the video's where FFmpeg does not say.
        name = error.filename or options.record or "the display"
        report = {"error": f"{name}: {error.strerror or error}", "remedy": "choose another place"}
    # A terminal that was closed takes standard output with it only where it was the terminal.
    with contextlib.suppress(BrokenPipeError):
        seat.say(report)


def _draw(seat: Seat, options: DisplayOptions) -> int:
    """Draw every frame; return how many the recording has."""
    scene = seat.scene(0)
    with contextlib.ExitStack() as stack:
        recording: VideoWriter | GifWriter | None = None
        view: TerminalView | None = None
        if options.record:
            from spikestill.runtime.mosaic import picture_of
            from spikestill.runtime.recording import recorder

            panel = picture_of(scene, seat.dtype)
            writer = recorder(Path(options.record), panel.size, scene.rate_hz)
            recording = writer
            stack.enter_context(writer)
        if options.terminal:
            from spikestill.runtime import view as views

            view = stack.enter_context(views.TerminalView(sys.stderr, scene, options.keys))
        seat.ready()
        first: int | None = None
        shown = 0
        for frame in seat.ring.frames():
            if frame["scene"] != shown:
                shown = int(frame["scene"])
                scene = seat.scene(shown)
                if recording:
                    panel = picture_of(scene, seat.dtype)
                if view:
                    view.turn_to(scene)
            number = int(frame["sessions"][0]["frame"])
            first = number if first is None else first
            if view:
                try:
                    view.show(frame)
                except OSError:  # the terminal was closed: whatever else is drawn goes on
                    view = None
            if recording and not frame["paused"] and recording.wants(number - first):
                recording.add(panel.draw(frame), number - first)
    return recording.frames if recording else 0
