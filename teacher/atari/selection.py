"""The best policy of a training: its snapshots play games of their own, and the best of them is the teacher.

Policies a few thousand updates apart differ by more than the last part of a training gains. Mnih 2015 and van Hasselt
2016 report the best of their evaluations for that reason. Here the games that choose are not those that ``evaluate``
scores a teacher by, so that its score is not flattered by the choice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt
from torch import Tensor

from spikestill.common.environment import Observations
from spikestill.common.policy import Policy
from spikestill.common.training import check_counters
from spikestill.configs.environment import EnvironmentConfig
from spikestill.teacher.atari.q_network import Weights
from spikestill.teacher.evaluation import evaluate, in_fixed_batches

SEED = 2**31
"""Of the games that choose: one beyond the seeds that ``evaluate`` takes."""


class Selection:
    """The best snapshot so far.

    Args:
        environment: the game and its options.
        period: agent steps between two snapshots; 0: none is ever due.
        games: full games that each plays, with epsilon 0.05.
        began_with_a_teacher: the weights of step 0 are a snapshot too.

    Attributes:
        score: mean raw score of the last snapshot, None before the first.
        best_score: that of the best.
        best_step: the agent step of the best.
        best: its weights.
    """

    def __init__(
        self, environment: EnvironmentConfig, period: int, games: int, *, began_with_a_teacher: bool
    ) -> None:
        self._environment, self._period, self._games = environment, period, games
        self._considered: int | None = None if began_with_a_teacher else 0
        self.score: float | None = None
        self.best_score: float | None = None
        self.best_step: int | None = None
        self.best: Weights | None = None

    def due(self, step: int, last_step: int) -> bool:
        """Return True where the weights at ``step`` of a training of ``last_step`` are to play."""
        if not self._period or self._considered is None:
            return self._period > 0
        since = step - self._considered
        return since >= self._period or (step >= last_step and since > 0)

    def consider(self, weights: Weights, policy: Policy, step: int, stop: Callable[[], bool]) -> bool:
        """Let a snapshot play, and keep it where it is better than the best; an earlier one wins a tie.

        Args:
            weights: what is kept, fp32.
            policy: plays by these weights.
            step: the training's agent step.
            stop: asked at every step of the games.

        Returns:
            False where ``stop`` ended the games early: the snapshot is still due, and nothing has changed.
        """

        def until_stopped(observations: Observations) -> npt.NDArray[Any]:
            if stop():
                raise _StoppedError
            return choose(observations)

        try:
            with in_fixed_batches(lambda observations: policy.act(observations).action) as choose:
                found = evaluate(until_stopped, self._environment, episodes=self._games, seed=SEED)
        except _StoppedError:
            return False
        self.score, self._considered = found.mean, step
        if self.best_score is None or found.mean > self.best_score:
            self.best_score, self.best_step = found.mean, step
            self.best = {name: weight.clone() for name, weight in weights.items()}
        return True

    def selected(self) -> dict[str, Any] | None:
        """Return ``step`` and ``score`` of the best snapshot and the ``games`` it was chosen by, None before one."""
        if self.best is None:
            return None
        return {"step": self.best_step, "score": self.best_score, "games": self._games}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the best weights, and the counters."""
        counters = {
            "considered": self._considered, "score": self.score,
            "best_score": self.best_score, "best_step": self.best_step,
        }  # fmt: skip
        return dict(self.best or {}), counters

    def set_state(self, tensors: dict[str, Tensor], counters: dict[str, Any]) -> None:
        """Restore what :meth:`state` returned.

        Raises:
            ValueError, LookupError: a counter is missing or of another type, or a score has no weights.
        """
        numbers = {"considered": 0, "score": 0.0, "best_score": 0.0, "best_step": 0}
        given = {name: counters[name] for name in numbers}
        check_counters(given, {name: each for name, each in numbers.items() if given[name] is not None})
        if (given["best_score"] is None) != (not tensors) or (given["best_step"] is None) != (not tensors):
            raise ValueError(f"a best score of {given['best_score']}, and {len(tensors)} weights that had it")
        self._considered, self.score = counters["considered"], counters["score"]
        self.best_score, self.best_step = counters["best_score"], counters["best_step"]
        self.best = tensors or None


class _StoppedError(Exception):
    """The user asked to stop."""
