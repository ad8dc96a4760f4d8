"""Options of the Atari environment, shared by every stage that plays."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from spikestill.common.atari import check_game
from spikestill.common.environment import is_control
from spikestill.common.errors import UserError
from spikestill.common.legal import TOGETHER
from spikestill.common.zoo import check_played
from spikestill.configs.options import Options, Range, Share

ATARI_ONLY = ("frame_skip", "sticky", "noop_max")
UNREAD = tuple(f"environment.{name}" for name in ATARI_ONLY)
"""The same as a command calls them: what its kind for control tasks does not read."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvironmentConfig(Options):
    """The environment that an agent meets; what follows ``game`` is for Atari.

    Sources: Mnih 2015, Methods; Machado 2018 for sticky actions.
    """

    game: str = "pong"
    """Environment in snake case: a game of ale-py, such as ``pong``, or what else is installed."""
    frame_skip: Annotated[int, Range(1, 16)] = 4
    """Emulator frames per decision; the last two are max-pooled."""
    sticky: Share = 0.0
    """Probability that the emulator repeats the last action; 0 is the paper's."""
    noop_max: Annotated[int, Range(0, 100)] = 30
    """No-op actions at the start of a game: 0 to ``noop_max`` - 1, none where it is 0."""

    def _check(self) -> None:
        check_played(self.game)
        for name in ATARI_ONLY:
            if getattr(self, name) != getattr(EnvironmentConfig, name) and is_control(self.game):
                raise UserError(
                    f"{name} is {getattr(self, name)}, and {self.game} does not read it: that is for Atari games, and "
                    "a control task decides at its own rate",
                    f"omit --{name}",
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GamesConfig(EnvironmentConfig):
    """The environment of a pipeline, whose student may play several games."""

    game: str = "pong"
    """Environment in snake case: a game of ale-py, such as ``pong``; several joined by ``+``, such as ``pong+freeway``,
    have one student."""

    @property
    def games(self) -> tuple[str, ...]:
        """The games, at least one."""
        return tuple(self.game.split(TOGETHER))

    def of(self, game: str) -> EnvironmentConfig:
        """Return the environment of one of the games."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return EnvironmentConfig(**{**own, "game": game})

    def _check(self) -> None:
        for game in self.games:
            if len(self.games) > 1:
                check_game(game)
            self.of(game)
        if len(set(self.games)) < len(self.games):
            raise UserError(f"game is {self.game!r}, which names one twice", "name each game once")
