"""How far two number formats take the same training apart: Figures 11 and 12 of Björck 2021.

    python -m spikestill.control_distances cartpole_swingup --precision fp16 --pairs 3 [--options of `spikestill teach`]

A pair of agents begins with the same seed, one in fp32, the other in --precision; each trains in its own simulation.
Every --evaluation_period steps: the mean L1 distance of their weights, mean |θ - θ'| over the actor's parameters and
over the critics' (with the encoder, from pixels), and mean |Q - Q'| over 2,000 states and actions that the fp32 agent
met, Q the smaller critic's. Kept in docs/results/control-distances/ and drawn by `python -m spikestill.results`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spikestill.common.atomic import write_text
from spikestill.common.errors import UserError, restoring
from spikestill.common.json_file import read_object
from spikestill.common.provenance import Provenance, check_schema
from spikestill.configs.control import ControlConfig
from spikestill.configs.loading import build, find_recipe, load, plain, read_recipe
from spikestill.control_curves import file_name

SCHEMA, VERSION = "spikestill.control-distances", 1
STATES = 2_000
"""States and actions on which Q-values are compared."""
REMEDY = "make it again with `python -m spikestill.control_distances`"


class Point(NamedTuple):
    """What a pair is apart at one step."""

    step: int
    actor: float
    critics: float
    q: float


@dataclasses.dataclass(frozen=True)
class Distances:
    """Pairs of trainings.

    Attributes:
        config: of the second of each pair; the first has fp32.
        pairs: seed to its points.
        seconds: wall clock.
        commit, machine, created: of the measurement.
    """

    config: ControlConfig
    pairs: Mapping[int, tuple[Point, ...]]
    seconds: float
    commit: str
    machine: str
    created: str

    @property
    def name(self) -> str:
        """Return the name of its file: one for each choice of options."""
        return file_name(self.config)

    def means(self) -> list[Point]:
        """Return the points' means over the pairs."""
        rows = zip(*self.pairs.values(), strict=True)
        return [
            Point(found[0].step, *(float(np.mean([each[k] for each in found])) for k in (1, 2, 3)))
            for found in rows
        ]


def distance(weights: Sequence[Mapping[str, npt.NDArray[np.float32]]], ours: Callable[[str], bool]) -> float:
    """Return mean |θ - θ'| over the arrays whose name is one of ``ours``."""
    names = [name for name in weights[0] if ours(name)]
    gaps = [np.abs(weights[0][name].astype(np.float64) - weights[1][name]) for name in names]
    return float(sum(gap.sum() for gap in gaps) / sum(gap.size for gap in gaps))


def measure(config: ControlConfig, pairs: int, told: Callable[[int, Point], None]) -> Distances:
    """Train pairs; return how far apart they are.

    Args:
        config: of the second of each pair.
        pairs: how many, of the seeds ``config.seed`` on.
        told: is called with a seed and each of its points.

    Raises:
        UserError: the precision is fp32 itself or fixed point, or a training diverged.
    """
    from spikestill.common.precision.names import FIXED
    from spikestill.common.processor import keep_freed_memory
    from spikestill.teacher.control.blas import one_thread

    if config.precision in (*FIXED, "fp32"):
        raise UserError(
            f"precision is {config.precision}, a floating-point format to compare with fp32 wanted",
            "give --precision fp16",
        )
    if config.steps < config.evaluation_period:
        raise UserError(
            f"steps is {config.steps:,}, less than the evaluation_period of {config.evaluation_period:,}: nothing "
            "would be measured",
            "lower --evaluation_period",
        )
    keep_freed_memory()
    began, found = time.monotonic(), {}
    with one_thread():
        for seed in range(config.seed, config.seed + pairs):
            found[seed] = tuple(_pair(config, seed, told))
    made = Provenance.of(config, config.seed)
    return Distances(config, found, time.monotonic() - began, made.commit, made.machine, made.created)


def _pair(config: ControlConfig, seed: int, told: Callable[[int, Point], None]) -> list[Point]:
    from spikestill.teacher.control.teach import Training

    both = [Training(each, seed) for each in (dataclasses.replace(config, precision="fp32"), config)]
    points = []
    try:
        with ThreadPoolExecutor(2, initializer=lambda: np.seterr(all="ignore")) as pool:
            for step in range(config.evaluation_period, config.steps + 1, config.evaluation_period):
                list(pool.map(lambda training, until=step: training.advance(until), both))
                points.append(_apart(both, step))
                if not all(map(math.isfinite, points[-1])):
                    raise UserError(
                        f"seed {seed}, step {step:,}: the trainings are {points[-1]} apart, finite numbers wanted: "
                        f"{config.precision} does not hold this training",
                        "turn on the methods that are off, or give fewer --steps",
                    )
                told(seed, points[-1])
    finally:
        for training in both:
            training.close()
    return points


def _apart(both: Sequence[Any], step: int) -> Point:
    batch = both[0].replay.sample(np.random.default_rng(step), STATES)
    values = [training.learner.values(batch.obs_BS, batch.action_BD) for training in both]
    weights = [training.learner.weights() for training in both]
    actor = distance(weights, lambda name: name.startswith("actor."))
    critics = distance(weights, lambda name: not name.startswith("actor."))
    return Point(step, actor, critics, float(np.abs(values[0] - values[1]).mean()))


def write(folder: Path, found: Distances) -> Path:
    """Write a measurement to a file of its own in ``folder``; return its path."""
    document = {
        "schema": SCHEMA, "version": VERSION, "options": plain(found.config), "seconds": round(found.seconds, 1),
        "commit": found.commit, "machine": found.machine, "created": found.created,
        "pairs": {str(seed): [list(point) for point in points] for seed, points in found.pairs.items()},
    }  # fmt: skip
    path = folder / found.name
    write_text(path, json.dumps(document, indent=1) + "\n")
    return path


def read(path: Path) -> Distances:
    """Read what :func:`write` wrote.

    Raises:
        UserError: the file is truncated, foreign, newer, or a value is out of its range.
    """
    found = read_object(path, "kept distances of two trainings", REMEDY)
    with restoring(path, REMEDY):
        check_schema(path, found, SCHEMA, VERSION, REMEDY)
        pairs = {
            int(seed): tuple(Point(int(step), *map(float, apart)) for step, *apart in points)
            for seed, points in found["pairs"].items()
        }
        steps = {tuple(point.step for point in points) for points in pairs.values()}
        if len(steps) != 1:
            raise ValueError(f"pairs measured at {len(steps)} different choices of steps, one wanted")
        if () in steps:
            raise ValueError("pairs that were never measured")
        values = [value for points in pairs.values() for point in points for value in point[1:]]
        if not all(0.0 <= value < math.inf for value in values):
            raise ValueError("a distance is below 0 or not finite")
        texts = [str(found[name]) for name in ("commit", "machine", "created")]
        return Distances(build(ControlConfig, found["options"]), pairs, float(found["seconds"]), *texts)


def read_all(folder: Path) -> list[Distances]:
    """Return every kept measurement of a folder; none where there is no folder."""
    return [read(path) for path in sorted(folder.glob("*.json"))]


def options_of(words: Sequence[str]) -> ControlConfig:
    """Return the options of a training as `spikestill teach` takes them, in fp16 where neither they nor a recipe say.

    Raises:
        UserError: an option is unknown, its value impossible, or none of the training's.
    """
    from spikestill.cli import parse
    from spikestill.verbs import CONTROL, VERBS

    given = parse(dataclasses.replace(VERBS["teach"], **CONTROL["teach"]), words)  # type: ignore[arg-type]
    for name in given.common:
        if name != "config":
            raise UserError(f"--{name} is none of the training's options", f"omit --{name}")
    recipe = find_recipe(given.common["config"]) if "config" in given.common else None
    said = {"precision": "fp16"} | ({} if recipe is None else read_recipe(recipe)) | given.own
    return load(ControlConfig, recipe, {**given.own, "precision": said["precision"]})


def main() -> None:
    """Measure what the command line names, and keep it."""
    from spikestill.results import DOCS

    parser = argparse.ArgumentParser(
        prog="python -m spikestill.control_distances", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("task", help="such as cartpole_swingup")
    parser.add_argument("--pairs", type=int, default=3, help="seeds, each in both formats (default 3)")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder that holds results/")
    given, rest = parser.parse_known_args()
    try:
        if given.pairs < 1:
            raise UserError(f"--pairs is {given.pairs}, 1 or more wanted", "give --pairs 3")
        config = options_of([given.task, *rest])
        found = measure(config, given.pairs, _say)
        print(write(given.docs / "results" / "control-distances", found))
    except UserError as error:
        sys.exit(str(error))


def _say(seed: int, point: Point) -> None:
    print(
        f"seed {seed}, step {point.step:,}: weights {point.actor:.3g} (actor), {point.critics:.3g} (critics), "
        f"Q {point.q:.3g}",
        flush=True,
    )


if __name__ == "__main__":
    main()
