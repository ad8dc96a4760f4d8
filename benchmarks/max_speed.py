"""``play --max_speed`` beside the bare emulator and the agent alone: decisions a second, in one run.

    python -m benchmarks.max_speed [--agents cores teacher fp16] [--seconds 2] [--repeats 5]

Each repeat measures in turn (a) the emulator alone, its observations included, with random actions; (b) the agent alone
on observations of (a); (c) the agent at the game in the loop that ``play --max_speed`` runs, nothing drawn or written.
A decision needs the frame before it and the next frame needs the decision, so (c) cannot pass 1 / (1/a + 1/b): that is
``serial``. ``share`` is c over the lesser of a and b, ``of_serial`` c over that bound; medians over the repeats.
Writes ``benchmarks/results/max_speed.json``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np

from benchmarks.measurement import finish, median_rate
from spikestill.common.environment import Observations, environment
from spikestill.configs.environment import EnvironmentConfig
from spikestill.runtime.agents import Agent, agent_files, open_agent
from spikestill.runtime.clock import MonotonicClock
from spikestill.runtime.live import LiveGame, open_game
from spikestill.runtime.loop import Pace, play_live
from spikestill.runtime.session import Session
from spikestill.runtime.telemetry import Telemetry

SEEN = 256
"""Observations that the agent alone is asked about."""


class Wanderer:
    """The emulator alone: one decision of random actions a call."""

    def __init__(self, game: LiveGame) -> None:
        self.game, self._rng = game, np.random.default_rng(0)

    def decide(self) -> Observations:
        """Play up to the next observation and return it."""
        game = self.game
        if game.over:
            game.reset()
            return game.observations()
        action = game.spec.actions.sample(self._rng, 1)[0]
        game.step(action)
        while not game.decision_due:
            game.step(action)
        return game.observations()


def loop_rate(game: LiveGame, agent: Agent, seconds: float) -> float:
    """Return the decisions a second of ``agent`` at ``game`` in the unpaced loop."""
    clock, telemetry = MonotonicClock(), Telemetry()
    session = Session(agent.name, game, agent, clock, telemetry, at_hand=True)
    loop = play_live([session], clock, Pace(unpaced=True))
    began = time.perf_counter()
    for _ in loop:
        if (passed := time.perf_counter() - began) > seconds:
            break
    loop.close()
    return telemetry.decisions / passed


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the three rates of the agent called ``name`` and what follows from them."""
    game = open_game(EnvironmentConfig(game=options.game), 0, drawn=False, paced=False)
    wanderer = Wanderer(game)
    seen = [wanderer.decide() for _ in range(SEEN)]
    agent = open_agent(name, environment(options.game), agent_files(name, options.game, {}))

    def asked() -> int:
        for observations in seen:
            agent.act(observations)
        return SEEN

    rates: dict[str, list[float]] = {"emulator": [], "agent": [], "loop": []}
    for _ in range(options.repeats):
        rates["emulator"].append(median_rate(lambda: bool(wanderer.decide()), options.seconds, 1))
        rates["agent"].append(median_rate(asked, options.seconds, 1))
        rates["loop"].append(loop_rate(game, agent, options.seconds))
    game.close()
    agent.close()
    emulator, own, loop = (statistics.median(values) for values in rates.values())
    serial = 1 / (1 / emulator + 1 / own)
    return {
        "emulator_per_s": round(emulator),
        "agent_per_s": round(own),
        "loop_per_s": round(loop),
        "serial_per_s": round(serial),
        "share": round(loop / min(emulator, own), 3),
        "serial_share": round(serial / min(emulator, own), 3),
        "of_serial": round(loop / serial, 3),
    }


def main() -> None:
    """Measure the agents, one after another."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", nargs="+", default=["cores", "student", "teacher", "fp16"])
    parser.add_argument("--game", default="pong")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of each measurement")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    finish(
        "max_speed",
        {"game": options.game, "agents": {name: measure(name, options) for name in options.agents}},
    )


if __name__ == "__main__":
    main()
