"""The live page's side of the loop: its process, its viewers' commands, another game on request."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import secrets
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

from spikestill.common.errors import UserError
from spikestill.configs.play import PlayConfig
from spikestill.runtime.admission import loopback
from spikestill.runtime.agents import Agent
from spikestill.runtime.crew import reopened, scene_of, words_of
from spikestill.runtime.desk import Desk
from spikestill.runtime.live import LiveGame, open_game
from spikestill.runtime.loop import Pace
from spikestill.runtime.onlooker import Onlooker
from spikestill.runtime.session import Session, Tick
from spikestill.runtime.worker import in_background

SPARE_WORDS = 20_000
"""Packed spikes of an agent that comes on later have room for as many words."""


class Page:
    """The live page and what its viewers ask for.

    Args:
        config: of the play.
        sessions: whom it shows.
        pace: how time passes.

    Attributes:
        token: what viewers must know, '' where only this machine reaches the page.
    """

    def __init__(self, config: PlayConfig, sessions: list[Session], pace: Pace) -> None:
        self._config, self._sessions = config, sessions
        self.token = "" if loopback(config.host) else secrets.token_urlsafe(16)
        options = {"host": config.host, "port": config.port, "token": self.token}
        words = max(SPARE_WORDS, words_of(sessions))
        self._shape = sessions[0].game.screen_shape
        self._onlooker: Onlooker | None = Onlooker(
            "spikestill.runtime.server", options, scene_of(sessions), words, self._shape, heard=True
        )
        self._pace, self._stands = pace, False
        self._last: list[Tick] = []
        self.desk = Desk(sessions, pace, self._reopen, config.seed)
        self._opening: Future[Any] | None = None

    def turn(self, ticks: list[Tick]) -> None:
        """Do what viewers ask for, and show them the frame, the last one again where time stops or goes on.

        A page that fails costs the page, not the game.
        """
        onlooker = self._onlooker
        if onlooker is None:
            return
        try:
            for command in onlooker.commands():
                self.desk.apply(command)
            self._switch()
            changed, notice = self.desk.changed()
            if changed:
                notes = self.desk.notes
                onlooker.show(scene_of(self._sessions, notes, notice))
            self._last, paused = ticks or self._last, self._pace.paused
            wanted = self._last and (ticks or paused != self._stands)
            if wanted and onlooker.offer(self._sessions, self._last, paused=paused):
                self._stands = paused
        except (OSError, UserError) as error:
            print(f"play: the live page ended: {error}", file=sys.stderr, flush=True)
            self._onlooker = None

    def close(self) -> None:
        """End the page; what fails in its end is told and no more."""
        if self._onlooker is not None:
            try:
                self._onlooker.close()
            except UserError as error:
                print(f"play: the live page ended: {error}", file=sys.stderr, flush=True)

    def _reopen(self, name: str) -> Agent:
        return reopened(self._config, name)

    def _switch(self) -> None:
        """Have another game made beside this one, and go over to it when it is there."""
        if self.desk.game and self._config.trace:
            self.desk.game = ""
            self.desk.tell("a trace is being recorded, and it is of one game: begin anew for another")
        if self.desk.game and self._opening is None:
            self._opening = in_background(functools.partial(self._make_game, self.desk.game))
            self.desk.game = ""
        if self._opening is None or not self._opening.done():
            return
        opening, self._opening = self._opening, None
        if (error := opening.exception()) is not None:
            self.desk.tell(str(error))
            return
        self._config, games, team = opening.result()
        for session, game, agent in zip(self._sessions, games, team, strict=True):
            session.move(game, agent)
        self._last = []
        self.desk.tell("")

    def _make_game(self, name: str) -> tuple[PlayConfig, list[LiveGame], list[Agent]]:
        """Return the options for another game, its games and its agents.

        Raises:
            UserError: an agent has no file for it, or its picture has another size.
        """
        options = dataclasses.replace(self._config.environment, game=name)
        config = dataclasses.replace(
            self._config, environment=options, teacher=None, student=None, core_map=None, buffer=None
        )
        team: list[Agent] = []
        games: list[LiveGame] = []
        try:
            team += [reopened(config, session.name) for session in self._sessions]
            for index, session in enumerate(self._sessions):
                alone = index == 0 or session.leader is None
                games.append(open_game(options, config.seed) if alone else games[0])
            first = self._sessions[0].game
            if games[0].screen_shape != self._shape or games[0].rate_hz != first.rate_hz:
                raise UserError(
                    f"{name} has another picture or rate than {first.spec.name}", "begin anew with it"
                )
        except BaseException:
            with contextlib.ExitStack() as stack:
                for game in games:
                    stack.callback(game.close)
                for agent in team:
                    stack.callback(agent.close)
            raise
        return config, games, team


@contextlib.contextmanager
def served(config: PlayConfig, sessions: list[Session], pace: Pace) -> Iterator[Page]:
    """Yield the live page."""
    with contextlib.closing(Page(config, sessions, pace)) as page:
        yield page
