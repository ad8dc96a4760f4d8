"""What every viewer of the live page gets: frames from the ring as messages, and commands on their way to the loop.

One message a frame, for all viewers alike: a little-endian uint32 with the header's length, the header as JSON (each
agent's figures), the screens as PNG, and for agents on cores a byte a core, 0..255, how much of it fired, where the
decision is new. A scene is told as JSON text when it changes.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from spikestill.common.agents import live_agents
from spikestill.common.environment import environment_names
from spikestill.common.errors import UserError
from spikestill.common.extras import check_extra
from spikestill.runtime.activity import shares
from spikestill.runtime.controls import checked
from spikestill.runtime.frame_ring import STATES
from spikestill.runtime.hdr import HdrHistogram
from spikestill.runtime.onlooker import Seat
from spikestill.runtime.perturb import kinds_for
from spikestill.runtime.scene import Scene
from spikestill.runtime.telemetry import COUNTS, Told, prometheus

MOST_BYTES = 2_000
"""Of one message from a viewer."""
GIF_SECONDS = 5.0
WHOLE = ("frame", "game", "action", "decisions", "misses", "agreed", "compared", "state", "answer")
"""Whole numbers of a frame's part that are told as they are."""


def png(screen_HW3: np.ndarray) -> bytes:
    """Return a screen as PNG, quickly: games have few colours."""
    import io

    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(screen_HW3).save(out, "PNG", compress_level=1)
    return out.getvalue()


class Broadcast:
    """What viewers get: the newest frame and scene, and the state of the controls.

    Args:
        seat: where frames come from.
        commands: descriptor of the pipe to the loop, not blocking.
    """

    def __init__(self, seat: Seat, commands: int) -> None:
        self._seat, self._commands = seat, commands
        self.frame, self.number, self.ended = b"", 0, False
        self.scene = seat.scene(0)
        self._scene_number = 0
        self.texts: dict[str, str] = {}
        self.controls: dict[str, Any] = {"paused": False, "speed": 1.0}
        self._told: list[Told] = []
        self._answers: list[int] = []
        self._recording: Any = None
        self._panel: Any = None
        self._first, self._newest = 0, -1
        self.files: dict[str, bytes] = {}
        self._wish: str | None = None
        self.changed = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        self._show(self.scene)

    def read(self) -> None:
        """Take in every frame, in a thread of its own, and tell viewers of the end, whatever it comes from."""
        try:
            for frame in self._seat.ring.frames():
                if frame["scene"] != self._scene_number:
                    self._scene_number = int(frame["scene"])
                    self._end_recording()
                    self._show(self._seat.scene(self._scene_number))
                if frame["paused"] != self.controls["paused"]:
                    self.controls["paused"] = bool(frame["paused"])
                    self._tell()
                self._record(frame)
                self.frame, self.number = self._message(frame), self.number + 1
                self._wake()
            self._end_recording()
        finally:
            self.ended = True
            self.number += 1
            self._wake()

    def _wake(self) -> None:
        self.loop.call_soon_threadsafe(self.changed.set)

    def _show(self, scene: Scene) -> None:
        self.scene = scene
        count = len(scene.actors)
        self._told = [
            Told(actor.name, {name: 0.0 for name, *_ in COUNTS}, HdrHistogram(), HdrHistogram())
            for actor in scene.actors
        ]
        self._answers = [-2] * count
        agents = []
        for actor in scene.actors:
            cores = None
            if "column_U" in actor.layout:
                layout = actor.layout
                cores = {key: layout[f"{key}_U"].tolist() for key in ("column", "row", "layer")}
                cores["chip"] = layout["chip"].tolist()
            kinds = kinds_for(sees_pictures=scene.sees_pictures, has_cores=cores is not None)
            agents.append({"name": actor.name, "note": actor.note, "cores": cores, "kinds": kinds})
        self.texts["scene"] = json.dumps(
            {
                "type": "scene", "game": scene.game, "actions": scene.actions, "rate_hz": scene.rate_hz,
                "frames_per_decision": scene.frames_per_decision, "bounds": scene.bounds, "atari": scene.atari,
                "agents": agents, "notice": scene.notice, "known_agents": live_agents(),
                "known_games": environment_names(), "states": STATES,
            }
        )  # fmt: skip
        self._tell()

    def _tell(self, notice: str = "") -> None:
        self.texts["controls"] = json.dumps({"type": "controls", **self.controls, "notice": notice})
        self.number += 1
        self._wake()

    def _message(self, frame: np.void) -> bytes:
        """Return the message of a frame."""
        heads, blobs = [], []
        for index, part in enumerate(frame["sessions"][: len(self.scene.actors)]):
            fresh = int(part["answer"]) != self._answers[index] and part["answer"] >= 0
            self._answers[index] = int(part["answer"])
            self._count(self._told[index], part, fresh)
            head: dict[str, Any] = {name: int(part[name]) for name in WHOLE} | {"score": float(part["score"])}
            screen = png(part["screen"])
            head["png"] = len(screen)
            blobs.append(screen)
            if fresh:
                head |= self._decision(part)
                if cores := self._cores(self.scene.actors[index].layout, part):
                    head["cores"] = len(cores)
                    blobs.append(cores)
            heads.append(head)
        header = json.dumps({"agents": heads}).encode()
        return b"".join([struct.pack("<I", len(header)), header, *blobs])

    def _decision(self, part: np.void) -> dict[str, Any]:
        """Return what is told of a new decision."""
        scores, value = part["scores"][: len(self.scene.actions)].tolist(), self.scene.expected(part)
        return {
            "latency_ms": round(float(part["latency_ms"]), 3),
            "joules": float(part["joules"]) / max(1, int(part["decisions"])),
            "votes": bool(part["votes"]),
            "bars": [round(share, 4) for share in self.scene.bars(part).tolist()],
            "value": None if value is None else round(value, 4),
            "scores": [round(score, 4) if np.isfinite(score) else 0.0 for score in scores],
        }

    def _cores(self, layout: Mapping[str, Any], part: np.void) -> bytes:
        """Return a byte a core, how much of it fired, b'' for an agent without cores."""
        if "unit_W" not in layout:
            return b""
        return (shares(layout, part) * 255).astype(np.uint8).tobytes()

    def _count(self, told: Told, part: np.void, fresh: bool) -> None:
        """Take a frame into the figures of an agent."""
        told.lateness.add(float(part["late_ms"]) / 1e3)
        if fresh:
            told.latency.add(float(part["latency_ms"]) / 1e3)
        counts = {name: float(part["frame" if name == "ticks" else name]) for name, *_ in COUNTS}
        told.counts.update(counts)

    def metrics(self) -> str:
        """Return the agents' figures as Prometheus text."""
        return prometheus(list(self._told))

    def wish(self, what: str) -> None:
        """Record: ``gif``, five seconds; ``record``, an MP4 until ``stop``."""
        self._wish = what

    def _record(self, frame: np.void) -> None:
        """Draw the frame into what is being recorded, beginning and ending it as was wished."""
        wish, self._wish = self._wish, None
        try:
            if wish in ("gif", "record") and self._recording is None:
                self._begin(frame, wish)
            if self._recording is None:
                return
            number = int(frame["sessions"][0]["frame"]) - self._first
            # The frame at which time stands still comes twice.
            if number > self._newest and self._recording.wants(number):
                self._recording.add(self._panel.draw(frame), number)
            self._newest = number
            over = self._recording.path.suffix == ".gif" and number > GIF_SECONDS * self.scene.rate_hz
            if wish == "stop" or over:
                self._end_recording()
        except (OSError, UserError) as error:
            self._end_recording(error)

    def _begin(self, frame: np.void, wish: str) -> None:
        from spikestill.runtime.mosaic import picture_of
        from spikestill.runtime.recording import recorder

        if wish == "record":
            check_extra("video")
        self._panel = picture_of(self.scene, self._seat.dtype)
        name = f"spikestill-{self.scene.game}-{time.strftime('%H%M%S')}.{'gif' if wish == 'gif' else 'mp4'}"
        folder = Path(tempfile.mkdtemp(prefix="spikestill-"))
        self._recording = recorder(folder / name, self._panel.size, self.scene.rate_hz)
        self._recording.__enter__()
        self._first, self._newest = int(frame["sessions"][0]["frame"]), -1
        self.controls["recording"] = wish
        self._tell()

    def _end_recording(self, error: Exception | None = None) -> None:
        """End what is recorded, if anything is: its file is there for viewers, or they are told the ``error``."""
        writer, self._recording = self._recording, None
        if writer is not None:
            try:
                writer.__exit__(type(error) if error else None, error, None)
                if error is None:
                    self.files = {writer.path.name: writer.path.read_bytes()}
                    self.controls["file"] = writer.path.name
            except (OSError, UserError) as found:
                error = found
            shutil.rmtree(writer.path.parent, ignore_errors=True)
        elif error is None:
            return
        self.controls["recording"] = None
        self._tell(f"not recorded: {error}" if error else "")

    def command(self, text: str) -> dict[str, Any]:
        """Pass a viewer's command on to the loop, and return it; {} where it is about a recording, which is made here.

        Raises:
            UserError: it is none; it is not passed on.
        """
        if len(text) > MOST_BYTES:
            raise UserError(f"a message of {len(text)} characters, {MOST_BYTES} is the most", "send less")
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError("a message that is no JSON", "send a command") from error
        if isinstance(parsed, Mapping) and parsed.get("do") in ("gif", "record", "stop"):
            self.wish(str(parsed["do"]))
            return {}
        command = checked(parsed, len(self.scene.actors), len(self.scene.actions))
        try:
            os.write(self._commands, json.dumps(command).encode() + b"\n")
        except BlockingIOError as error:
            raise UserError("the loop is behind with commands", "wait a moment") from error
        except BrokenPipeError as error:
            raise UserError("the game has ended", "begin it anew") from error
        if command["do"] == "speed":
            self.controls["speed"] = command["value"]
        self._tell()
        return command
