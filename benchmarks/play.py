"""Real-time play by the clock: misses, latency and jitter of each agent over minutes.

    python -m benchmarks.play [--minutes 10] [--agents cores lava teacher fp16] [--record]

A witness on each core (``benchmarks/witness.py``) notes when the machine itself stood still. Of each miss it is kept
for how long all cores and any core did, of the time that the decision had. ``explained`` counts the misses where a core
left so little of it that not even 99 of 100 decisions would have come in time, ``explained_by_all_cores`` those where
all cores at once did; null where no witness could run in real time. ``misses_by_standing_still`` puts them beside all
periods in which the machine stood still as long. Files are the zoo's unless given. The agents play
one after another, the same game from the same seed; run it on a machine that does nothing else (the load before each
is in the result).
Writes ``benchmarks/results/play-AGENT.json``.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.measurement import finish, stand_in
from benchmarks.witness import Witness, by_share, explained
from spikestill.configs.environment import EnvironmentConfig
from spikestill.configs.play import PlayConfig
from spikestill.runtime.play import run

KEYS = (
    "rate_hz", "frame_skip", "seconds", "decisions", "misses", "missed_at", "unseen", "latency_ms", "jitter_ms",
    "lost_s", "scores", "joules_per_decision", "histogram", "video_frames", "dropped_video_frames",
)  # fmt: skip
AGENT_KEYS = ("agent", "decisions", "misses", "missed_at", "latency_ms", "state")


def stood_still(
    told: Mapping[str, Any], witness: Witness, began_s: npt.NDArray[np.float64], period_s: float
) -> dict[str, Any]:
    """Return for how long the machine stood still before each miss of an agent, and how many that explains.

    Args:
        told: of the agent.
        witness: of the play.
        began_s: Unix times at which the periods of the play began.
        period_s: that a decision has.
    """
    deadlines = np.array(told["missed_at"])
    all_s, any_s = witness.stood_still_s(deadlines - period_s, deadlines)
    periods_s = witness.stood_still_s(began_s, began_s + period_s)[1]
    needed_s = told["latency_ms"]["p99"] / 1e3
    return {
        "explained": explained(any_s, period_s, needed_s) if witness.real_time else None,
        "explained_by_all_cores": explained(all_s, period_s, needed_s) if witness.real_time else None,
        "stood_still_before_each_miss_ms": np.round(1e3 * any_s, 1).tolist(),
        "all_cores_stood_still_ms": np.round(1e3 * all_s, 1).tolist(),
        "misses_by_standing_still": by_share(any_s, periods_s, period_s),
    }


def measure(agent: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return what ``agent`` reached in ``options.minutes`` of real time."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        config = PlayConfig(
            environment=EnvironmentConfig(game=options.game, frame_skip=options.frame_skip),
            agent=agent,
            teacher=options.teacher,
            student=options.student,
            core_map=options.core_map,
            seconds=60 * options.minutes,
            view="none",
            record=Path(folder) / "game.mp4" if options.record else None,
        )
        with Witness() as witness:
            summary = run(config, Path(folder)).summary
            ended_s = time.time()
    period_s = summary["frame_skip"] / summary["rate_hz"]
    began_s = np.arange(ended_s - summary["seconds"], ended_s - period_s, period_s)
    stalls = sorted(stall for core in witness.found for stall in core["stalls"])
    found = {
        **{key: summary[key] for key in KEYS},
        "load_before": round(load, 2),
        "load_after": round(os.getloadavg()[0], 2),
        "witness": [{**core, "stalls": len(core["stalls"])} for core in witness.found],
        "stalls_over_a_period": [stall for stall in stalls if stall[1] > 1e3 * period_s][:2_000],
        **stood_still(summary, witness, began_s, period_s),
    }
    if len(summary["agents"]) > 1:
        found["agents"] = [
            {**{key: told[key] for key in AGENT_KEYS}, **stood_still(told, witness, began_s, period_s)}
            for told in summary["agents"]
        ]
    return found


def main() -> None:
    """Measure the agents, one after another."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="minutes for each agent or group")
    parser.add_argument("--agents", nargs="+", default=["cores", "lava", "teacher", "fp16"])
    parser.add_argument(
        "--game", default="pong", help="a control task plays at its own rate: --agents teacher"
    )
    parser.add_argument("--frame_skip", type=int, default=4, help="of Atari; a control task has its own")
    parser.add_argument("--teacher", type=Path)
    parser.add_argument("--student", type=Path)
    parser.add_argument("--core_map", type=Path)
    parser.add_argument("--record", action="store_true", help="record a video meanwhile (not kept)")
    options = parser.parse_args()
    figures: dict[str, Any] = {
        "game": options.game,
        "minutes": options.minutes,
        "stand_in": stand_in(),
    }
    suffix = "" if options.game == "pong" else f"-{options.game}"
    suffix += "" if options.frame_skip == 4 else f"-skip{options.frame_skip}"
    suffix += "-avx2" if figures["stand_in"] else ""
    for agent in options.agents:
        finish(
            f"play-{agent.replace(',', '+')}{suffix}", {**figures, "agent": agent, **measure(agent, options)}
        )


if __name__ == "__main__":
    main()
