"""The ``evaluate`` stage: an agent's score over full games, beside its teacher's and chance."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.common.artefacts import EVALUATE
from spikestill.common.document import write_document
from spikestill.common.errors import UserError
from spikestill.common.processor import cores
from spikestill.common.provenance import Provenance
from spikestill.common.stage import StageResult
from spikestill.configs.environment import EnvironmentConfig
from spikestill.configs.play import EvaluateConfig
from spikestill.runtime.agents import Agent, agent_file, make_agent, refuse_stale_map
from spikestill.student.game_check import check_file_game
from spikestill.teacher.atari.environment import action_meanings
from spikestill.teacher.evaluation import Evaluation, ScoresFunction, evaluate

VERSION = 1
STICKY = 0.25


def run(config: EvaluateConfig, run_dir: Path, *, resume: bool = False) -> StageResult:
    """Score the agent of ``config`` over full games and write ``evaluate.json`` into ``run_dir``.

    The summary has ``mean``, ``ci95`` (95 % bootstrap interval), ``episodes``, ``returns``, ``frames``, ``epsilon`` (of
    all but random play, which is nothing else); with
    ``compare`` also ``teacher`` and ``random`` (the same of each), ``percent_of_teacher`` = 100 mean /
    teacher and ``percent_of_margin`` = 100 (mean - random) / (teacher - random); with ``also_sticky`` all
    of it again under ``sticky``. Percentages are None where their divisor is not positive. An evaluation
    is not resumed: ``resume`` plays it anew, with the same result.

    Raises:
        UserError: a file that is missing, unreadable or for another game.
    """
    game = config.environment.game
    paths = files_read(config)
    refuse_stale_map(config.agent, config.student, config.core_map)
    # A file that is missing is refused by its reader.
    parents = {role: path for role, path in paths.items() if path.is_file()}
    provenance = Provenance.of(config, config.seed, parents)
    if config.compare and config.agent != "teacher":
        # Opened before the agent has played a hundred games, not after them.
        with _scores_function("teacher", game, len(action_meanings(game)), paths):
            pass
    summary = {"game": game, "agent": config.agent, "epsilon": config.epsilon, "seed": config.seed}
    summary |= _measure(config, config.environment, paths)
    if config.also_sticky:
        summary["sticky"] = _measure(config, dataclasses.replace(config.environment, sticky=STICKY), paths)
    artefact = Path(run_dir) / EVALUATE
    write_document(artefact, "evaluate", VERSION, summary, provenance)
    return StageResult(artefact, summary)


def files_read(config: EvaluateConfig) -> dict[str, Path]:
    """Return the files by role that the run reads; the comparison's teacher is ``teacher``."""
    files = {"teacher": config.teacher, "student": config.student, "core_map": config.core_map}
    game = config.environment.game
    paths = {}
    if config.agent != "random":
        role, path = agent_file(config.agent, game, **files)
        paths[role] = path
    if config.compare:
        try:
            paths["teacher"] = agent_file("teacher", game, **files)[1]
        except UserError as error:
            raise UserError(error.what, f"{error.remedy}; or compare with none: --compare false") from error
    return paths


def _measure(
    config: EvaluateConfig, environment: EnvironmentConfig, paths: dict[str, Path]
) -> dict[str, Any]:
    """Return the agent's scores in ``environment``, with the comparison where it is asked for."""
    measured: dict[str, Evaluation] = {}

    def scores(name: str) -> Evaluation:
        if name not in measured:
            measured[name] = _evaluate(name, config, environment, paths)
        return measured[name]

    began = time.monotonic()
    own = scores(config.agent)
    seconds = time.monotonic() - began
    summary = {**dataclasses.asdict(own), "episodes": config.episodes, "seconds": round(seconds, 2)}
    summary["sticky_probability"] = environment.sticky
    if config.compare:
        teacher, chance = scores("teacher"), scores("random")
        summary["teacher"] = dataclasses.asdict(teacher)
        summary["random"] = dataclasses.asdict(chance)
        summary["percent_of_teacher"] = percentage(own.mean, teacher.mean)
        summary["percent_of_margin"] = percentage(own.mean - chance.mean, teacher.mean - chance.mean)
    return summary


def percentage(part: float, whole: float) -> float | None:
    """Return 100 part / whole, None where ``whole`` is not positive."""
    return round(100 * part / whole, 3) if whole > 0 else None


def _evaluate(
    name: str, config: EvaluateConfig, environment: EnvironmentConfig, paths: dict[str, Path]
) -> Evaluation:
    actions = len(action_meanings(environment.game))
    with _scores_function(name, environment.game, actions, paths) as scores_fn:
        return evaluate(
            scores_fn,
            environment,
            episodes=config.episodes,
            epsilon=1.0 if name == "random" else config.epsilon,
            seed=config.seed,
            num_envs=config.num_envs,
        )


@contextlib.contextmanager
def _scores_function(name: str, game: str, actions: int, paths: dict[str, Path]) -> Iterator[ScoresFunction]:
    """Yield what maps stacks (B, 4, 84, 84) to the agent's scores (B, A): in batches where it can."""
    if name == "random":
        # Every action is explored; the scores do not matter.
        yield lambda obs_BCHW: np.zeros((len(obs_BCHW), actions))
    elif name in ("teacher", "fp16"):
        from spikestill.teacher.policy import in_fixed_batches, load_teacher

        policy = load_teacher(paths["teacher"], "fp32" if name == "teacher" else "fp16")
        check_file_game(paths["teacher"], policy.game, policy.actions, game, actions)
        with in_fixed_batches(policy.q_values) as ask:
            yield ask
    elif name in ("student", "cores"):
        # The kernels let go of the interpreter; each thread has an agent of its own.
        path = paths["student" if name == "student" else "core_map"]
        agents = [make_agent(name, path, game, actions) for _ in range(cores())]
        with ThreadPoolExecutor(len(agents)) as pool:
            yield lambda obs_BCHW: np.concatenate(
                list(pool.map(_one_by_one, agents, np.array_split(obs_BCHW, min(len(agents), len(obs_BCHW)))))
            )
    elif name == "lava":
        agent = make_agent(name, paths["student"], game, actions)
        with contextlib.closing(agent):
            yield lambda obs_BCHW: _one_by_one(agent, obs_BCHW)
    else:
        raise UserError(f"unknown agent {name!r}", "see `spikestill evaluate --help`")


def _one_by_one(agent: Agent, obs_BCHW: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
    return np.stack([agent.act(stack_CHW).scores for stack_CHW in obs_BCHW])
