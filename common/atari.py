"""The Atari games as agents meet them (Mnih 2015): their observation, the console's joystick, the paper's ten."""

from __future__ import annotations

from importlib import util
from pathlib import Path

from spikestill.common.environment import Field
from spikestill.common.errors import UserError, nearest

FAMILY = "atari"
"""The family of these environments."""
STACK = Field(name="stack", shape=(4, 84, 84), dtype="uint8", low=0, high=255, stacked=True)
"""The observation: the last four screens, luminance at 84 x 84 pixels, oldest first."""
FRAMES, SIDE = STACK.shape[0], STACK.shape[1]
PIXELS = SIDE * SIDE
PAPER_GAMES = (
    "beam_rider", "breakout", "enduro", "freeway", "ms_pacman",
    "pong", "qbert", "riverraid", "seaquest", "space_invaders",
)  # fmt: skip
"""The ten games of McKinstry 2018, in ale-py's snake case."""
FRAME_RATE_HZ = 60.0
"""Frames a second of the console."""
MAX_ACTIONS = 18
"""Actions of the console's joystick; no game has more."""


def games() -> tuple[str, ...]:
    """Return the names of all games whose ROM ale-py ships, in snake case; () where it is not installed."""
    spec = util.find_spec("ale_py")
    folders = (spec.submodule_search_locations or []) if spec is not None else []
    return tuple(sorted(rom.stem for folder in folders for rom in Path(folder, "roms").glob("*.bin")))


def check_game(game: str) -> str:
    """Return ``game`` in snake case.

    Raises:
        UserError: ale-py ships no such game; the nearest one is named.
    """
    if game in PAPER_GAMES or game in (known := games()):
        return game
    raise UserError(
        f"unknown game {game!r}; known: {', '.join(PAPER_GAMES)}, and ale-py's others, {len(known)} in all",
        f"did you mean {nearest(game, known or PAPER_GAMES)!r}",
    )
