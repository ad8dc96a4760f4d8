"""An agent at work, in a thread of its own or in the game's, and what it answers."""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from spikestill.common.environment import Observations
from spikestill.common.policy import Decision, Policy
from spikestill.runtime.clock import Clock, real_time_thread

CLOSE_TIMEOUT_S = 10.0
Made = TypeVar("Made")


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


class AgentThread:
    """An agent at work in its own thread; it is only ever handed the newest observation."""

    def __init__(self, agent: Policy, clock: Clock, name: str = "agent") -> None:
        self._agent, self._clock = agent, clock
        self._slot: tuple[int, Observations, float] | None = None
        self._lock = threading.Lock()
        self._answers: deque[Answer] = deque()
        self._error: BaseException | None = None
        self._closing = self._finished = False
        self.began_s: float | None = None
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
            Exception: whatever the agent raised, once its answers before that are taken.
        """
        found = [self._answers.popleft() for _ in range(len(self._answers))]
        if not found and self._error is not None:
            raise self._error
        return found

    def settled(self) -> bool:
        """Return True where an answer or an error waits to be taken."""
        return bool(self._answers) or self._finished

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Let the agent finish what it is at, for a while at most, and end its thread."""
        self._closing = True
        self._clock.notify()
        self._clock.wait(lambda: self._finished, timeout_s)

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
        self.began_s = self._clock.now()
        decision = self._agent.act(observations)
        ready_s, self.began_s = self._clock.now(), None
        self._answers.append(Answer(number, decision, observations, sensed_s, ready_s))
        self._clock.notify()
        return True


class AgentAtHand:
    """An agent at work in the thread that asks it: where the asker waits for every answer, nothing is handed over.

    One that hangs hangs the asker. The methods are those of :class:`AgentThread`.
    """

    began_s = None

    def __init__(self, agent: Policy, clock: Clock) -> None:
        self._agent, self._clock = agent, clock
        self._answer: Answer | None = None
        self._error: Exception | None = None

    def submit(self, number: int, observations: Observations, sensed_s: float) -> bool:
        """Have an observation answered."""
        if self._error is None:
            try:
                decision = self._agent.act(observations)
                self._answer = Answer(number, decision, observations, sensed_s, self._clock.now())
            except Exception as error:
                self._error = error
        return True

    def take(self) -> list[Answer]:
        """Return the answer since the last call; raise what the agent raised."""
        answer, self._answer = self._answer, None
        if answer is None and self._error is not None:
            raise self._error
        return [] if answer is None else [answer]

    def settled(self) -> bool:
        """Return True: it has answered."""
        return True

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Do nothing: there is no thread."""


def in_background(make: Callable[[], Made]) -> Future[Made]:
    """Run ``make`` in a thread of its own, which does not keep the program alive."""
    future: Future[Made] = Future()

    def work() -> None:
        try:
            future.set_result(make())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="background", daemon=True).start()
    return future
