"""What an environment is, and which ones there are."""

from __future__ import annotations

from spikestill.common.errors import UserError, nearest

# The ten games of McKinstry 2018, in ale-py's snake case.
GAMES = (
    "beam_rider", "breakout", "enduro", "freeway", "ms_pacman",
    "pong", "qbert", "riverraid", "seaquest", "space_invaders",
)  # fmt: skip
MAX_ACTIONS = 18
"""Actions of the console's joystick; no game has more."""


def check_game(game: str) -> str:
    """Return ``game`` in snake case.

    Raises:
        UserError: it is not one of :data:`GAMES`; the nearest one is named.
    """
    if game not in GAMES:
        raise UserError(
            f"unknown game {game!r}; known: {', '.join(GAMES)}", f"did you mean {nearest(game, GAMES)!r}"
        )
    return game
