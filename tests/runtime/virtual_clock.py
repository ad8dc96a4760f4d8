"""A clock that makes time up, for tests of the loop: it jumps to the next wake-up once every thread waits."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable


class VirtualClock:
    """A clock that stands still while any thread works and jumps when all of them wait.

    The creating thread counts as one; another is announced by :meth:`enter` before it starts. Work
    that takes time is a ``sleep_until`` in the thread that does it.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._now_s = 0.0
        self._threads = 1
        self._waiting: dict[int, tuple[Callable[[], bool], float]] = {}

    def now(self) -> float:
        """Return the virtual time, seconds from 0."""
        return self._now_s

    def sleep_until(self, time_s: float) -> None:
        """Wait until every thread waits and ``time_s`` is the next thing to happen."""
        self._block(lambda: False, time_s)

    def wait(self, ready: Callable[[], bool], timeout_s: float = math.inf) -> bool:
        """Wait until ``ready()``, at most ``timeout_s`` of virtual time."""
        self._block(ready, self._now_s + timeout_s)
        return ready()

    def notify(self) -> None:
        """Make the waiting threads ask again."""
        with self._condition:
            self._condition.notify_all()

    def enter(self) -> None:
        """Count one more thread."""
        with self._condition:
            self._threads += 1

    def leave(self) -> None:
        """Count one thread less."""
        with self._condition:
            self._threads -= 1
            self._advance()
            self._condition.notify_all()

    def _block(self, ready: Callable[[], bool], wake_s: float) -> None:
        me = threading.get_ident()
        with self._condition:
            while not (ready() or self._now_s >= wake_s):
                self._waiting[me] = (ready, wake_s)
                self._advance()
                if not (ready() or self._now_s >= wake_s):
                    self._condition.wait()
            self._waiting.pop(me, None)

    def _advance(self) -> None:
        """Jump to the next wake-up, if every thread waits and none could go on."""
        if len(self._waiting) < self._threads:
            return
        if any(ready() or self._now_s >= wake_s for ready, wake_s in self._waiting.values()):
            return
        next_s = min((wake_s for _, wake_s in self._waiting.values()), default=math.inf)
        if next_s == math.inf:
            raise RuntimeError("every thread waits for another: this program would never go on")
        self._now_s = next_s
        self._condition.notify_all()
