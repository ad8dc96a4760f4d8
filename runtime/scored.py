"""Scores of the teacher and of random play that an evaluation of the teacher left: they are not played again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from spikestill.common.errors import UserError, restoring
from spikestill.common.json_file import read_object
from spikestill.common.provenance import check_schema, file_sha256
from spikestill.configs.loading import plain
from spikestill.configs.play import EvaluateConfig
from spikestill.teacher.evaluation import Evaluation

REMEDY = "make it by `spikestill evaluate GAME --agent teacher` with the same options, or omit --scored"
STICKY = "sticky"
OTHERS = ("random", "teacher")
Known = dict[str, dict[str, Evaluation]]
"""Setting, '' or ``sticky``, to agent to its scores."""


def read_scored(path: Path, config: EvaluateConfig, teacher: Path, version: int) -> Known:
    """Return the scores of random play and of ``teacher`` on the games of ``config``.

    Args:
        path: ``evaluate.json`` of the teacher.
        config: what is to be scored; game, its settings, episodes, epsilon and seed must be those of the file.
        teacher: the comparison's.
        version: the newest of such files that is read.

    Raises:
        UserError: it is no such file, of other games, or of another teacher.
    """
    document = read_object(path, "what `spikestill evaluate` wrote", REMEDY)
    with restoring(path, REMEDY):
        check_schema(path, document, "spikestill.evaluate", version, REMEDY)
        provenance = document["provenance"]
        if document["agent"] != "teacher":
            raise UserError(f"{path}: scores agent {document['agent']}, the teacher's is wanted", REMEDY)
        _check_options(path, provenance["config"], plain(config))
        if (scored := str(provenance["parents"]["teacher"])) != (own := file_sha256(teacher)):
            raise UserError(
                f"{path}: scores the teacher with SHA-256 {scored[:12]}, {teacher} has {own[:12]}", REMEDY
            )
        settings = {"": document, **({STICKY: document[STICKY]} if config.also_sticky else {})}
        return {
            setting: {name: _evaluation(found[name], config.episodes) for name in OTHERS}
            for setting, found in settings.items()
        }


def _check_options(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    pairs = {name: (found[name], wanted[name]) for name in ("episodes", "epsilon", "seed")}
    for name, value in wanted["environment"].items():
        pairs[f"environment.{name}"] = found["environment"].get(name), value
    if wanted["also_sticky"]:
        pairs["also_sticky"] = found["also_sticky"], True
    for name, (has, value) in pairs.items():
        if has != value:
            raise UserError(f"{path}: {name} is {has!r}, {value!r} is wanted", REMEDY)


def _evaluation(found: Mapping[str, Any], episodes: int) -> Evaluation:
    """Return the scores of one agent.

    Raises:
        ValueError: they are not those of ``episodes`` games.
    """
    returns = np.array(found["returns"], np.float64)
    low, high = (float(each) for each in found["ci95"])
    numbers = np.array([*returns, low, high, float(found["mean"])])
    if returns.shape != (episodes,) or not np.isfinite(numbers).all():
        raise ValueError(f"{returns.shape} returns, {episodes} finite ones are wanted")
    return Evaluation(float(found["mean"]), (low, high), returns.tolist(), int(found["frames"]))
