"""What real-time play measures: latency of decisions, lateness of ticks, misses."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

PER_MILLE = {"p50": 500, "p99": 990, "p999": 999, "max": 1000}
HISTOGRAM_EDGES_MS = np.round(np.logspace(-2, 3, 61), 5)
"""Bin edges, 12 a decade from 10 microseconds to 1 s; what lies outside is counted in the end bins."""


def percentiles_ms(values_s: npt.ArrayLike) -> dict[str, float | None]:
    """Return p50, p99, p99.9 and the maximum of ``values_s`` in milliseconds, None for each if empty.

    Each is a value that occurred: the smallest with at least that share of all at or below it.
    """
    values_ms = np.sort(np.asarray(values_s, np.float64)) * 1e3
    if not values_ms.size:
        return dict.fromkeys(PER_MILLE)
    # Nearest rank in integers: ceil(n p) is at least 1.
    return {
        name: round(float(values_ms[-(-values_ms.size * share // 1000) - 1]), 4)
        for name, share in PER_MILLE.items()
    }


def histogram_ms(values_s: npt.ArrayLike) -> dict[str, list[float] | list[int]]:
    """Return ``edges_ms`` (61) and ``counts`` (60) of ``values_s``."""
    edges_ms = HISTOGRAM_EDGES_MS
    inside_ms = np.clip(np.asarray(values_s, np.float64) * 1e3, edges_ms[0], edges_ms[-1])
    counts, _ = np.histogram(inside_ms, edges_ms)
    return {"edges_ms": edges_ms.tolist(), "counts": counts.tolist()}


class Telemetry:
    """Counters of one run.

    Attributes:
        ticks: emulator frames.
        decisions: stacks whose action came in time or was missed; one that the game's end cut off is neither.
        misses: decisions whose action was not ready when the next one was due.
        unseen: misses whose stack the agent never began with, being busy.
        latency_s: sensation to action of every answered decision, seconds, late ones too.
        late_s: lateness of every tick, seconds.
        lost_s: seconds by which the game fell behind the wall clock for good.
    """

    def __init__(self) -> None:
        self.ticks = self.decisions = self.misses = self.unseen = 0
        self.latency_s: list[float] = []
        self.late_s: list[float] = []
        self.lost_s = 0.0

    def summary(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        return {
            "decisions": self.decisions,
            "misses": self.misses,
            "unseen": self.unseen,
            "latency_ms": percentiles_ms(self.latency_s),
            "jitter_ms": percentiles_ms(self.late_s),
            "ticks": self.ticks,
            "lost_s": round(self.lost_s, 4),
            "histogram": histogram_ms(self.latency_s),
        }
