"""What a student does where its own play leads, asked of its teacher while it trains.

A buffer has the states that the teacher's play leads to. A student's mistakes lead to others, on which nothing else
that is logged says how it does (Ross 2011). The games go on from one line of the curve to the next; they are no part
of the training, and a resumption begins new ones.

Axis suffixes: B batch, A actions of the head.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from spikestill.common.atari import STACK
from spikestill.common.legal import LegalActions, actions_in, own_scores
from spikestill.common.policy import Policy
from spikestill.configs.environment import EnvironmentConfig
from spikestill.student.judging import Judged, judged
from spikestill.teacher.atari.environment import VectorGames

GAMES = 8
"""Played side by side, of each game."""
Votes = Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.int64]]
"""Gives votes (B, A) of stacks (B, 4, 84, 84)."""


class OwnPlay:
    """Games that a student plays by itself.

    Args:
        teachers: game in snake case to who is asked.
        legal: which of the head's actions each game takes, where there are several games.
        seed: of the games' starts.
    """

    def __init__(self, teachers: Mapping[str, Policy], legal: tuple[LegalActions, ...], seed: int) -> None:
        self._teachers, self._legal = dict(teachers), legal
        self._envs = {game: VectorGames(EnvironmentConfig(game=game), GAMES) for game in teachers}
        seeds = np.random.default_rng([seed, 23]).integers(0, 2**31 - 1, GAMES)
        self._seen = {
            game: (envs.reset(seeds.astype(np.int64))[0], np.zeros(GAMES, np.bool_))
            for game, envs in self._envs.items()
        }

    def __call__(self, votes: Votes, decisions: int) -> dict[str, Judged]:
        """Let the student play at least ``decisions`` decisions of each game; return how good they were, by game."""
        return {game: self._one(game, votes, decisions) for game in self._teachers}

    def _one(self, game: str, votes: Votes, decisions: int) -> Judged:
        envs, own = self._envs[game], actions_in(self._legal, game)
        actions: list[npt.NDArray[np.int64]] = []
        q: list[npt.NDArray[np.float32]] = []
        observation, over = self._seen[game]
        while sum(map(len, actions)) < decisions:
            # PyTorch's argmax promises no order among equals, NumPy's takes the lowest.
            chosen = np.asarray(own_scores(votes(observation), own).argmax(axis=1), np.int64)
            scores = self._teachers[game].act({STACK.name: observation}).scores
            actions.append(chosen[~over])
            q.append(np.asarray(scores, np.float32)[~over])
            observation, _, terminated, truncated, _ = envs.step(chosen)
            # The step after a game's end starts the next game; its action is not played.
            over = (terminated | truncated) & ~over
        self._seen[game] = observation, over
        return judged(np.concatenate(actions), np.concatenate(q))

    def close(self) -> None:
        """Release the emulators."""
        with contextlib.ExitStack() as stack:
            for envs in self._envs.values():
                stack.callback(envs.close)
