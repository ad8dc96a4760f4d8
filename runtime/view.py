"""The game in a terminal: half blocks in true colour, 15 pages a second."""

from __future__ import annotations

import errno
import itertools
import os
import re
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TextIO

import numpy as np
import numpy.typing as npt

from spikestill.common.agents import resolve
from spikestill.common.stage import leave_terminal
from spikestill.runtime.frame_ring import STATES
from spikestill.runtime.scene import Scene

RATE_HZ = 15.0
BAR_CELLS = 20
SIDE_CELLS = 40
INSIDE_CELLS, INSIDE_LINES = 24, 12
"""Least room in which an agent's inside is shown."""
PIXEL_ASPECT = 4 / 3
UNKNOWN_SIZE = os.terminal_size((120, 50))
ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"
LEAVE = "\x1b[0m\x1b[?25h\x1b[?1049l"
HOME = "\x1b[H"
CLEAR_LINE = "\x1b[0m\x1b[K"
COLOURS = re.compile("\x1b\\[[0-9;]*m")


def half_blocks(picture_HW3: npt.NDArray[np.uint8]) -> list[str]:
    """Return a line of text for every two rows of ``picture_HW3``, uint8 (H, W, 3), H even.

    Each character is the upper half block, the upper pixel in its foreground and the lower in its
    background; colours are only written where they change.
    """
    lines = []
    for upper_W3, lower_W3 in zip(picture_HW3[0::2].tolist(), picture_HW3[1::2].tolist(), strict=True):
        parts, last = [], None
        for upper, lower in zip(upper_W3, lower_W3, strict=True):
            if (upper, lower) != last:
                parts.append("\x1b[38;2;{};{};{};48;2;{};{};{}m".format(*upper, *lower))
                last = (upper, lower)
            parts.append("▀")
        lines.append("".join(parts))
    return lines


def shrink(
    screen_HW3: npt.NDArray[np.uint8], columns: int, lines: int, atari: bool = True
) -> npt.NDArray[np.uint8]:
    """Return the screen in at most ``columns`` x ``2 * lines`` pixels, its shape kept, by picking pixels.

    A pixel of Atari's screen is 4/3 as wide as high, as in the video; one of a half block is about square.
    """
    height, width = screen_HW3.shape[:2]
    aspect = PIXEL_ASPECT if atari else 1.0
    scale = min(columns / (width * aspect), 2 * lines / height)
    rows, cells = max(2, int(height * scale) // 2 * 2), max(1, int(width * aspect * scale))
    row = (np.arange(rows) + 0.5) * height / rows
    column = (np.arange(cells) + 0.5) * width / cells
    return screen_HW3[row.astype(np.int64)[:, None], column.astype(np.int64)[None, :]]


def side_lines(part: np.void, title: str, scene: Scene) -> list[str]:
    """Return what stands beside or below a game: score, votes, Q-values or numbers as bars, the value of numbers,
    latency and misses."""
    seconds = part["frame"] / scene.rate_hz
    lines = [title, "", f"score {part['score']:g}   game {part['game'] + 1}   {seconds:.0f} s", ""]
    state = STATES[part["state"]]
    if state != "playing":
        lines[1] = f"{state}"
    if part["answer"] >= 0:
        for index, (name, share) in enumerate(zip(scene.actions, scene.bars(part), strict=True)):
            mark = "▶" if index == part["action"] else " "
            lines.append(f"{mark} {name.lower():<14} {'█' * round(BAR_CELLS * share)}")
        lines += filter(None, [scene.value(part)])
        lines += ["", f"latency {part['latency_ms']:.2f} ms"]
    lines.append(f"misses {part['misses']} of {part['decisions']} decisions")
    if part["compared"]:
        lines.append(f"agrees with the reference in {part['agreed'] / part['compared']:.1%}")
    return lines


def at_most(picture_HW3: npt.NDArray[np.uint8], columns: int, lines: int) -> npt.NDArray[np.uint8]:
    """Return a picture in at most ``columns`` x ``2 * lines`` pixels, each the mean of those that it stands for."""
    height, width = picture_HW3.shape[:2]
    scale = min(1.0, columns / width, 2 * lines / height)
    rows, cells = max(2, int(height * scale) // 2 * 2), max(1, int(width * scale))
    row, column = np.arange(rows) * height // rows, np.arange(cells) * width // cells
    sums = np.add.reduceat(np.add.reduceat(picture_HW3.astype(np.float32), row, axis=0), column, axis=1)
    size = np.diff([*row, height])[:, None, None] * np.diff([*column, width])[None, :, None]
    return (sums / size).astype(np.uint8)


class TerminalView:
    """Shows the game on a terminal, which the context gives back as it was; the cores too, where there is room.

    Args:
        stream: the terminal.
        scene: who plays what.
        keys: which keys do what, '' where none is heard.
    """

    def __init__(self, stream: TextIO, scene: Scene, keys: str = "") -> None:
        self._stream, self._due_s, self._keys = stream, 0.0, keys
        self.turn_to(scene)

    def turn_to(self, scene: Scene) -> None:
        """Show these from now on."""
        self._scene = scene
        self._insides = [
            resolve(actor.picture)(actor.layout) if actor.picture and actor.layout else None
            for actor in scene.actors
        ]

    def __enter__(self) -> TerminalView:
        self._stream.write(ENTER)
        return self

    def show(self, frame: np.void) -> None:
        """Draw a frame, unless the last is less than 1/15 s ago; the one at which time stands still is always drawn."""
        now_s = time.monotonic()
        if now_s < self._due_s and not frame["paused"]:
            return
        self._due_s = now_s + 1 / RATE_HZ
        try:
            size = os.get_terminal_size(self._stream.fileno())
        except OSError:  # it has been closed
            size = UNKNOWN_SIZE
        self._write(self.page(frame, size if size.columns and size.lines else UNKNOWN_SIZE))

    def page(self, frame: np.void, size: os.terminal_size) -> str:
        """Return one page of text with its control sequences."""
        parts, scene = frame["sessions"], self._scene
        sides = [
            side_lines(part, f"{scene.game} · {actor.name} {actor.note}".rstrip(), scene)
            for part, actor in zip(parts, scene.actors, strict=True)
        ]
        if below := "   ".join(filter(None, ("paused" if frame["paused"] else "", self._keys))):
            sides[0].append(below)
        if len(parts) == 1:
            columns = max(20, size.columns - SIDE_CELLS)
            game = half_blocks(shrink(parts[0]["screen"], columns, max(4, size.lines - 1), scene.atari))
            room = size.columns - game[0].count("▀") - 2, size.lines - len(sides[0]) - 2
            sides[0] += self._inside(0, parts[0], room)
            game += [" " * game[0].count("▀")] * (len(sides[0]) - len(game))
            rows = [
                f"{left}\x1b[0m  {right}"
                for left, right in itertools.zip_longest(game, sides[0], fillvalue="")
            ]
        else:
            width = size.columns // len(parts) - 2
            room = width, max(4, size.lines - max(map(len, sides)) - 1)
            games = [half_blocks(shrink(part["screen"], *room, scene.atari)) for part in parts]
            rows = _beside(games, width) + _beside(sides, width)
            room = width, size.lines - len(rows) - 2
            rows += _beside([self._inside(index, part, room) for index, part in enumerate(parts)], width)
        lines = [row + CLEAR_LINE for row in rows][: size.lines]
        return HOME + "\r\n".join(lines) + "\x1b[J"

    def _inside(self, index: int, part: np.void, room: tuple[int, int]) -> list[str]:
        """Return an agent's inside in the ``room`` (columns, lines) that is left, [] where that is too little."""
        inside = self._insides[index]
        if inside is None or part["answer"] < 0 or room[0] < INSIDE_CELLS or room[1] < INSIDE_LINES:
            return []
        picture, caption = inside(part)
        return ["", *half_blocks(at_most(picture, room[0], room[1] - 1)), f"\x1b[0m{caption[: room[0]]}"]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._write(LEAVE)

    def _write(self, text: str) -> None:
        """Write and flush; what goes to a terminal that has been closed goes nowhere."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            leave_terminal()


def _beside(columns: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return blocks of lines beside each other, each ``width`` cells wide."""
    rows = []
    for lines in itertools.zip_longest(*columns, fillvalue=""):
        cells = [line if "\x1b" in line else line[:width] for line in lines]
        rows.append("  ".join(cell + "\x1b[0m" + " " * (width - shown_cells(cell)) for cell in cells))
    return rows


def shown_cells(line: str) -> int:
    """Return how many cells a line with its colours takes."""
    return len(COLOURS.sub("", line))
