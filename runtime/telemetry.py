"""What real-time play measures: latency of decisions, lateness of ticks, misses."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from spikestill.common.targets import check_target
from spikestill.runtime.hdr import HdrHistogram

if TYPE_CHECKING:
    from spikestill.runtime.session import Session, Tick

MOST_TIMES = 1_000


class Telemetry:
    """Counters of one run.

    Attributes:
        ticks: emulator frames.
        decisions: stacks whose action came in time or was missed; one that the game's end cut off is neither.
        misses: decisions whose action was not ready when the next one was due.
        missed_at: Unix times, seconds, of the first :data:`MOST_TIMES` deadlines that were missed.
        unseen: misses whose stack the agent never began with, being busy.
        latency: sensation to action of every answered decision, late ones too.
        lateness: how late every tick came.
        late_s: how late the last tick came, seconds.
        lost_s: seconds by which the game fell behind the wall clock for good.
        joules: estimated energy of the answered decisions, J; 0 where nothing is known of the agent's.
        last_joules: of the last one, None where it is not known.
        saturated: numbers that the agent's arithmetic cut off in the answered decisions, None where it counts none.
    """

    def __init__(self) -> None:
        self.ticks = self.decisions = self.misses = self.unseen = 0
        self.latency, self.lateness = HdrHistogram(), HdrHistogram()
        self.late_s = self.lost_s = self.joules = 0.0
        self.last_joules: float | None = None
        self.saturated: int | None = None
        self.missed_at: list[float] = []

    def add_miss(self, late_s: float) -> None:
        """Count a miss whose deadline was ``late_s`` ago, and when that was."""
        self.misses += 1
        if len(self.missed_at) < MOST_TIMES:
            self.missed_at.append(round(time.time() - late_s, 4))

    def add_latency(self, latency_s: float) -> None:
        """Count an answer, from sensation to action."""
        self.latency.add(latency_s)

    def add_lateness(self, late_s: float) -> None:
        """Count a tick that came so much late."""
        self.late_s = late_s
        self.lateness.add(late_s)

    def add_energy(self, joules: float | None) -> None:
        """Add an answer's estimated energy, None where nothing is known of it."""
        self.last_joules = joules
        self.joules += joules or 0.0

    def add_saturated(self, count: int | None) -> None:
        """Add the numbers that an answer's arithmetic cut off, None where it does not count them."""
        if count is not None:
            self.saturated = (self.saturated or 0) + count

    def summary(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        known = self.joules > 0 and self.latency.count
        return {
            "decisions": self.decisions,
            "misses": self.misses,
            "unseen": self.unseen,
            "missed_at": self.missed_at,
            "latency_ms": self.latency.percentiles_ms(),
            "jitter_ms": self.lateness.percentiles_ms(),
            "ticks": self.ticks,
            "lost_s": round(self.lost_s, 4),
            "joules_per_decision": self.joules / self.latency.count if known else None,
            "saturated": self.saturated,
            "histogram": self.latency.bins(),
        }


class DecisionLog:
    """Writes a line of JSON for every decision of every agent, as it is answered.

    A line has ``time`` (Unix, s), ``agent``, ``game``, ``frame``, ``decision``, ``action``, ``latency_ms``, ``late_ms``
    (of the tick), ``misses``, ``score``, ``scores``, ``joules`` (estimated, None where nothing is known) and, where the
    agent has spikes, ``spikes`` by layer; where its arithmetic counts them, the numbers that were ``saturated``.

    Args:
        path: the file; an earlier log is replaced.

    Raises:
        UserError: it cannot be written, or what is there is no such log.
    """

    def __init__(self, path: Path) -> None:
        check_target(path, "log of decisions", lambda _, head: head.startswith(b'{"time": '))
        self._path, self._file = path, path.open("w", encoding="utf-8")
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
                "late_ms": round(telemetry.late_s * 1e3, 4),
                "misses": telemetry.misses,
                "score": tick.score,
                "scores": np.asarray(answer.decision.scores[0]).tolist(),
                "joules": telemetry.last_joules,
            }
            if answer.decision.saturated is not None:
                line["saturated"] = answer.decision.saturated
            if trace is not None:
                line["spikes"] = trace.counts()[0].tolist()
            with self._named():
                self._file.write(json.dumps(line) + "\n")

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Let an error of writing say which file: a full disk does not."""
        try:
            yield
        except OSError as error:
            error.filename = str(self._path)
            raise

    def __enter__(self) -> DecisionLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._named():
            self._file.close()


@dataclasses.dataclass(frozen=True)
class Told:
    """An agent's figures, for :func:`prometheus`.

    Attributes:
        agent: its name.
        counts: the values of :data:`COUNTS`.
        latency: sensation to action.
        lateness: of the ticks.
    """

    agent: str
    counts: dict[str, float]
    latency: HdrHistogram
    lateness: HdrHistogram


COUNTS = (
    ("ticks", "counter", "Frames of the game."),
    ("decisions", "counter", "Decisions that were due."),
    ("misses", "counter", "Decisions whose action was not ready in time."),
    ("score", "gauge", "Score of the running game."),
    ("joules", "counter", "Estimated energy of the decisions; 0 where nothing is known of the agent's."),
)


def prometheus(told: Sequence[Told]) -> str:
    """Return agents' figures in Prometheus' text format, version 0.0.4; agents of one name are counted up."""
    lines: list[str] = []
    labels = [f'agent="{each.agent}",index="{index}"' for index, each in enumerate(told)]
    for name, kind, text in COUNTS:
        full = f"spikestill_{name}" + ("_total" if kind == "counter" else "")
        lines += [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
        lines += [
            f"{full}{{{label}}} {each.counts[name]:g}" for label, each in zip(labels, told, strict=True)
        ]
    for name, text in (("latency", "Sensation to action."), ("lateness", "How late a frame came.")):
        full = f"spikestill_{name}_seconds"
        lines += [f"# HELP {full} {text}", f"# TYPE {full} summary"]
        for label, each in zip(labels, told, strict=True):
            histogram: HdrHistogram = getattr(each, name)
            found = histogram.percentiles_ms()
            for key, quantile in (("p50", "0.5"), ("p99", "0.99"), ("p999", "0.999"), ("max", "1")):
                value = found[key]
                if value is not None:
                    lines.append(f'{full}{{{label},quantile="{quantile}"}} {value / 1e3:g}')
            lines += [
                f"{full}_sum{{{label}}} {histogram.sum_s:g}",
                f"{full}_count{{{label}}} {histogram.count}",
            ]
    return "\n".join(lines) + "\n"
