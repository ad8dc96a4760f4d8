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

import numpy as np
import numpy.typing as npt

PRIORITY = 20
NOTED_MS = 0.5
"""Stalls from here on are noted; one may have begun up to a millisecond earlier, for so long the witness sleeps."""
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

    def stood_still_s(
        self, began: npt.NDArray[np.float64], ended: npt.NDArray[np.float64]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return for how long, between Unix times, all cores stood still at once, and for how long any did, s."""
        edges = [(0.0, 0)]
        for core in self.found:
            for at, length_ms in core["stalls"]:
                edges += [(at - length_ms / 1e3, 1), (at, -1)]
        at_s, change = np.array(sorted(edges)).T
        still, span_s = np.cumsum(change)[:-1], np.diff(at_s)
        all_s, any_s = (
            np.concatenate([[0.0], np.cumsum(span_s * counted)])
            for counted in (still == len(self.found), still > 0)
        )
        return (
            np.interp(ended, at_s, all_s) - np.interp(began, at_s, all_s),
            np.interp(ended, at_s, any_s) - np.interp(began, at_s, any_s),
        )


def explained(still_s: npt.NDArray[np.float64], period_s: float, needed_s: float) -> int:
    """Return how many misses the machine's standing still explains.

    Args:
        still_s: for how long it stood still in the period before each missed deadline, seconds.
        period_s: that a decision has.
        needed_s: that 99 of 100 decisions took at most. Where that is longer than a period, the agent itself is too
            slow, and nothing is explained.
    """
    return int((period_s - still_s < needed_s).sum()) if needed_s < period_s else 0


def by_share(
    missed_s: npt.NDArray[np.float64], all_s: npt.NDArray[np.float64], period_s: float
) -> list[dict[str, Any]]:
    """Return periods and misses by how much of the period the machine stood still.

    Args:
        missed_s: for how long it stood still in the period before each missed deadline, seconds.
        all_s: the same of every period that was played, missed or not.
        period_s: that a decision has.

    Returns:
        for each quarter of a period ``stood_still`` (the shares it is from and to), ``periods`` and ``misses``.
    """
    edges = np.linspace(0.0, 1.0, 5)
    counts = [np.histogram(np.clip(each / period_s, 0.0, 1.0), edges)[0] for each in (all_s, missed_s)]
    return [
        {"stood_still": [float(low), float(high)], "periods": int(periods), "misses": int(misses)}
        for low, high, periods, misses in zip(edges, edges[1:], *counts, strict=False)
    ]
