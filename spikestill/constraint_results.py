"""What each constraint of the hardware costs, from what ``benchmarks.constraints`` wrote: a section of the results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spikestill.common.atari import PAPER_GAMES
from spikestill.common.json_file import read_object
from spikestill.result_cells import Card, interval, number, table
from spikestill.runtime.evaluate import percentages

RUNGS = {
    "teacher": "none: the teacher's own net, fp32",
    "fan-in": "fan-in of 128 at most: the student's chain, ReLU, real weights",
    "binary": "and binary activations",
    "ternary": "and ternary weights, rounded straight through",
    "recipe": "the same, by `spikestill distill`",
}
"""What each rung of the benchmark is bound by."""


def figures(measured: Path, game: str) -> Mapping[str, Any]:
    """Return the rungs that were run on a game, by rung and batches; {} where none were."""
    path = measured / f"constraints-{game}.json"
    if not path.is_file():
        return {}
    found: Mapping[str, Any] = read_object(
        path, "what `python -m benchmarks.constraints` wrote", "run it anew"
    )["figures"]
    return found


def rows(found: Mapping[str, Any], card: Card) -> list[list[str]]:
    """Return a row for each rung, from the fewest constraints to the most.

    Args:
        found: the rungs of one game.
        card: of that game's 1-chip student, which knows its teacher's score and random play's.
    """
    order = list(RUNGS)
    made = []
    for each in sorted(found.values(), key=lambda rung: (rung["batches"], order.index(rung["rung"]))):
        held, score = each["held_out"], each["played"]
        share = percentages(score["score"], card["teacher"], card["random"])["percent_of_margin"]
        made.append([
            card["game"], RUNGS[each["rung"]], f"{each['learning_rate']:g}", f"{each['batches']:,}",
            f"{each['training_loss']:.2f}",
            f"{100 * each['training_agreement']:.0f}, {100 * held['agreement']:.0f}", f"{held['regret']:.2f}",
            number(score["score"]), interval(score["ci95"]), number(share, 0),
            f"{each['hours']:.2f}",
        ])  # fmt: skip
    return made


def section(measured: Path, students: Mapping[str, Card]) -> list[str]:
    """Return the section; [] where nothing was run."""
    made = [
        row
        for game in PAPER_GAMES
        if game in students
        for row in rows(figures(measured, game), students[game])
    ]
    if not made:
        return []
    heads = [
        "game", "bound by", "rate", "batches", "loss", "agreement %: training, held out", "regret, held out", "score",
        "95 % interval", "% of margin", "hours",
    ]  # fmt: skip
    return [
        "## What each constraint costs",
        "",
        "Nets that are bound by more and more, each trained from random weights on the same frames of its game (its",
        "teacher's play, on Seaquest a student's own too), by the same loss and in batches of 128; 30 games. Each has",
        "a rate of its own, and the student's chains have batch normalisation, which the teacher's net has not: so",
        "a difference is not the constraint's alone. `spikestill distill` adds no constraint. Loss and agreement",
        "in training are over its last tenth; regret is 0 for the teacher and 1 for random play.",
        "`python -m benchmarks.constraints GAME RUNG --buffers FILES`.",
        "",
        *table(heads, made),
    ]
