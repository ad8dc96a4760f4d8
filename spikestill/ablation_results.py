"""What one change at a time is worth: a table for each sweep, whose rows compare with its baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spikestill import budgets
from spikestill.configs.sweep import CHANGE, GAME, UNCHANGED
from spikestill.result_cells import Cell, as_run, cells, interval, number, parts, share, table

SWEEPS = ("ablation", "ablation-zoo", "ablation-teachers", "ablation-files")
"""Sweeps whose tables stand in the section."""
UNSET = ("", "null", "None", None)
"""Values of an axis that give no file."""
BASELINE = "baseline"
ABOUT = (
    "## One change at a time",
    "",
    "What a departure of ours from the paper's recipe is worth, taken back or added by itself. Regret is that of",
    "the integer net on the recording's last 2 %: 0 for the teacher, 1 for random play. A table is one sweep, whose",
    "rows compare: `spikestill sweep ablation`; `ablation-zoo` for play of the game's student and a start from another",
    "game's; `ablation-teachers` for the gaps between actions; `ablation-files` for several teachers, and own files.",
    "",
    "A table's baseline has no change (`none`), or no file of one's own; all else is as in its other rows. Better",
    "and worse: the score lies above or below the 95 % interval of the baseline's. Where the row's own interval",
    "reaches into that one, the cell says so. With one seed an interval is over games alone: it does not tell what",
    "another seed scores. Of twenty changes that change nothing three or four would be called better or worse. Percent",
    "are of the mean that the teacher had in the same number of games; its own uncertainty is not in the interval.",
    "",
)


def section(documents: Path) -> list[str]:
    """Return the section: a table for each of the sweeps that was run."""
    lines = list(ABOUT)
    for path in (path for name in SWEEPS for path in parts(documents, name)):
        if found := cells(path):
            lines += ablation(found) + as_run(path)
    return lines


def ablation(own: Sequence[Cell]) -> list[str]:
    """Return a sweep's table: the score of each change, all else alike, and whether it differs from the baseline's."""
    rows = [
        [cell["game"], f"`{change(cell['values'])}`", number(cell.get("distill.regret"), 3),
         number(cell.get("evaluate.mean"), 2), interval(cell.get("evaluate.ci95"), 2), verdict(own, cell),
         share(cell), *budgets.columns(cell)]
        for cell in own
    ]  # fmt: skip
    heads = ["game", "change", "regret, held out", "score", "95 % interval", "beyond the baseline's interval",
             "% of teacher", *budgets.COLUMNS]  # fmt: skip
    bases = dict.fromkeys(f"`{change(cell['values'])}`" for cell in own if is_baseline(cell))
    told = f"Baseline: {', '.join(bases)}." if bases else "No row of this table is a baseline."
    return [told, "", *table(heads, rows)]


def change(values: Mapping[str, Any]) -> str:
    """Return the change that a sweep's ``ablate`` made, and what its grid chose."""
    made = [str(values[CHANGE])] if CHANGE in values else []
    return " ".join(
        [*made, *(f"{name}={value}" for name, value in values.items() if name not in (GAME, CHANGE))]
    )


def is_baseline(cell: Cell) -> bool:
    """Return whether a cell has no change or, where no changes were tried, none of the files that the grid gives."""
    tried = {name: value for name, value in cell["values"].items() if name != GAME}
    if CHANGE in tried:
        return bool(tried[CHANGE] == UNCHANGED)
    return bool(tried) and all(value in UNSET for value in tried.values())


def verdict(own: Sequence[Cell], cell: Cell) -> str:
    """Return ``better``, ``worse`` or ``no``: on which side of its baseline's interval a cell's score lies.

    '' where either has no score, or no cell of ``own`` is its baseline.
    """
    if is_baseline(cell):
        return BASELINE
    base = next((each for each in own if is_baseline(each) and _beside(each, cell)), {})
    ci, mine = base.get("evaluate.ci95"), cell.get("evaluate.ci95")
    if not ci or not mine:
        return ""
    score = cell["evaluate.mean"]
    if ci[0] <= score <= ci[1]:
        return "no"
    overlap = mine[0] <= ci[1] and ci[0] <= mine[1]
    return ("better" if score > ci[1] else "worse") + (", intervals overlap" if overlap else "")


def _beside(base: Cell, cell: Cell) -> bool:
    """Return whether two cells are of one game and, where changes were tried, of one choice of the grid."""

    def grid(values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if name != CHANGE} if CHANGE in values else {}

    return bool(base["game"] == cell["game"]) and grid(base["values"]) == grid(cell["values"])
