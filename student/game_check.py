"""Whether the network of a student or core map can play a game at all: the one check of every stage that plays it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spikestill.common.errors import UserError
from spikestill.common.legal import LegalActions, actions_in
from spikestill.student.integer_net import STACK_SHAPE


def check_file_game(
    path: Path,
    file_game: str,
    file_actions: int,
    game: str,
    actions: int,
    file_shape: tuple[int, ...] = STACK_SHAPE,
    legal: Sequence[LegalActions] = (),
    remedy: str | None = None,
) -> None:
    """Check that a file made for ``file_game`` ('': any) with ``file_actions`` can play ``game``.

    Args:
        path: the file, for the error.
        file_game, file_actions: what it was made for.
        game, actions: what it is to play.
        legal: which of its actions each of its games takes, where it was made for several.
        file_shape: (C, H, W) that its network reads; the games give (4, 84, 84).
        remedy: what to do where it is of another game; None: give another file, or another ``--environment.game``.

    Raises:
        UserError: it cannot.
    """
    own = actions_in(legal, game)
    if legal and own is None:
        names = ", ".join(each.game for each in legal)
        raise UserError(
            f"{path} plays {names}, the game is {game}", f"give a file for {game}, or one of its games"
        )
    if own is not None:
        file_game, file_actions = game, len(own)
    if file_game not in ("", game) or file_actions != actions:
        raise UserError(
            f"{path} is for {file_game or 'a game'} with {file_actions} actions, "
            f"the game is {game} with {actions}",
            remedy or f"give a file for {game}, or --environment.game {file_game or 'of the file'}",
        )
    if tuple(file_shape) != STACK_SHAPE:
        raise UserError(
            f"{path} reads input of shape {tuple(file_shape)}, the games give {STACK_SHAPE}",
            f"give a file that `spikestill distill` or `map` made for {game}",
        )
