"""The ``evaluate`` stage: an agent's score over full games, beside its teacher's and chance."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import itertools
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.common.agents import agent
from spikestill.common.artefacts import EVALUATE
from spikestill.common.document import write_document
from spikestill.common.environment import Observations, environment
from spikestill.common.errors import UserError
from spikestill.common.extras import install_command
from spikestill.common.processor import cores
from spikestill.common.provenance import Provenance
from spikestill.common.stage import StageResult
from spikestill.configs.environment import EnvironmentConfig
from spikestill.configs.play import EvaluateConfig
from spikestill.runtime.agents import Agent, agent_files, open_agent
from spikestill.runtime.scored import Known, read_scored
from spikestill.teacher.evaluation import Choose, Evaluation, evaluate, in_fixed_batches

VERSION = 1
STICKY = 0.25
Files = dict[str, dict[str, Path]]
"""Agent to its files by role."""


def run(config: EvaluateConfig, run_dir: Path, *, resume: bool = False) -> StageResult:
    """Score the agent of ``config`` over full games and write ``evaluate.json`` into ``run_dir``.

    With ``scored`` the teacher and random play are not played: their scores are those of that file.

    The summary has ``mean``, ``ci95`` (95 % bootstrap interval), ``episodes``, ``usual_episodes`` (what the sources
    play), ``returns``, ``frames``, ``epsilon`` (of
    all but random play, which is nothing else); with
    ``compare`` also ``teacher`` and ``random`` (the same of each), ``percent_of_teacher`` = 100 mean /
    teacher and ``percent_of_margin`` = 100 (mean - random) / (teacher - random); with ``also_sticky`` all
    of it again under ``sticky``. Without PyTorch the teacher is left out, and ``left_out`` says so. Percentages are
    None where their divisor is not positive. An evaluation is not resumed: ``resume`` plays it
    anew, with the same result.

    Raises:
        UserError: a file that is missing, unreadable or for another game.
    """
    game = config.environment.game
    paths = agents_files(config)
    # A file that is missing is refused by its reader.
    parents = {role: path for role, path in files_read(config).items() if path.is_file()}
    provenance = Provenance.of(config, config.seed, parents)
    known: Known = {}
    if config.scored is not None:
        known = read_scored(config.scored, config, next(iter(paths["teacher"].values())), VERSION)
    elif "teacher" in paths and config.agent != "teacher":
        # Opened before the agent has played a hundred games, not after them.
        open_agent("teacher", environment(game), paths["teacher"]).close()
    summary: dict[str, Any] = {
        "game": game,
        "agent": config.agent,
        "epsilon": config.epsilon,
        "seed": config.seed,
        "usual_episodes": type(config).episodes,
    }
    if config.compare and "teacher" not in paths:
        summary["left_out"] = (
            f"the teacher: PyTorch is not installed; `{install_command('train')}` installs it"
        )
        print(f"evaluate: leaves out {summary['left_out']}", file=sys.stderr, flush=True)
    try:
        summary |= _measure(config, config.environment, paths, known.get("", {}))
        if config.also_sticky:
            summary["sticky"] = _measure(
                config,
                dataclasses.replace(config.environment, sticky=STICKY),
                paths,
                known.get("sticky", {}),
            )
    except KeyboardInterrupt:
        # Games played side by side end shortest first: those that had ended would not be a fair sample.
        print("evaluate: nothing is kept, for a score is of all its games", file=sys.stderr, flush=True)
        raise
    artefact = Path(run_dir) / EVALUATE
    write_document(artefact, "evaluate", VERSION, summary, provenance)
    return StageResult(artefact, summary)


def files_read(config: EvaluateConfig) -> dict[str, Path]:
    """Return the files by role that the run reads; the comparison's teacher is ``teacher``."""
    found: dict[str, Path] = {}
    for files in agents_files(config).values():
        found |= dict(list(files.items())[:1])
    return found if config.scored is None else {**found, "scored": config.scored}


def agents_files(config: EvaluateConfig) -> dict[str, dict[str, Path]]:
    """Return the files of each agent that the run scores, its own one first.

    Raises:
        UserError: see :func:`agent_files`; the agent is not one that can be scored.
    """
    given = {role: getattr(config, role) for role in ("teacher", "student", "core_map", "buffer")}
    game = config.environment.game
    if not agent(config.agent).evaluated:
        raise UserError(f"agent {config.agent} plays in real time only", "take it to `spikestill play`")
    found = {config.agent: agent_files(config.agent, game, given)}
    if config.compare:
        found["random"] = {}
        if config.scored is None and importlib.util.find_spec("torch") is None:
            return found
        try:
            found["teacher"] = agent_files("teacher", game, given)
        except UserError as error:
            raise UserError(error.what, f"{error.remedy}; or compare with none: --compare false") from error
    return found


def _measure(
    config: EvaluateConfig, environment: EnvironmentConfig, paths: Files, known: Mapping[str, Evaluation]
) -> dict[str, Any]:
    """Return the agent's scores in ``environment``, with the comparison where it is asked for, ``known`` or played."""
    measured, passes = dict(known), [name for name in paths if name not in known]

    def scores(name: str) -> Evaluation:
        if name not in measured:
            measured[name] = _evaluate(name, config, environment, paths, passes)
        return measured[name]

    began = time.monotonic()
    own = scores(config.agent)
    seconds = time.monotonic() - began
    summary = {**dataclasses.asdict(own), "episodes": config.episodes, "seconds": round(seconds, 2)}
    summary["sticky_probability"] = environment.sticky
    chance = scores("random") if config.compare else None
    if chance is not None:
        summary["random"] = dataclasses.asdict(chance)
    if chance is not None and "teacher" in paths:
        teacher = scores("teacher")
        summary["teacher"] = dataclasses.asdict(teacher)
        if config.agent != "teacher":
            summary |= percentages(own.mean, teacher.mean, chance.mean)
    return summary


def percentages(mean: float, teacher: float, chance: float) -> dict[str, float | None]:
    """Return ``percent_of_teacher`` and ``percent_of_margin``, the latter above random play."""
    return {
        "percent_of_teacher": percentage(mean, teacher),
        "percent_of_margin": percentage(mean - chance, teacher - chance),
    }


def percentage(part: float, whole: float) -> float | None:
    """Return 100 part / whole, None where ``whole`` is not positive."""
    return round(100 * part / whole, 3) if whole > 0 else None


def _player(name: str) -> str:
    return "random play" if name == "random" else f"agent {name}"


def _evaluate(
    name: str, config: EvaluateConfig, environment: EnvironmentConfig, paths: Files, passes: Sequence[str]
) -> Evaluation:
    label = f"{environment.game}, {_player(name)}"
    if len(passes) > 1:
        label = f"[{passes.index(name) + 1}/{len(passes)}] {label}"
    with _all_cores(name, environment.game, paths[name]) as choose:
        return evaluate(
            choose,
            environment,
            episodes=config.episodes,
            # Random play is its exploration and nothing else, the same games whatever plays.
            epsilon=1.0 if name == "random" else config.epsilon,
            seed=config.seed,
            num_envs=config.num_envs,
            label=label,
        )


@contextlib.contextmanager
def _all_cores(name: str, game: str, files: dict[str, Path]) -> Iterator[Choose]:
    """Yield what maps observations to the agent's actions, on all processors."""
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(contextlib.closing(open_agent(name, environment(game), files)))
        if first.entry.batched:
            yield stack.enter_context(in_fixed_batches(lambda observations: first.act(observations).action))
            return
        # The kernels let go of the interpreter; each thread has an agent of its own.
        team = [first]
        team += [
            stack.enter_context(contextlib.closing(open_agent(name, environment(game), files)))
            for _ in range(1, cores())
        ]
        pool = stack.enter_context(ThreadPoolExecutor(len(team)))

        def ask(observations: Observations) -> npt.NDArray[Any]:
            size = len(next(iter(observations.values())))
            shares = np.array_split(np.arange(size), min(len(team), size))
            return np.concatenate(list(pool.map(_one_by_one, team, itertools.repeat(observations), shares)))

        yield ask


def _one_by_one(player: Agent, observations: Observations, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Return the actions for some rows, decided one at a time."""
    return np.concatenate(
        [
            player.act({name: values[row : row + 1] for name, values in observations.items()}).action
            for row in rows
        ]
    )
