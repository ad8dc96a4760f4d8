"""Whether a file's network can play a game at all: the one check of ``record``, ``play`` and ``evaluate``."""

from __future__ import annotations

from pathlib import Path

from spikestill.common.errors import UserError
from spikestill.student.integer_net import STACK_SHAPE


def check_file_game(
    path: Path,
    file_game: str,
    file_actions: int,
    game: str,
    actions: int,
    file_shape: tuple[int, ...] = STACK_SHAPE,
) -> None:
    """Check that a file made for ``file_game`` ('': any) with ``file_actions`` can play ``game``.

    Args:
        path: the file, for the error.
        file_game, file_actions: what it was made for.
        game, actions: what it is to play.
        file_shape: (C, H, W) that its network reads; the games give (4, 84, 84).

    Raises:
        UserError: it cannot.
    """
    if file_game not in ("", game) or file_actions != actions:
        raise UserError(
            f"{path} is for {file_game or 'a game'} with {file_actions} actions, "
            f"the game is {game} with {actions}",
            f"give a file for {game}, or --environment.game {file_game or 'of the file'}",
        )
    if tuple(file_shape) != STACK_SHAPE:
        raise UserError(
            f"{path} reads input of shape {tuple(file_shape)}, the games give {STACK_SHAPE}",
            f"give a file that `spikestill distill` or `map` made for {game}",
        )
