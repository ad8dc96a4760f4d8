"""Charts of learning curves for the report: an agent's score, a student's agreement with its teacher and loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from spikestill.charts import Series, line_chart
from spikestill.common import curve
from spikestill.common.errors import restoring

REMEDY = "make it again, or move it away"


class Learning(NamedTuple):
    """What a report shows of an agent's training; no charts where it has no score."""

    title: str
    note: str
    charts: list[str]


def teaching(path: Path) -> Learning:
    """Return the chart of scores from the lines of ``teach.jsonl``.

    An Atari teacher's are the mean of its last 100 games as it explores, and the mean of its snapshots' own games where
    those chose the best. A control agent's are the means of each evaluation; of several seeds their mean, over the
    steps that all of them reached, with a band from the lowest seed to the highest.

    Raises:
        UserError: a line is not one of such a training.
    """
    if not path.is_file():
        return Learning("", "", [])
    with restoring(path, REMEDY):
        lines = curve.records(path)
        return _of_seeds(lines) if lines and "seed" in lines[0] else _of_games(lines)


def _of_games(lines: list[dict[str, Any]]) -> Learning:
    scores = [
        (line["step"], line["mean_return_100"]) for line in lines if line["mean_return_100"] is not None
    ]
    series = [_series("last 100 games, exploring", scores)] if scores else []
    # A snapshot's score stands in every line until the next one's.
    last, snapshots = None, []
    for line in lines:
        if (score := line.get("snapshot_score")) is not None and score != last:
            snapshots.append((line["step"], score))
            last = score
    if snapshots:
        series.append(_series("its snapshots, in games of their own", snapshots))
    note = "Mean score of the last 100 games of the training, in which it explores"
    note += ", and of the snapshots among which the best was chosen." if snapshots else "."
    charts = [line_chart(series, "agent steps", "score of a game")] if series else []
    return Learning("The teacher learns", note + " Unclipped.", charts)


def _series(name: str, points: list[tuple[Any, Any]]) -> Series:
    return name, _numbers([step for step, _ in points]), _numbers([score for _, score in points])


def _of_seeds(lines: list[dict[str, Any]]) -> Learning:
    seeds: dict[int, dict[float, float]] = {}
    for line in lines:
        step, score = _numbers([line["step"], line["mean_return"]])
        seeds.setdefault(int(line["seed"]), {})[step] = score
    steps = sorted(set.intersection(*(set(points) for points in seeds.values())))
    note = "Mean return of each evaluation, with the mean action"
    bands = []
    scores_SP = np.array([[points[step] for step in steps] for points in seeds.values()])
    if len(seeds) > 1:
        note += f": the mean of {len(seeds)} seeds, in a band from the lowest to the highest"
        bands = [(scores_SP.min(axis=0).tolist(), scores_SP.max(axis=0).tolist())]
    mean = [("", steps, scores_SP.mean(axis=0).tolist())]
    charts = [line_chart(mean, "agent steps", "return of an episode", bands=bands)] if steps else []
    return Learning("The agent learns", note + ".", charts)


def distilling(path: Path, *, held_out: bool = True) -> list[str]:
    """Return charts of agreement and loss from the lines of ``distill.jsonl``, none where it has none.

    Args:
        path: the file.
        held_out: what was validated was kept from the training; else it is of the training's own frames.

    Raises:
        UserError: a line is not one of a student's training.
    """
    if not path.is_file():
        return []
    with restoring(path, REMEDY):
        return _of_batches(curve.records(path), held_out)


def _of_batches(lines: list[dict[str, Any]], held_out: bool) -> list[str]:
    names = ("samples", "agreement", "loss", "validation_agreement", "validation_loss", "own_agreement")
    found: dict[str, list[float]] = {name: [] for name in names}
    for values in lines:
        for name in names:
            found[name].append(float(values[name] if name in names[:3] else values.get(name, np.nan)))
    x = found["samples"]
    if not x:
        return []
    for name in names[:3]:
        _numbers(found[name])
    charts = []
    for key, label, percent in (("agreement", "agreement with the teacher", True), ("loss", "loss", False)):
        series = [("training batches", x, found[key])]
        validated = found[f"validation_{key}"]
        if np.isfinite(validated).any():
            frames = "held out" if held_out else "frames of the training"
            series.append((f"{frames}, integer network", x, validated))
        own = np.isfinite(found["own_agreement"])
        if key == "agreement" and own.any():
            told = [list(np.array(values)[own]) for values in (x, found["own_agreement"])]
            series.append(("states of its own play, integer network", told[0], told[1]))
        charts.append(line_chart(series, "frames trained on", label, percent=percent))
    return charts


def _numbers(values: list[Any]) -> list[float]:
    """Return what a line has as numbers; ValueError where one is not finite."""
    found = [float(value) for value in values]
    if not np.isfinite(found).all():
        raise ValueError("a line of it has a number that is not finite")
    return found
