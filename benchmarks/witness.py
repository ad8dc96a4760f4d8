"""A witness beside a measurement in real time: how late this machine wakes a thread that has nothing to do.

One process for each core, bound to it, in real time at the caller's priority or above: it sleeps a millisecond, looks
at the clock, and notes by how much it came too late. What it notes is the machine's doing: a host that takes the
virtual processor away, a kernel that is not to be interrupted. Nothing that the measured program does is in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import TracebackType
from typing import Any

PRIORITY = 20
NOTED_MS = 1.0
"""Stalls from here on are noted; one may have begun as much earlier as the witness sleeps, a millisecond."""
SCRIPT = """
import json, os, select, signal, sys, time
core, priority, noted_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 1e3
os.sched_setaffinity(0, {core})
real_time = True
try:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
except OSError:
    real_time = False
stalls, worst, due, stopped = [], 0.0, time.perf_counter(), []
# Stopped by someone and told to go on: that was no stall of the machine.
signal.signal(signal.SIGCONT, lambda *_: stopped.append(True))
while True:
    due += 0.001
    time.sleep(max(0.0, due - time.perf_counter()))
    late = time.perf_counter() - due
    if stopped:
        stopped.clear()
        due = time.perf_counter()
        continue
    worst = max(worst, late)
    if late > noted_s:
        stalls.append((round(time.time(), 4), round(late * 1e3, 1)))
        due = time.perf_counter()
    if select.select([0], [], [], 0)[0]:
        break
print(json.dumps({"core": core, "real_time": real_time, "worst_ms": round(worst * 1e3, 2), "stalls": stalls}))
"""


class Witness:
    """Watches while the context lasts.

    Attributes:
        found: afterwards, of each core ``core``, ``real_time`` (it was allowed), ``worst_ms`` and ``stalls``: pairs of
            Unix time (s, at the end of the stall) and length (ms).
    """

    def __enter__(self) -> Witness:
        self.found: list[dict[str, Any]] = []
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-c", SCRIPT, str(core), str(PRIORITY), str(NOTED_MS)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for core in sorted(os.sched_getaffinity(0))
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.found = [json.loads(process.communicate()[0]) for process in self._processes]

    @property
    def real_time(self) -> bool:
        """True where every core's witness ran before the measured program; else what it found may be that program's."""
        return all(core["real_time"] for core in self.found)

    def stood_still_s(self, began: float, ended: float) -> tuple[float, float]:
        """Return for how long, between two Unix times, all cores stood still at once, and for how long any did, s."""
        edges = []
        for core in self.found:
            for at, length_ms in core["stalls"]:
                start, end = max(began, at - length_ms / 1e3), min(ended, at)
                edges += [(start, 1), (end, -1)] if start < end else []
        all_s = any_s = last = 0.0
        still = 0
        for at, change in sorted(edges):
            all_s += (at - last) * (still == len(self.found))
            any_s += (at - last) * (still > 0)
            last, still = at, still + change
        return all_s, any_s


def explained(still_s: list[float], period_s: float, needed_s: float) -> int:
    """Return how many misses the machine's standing still explains.

    Args:
        still_s: for how long it stood still in the period before each missed deadline, seconds.
        period_s: that a decision has.
        needed_s: that 99 of 100 decisions took at most. Where that is longer than a period, the agent itself is too
            slow, and nothing is explained.
    """
    return sum(period_s - still < needed_s < period_s for still in still_s)
