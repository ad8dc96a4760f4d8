"""Agents side by side in one picture; a single one at Atari has :class:`spikestill.runtime.panel.Panel`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spikestill.runtime.frame_ring import STATES
from spikestill.runtime.panel import (
    ALARM,
    BACKGROUND,
    DIM,
    INNER,
    Panel,
    draw_bars,
    draw_text,
    inside,
    text_mask,
)
from spikestill.runtime.scene import Scene

TILE, GAP = 320, 16
TILE_TOP, TILE_SCREEN = 48, 316
TILE_BARS = 120
TILE_HEIGHT = TILE_TOP + TILE_SCREEN + TILE_BARS + 60
MOST_COLUMNS = 5


class Mosaic:
    """Draws agents side by side: for each its game, its votes or Q-values and how it keeps up; the cores beside them.

    Args:
        scene: who plays.
        dtype: of the frames that come.

    Attributes:
        size: (height, width) of what it draws.
    """

    def __init__(self, scene: Scene, dtype: np.dtype[np.void]) -> None:
        self._scene = scene
        # The first agent that has an inside shows it.
        self._drawn = next((index for index, actor in enumerate(scene.actors) if actor.layout), None)
        self._inside = None if self._drawn is None else inside(scene.actors[self._drawn])
        cells = len(scene.actors) + (self._inside is not None)
        self._columns = min(cells, MOST_COLUMNS)
        rows = -(-cells // self._columns)
        self.size = (rows * TILE_HEIGHT, self._columns * (TILE + GAP) + GAP)
        self.canvas = np.empty((*self.size, 3), np.uint8)
        self.canvas[:] = BACKGROUND
        self._shown: list[tuple[int, str, float] | None] = [None] * len(scene.actors)
        self._decided = -1
        height, width = dtype["sessions"].base["screen"].shape[:2]
        wide = width * 4 / 3 if scene.atari else width
        scale = min(TILE / wide, TILE_SCREEN / height)
        rows_drawn, columns_drawn = int(height * scale), int(wide * scale)
        self._row = np.arange(rows_drawn) * height // rows_drawn
        self._column = np.arange(columns_drawn) * width // columns_drawn
        self._draw_cores(np.zeros(1, dtype)[0]["sessions"])

    def draw(self, frame: np.void) -> npt.NDArray[np.uint8]:
        """Draw one frame and return the canvas, which the next call overwrites."""
        first = 0 if self._inside is None else 1
        parts = frame["sessions"]
        if self._drawn is not None and int(parts[self._drawn]["answer"]) != self._decided:
            self._decided = int(parts[self._drawn]["answer"])
            self._draw_cores(parts)
        for index, part in enumerate(parts):
            self._draw_tile(first + index, index, part)
        return self.canvas

    def _place(self, cell: int) -> tuple[int, int]:
        return cell // self._columns * TILE_HEIGHT, GAP + cell % self._columns * (TILE + GAP)

    def _draw_cores(self, parts: npt.NDArray[np.void]) -> None:
        if self._inside is None or self._drawn is None:
            return
        top, left = self._place(0)
        picture, caption = self._inside(parts[self._drawn])
        self.canvas[top : top + TILE_HEIGHT, left - GAP : left + TILE] = BACKGROUND
        draw_text(
            self.canvas, top + 12, left, f"{self._scene.actors[self._drawn].name}: the cores at work", 16
        )
        height, width = picture.shape[:2]
        self.canvas[top + TILE_TOP : top + TILE_TOP + height, left : left + width] = picture
        draw_text(self.canvas, top + TILE_TOP + INNER + 6, left, caption, 13, DIM)

    def _draw_tile(self, cell: int, index: int, part: np.void) -> None:
        top, left = self._place(cell)
        canvas, actor = self.canvas, self._scene.actors[index]
        below = top + TILE_TOP + TILE_SCREEN + 8
        picture = part["screen"][self._row[:, None], self._column[None, :]]
        canvas[top + TILE_TOP : top + TILE_TOP + len(self._row), left : left + len(self._column)] = picture
        state = STATES[part["state"]]
        if (now := (int(part["answer"]), state, float(part["score"]))) == self._shown[index]:
            return
        self._shown[index] = now
        canvas[top : top + TILE_TOP, left : left + TILE] = BACKGROUND
        canvas[below : top + TILE_HEIGHT, left : left + TILE] = BACKGROUND
        draw_text(canvas, top + 10, left, " ".join((actor.name, actor.note)).strip(), 18)
        score = f"{part['score']:g}"
        draw_text(canvas, top + 10, left + TILE - text_mask(score, 18).shape[1], score, 18)
        if state != "playing":
            draw_text(canvas, top + 30, left, state, 13, ALARM)
        if part["answer"] >= 0:
            box = (below, left, TILE_BARS, TILE)
            draw_bars(canvas, box, self._scene.actions, self._scene.bars(part), int(part["action"]))
        line = f"latency {part['latency_ms']:.1f} ms   misses {part['misses']} of {part['decisions']}"
        if part["compared"]:
            line += f"   agrees {part['agreed'] / part['compared']:.0%}"
        draw_text(canvas, below + TILE_BARS + 8, left, line, 13, ALARM if part["misses"] else DIM)
        if part["answer"] >= 0 and (value := self._scene.value(part)):
            draw_text(canvas, below + TILE_BARS + 28, left, value, 13)


def picture_of(scene: Scene, dtype: np.dtype[np.void]) -> Panel | Mosaic:
    """Return what draws the frames of a scene: one agent at Atari in full, everything else in tiles."""
    if len(scene.actors) == 1 and scene.atari:
        return Panel(scene, dtype)
    return Mosaic(scene, dtype)
