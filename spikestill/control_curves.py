"""Learning curves of control trainings as small JSON files: what a page of results is drawn from.

A run folder goes when its machine goes; its curve stays in ``docs/results/control/``, with every option of the
training, its commit, machine and hours.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from spikestill.common import curve
from spikestill.common.artefacts import DIVERGED, TEACHER
from spikestill.common.atomic import write_text
from spikestill.common.errors import UserError, restoring
from spikestill.common.json_file import read_object
from spikestill.common.provenance import Provenance, check_schema
from spikestill.common.tensor_file import open_tensor_file
from spikestill.configs.control import ControlConfig
from spikestill.configs.loading import build, plain
from spikestill.inspection import schema_of

SCHEMA, VERSION = "spikestill.control-curve", 1
AGENTS = ("spikestill.control-agent", "spikestill.fixed-agent")
REMEDY = "give the folder of a `spikestill teach` of a MuJoCo task"
FREE = ("checkpoint_minutes", "steps", "threads", "evaluation_period", "evaluation_games")
"""Options that a resumed training may change: a longer one's curve takes the place of the shorter one's."""
MOST_RETURN = 1e9
"""No return of these tasks comes near it."""
Curve = Mapping[int, tuple[float, ...]]
"""Agent step to the returns of the evaluation's games."""


@dataclasses.dataclass(frozen=True)
class Kept:
    """A training that ended, or was ended.

    Attributes:
        config: its options.
        curves: seed to its evaluations.
        seconds: wall clock, of all its seeds together.
        commit, machine, created: of its last sitting.
        diverged: why it could not go on; '' where it could.
        diverged_seeds: each seed that had diverged when it ended, to why; {} in files from before they were told.
    """

    config: ControlConfig
    curves: Mapping[int, Curve]
    seconds: float
    commit: str
    machine: str
    created: str
    diverged: str = ""
    diverged_seeds: Mapping[int, str] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the name of its file: one for each choice of options, whatever came out."""
        return file_name(self.config, FREE)


def file_name(config: ControlConfig, free: Collection[str] = ()) -> str:
    """Return the name of a file that is one for each choice of options, whatever the ``free`` ones are.

    Only options that are not the default count, so that one which is new changes no name.
    """
    usual = plain(ControlConfig(environment=config.environment))
    options = {name: value for name, value in _changed(plain(config), usual).items() if name not in free}
    digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:8]
    return f"{config.environment.game}-{config.algorithm}-{config.precision}-{digest}.json"


def _changed(options: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are not as usual, groups of options by their own."""
    found = {}
    for name, value in options.items():
        value = _changed(value, usual[name]) if isinstance(value, Mapping) else value
        if value != ({} if isinstance(value, dict) else usual[name]):
            found[name] = value
    return found


def of_run(folder: Path) -> Kept:
    """Return what a training left in its run folder.

    Raises:
        UserError: no agent and no divergence is there, the agent is of another kind, the curve is missing, or it has no
            evaluation although the training did not diverge.
    """
    stopped = folder / DIVERGED
    diverged, seeds, seconds = "", {}, 0.0
    if stopped.is_file():
        told = read_object(stopped, "what a diverged training leaves", REMEDY)
        with restoring(stopped, REMEDY):
            provenance, diverged = Provenance.from_json(json.dumps(told["provenance"])), str(told["diverged"])
            seeds, seconds = _texts(told.get("seeds", {})), float(told.get("seconds", 0.0))
    else:
        provenance = _provenance(folder / TEACHER)
    with restoring(folder, REMEDY):
        config = build(ControlConfig, provenance.config)
    path = folder / "teach.jsonl"
    curves: dict[int, dict[int, tuple[float, ...]]] = {}
    if path.is_file() or not diverged:
        with restoring(path, "the run is damaged: train again in another --run_dir"):
            for line in map(json.loads, curve.lines(path)):
                seconds = max(seconds, float(line["seconds"]))
                curves.setdefault(int(line["seed"]), {})[int(line["step"])] = _returns(line["returns"])
    if not curves and not diverged:
        raise UserError(
            f"{path}: no evaluation, the training needs at least one, every {config.evaluation_period:,} steps",
            "go on with `spikestill teach ... --resume`, or give a lower --evaluation_period",
        )
    made = provenance.commit, provenance.machine, provenance.created
    return Kept(config, curves, seconds, *made, diverged, seeds)


def _provenance(path: Path) -> Provenance:
    schema = schema_of(path)
    if schema not in AGENTS:
        raise UserError(f"{path}: schema {schema!r}, one of {', '.join(AGENTS)} wanted", REMEDY)
    with open_tensor_file(path, schema, 2, REMEDY, noun="control agent") as (_, metadata):
        return Provenance.from_json(metadata["provenance"])


def _returns(values: Any) -> tuple[float, ...]:
    if not isinstance(values, list) or not values:
        raise ValueError(f"returns are {str(values)[:60]}, a number for each game wanted")
    found = tuple(float(value) for value in values)
    wrong = [value for value in found if not math.isfinite(value) or abs(value) > MOST_RETURN]
    if wrong:
        raise ValueError(f"a return is {wrong[0]}, within +-{MOST_RETURN:,.0f} wanted")
    return found


def _texts(values: Any) -> dict[int, str]:
    """Return seed to text, as JSON has it by the seeds' digits."""
    if not isinstance(values, dict) or not all(isinstance(text, str) for text in values.values()):
        raise ValueError(f"the diverged seeds are {str(values)[:60]}, a text for each wanted")
    return {int(seed): text for seed, text in values.items()}


def write(folder: Path, kept: Kept) -> Path:
    """Write a training's curve to a file of its own in ``folder``; return its path."""
    curves = {
        str(seed): [[step, list(returns)] for step, returns in sorted(points.items())]
        for seed, points in sorted(kept.curves.items())
    }
    head = {
        "schema": SCHEMA, "version": VERSION, "options": plain(kept.config), "seconds": kept.seconds,
        "commit": kept.commit, "machine": kept.machine, "created": kept.created, "diverged": kept.diverged,
        "diverged_seeds": kept.diverged_seeds,
    }  # fmt: skip
    # A line for each evaluation.
    points = ",\n".join(
        f"{json.dumps(seed)}: [\n" + ",\n".join(json.dumps(point) for point in found) + "]"
        for seed, found in curves.items()
    )
    text = json.dumps(head, indent=1)[:-2] + f',\n "curves": {{\n{points}}}\n}}\n'
    path = folder / kept.name
    write_text(path, text)
    return path


def read(path: Path) -> Kept:
    """Read what :func:`write` wrote.

    Raises:
        UserError: the file is truncated, foreign, newer, or a value is out of its range.
    """
    remedy = "make it again with `python -m spikestill.results --curve RUN_FOLDER`"
    found = read_object(path, "a kept learning curve", remedy)
    with restoring(path, remedy):
        check_schema(path, found, SCHEMA, VERSION, remedy)
        curves = {
            int(seed): {int(step): _returns(returns) for step, returns in points}
            for seed, points in found["curves"].items()
        }
        seconds = float(found["seconds"])
        if not 0.0 <= seconds < math.inf:
            raise ValueError(f"seconds are {seconds}, a number from 0 wanted")
        if not found["diverged"] and not all(curves.values() or [{}]):
            raise ValueError("a training without an evaluation that did not diverge")
        texts = [found[name] for name in ("commit", "machine", "created", "diverged")]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(f"commit, machine, created and diverged are {str(texts)[:60]}, texts wanted")
        commit, machine, created, diverged = texts
        seeds = _texts(found.get("diverged_seeds", {}))
        options = build(ControlConfig, found["options"])
        return Kept(options, curves, seconds, commit, machine, created, diverged, seeds)


def read_all(folder: Path) -> dict[Path, Kept]:
    """Return every kept training of a folder by its file; none where there is no folder."""
    return {path: read(path) for path in sorted(folder.glob("*.json"))}
