"""Score against spikes and joules, of the zoo's students and of ``spikestill sweep penalty``, and its two pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spikestill import budgets
from spikestill.charts import Point, point_chart, standalone
from spikestill.result_cells import Card, Cell, bar_of_card, bar_of_cell, chosen, interval, number, table

SILENT, ENERGY = "operations.activation_sparsity", "truenorth.total_j_pipelined"
STATIC = "truenorth.static_j_pipelined"
"""What ``estimate`` calls them; a cell has ``estimate.`` before each, a card has them in its ``decision``."""
SHARE = "evaluate.percent_of_teacher"
FIRING, JOULES = "% of the neurons that fire", "mJ a decision (TrueNorth, estimated)"
Students = Sequence[tuple[str, Card]]
"""The zoo's, each with what distinguishes it from its game's own; '' is that one."""
Series = list[tuple[str, list[Point]]]


def estimated(found: Mapping[str, Any], name: str) -> float | None:
    """Return what ``estimate`` told of a card's or a cell's student; None where it was not asked."""
    stage, _, key = name.partition(".")
    value = found.get(f"estimate.{name}", found.get("decision", {}).get(stage, {}).get(key))
    return None if value is None else float(value)


def firing(found: Mapping[str, Any]) -> float | None:
    """Return the percentage of the neurons that fire in a decision."""
    silent = estimated(found, SILENT)
    return None if silent is None else 100 * (1 - silent)


def millijoules(found: Mapping[str, Any]) -> float | None:
    """Return the energy of a decision in mJ, as TrueNorth's is estimated with a frame at every tick."""
    energy = estimated(found, ENERGY)
    return None if energy is None else 1e3 * energy


def section(own: Sequence[Cell], students: Students) -> list[str]:
    """Return score, spikes, cores and energy against the weight and the form of the sparsity penalty.

    Args:
        own: cells of the sweep.
        students: the zoo's.
    """

    def costs(found: Mapping[str, Any], cores: Any) -> list[str]:
        energy = millijoules(found)
        return [number(firing(found)), number(cores, 0), "" if energy is None else f"{energy:.3g}"]

    shipped = [
        [f"{card['game']}, the zoo's{f' {name}' if name else ''}", str(card["recipe"].get("sparsity_form", "layers")),
         str(card["recipe"]["sparsity"]), number(card["mean"], 2), interval(card["ci95"], 2),
         *costs(card, card["cores"]), "1", budgets.recorded(card), budgets.batches(card),
         number(budgets.hours(card), 2)]
        for name, card in students
    ]  # fmt: skip
    tried = [
        [cell["game"], *penalty(cell), number(cell.get("evaluate.mean"), 2), interval(cell.get("evaluate.ci95"), 2),
         *costs(cell, cell.get("map.cores")), *budgets.columns(cell)]
        for cell in own
    ]  # fmt: skip
    rows = shipped + tried
    heads = ["game", "form", "weight", "score", "95 % interval", FIRING, "cores", JOULES, *budgets.COLUMNS]
    shown = [line for name in pictures(own, students) for line in (f"![{TITLES[name]}](images/{name})", "")]
    return [
        "## Fewer spikes",
        "",
        "The zoo's students of one game, with the frames, batches and hours of all of their trainings; then those of",
        "`spikestill sweep penalty`, with the sweep's own alone, also where they began with another student.",
        "",
        *table(heads, rows or [[""] * len(heads)]),
        *shown,
        *(ABOUT_JOULES if shown else ()),
    ]


ABOUT_JOULES = (
    "A whisker is the 95 % interval of the score. The upright line is what the static power of one chip costs in a",
    "tick, at each of which a frame enters. No student of one chip goes below it: fewer spikes save of what lies",
    "above.",
    "",
)


def penalty(cell: Cell) -> list[str]:
    """Return the form and the weight of a cell's penalty, '' what the sweep left to ``distill``."""
    return [str(chosen(cell).get(f"distill.{name}", "")) for name in ("sparsity_form", "sparsity")]


def points(
    own: Sequence[Cell], students: Students, cost: Callable[[Mapping[str, Any]], float | None]
) -> Series:
    """Return the points of score against a cost, by series: the zoo's students and the sweep's cells."""
    shipped: list[Point] = []
    for name, card in students:
        if (bar := bar_of_card(card)) and (x := cost(card)) is not None:
            shipped.append((f"{card['game'].replace('_', ' ')} {name}".strip(), x, bar))
    tried: list[Point] = []
    for cell in own:
        if SHARE in cell and (x := cost(cell)) is not None:
            words = [cell["game"].replace("_", " "), *penalty(cell)]
            tried.append((" ".join(word for word in words if word), x, bar_of_cell(cell)))
    return [
        (name, found) for name, found in (("the zoo's students", shipped), ("the sweep's", tried)) if found
    ]


TITLES = {"fewer-spikes.svg": "Score against spikes", "fewer-joules.svg": "Score against joules"}


def pictures(own: Sequence[Cell], students: Students) -> dict[str, str]:
    """Return file name to the text of an SVG file: score against spikes and against joules, where either is known."""
    static = sorted({value for _, card in students if (value := estimated(card, STATIC)) is not None})
    rules = [(f"static {1e3 * value:.3g}", 1e3 * value) for value in static]
    drawn = {
        "fewer-spikes.svg": (points(own, students, firing), FIRING, []),
        "fewer-joules.svg": (points(own, students, millijoules), JOULES, rules),
    }
    return {
        name: standalone(point_chart(series, label, "% of the teacher's score", lines))
        for name, (series, label, lines) in drawn.items()
        if series
    }
