"""One video frame: the game's screen beside what goes on in the agent.

The screen is 160x210 with pixels wider than high, shown 4x3; to its right the neurosynaptic cores at
their places on the chip, lit by the part of their neurons that fired (for agents without cores: the
newest frame that the agent saw), the votes or Q-values, latency and misses.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from spikestill.common.agents import resolve
from spikestill.common.compiling import njit
from spikestill.runtime.palette import BACKGROUND, FAINT, INNER
from spikestill.runtime.scene import Actor, Scene

Inside = Callable[[np.void], tuple[npt.NDArray[np.uint8], str]]
"""Gives the picture of an agent's part of a frame, uint8 (H, W, 3) of at most 320 x 320, and a caption."""
HEIGHT, WIDTH = 640, 992
SCALE_X, SCALE_Y = 4, 3
SCREEN_TOP = 5
LEFT = 656
GRID_TOP = 64
BARS_TOP, BARS_HEIGHT = 422, 160
MAX_COLUMN_ACTIONS = 9
RECENT = 900
"""Decisions whose p99 is shown: a minute at frame_skip 4."""

BAR = np.array([86, 120, 170], np.uint8)
CHOSEN = np.array([255, 176, 64], np.uint8)
TEXT = np.array([222, 226, 234], np.uint8)
DIM = np.array([140, 148, 164], np.uint8)
ALARM = np.array([255, 96, 88], np.uint8)


@functools.lru_cache(maxsize=512)
def text_mask(text: str, size: int) -> npt.NDArray[np.uint8]:
    """Return ``text`` as coverage 0..255, uint8 (height, width), at a font size in pixels."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(size)
    box = font.getbbox(text)
    image = Image.new("L", (max(1, int(box[2]) + 1), int(size * 1.3)), 0)
    ImageDraw.Draw(image).text((0, 0), text, fill=255, font=font)
    return np.asarray(image)


@njit(cache=True, nogil=True)
def enlarge(screen_HW3, out_HW3, scale_y, scale_x):  # type: ignore[no-untyped-def]
    """Write ``screen_HW3`` into ``out_HW3``, each pixel repeated ``scale_y`` x ``scale_x`` times."""
    for row in range(out_HW3.shape[0]):
        for column in range(out_HW3.shape[1]):
            for colour in range(3):
                out_HW3[row, column, colour] = screen_HW3[row // scale_y, column // scale_x, colour]


def inside(actor: Actor) -> Inside:
    """Return what draws an agent's inside."""
    if actor.picture and actor.layout:
        return resolve(actor.picture)(actor.layout)
    return seen_picture


class Panel:
    """Draws video frames, uint8 (640, 992, 3), into one canvas.

    Args:
        scene: of one agent.
        dtype: of the frames that come.

    Attributes:
        size: (height, width) of what it draws.
    """

    size = (HEIGHT, WIDTH)

    def __init__(self, scene: Scene, dtype: np.dtype[np.void]) -> None:
        self._scene, self.game, self.agent = scene, scene.game, scene.actors[0].name
        self._picture, self._rate_hz = inside(scene.actors[0]), scene.rate_hz
        self._latency_ms: deque[float] = deque(maxlen=RECENT)
        self._shown = -1
        self.canvas = np.empty((HEIGHT, WIDTH, 3), np.uint8)
        self.canvas[:] = BACKGROUND
        # Compiles and loads what drawing needs now, not while frames come.
        self._draw_answer(np.zeros(1, dtype)[0]["sessions"][0])
        self._clear(GRID_TOP, HEIGHT)
        self._latency_ms.clear()

    def draw(self, frame: np.void) -> npt.NDArray[np.uint8]:
        """Draw one frame and return the canvas, which the next call overwrites."""
        frame = frame["sessions"][0]
        screen_HW3 = frame["screen"]
        height, width = screen_HW3.shape[0] * SCALE_Y, screen_HW3.shape[1] * SCALE_X
        enlarge(screen_HW3, self.canvas[SCREEN_TOP : SCREEN_TOP + height, :width], SCALE_Y, SCALE_X)
        self._clear(0, GRID_TOP)
        self._text(12, f"{self.game}   {self.agent}", 18)
        seconds = frame["frame"] / self._rate_hz
        self._text(38, f"score {frame['score']:g}     game {frame['game'] + 1}     {seconds:.1f} s", 14, DIM)
        if frame["answer"] > self._shown:
            self._shown = int(frame["answer"])
            self._draw_answer(frame)
        return self.canvas

    def _draw_answer(self, frame: np.void) -> None:
        self._clear(GRID_TOP, HEIGHT)
        picture, caption = self._picture(frame)
        height, width = picture.shape[:2]
        left = LEFT + (INNER - width) // 2
        self.canvas[GRID_TOP : GRID_TOP + height, left : left + width] = picture
        self._text(GRID_TOP + INNER + 6, caption, 13, DIM)
        box = (BARS_TOP, LEFT, BARS_HEIGHT, INNER)
        draw_bars(self.canvas, box, self._scene.actions, self._scene.bars(frame), int(frame["action"]))
        self._latency_ms.append(float(frame["latency_ms"]))
        p99_ms = np.percentile(self._latency_ms, 99, method="inverted_cdf")
        self._text(588, f"latency {frame['latency_ms']:.1f} ms     p99 {p99_ms:.1f} ms", 14)
        colour = ALARM if frame["misses"] else DIM
        self._text(610, f"misses {frame['misses']} of {frame['decisions']}", 14, colour)

    def _clear(self, top: int, bottom: int) -> None:
        self.canvas[top:bottom, LEFT - 16 :] = BACKGROUND

    def _text(
        self, top: int, text: str, size: int, colour: npt.NDArray[np.uint8] = TEXT, left: int = LEFT
    ) -> None:
        draw_text(self.canvas, top, left, text, size, colour)


def draw_text(
    canvas: npt.NDArray[np.uint8],
    top: int,
    left: int,
    text: str,
    size: int,
    colour: npt.NDArray[np.uint8] = TEXT,
) -> None:
    """Write ``text`` into ``canvas``, cut at its edges."""
    mask = text_mask(text, size)
    area = canvas[top : top + mask.shape[0], left : left + mask.shape[1]]
    share = mask[: area.shape[0], : area.shape[1], None].astype(np.uint16)
    area[:] = ((255 - share) * area + share * colour.astype(np.uint16)) // 255


def draw_bars(
    canvas: npt.NDArray[np.uint8],
    box: tuple[int, int, int, int],
    names: Sequence[str],
    shares: npt.NDArray[np.float64],
    action: int,
) -> None:
    """Draw a bar for each action.

    Args:
        canvas: uint8 (H, W, 3).
        box: top, left, height, width of the place, which is clear.
        names: of the actions.
        shares: how long each bar is, 0..1, of :meth:`Scene.bars`.
        action: the chosen one, -1 for none.
    """
    top, left, height, width = box
    columns = 1 if len(shares) <= MAX_COLUMN_ACTIONS else 2
    rows = -(-len(shares) // columns)
    pitch = min(24, height // rows)
    size = 11 if columns == 2 else min(12, pitch)
    label, cell = (78, width // columns) if columns == 2 else (90, width)
    for index, share in enumerate(shares):
        row = top + index % rows * pitch
        column = left + index // rows * cell
        colour = CHOSEN if index == action else BAR
        draw_text(canvas, row + (pitch - size) // 2 - 2, column, names[index].lower(), size, colour)
        full = cell - label - 8
        bar = canvas[row + 2 : row + pitch - 2, column + label : column + label + full]
        bar[:] = FAINT
        bar[:, : round(full * share)] = colour


def seen_picture(frame: np.void) -> tuple[npt.NDArray[np.uint8], str]:
    """Return the newest picture of the decided stack, three times enlarged, and a caption."""
    seen = frame["seen"]
    picture = np.empty((3 * seen.shape[0], 3 * seen.shape[1], 3), np.uint8)
    enlarge(np.repeat(seen[:, :, None], 3, axis=2), picture, 3, 3)
    return picture, "what the agent sees: 84 x 84, the newest of 4 frames"
