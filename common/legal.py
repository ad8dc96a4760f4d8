"""Which of a head's actions each game takes, where one network plays several games.

Such a network has one head of the console's 18 actions; a game's own actions are some of them, in the console's order.
An agent masks to those, so that ties go to the lowest index in either numbering.

Axis suffixes: B batch, A actions of the head, G actions of a game.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy.typing as npt

TOGETHER = "+"
"""Joins the names of a network's games: ``pong+qbert``."""


class LegalActions(NamedTuple):
    """A game in snake case, and the head's actions that are its own: ascending, in the order of the game's numbers."""

    game: str
    actions: tuple[int, ...]


def check_legal(legal: Sequence[LegalActions], game: str, actions: int) -> None:
    """Raise ValueError unless ``legal`` fits a head of ``actions``: () for one game, else all that ``game`` names.

    Args:
        legal: of every game.
        game: the network's, the games' names joined; it goes into programs and file names.
        actions: A.
    """
    if not re.fullmatch(r"[a-z0-9_+]{0,1000}", game):
        raise ValueError(f"game {game[:60]!r}, lower-case letters, digits and underscores wanted")
    if not legal:
        return
    names = [each.game for each in legal]
    if len(set(names)) < 2 or len(set(names)) != len(names) or TOGETHER.join(names) != game:
        raise ValueError(f"legal actions of the games {names} for a network of {game!r}")
    for name, own in legal:
        if not own or list(own) != sorted(set(own)) or own[0] < 0 or own[-1] >= actions:
            raise ValueError(
                f"legal actions of {name} are {own}, ascending numbers of 0..{actions - 1} wanted"
            )


def legal_to_plain(legal: Sequence[LegalActions]) -> list[dict[str, Any]]:
    """Return ``legal`` as JSON holds it."""
    return [{"game": each.game, "actions": list(each.actions)} for each in legal]


def legal_of_plain(values: Any) -> tuple[LegalActions, ...]:
    """Return what :func:`legal_to_plain` gave; () where a file of an earlier version has none."""
    return tuple(
        LegalActions(str(each["game"]), tuple(int(a) for a in each["actions"])) for each in values or ()
    )


def actions_in(legal: Sequence[LegalActions], game: str) -> tuple[int, ...] | None:
    """Return the head's actions that ``game`` takes; None where the head is the game's own."""
    return next((each.actions for each in legal if each.game == game), None)


def own_scores(scores_BA: npt.NDArray[Any], legal: tuple[int, ...] | None) -> npt.NDArray[Any]:
    """Return the scores (B, G) or (G,) of the game's own actions, in its own order."""
    return scores_BA if legal is None else scores_BA[..., list(legal)]
