"""Time: the machine's monotonic clock, a virtual one for tests, and the one timer that paces the game.

Both clocks also carry the waiting of threads for each other, so that under the virtual clock a whole
program of several threads runs in made-up time: it jumps to the next wake-up once all of them wait.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

SPIN_S = 0.0003
"""The last part of every wait is spent spinning: what a sleeping thread oversleeps, typically."""
SWITCH_INTERVAL_S = 0.0002
"""How long a thread may keep the interpreter from another that wants it, during play."""
REAL_TIME_PRIORITY = 1
STALL_S = 0.25
"""A timer that is later than this does not catch up: the machine was suspended, not slow."""


class Clock(Protocol):
    """Seconds that only grow, and waiting."""

    def now(self) -> float:
        """Return the time, seconds from an arbitrary origin."""
        ...

    def sleep_until(self, time_s: float) -> None:
        """Return at ``time_s``, at once where that is past."""
        ...

    def wait(self, ready: Callable[[], bool], timeout_s: float = math.inf) -> bool:
        """Return True once ``ready()`` is, asked at each :meth:`notify`; False after ``timeout_s``."""
        ...

    def notify(self) -> None:
        """Make the waiting threads ask again."""
        ...

    def enter(self) -> None:
        """Count one more thread as using this clock; called before it starts."""
        ...

    def leave(self) -> None:
        """Count one thread less; called when it ends."""
        ...


class MonotonicClock:
    """The machine's monotonic clock; its sleeps end by spinning, to within some microseconds."""

    def __init__(self) -> None:
        self._condition = threading.Condition()

    def now(self) -> float:
        """Return the machine's monotonic time, seconds."""
        return time.perf_counter()

    def sleep_until(self, time_s: float) -> None:
        """Sleep until shortly before ``time_s``, then spin, giving the interpreter away at each turn."""
        left = time_s - time.perf_counter()
        if left > SPIN_S:
            time.sleep(left - SPIN_S)
        while time.perf_counter() < time_s:
            time.sleep(0)

    def wait(self, ready: Callable[[], bool], timeout_s: float = math.inf) -> bool:
        """Block on a condition until ``ready()``, at most ``timeout_s``."""
        with self._condition:
            return self._condition.wait_for(ready, None if timeout_s == math.inf else timeout_s)

    def notify(self) -> None:
        """Wake the waiting threads."""
        with self._condition:
            self._condition.notify_all()

    def enter(self) -> None:
        """Do nothing: the machine's clock runs by itself."""

    def leave(self) -> None:
        """Do nothing: the machine's clock runs by itself."""


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


class FrameTimer:
    """The one owner of pacing: tick n is due at start + n / rate_hz.

    A tick that comes late is followed by the next at its own time, so the game keeps to the wall clock;
    only after a stall of more than :data:`STALL_S` the grid moves on by what was lost.

    Args:
        clock: the clock.
        rate_hz: ticks per second, > 0.
        catch_up: False: nothing is ever due; :meth:`skip` is all that is called.

    Attributes:
        lost_s: seconds by which the grid has moved on.
    """

    def __init__(self, clock: Clock, rate_hz: float, *, catch_up: bool = True) -> None:
        self.clock, self.period_s = clock, 1.0 / rate_hz if catch_up else math.inf
        self.lost_s = 0.0
        self._start_s = clock.now()
        self._ticks = 0

    def due_s(self, ticks: int) -> float:
        """Return when the tick after ``ticks`` more is due, by the grid as it is now; 0: the one of now."""
        return self._start_s + (self._ticks + ticks) * self.period_s

    def skip(self) -> None:
        """Begin the grid anew, now: time did not count."""
        self._start_s, self._ticks = self.clock.now(), 0

    def wait(self) -> float:
        """Return at the next tick, with how late it is, seconds >= 0."""
        self._ticks += 1
        due_s = self.due_s(0)
        self.clock.sleep_until(due_s)
        late_s = self.clock.now() - due_s
        if late_s > STALL_S:
            self._start_s += late_s
            self.lost_s += late_s
        return max(0.0, late_s)


@contextlib.contextmanager
def real_time_thread() -> Iterator[bool]:
    """Run the calling thread before ordinary ones, where the system allows it; yield whether it does.

    On Linux, with the right to do so (root, or a limit on ``rtprio`` above 0), it is scheduled in real
    time (SCHED_RR, least priority); the kernel leaves the others 5 % of a core at worst. Elsewhere the
    thread stays as it is.
    """
    if not sys.platform.startswith("linux"):
        yield False
        return
    thread = threading.get_native_id()
    policy, parameter = os.sched_getscheduler(thread), os.sched_getparam(thread)
    try:
        os.sched_setscheduler(
            thread, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(REAL_TIME_PRIORITY)
        )
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        try:
            os.sched_setscheduler(thread, policy, parameter)
        except PermissionError:  # only a privileged thread may take the flag away again
            os.sched_setscheduler(thread, policy | os.SCHED_RESET_ON_FORK, parameter)


def step_back(niceness: int) -> None:
    """Raise the calling thread's niceness by ``niceness`` (Linux only): others go first."""
    if sys.platform.startswith("linux"):
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + niceness)


@contextlib.contextmanager
def steady_interpreter() -> Iterator[None]:
    """Keep pauses away from the calling thread.

    No cycle collection, threads that hand over quickly, and real-time scheduling where it is allowed.
    """
    interval_s, collecting = sys.getswitchinterval(), gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        with real_time_thread():
            yield
    finally:
        sys.setswitchinterval(interval_s)
        if collecting:
            gc.enable()
        gc.unfreeze()
