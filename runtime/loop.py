"""The real-time loop: the game runs at 60 frames/s of wall clock, the agent keeps up or it misses.

At every ``frame_skip``-th frame the agent, in a thread of its own, gets the newest stack. Its action
takes effect at the next frame after it is ready, so that an agent quicker than one frame (16.7 ms)
plays exactly the game that it was trained on. An action that is not ready when the next decision is due
is a miss, be the game's own thread late or not: the last action is held until one arrives, and the game
never waits. A busy agent finds only the newest stack when it is done; those it skipped are misses too.

The loop is a generator: display and recording are its caller's affair, between two frames.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections import deque
from collections.abc import Generator

import numpy as np

from spikestill.common.atari import FRAME_RATE_HZ
from spikestill.common.policy import Decision, Observations, Policy
from spikestill.runtime.clock import Clock, FrameTimer, real_time_thread
from spikestill.runtime.emulator import Emulator
from spikestill.runtime.telemetry import Telemetry

CLOSE_TIMEOUT_S = 10.0


@dataclasses.dataclass(frozen=True)
class Answer:
    """An agent's decision on observation ``number``, with when it was sensed and when it was ready (s)."""

    number: int
    decision: Decision
    observations: Observations
    sensed_s: float
    ready_s: float

    @property
    def latency_s(self) -> float:
        """Sensation to action, seconds."""
        return self.ready_s - self.sensed_s


@dataclasses.dataclass(frozen=True)
class Tick:
    """One emulator frame of the running game.

    Attributes:
        frame: index of the frame since play began.
        game: index of the game since play began.
        action: the action in effect during this frame.
        reward: raw reward of this frame.
        score: raw score of the game so far.
        over: True at the last frame of a game.
        missed: True where a decision's time ran out at this frame.
        answer: the agent's newest answer, None before the first of a game.
    """

    frame: int
    game: int
    action: int
    reward: float
    score: float
    over: bool
    missed: bool
    answer: Answer | None


class AgentThread:
    """An agent at work in its own thread; it is only ever handed the newest stack."""

    def __init__(self, agent: Policy, clock: Clock, name: str = "agent") -> None:
        self._agent, self._clock = agent, clock
        self._slot: tuple[int, Observations, float] | None = None
        self._lock = threading.Lock()
        self._answers: deque[Answer] = deque()
        self._error: BaseException | None = None
        self._closing = self._finished = False
        clock.enter()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, number: int, observations: Observations, sensed_s: float) -> bool:
        """Hand over an observation; return False where it replaced one that the agent had not begun with."""
        with self._lock:
            replaced, self._slot = self._slot, (number, observations, sensed_s)
        self._clock.notify()
        return replaced is None

    def take(self) -> list[Answer]:
        """Return the answers since the last call, oldest first, without waiting.

        Raises:
            Exception: whatever the agent raised.
        """
        if self._error is not None:
            raise self._error
        return [self._answers.popleft() for _ in range(len(self._answers))]

    def close(self) -> None:
        """Let the agent finish what it is at, at most 10 s, and end its thread."""
        self._closing = True
        self._clock.notify()
        self._clock.wait(lambda: self._finished, CLOSE_TIMEOUT_S)

    def _work(self) -> None:
        try:
            with real_time_thread():
                while self._work_once():
                    pass
        except BaseException as error:
            self._error = error
        finally:
            self._finished = True
            self._clock.leave()
            self._clock.notify()

    def _work_once(self) -> bool:
        """Wait for an observation and answer it; return False at the end, when what waits is nobody's any more."""
        self._clock.wait(lambda: self._closing or self._slot is not None)
        with self._lock:
            task, self._slot = self._slot, None
        if self._closing or task is None:
            return False
        number, observations, sensed_s = task
        decision = self._agent.act(observations)
        self._answers.append(Answer(number, decision, observations, sensed_s, self._clock.now()))
        return True


def play_live(
    emulator: Emulator,
    agent: Policy,
    clock: Clock,
    telemetry: Telemetry,
    *,
    epsilon: float = 0.0,
    seed: int = 0,
) -> Generator[Tick, None, None]:
    """Play game after game in real time; yield after every frame, for as long as the caller goes on.

    Args:
        emulator: the game; reset here.
        agent: acts in its own thread; closed by the caller.
        clock: the clock that paces the game.
        telemetry: filled as play goes on.
        epsilon: probability that a decision is a uniformly random action.
        seed: seed of those.

    Raises:
        Exception: whatever the agent raised.
    """
    rng = np.random.default_rng([seed, 5])
    worker = AgentThread(agent, clock)
    explored: dict[int, int] = {}
    number, first_of_game, game, action = -1, 0, -1, 0
    newest: Answer | None = None
    waiting, deadline_s = False, 0.0
    timer = FrameTimer(clock, FRAME_RATE_HZ)
    try:
        for frame in itertools.count():
            telemetry.late_s.append(timer.wait())
            telemetry.lost_s = timer.lost_s
            telemetry.ticks += 1
            missed, reward = False, 0.0
            for answer in worker.take():
                telemetry.latency_s.append(answer.latency_s)
                forced = explored.pop(answer.number, None)
                if answer.number < first_of_game:
                    continue
                newest, action = answer, int(answer.decision.action[0]) if forced is None else forced
                if waiting and answer.number == number:
                    telemetry.decisions += 1
                    waiting = False
                    if answer.ready_s > deadline_s:
                        telemetry.misses += 1
                        missed = True
            if emulator.over:
                emulator.reset()
                game, action, newest = game + 1, 0, None
                first_of_game, waiting = number + 1, False
                sensed_s = clock.now()
            else:
                sensed_s = clock.now()
                reward = emulator.step(action)
            if emulator.decision_due and not emulator.over:
                if waiting:
                    telemetry.decisions += 1
                    telemetry.misses += 1
                    missed = True
                number, waiting = number + 1, True
                deadline_s = timer.due_s(emulator.config.frame_skip)
                if rng.random() < epsilon:
                    explored[number] = int(rng.integers(len(emulator.actions)))
                if not worker.submit(number, {"stack": emulator.stack()[None]}, sensed_s) and missed:
                    telemetry.unseen += 1
            yield Tick(frame, game, action, reward, emulator.score, emulator.over, missed, newest)
    finally:
        worker.close()
