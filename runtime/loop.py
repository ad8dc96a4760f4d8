"""The real-time loop: one timer for all sessions; the games run at their rate of wall clock, agents keep up or miss.

The loop is a generator: display, recording and controls are its caller's affair, between two frames.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Generator, Sequence

from spikestill.runtime.clock import Clock, FrameTimer
from spikestill.runtime.session import STALL_ANSWER_S, Session, Tick

SPEEDS = (0.05, 16.0)
"""Slowest and quickest pace of the wall clock that can be asked for."""


@dataclasses.dataclass
class Pace:
    """How time passes; changed between two frames by whoever drives the loop.

    Attributes:
        unpaced: play as fast as the games and the agents go, each frame after the answers it waits for.
        speed: how many times the wall clock's rate.
        paused: stand still, but for ``steps``.
        steps: decisions still to be played while paused, each waiting for its answers.
    """

    unpaced: bool = False
    speed: float = 1.0
    paused: bool = False
    steps: int = 0


def play_live(
    sessions: Sequence[Session], clock: Clock, pace: Pace | None = None
) -> Generator[list[Tick], None, None]:
    """Play game after game; yield the sessions' ticks after every frame, [] for one in which time stands still.

    It ends when the caller closes it, or when every agent has failed for good.

    Raises:
        Exception: what the first agent raised, where all have failed.
    """
    pace = Pace() if pace is None else pace
    rate_hz = sessions[0].game.rate_hz
    timer, speed = FrameTimer(clock, rate_hz * pace.speed, catch_up=not pace.unpaced), pace.speed
    lost_s, frame = 0.0, 0
    try:
        for _ in itertools.count():
            if pace.speed != speed:
                lost_s, speed = lost_s + timer.lost_s, pace.speed
                timer = FrameTimer(clock, rate_hz * speed)
            stepping = pace.paused and pace.steps > 0
            if stepping or (pace.unpaced and not pace.paused):
                _await(sessions, clock)
                timer.skip()
            else:
                late_s = timer.wait()
                if not pace.paused:
                    for session in sessions:
                        session.telemetry.add_lateness(late_s)
                        session.telemetry.lost_s = lost_s + timer.lost_s
            if pace.paused and not stepping:
                yield []
                continue
            ticks = [session.tick(frame, timer) for session in sessions]
            if stepping and sessions[0].game.decision_due:
                pace.steps -= 1
            frame += 1
            yield ticks
            if all(session.state == "failed" for session in sessions):
                error = sessions[0].error
                assert error is not None
                raise error
    finally:
        for session in sessions:
            session.close()


def _await(sessions: Sequence[Session], clock: Clock) -> None:
    """Return when every agent has answered; one that does not for a while is not waited for."""
    for session in sessions:
        if not session.settled() and session.state != "stalled":
            clock.wait(session.settled, STALL_ANSWER_S)
