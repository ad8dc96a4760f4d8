"""How long a training takes on this machine, and how many batches fit into the time that there is."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from spikestill.common.errors import UserError

if TYPE_CHECKING:
    from spikestill.student.distillation import Distillation

WARM_STEPS = 2
"""Steps before the measured ones: the first compiles."""
MEASURED_STEPS, MEASURED_S = 40, 4.0
"""The pace is taken over so many steps, or over those of so many seconds in all."""
LEAST_STEPS = 400
"""A training of fewer steps is not measured beforehand: measuring would take a good part of it."""
RESERVE = 0.03
"""Share of the time that is kept back, for a machine is not equally fast all the time."""


@dataclasses.dataclass(frozen=True)
class Pace:
    """What a training's parts take, in seconds.

    Attributes:
        step_s: a batch.
        line_s: a line of the learning curve, which validates.
        end_s: what comes after the last batch.
    """

    step_s: float
    line_s: float
    end_s: float

    def seconds(self, steps: int, log_steps: int) -> float:
        """Return how long ``steps`` batches take, with a line of the curve every ``log_steps``."""
        return steps * self.step_s + steps // log_steps * self.line_s + self.end_s

    def steps_within(self, seconds: float, log_steps: int) -> int:
        """Return how many batches fit into ``seconds``, a reserve kept back; 0 where none does."""
        room = (1.0 - RESERVE) * seconds - self.end_s
        steps = max(0, int(room / (self.step_s + self.line_s / log_steps)))
        while steps and self.seconds(steps + 1, log_steps) <= (1.0 - RESERVE) * seconds:
            steps += 1
        return steps


def measured_pace(training: Distillation, hinted: float = 1.0) -> Pace:
    """Return the pace of a training that is thrown away afterwards: it does some steps.

    Args:
        training: at its first step.
        hinted: share of the batches that have hints, which take longer than the others.
    """
    parts = {0: hinted, training.hinted_steps: 1.0 - hinted} if training.hinted_steps else {0: 1.0}
    parts = {first: share for first, share in parts.items() if share > 0.0}
    step_s = 0.0
    for training.step, share in parts.items():
        step_s += share * _step_s(training, MEASURED_S / len(parts))
    line_s = _timed(training.validate) + _timed(training.activity)
    batches = training.config.recalibration_batches
    one = _timed(lambda: training.recalibrate(1)) if batches else 0.0
    return Pace(step_s, line_s, batches * one + line_s)


def _step_s(training: Distillation, most_s: float) -> float:
    """Return the seconds of a step, from where the training stands, measured for so many seconds at most."""
    for _ in range(WARM_STEPS):
        training.train_step()
    began, steps = time.monotonic(), 0
    while steps < MEASURED_STEPS and time.monotonic() - began < most_s:
        training.train_step()
        steps += 1
    return (time.monotonic() - began) / steps


def _timed(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def about(seconds: float) -> str:
    """Return a time to wait, roughly: 40 s, 12 minutes, 3.4 hours."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 6000 else f"{seconds / 3600:.1f} hours"


def scheduled(training: Distillation, pace: Pace, spent_s: float) -> int:
    """Say how long the training will take; return to which step it goes.

    Args:
        training: at the step where it begins or goes on. Its options have the steps asked for, and the minutes.
        pace: on this machine.
        spent_s: seconds of those minutes that are over.

    Raises:
        UserError: no batch fits into the minutes.
    """
    config, left = training.config, training.config.steps - training.step
    whole = about(pace.seconds(left, config.log_steps))
    if config.minutes is None or training.fitted is not None:
        _say(f"{left:,} batches take about {whole} here")
        return config.steps
    left_s = 60.0 * config.minutes - spent_s
    fit = pace.steps_within(left_s, config.log_steps)
    if fit == 0:
        needed = spent_s + pace.seconds(1, config.log_steps)
        raise UserError(
            f"minutes {config.minutes:g}: no batch fits; a training of one takes about {about(needed)} here",
            "give more --minutes, or omit it",
        )
    if fit >= left:
        _say(f"all {left:,} batches fit into {config.minutes:g} minutes here; they take about {whole}")
        return config.steps
    _say(
        f"{left:,} batches would take about {whole} here; {fit:,} fit into what is left of {config.minutes:g} minutes "
        f"({about(left_s)}), and the learning rate falls over those"
    )
    return training.step + fit


def _say(text: str) -> None:
    print(f"distill: {text}", file=sys.stderr, flush=True)
