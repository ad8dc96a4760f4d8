"""What came out of a sweep: a row for each trial and game, a cell for each choice over all its seeds, and a page."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from spikestill.charts import interval_chart
from spikestill.common.atomic import write_text
from spikestill.configs.loading import plain
from spikestill.configs.sweep import GAME, SEED, SweepRecipe
from spikestill.console import shown
from spikestill.report import render
from spikestill.sweep.plan import StageRun, Trial
from spikestill.sweep.worker import FAILED, FINISHED, LOG, attempts

FIGURES: dict[str, tuple[str, ...]] = {
    "teach": ("mean_return_100", "mean_return"),
    "record": ("frames", "mean_return"),
    "distill": ("steps", "agreement", "regret"),
    "map": ("cores", "chips"),
    "estimate": ("truenorth.total_j_pipelined", "operations.activation_sparsity"),
    "verify": ("equal",),
    "evaluate": ("mean", "ci95", "episodes", "percent_of_teacher", "percent_of_margin"),
}
"""Stage to the entries of its summary that a row shows; a dot leads into a group of them."""
MEASURES = ("evaluate.percent_of_teacher", "evaluate.percent_of_margin", "evaluate.mean", "distill.agreement")
"""Columns that are averaged over seeds; the page draws the first that there is."""
AVERAGED = (
    *MEASURES, "record.mean_return", "distill.regret", "map.cores",
    *(f"{stage}.{name}" for stage in ("teach", "estimate") for name in FIGURES[stage]),
)  # fmt: skip
"""Figures that differ by seed, and have a mean in a cell; of the others a cell has those that are the same in all."""
RESAMPLES = 4_000
Row = dict[str, Any]


def rows(trials: Sequence[Trial], outcomes: Mapping[str, Mapping[str, Any]], root: Path) -> list[Row]:
    """Return a row for each game of each trial: ``values``, ``game``, ``state``, ``figures``, ``returns``, ``runs``."""
    found = []
    for trial in trials:
        for game in trial.games:
            runs = [run for own in trial.runs.values() for run in own if game in run.games]
            states = [outcomes.get(run.key, {}).get("state", "not run") for run in runs]
            last = outcomes.get(runs[-1].key, {}).get("summary", {})
            found.append({
                "values": plain(trial.values),
                "game": game,
                "state": FAILED if FAILED in states else FINISHED if set(states) == {FINISHED} else "not run",
                "figures": _figures(runs, outcomes),
                "returns": last.get("returns", []),
                "teacher": (last.get("teacher") or {}).get("mean"),
                "runs": [_told(run, outcomes.get(run.key), root) for run in runs],
            })  # fmt: skip
    return found


def _figures(runs: Sequence[StageRun], outcomes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for run in runs:
        summary = outcomes.get(run.key, {}).get("summary", {})
        for name in FIGURES.get(run.stage, ()):
            value: Any = summary
            for part in name.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
            if value is not None:
                figures[f"{run.stage}.{name}"] = value
    return figures


def _told(run: StageRun, outcome: Mapping[str, Any] | None, root: Path) -> dict[str, Any]:
    folder = root / "stages" / run.name
    told = {"name": run.name, "stage": run.stage, "state": "not run", "seconds": 0.0, "node": "", "error": ""}
    told |= {key: value for key, value in (outcome or {}).items() if key in told}
    return told | {
        "attempts": sum(line["what"] == "begins" for line in attempts(folder)),
        "log": str((folder / LOG).relative_to(root)),
    }


def cells(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return one entry for each choice but the seed, and each game: every measure's mean with its 95 % interval.

    With one seed the interval is that of the games (``evaluate``'s); with several, seeds are drawn with replacement,
    and games of each drawn one (a two-stage bootstrap, Davison 1997, 3.8), so that it covers both.
    """
    grouped: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        choice = {name: value for name, value in row["values"].items() if name != SEED}
        grouped.setdefault((repr(sorted(choice.items(), key=str)), row["game"]), []).append(row)
    found = []
    for own in grouped.values():
        done = [row for row in own if row["state"] == FINISHED]
        # Seeds share what they agree in: it ran once.
        seconds = {each["name"]: each["seconds"] for row in done for each in row["runs"]}
        cell: dict[str, Any] = {
            "values": {name: value for name, value in own[0]["values"].items() if name != SEED},
            "game": own[0]["game"], "seeds": len(own), "done": len(done),
            "hours": round(sum(seconds.values()) / 3600, 3),
        }  # fmt: skip
        if failed := sum(row["state"] == FAILED for row in own):
            cell["failed"] = failed
        for name in sorted({name for row in done for name in row["figures"]}):
            values = [row["figures"].get(name) for row in done]
            numbers = [
                value for value in values if isinstance(value, int | float) and not isinstance(value, bool)
            ]
            if len(numbers) != len(done):
                continue
            if len(set(numbers)) == 1 and name not in MEASURES:
                cell[name] = numbers[0]
            elif name in AVERAGED:
                cell[name] = float(np.mean(numbers))
        if done and "evaluate.mean" in cell:
            cell["evaluate.ci95"] = interval(done)
            if cell.get("evaluate.percent_of_teacher") is not None:
                cell["evaluate.percent_of_teacher_ci95"] = interval(done, shares=True)
        found.append(cell)
    return found


def interval(done: Sequence[Row], shares: bool = False) -> list[float]:
    """Return the 95 % interval of the mean score over seeds and games; ``shares``: in percent of each row's teacher."""
    percent = [100 / row["teacher"] if shares else 1.0 for row in done]
    if len(done) == 1:
        return [percent[0] * each for each in done[0]["figures"]["evaluate.ci95"]]
    return seeds_and_games([
        [factor * score for score in row["returns"]] for factor, row in zip(percent, done, strict=True)
    ])  # fmt: skip


def seeds_and_games(scores: Sequence[Sequence[float]]) -> list[float]:
    """Return the 95 % interval of the mean of each seed's scores: seeds are drawn, then games of each drawn seed."""
    rng = np.random.default_rng(0)
    # The games are drawn for every place of every resample, whichever seed is then drawn for it.
    shape = (RESAMPLES, len(scores))
    means = np.stack([
        np.asarray(each, np.float64)[rng.integers(0, len(each), (*shape, len(each)))].mean(2) for each in scores
    ])  # fmt: skip
    drawn = np.take_along_axis(means, rng.integers(0, len(scores), (1, *shape)), 0)[0]
    return [float(value) for value in np.percentile(drawn.mean(1), [2.5, 97.5])]


def flat(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Return a cell as one row of a table: its values first."""
    values = {name: str(value) for name, value in cell["values"].items() if name != GAME}
    rest = {
        name.removeprefix("evaluate."): value for name, value in cell.items() if name not in ("values", GAME)
    }
    return {"game": cell["game"], **values, **rest}


def described(recipe: SweepRecipe) -> dict[str, Any]:
    """Return a recipe as JSON holds it."""
    return dict(plain({field.name: getattr(recipe, field.name) for field in dataclasses.fields(recipe)}))


def write_page(
    path: Path,
    recipe: SweepRecipe,
    cells: Sequence[Mapping[str, Any]],
    rows: Sequence[Row],
    summary: Mapping[str, Any],
) -> None:
    """Write the page: chart, table of the cells, table of the stage runs with links to their logs."""
    measure = next((name for name in MEASURES if any(name in cell for cell in cells)), "")
    bars = [(_label(cell), float(cell[measure]), _ci(cell, measure)) for cell in cells if measure in cell]
    tables = [flat(cell) for cell in cells]
    heads = list(dict.fromkeys(name for row in tables for name in row))
    told = {each["name"]: each for row in rows for each in row["runs"]}
    write_text(path, render(
        "sweep.html", title="Spikestill: sweep", about=recipe.about, summary=summary, measure=measure,
        chart=interval_chart(bars, measure.replace("_", " ")) if bars else "",
        heads=heads, rows=[[shown(row.get(head)) for head in heads] for row in tables],
        runs=[{**each, "seconds": shown(float(each["seconds"]))} for each in told.values()],
        recipe=json.dumps(described(recipe), indent=1),
    ))  # fmt: skip


def _label(cell: Mapping[str, Any]) -> str:
    values = [str(value) for name, value in cell["values"].items() if name != GAME]
    return " ".join([cell["game"], *values])


def _ci(cell: Mapping[str, Any], measure: str) -> tuple[float, float] | None:
    found = cell.get(f"{measure}_ci95") or (cell.get("evaluate.ci95") if measure == "evaluate.mean" else None)
    return (float(found[0]), float(found[1])) if found else None
