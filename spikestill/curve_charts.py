"""Charts of learning curves for the report: an agent's score, a student's agreement with its teacher and loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from spikestill.charts import Series, line_chart
from spikestill.common import curve
from spikestill.common.errors import restoring

REMEDY = "make it again, or move it away"


def teaching(path: Path) -> list[str]:
    """Return the chart of scores from the lines of ``teach.jsonl``, none where it has no score.

    An Atari teacher's are the mean of its last 100 games as it explores, and the mean of its snapshots' own games where
    those chose the best. A control agent's are the means of each evaluation; of several seeds their mean, over the
    steps that all of them reached, with a band from the lowest seed to the highest.

    Raises:
        UserError: a line is not one of a teacher's training.
    """
    if not path.is_file():
        return []
    with restoring(path, REMEDY):
        lines = [json.loads(line) for line in curve.lines(path)]
        return _of_seeds(lines) if lines and "seed" in lines[0] else _of_games(lines)


def _of_games(lines: list[dict[str, Any]]) -> list[str]:
    steps = _numbers([line["step"] for line in lines])
    series: list[Series] = []
    for name, key in (
        ("last 100 games, exploring", "mean_return_100"),
        ("its snapshots' own games", "snapshot_score"),
    ):
        known = [index for index, line in enumerate(lines) if line.get(key) is not None]
        if known:
            series.append((name, [steps[i] for i in known], _numbers([lines[i][key] for i in known])))
    return [line_chart(series, "agent steps", "score of a game")] if series else []


def _of_seeds(lines: list[dict[str, Any]]) -> list[str]:
    seeds: dict[int, dict[float, float]] = {}
    for line in lines:
        step, score = _numbers([line["step"], line["mean_return"]])
        seeds.setdefault(int(line["seed"]), {})[step] = score
    steps = sorted(set.intersection(*(set(points) for points in seeds.values())))
    if not steps:
        return []
    of_seeds = np.array([[points[step] for step in steps] for points in seeds.values()])
    name = "mean of the seeds" if len(seeds) > 1 else "seed"
    bands = [(of_seeds.min(axis=0).tolist(), of_seeds.max(axis=0).tolist())] if len(seeds) > 1 else []
    mean = [(name, steps, of_seeds.mean(axis=0).tolist())]
    return [line_chart(mean, "agent steps", "return of an episode", bands=bands)]


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
        return _of_batches(path, held_out)


def _of_batches(path: Path, held_out: bool) -> list[str]:
    names = ("samples", "agreement", "loss", "validation_agreement", "validation_loss", "own_agreement")
    found: dict[str, list[float]] = {name: [] for name in names}
    for line in curve.lines(path):
        values = json.loads(line)
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
