"""What real-time play measures: latency of decisions, lateness of ticks, misses."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from spikestill.runtime.session import Session, Tick

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

    def add_latency(self, latency_s: float) -> None:
        """Count an answer, from sensation to action."""
        self.latency_s.append(latency_s)

    def add_lateness(self, late_s: float) -> None:
        """Count a tick that came so much late."""
        self.late_s.append(late_s)

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


class DecisionLog:
    """Writes a line of JSON for every decision of every agent, as it is answered.

    A line has ``time`` (Unix, s), ``agent``, ``game``, ``frame``, ``decision``, ``action``, ``latency_ms``, ``late_ms``
    (of the tick), ``misses``, ``score``, ``scores`` and, where the agent has spikes, ``spikes`` by layer.

    Args:
        path: the file; what was there is replaced.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", encoding="utf-8")
        self._last: dict[int, int] = {}

    def add(self, sessions: Sequence[Session], ticks: Sequence[Tick]) -> None:
        """Write the answers that came with this frame."""
        for index, (session, tick) in enumerate(zip(sessions, ticks, strict=True)):
            answer = tick.answer
            if answer is None or self._last.get(index) == answer.number:
                continue
            self._last[index] = answer.number
            telemetry, trace = session.telemetry, answer.decision.trace
            line: dict[str, Any] = {
                "time": round(time.time(), 4),
                "agent": session.name,
                "game": tick.game,
                "frame": tick.frame,
                "decision": answer.number,
                "action": np.asarray(answer.decision.action[0]).tolist(),
                "latency_ms": round(answer.latency_s * 1e3, 4),
                "late_ms": round(telemetry.late_s[-1] * 1e3, 4) if telemetry.late_s else None,
                "misses": telemetry.misses,
                "score": tick.score,
                "scores": np.asarray(answer.decision.scores[0]).tolist(),
            }
            if trace is not None:
                line["spikes"] = trace.counts()[0].tolist()
            self._file.write(json.dumps(line) + "\n")

    def __enter__(self) -> DecisionLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def prometheus(told: Sequence[dict[str, Any]]) -> str:
    """Return agents' figures in Prometheus' text format, version 0.0.4.

    Args:
        told: of each agent ``agent``, ``decisions``, ``misses``, ``score``, ``ticks`` and ``latency_ms``.
    """
    lines = []
    for name, kind, text in (
        ("ticks", "counter", "Frames of the game."),
        ("decisions", "counter", "Decisions that were due."),
        ("misses", "counter", "Decisions whose action was not ready in time."),
        ("score", "gauge", "Score of the running game."),
    ):
        full = f"spikestill_{name}" + ("_total" if kind == "counter" else "")
        lines += [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
        lines += [f'{full}{{agent="{each["agent"]}"}} {each[name]:g}' for each in told]
    lines += [
        "# HELP spikestill_latency_seconds Sensation to action.",
        "# TYPE spikestill_latency_seconds summary",
    ]
    for each in told:
        for key, quantile in (("p50", "0.5"), ("p99", "0.99"), ("p999", "0.999")):
            value = each["latency_ms"].get(key)
            if value is not None:
                lines.append(
                    f'spikestill_latency_seconds{{agent="{each["agent"]}",quantile="{quantile}"}} {value / 1e3:g}'
                )
    return "\n".join(lines) + "\n"
