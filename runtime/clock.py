"""Time: the machine's monotonic clock, and the one timer that paces the game.

A clock also carries the waiting of threads for each other, so that a whole program of several threads can run in
made-up time, as the tests' virtual clock has it.
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
    """The machine's monotonic clock, which can be stopped; its sleeps end by spinning, to within some microseconds."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._left_out_s = 0.0
        self._stopped_s: float | None = None

    def now(self) -> float:
        """Return the machine's monotonic time less the time for which this clock was stopped, seconds."""
        stopped_s = self._stopped_s
        return time.perf_counter() - self._left_out_s if stopped_s is None else stopped_s

    def stop(self) -> None:
        """Let the time stand still until :meth:`go_on`, for all threads."""
        self._stopped_s = self.now()

    def go_on(self) -> None:
        """Let the time go on from where it stood."""
        assert self._stopped_s is not None
        self._left_out_s = time.perf_counter() - self._stopped_s
        self._stopped_s = None

    def sleep_until(self, time_s: float) -> None:
        """Sleep until shortly before ``time_s``, then spin, giving the interpreter away at each turn."""
        while (left_s := time_s - self.now()) > SPIN_S:
            time.sleep(left_s - SPIN_S)
        while self.now() < time_s:
            time.sleep(0)

    def wait(self, ready: Callable[[], bool], timeout_s: float = math.inf) -> bool:
        """Block on a condition until ``ready()``, at most ``timeout_s`` of this clock."""
        end_s = self.now() + timeout_s
        with self._condition:
            while not (done := ready()) and (left_s := end_s - self.now()) > 0:
                self._condition.wait(None if left_s == math.inf else left_s)
            return done

    def notify(self) -> None:
        """Wake the waiting threads."""
        with self._condition:
            self._condition.notify_all()

    def enter(self) -> None:
        """Do nothing: the machine's clock runs by itself."""

    def leave(self) -> None:
        """Do nothing: the machine's clock runs by itself."""


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
    time (SCHED_RR, least priority); the kernel leaves the others 5 % of a core at worst. A thread that is in real time
    already, as under ``chrt``, keeps its priority. What it starts is ordinary again. Elsewhere the thread stays as it
    is.
    """
    if not sys.platform.startswith("linux"):
        yield False
        return
    thread = threading.get_native_id()
    policy, parameter = os.sched_getscheduler(thread), os.sched_getparam(thread)
    wanted, priority = os.SCHED_RR, os.sched_param(REAL_TIME_PRIORITY)
    if policy & ~os.SCHED_RESET_ON_FORK in (os.SCHED_FIFO, os.SCHED_RR):
        wanted, priority = policy, parameter
    try:
        os.sched_setscheduler(thread, wanted | os.SCHED_RESET_ON_FORK, priority)
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
    """Leave real time and raise the calling thread's niceness by ``niceness`` (Linux only): others go first."""
    if sys.platform.startswith("linux"):
        thread = threading.get_native_id()
        if os.sched_getscheduler(thread) & ~os.SCHED_RESET_ON_FORK in (os.SCHED_FIFO, os.SCHED_RR):
            os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
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
