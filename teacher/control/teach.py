"""The ``teach`` stage for continuous control: environments, replay, learner and their checkpoint.

Several seeds train in one process, each in its own thread with everything its own: a seed is what it is alone, bit
for bit. One seed alone uses the threads for its two critics.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from spikestill.common.artefacts import DIVERGED, RESUMED_FROM, TEACHER
from spikestill.common.atomic import write_text
from spikestill.common.environment import Box, environment
from spikestill.common.errors import UserError, restoring
from spikestill.common.memory import room_for
from spikestill.common.precision import sharing
from spikestill.common.precision.names import FIXED
from spikestill.common.precision.rounding import number_format
from spikestill.common.processor import cores, keep_freed_memory
from spikestill.common.provenance import Provenance
from spikestill.common.stage import StageResult, goes_on
from spikestill.common.training import (
    BEGIN_ANEW,
    Sitting,
    check_arrays,
    check_counters,
    going_on_from,
    made_before,
    read_checkpoint,
    write_checkpoint,
)
from spikestill.configs.control import PIXELS, ControlConfig
from spikestill.configs.loading import plain
from spikestill.teacher.control.actor_critic import Settings
from spikestill.teacher.control.blas import one_thread
from spikestill.teacher.control.environment import SimulationDivergedError
from spikestill.teacher.control.flops import flops
from spikestill.teacher.control.frame_replay import FrameReplay
from spikestill.teacher.control.lanes import Both, OtherThread, by_turns, in_turn, quick_turns
from spikestill.teacher.control.learner import DivergedError, Learner, make_learner, operations_of
from spikestill.teacher.control.play import joined, play_games, within
from spikestill.teacher.control.program import can_be_recorded
from spikestill.teacher.control.replay import Replay

CHECKPOINT = RESUMED_FROM["teach"]
SCHEMA = "spikestill.control-checkpoint"
# Options that may differ between a run and its resumption.
FREE_OPTIONS = ("checkpoint_minutes", "steps", "threads", "device", "evaluation_period", "evaluation_games")
WORTH_SPREADING = 1e8
"""Floating-point operations of an update that is not done as a program, from which a second thread pays."""
SHOWN_STEPS = 500
"""Agent steps of every seed between two looks at the user's wish to stop, at most."""
TURN_STEPS = 50
"""Agent steps of a seed until another one may have its thread, where there are more seeds than threads."""


class Training:
    """One agent, its environments, its replay and its random numbers: all that a checkpoint holds.

    Args:
        config: the options.
        seed: this agent's.
        both: how work on two critics is done.
    """

    def __init__(self, config: ControlConfig, seed: int, both: Both = in_turn) -> None:
        self.config, self.seed = config, seed
        self.spec = environment(config.environment.game)
        assert isinstance(self.spec.actions, Box)
        self.actions = self.spec.actions
        self.envs = self.spec.make(config.environment, config.num_envs, 0)
        self.observations = self.envs.reset(np.arange(config.num_envs) + 1000 * (seed + 1))
        sizes = joined(self.observations).shape[1], self.actions.shape[0]
        self.learner: Learner = make_learner(config, *sizes, seed, both)
        self.replay = make_replay(config, *sizes)
        self.rng = np.random.default_rng([seed, 1])
        self.begins_N: npt.NDArray[np.bool_] = np.zeros(config.num_envs, np.bool_)
        self.running_N: npt.NDArray[np.float64] = np.zeros(config.num_envs)
        self.step = self.updates = self.games = 0
        self.returns: deque[float] = deque(maxlen=20)
        self.report: dict[str, float] = {}
        self._judges: Any = None

    def advance(self, until: int) -> None:
        """Act and learn until ``until`` agent steps are done.

        Raises:
            DivergedError: nothing can be learned any more.
            UserError: a simulation diverged.
        """
        while self.step < until:
            self._act()
            due = self.step - self.config.seed_steps
            while due > 0 and self.updates < due // self.config.update_period:
                batch = self.replay.sample(self.rng, self.config.batch_size)
                self.report = self.learner.update(batch, self.rng)
                self.updates += 1

    def _act(self) -> None:
        config, obs_NS = self.config, joined(self.observations)
        if self.step < config.seed_steps:
            unit_ND = self.rng.uniform(-1.0, 1.0, (config.num_envs, self.actions.shape[0])).astype(np.float32)
        else:
            unit_ND = self.learner.act(obs_NS, self.rng)
        self.envs.send(within(self.actions, unit_ND))
        self.observations, reward_N, terminated_N, truncated_N = self.envs.receive()
        kept_N = ~self.begins_N
        going_on_N = (~terminated_N).astype(np.float32)
        self.replay.add(obs_NS, unit_ND, reward_N, going_on_N, joined(self.observations), kept_N)
        self.running_N += np.where(kept_N, reward_N, 0.0)
        self.begins_N = terminated_N | truncated_N
        for index in np.flatnonzero(self.begins_N):
            self.returns.append(float(self.running_N[index]))
            self.running_N[index] = 0.0
            self.games += 1
        self.step += config.num_envs

    def evaluate(self) -> dict[str, Any]:
        """Play the evaluation's games from random starts with the mean action; return what the curve shows."""
        games = self.config.evaluation_games
        if self._judges is None:
            self._judges = self.spec.make(self.config.environment, games, 0)
        seeds = np.random.default_rng([self.seed, 2, self.step]).integers(2**31 - 1, size=games)
        returns_N, _ = play_games(
            lambda obs_NS: self.learner.act(obs_NS, None), self._judges, self.actions, seeds
        )
        return {"mean_return": float(returns_N.mean()), "returns": [round(float(r), 3) for r in returns_N]}

    def state(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """Return the whole state as (arrays, plain values)."""
        parts = {
            "learner": self.learner.arrays(), "replay": self.replay.state(), "envs": self.envs.state(),
            "acting": {"begins": self.begins_N, "running": self.running_N},
        }  # fmt: skip
        arrays = {f"{part}.{name}": array for part, each in parts.items() for name, array in each.items()}
        counters = {name: getattr(self, name) for name in ("step", "updates", "games")}
        counters |= {"returns": list(self.returns), "report": self.report}
        return arrays, {**counters, "rng": self.rng.bit_generator.state}

    def set_state(self, arrays: Mapping[str, npt.NDArray[Any]], counters: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        parts: dict[str, dict[str, npt.NDArray[Any]]] = {}
        for name, array in arrays.items():
            part, _, inner = name.partition(".")
            parts.setdefault(part, {})[inner] = array
        like, fresh = self.state()
        # These may have any length.
        free = ("replay.", "learner.plain", "envs.random")
        check_arrays(arrays, {name: array for name, array in like.items() if not name.startswith(free)})
        check_counters(
            counters, {name: value for name, value in fresh.items() if name not in ("rng", "report")}
        )
        # What an update reported may be infinite: under loss scaling such an update is left out, and all goes on.
        report = counters["report"]
        if not isinstance(report, dict) or not all(type(value) in (int, float) for value in report.values()):
            raise ValueError(f"report is {str(report)[:60]}, a number for each name wanted")
        self.learner.restore(parts["learner"])
        self.replay.set_state(parts["replay"])
        self.observations = self.envs.set_state(parts["envs"])
        self.begins_N, self.running_N = parts["acting"]["begins"].copy(), parts["acting"]["running"].copy()
        for name in ("step", "updates", "games"):
            setattr(self, name, int(counters[name]))
        self.returns.extend(counters["returns"])
        self.report = dict(counters["report"])
        self.rng.bit_generator.state = counters["rng"]

    def close(self) -> None:
        """Release the simulators."""
        self.envs.close()
        if self._judges is not None:
            self._judges.close()


def make_replay(config: ControlConfig, observation: int, action: int) -> Replay | FrameReplay:
    """Return an empty replay: of states, or of frames where pictures are what is seen.

    Raises:
        UserError: those of all seeds outgrow the memory.
    """
    seen = math.prod(PIXELS[1:]) if config.from_pixels else 2 * 4 * observation
    size = seen + 4 * (action + 2)
    with room_for("replay_capacity", config.replay_capacity, size * config.seeds, config.steps):
        if config.from_pixels:
            return FrameReplay(config.replay_capacity, config.num_envs, action)
        return Replay(config.replay_capacity, observation, action)


def spread(config: ControlConfig) -> tuple[bool, int]:
    """Return whether one agent's work is spread over two threads, and on how many threads seeds train.

    A program does without the interpreter. Else Python holds its lock between products: where those are small threads
    wait for it, and one thread does an agent's work, or that of all seeds in turn, faster than two.
    """
    spec, threads = environment(config.environment.game), config.threads or cores()
    assert isinstance(spec.actions, Box)
    observation = 0 if config.from_pixels else sum(math.prod(field.shape) for field in spec.fields)
    sizes = observation, spec.actions.shape[0]
    if config.precision not in FIXED and flops(config, *sizes) < WORTH_SPREADING:
        host = config.device == "cpu"
        if not (host and can_be_recorded(operations_of(config), Settings.of(config, *sizes))):
            return False, 1
    return config.seeds == 1 and threads > 1 and config.device == "cpu", max(1, min(threads, config.seeds))


def threads_each(config: ControlConfig) -> int:
    """Return how many threads the fixed-point kernels of one seed may take."""
    return max(1, (config.threads or cores()) // config.seeds)


class Trainings:
    """All seeds of a run, and the threads on which they train.

    Args:
        config: the options.
        checkpoint: the file to go on from; None: begin.
    """

    def __init__(self, config: ControlConfig, checkpoint: Path | None = None) -> None:
        self.config = config
        lanes, workers = spread(config)
        self._workers = workers
        # What overflows in a format is told by the agents.
        self._pool = ThreadPoolExecutor(workers, initializer=lambda: np.seterr(all="ignore"))
        self._other = OtherThread() if lanes else None
        both = self._other or in_turn
        self.each = [Training(config, config.seed + index, both) for index in range(config.seeds)]
        self.parents: dict[str, str] = {}
        if checkpoint is not None:
            self._restore(checkpoint)

    @property
    def step(self) -> int:
        """Agent steps that every seed has done."""
        return self.each[0].step

    def advance(self, until: int) -> None:
        """Train every seed until ``until`` agent steps, those too beside which one diverges.

        Raises:
            DivergedError: the first one's, which tells of all.
        """
        turn_steps = until if len(self.each) <= self._workers else TURN_STEPS

        def turn(training: Training) -> bool:
            training.advance(min(until, training.step + turn_steps))
            return training.step < until

        self._together(turn)

    def evaluate(self) -> list[dict[str, Any]]:
        """Evaluate every seed."""
        found: dict[int, dict[str, Any]] = {}

        def play(training: Training) -> bool:
            found[training.seed] = training.evaluate()
            return False

        self._together(play)
        return [found[training.seed] for training in self.each]

    def _together(self, turn: Callable[[Training], bool]) -> None:
        """Call ``turn`` of every seed on the threads, again and again while it returns True.

        Raises:
            DivergedError: see :meth:`advance`.
        """
        diverged: dict[int, DivergedError] = {}

        def own(training: Training) -> bool:
            try:
                return turn(training)
            except DivergedError as error:
                diverged[training.seed] = error
                return False

        if len(self.each) == 1:
            while own(self.each[0]):
                pass
        else:
            by_turns(self._pool, self.each, own)
        if diverged:
            first = diverged[min(diverged)]
            first.seeds = {seed: diverged[seed].what for seed in sorted(diverged)}
            raise first

    def save(self, path: Path, provenance: Provenance) -> None:
        """Write the checkpoint, atomically."""
        tensors: dict[str, torch.Tensor] = {}
        counters: dict[str, Any] = {"precision": self.config.precision, "step": self.step, "seeds": []}
        for index, training in enumerate(self.each):
            arrays, values = training.state()
            tensors |= {
                f"{index}.{name}": torch.from_numpy(np.ascontiguousarray(array))
                for name, array in arrays.items()
            }
            counters["seeds"].append(values)
        write_checkpoint(path, SCHEMA, tensors, counters, plain(self.config), provenance)

    def _restore(self, path: Path) -> None:
        defaults = plain(ControlConfig(environment=self.config.environment))
        saved = read_checkpoint(
            path, SCHEMA, plain(self.config), defaults, FREE_OPTIONS, self.config.precision
        )
        with restoring(path, BEGIN_ANEW):
            for index, training in enumerate(self.each):
                arrays = {
                    name.partition(".")[2]: tensor.numpy()
                    for name, tensor in saved.tensors.items()
                    if name.startswith(f"{index}.")
                }
                training.set_state(arrays, saved.counters["seeds"][index])
        self.parents = saved.parents

    def close(self) -> None:
        """End the threads and the simulators."""
        self._pool.shutdown()
        if self._other is not None:
            self._other.close()
        for training in self.each:
            training.close()


def run(config: ControlConfig, run_dir: Path, *, resume: bool = False) -> StageResult:
    """Train an agent; write ``teacher.safetensors``, a checkpoint and the curve ``teach.jsonl``.

    A training that diverges leaves ``teach-diverged.json``.

    Raises:
        UserError: the training or a simulation diverged, a full disk, an unusable checkpoint, a training from before
            without ``resume``.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    checkpoint = run_dir / CHECKPOINT
    resume = goes_on("teach", run_dir, TEACHER, resume=resume)
    keep_freed_memory()
    with (
        contextlib.closing(Trainings(config, checkpoint if resume else None)) as trainings,
        one_thread(),
        quick_turns(),
        sharing.at_most(threads_each(config)),
    ):
        provenance = dataclasses.replace(Provenance.of(config, config.seed), parents=trainings.parents)
        if resume and trainings.step >= config.steps:
            provenance = made_before(checkpoint, SCHEMA)

        def save() -> None:
            trainings.save(checkpoint, provenance)
            for index, training in enumerate(trainings.each):
                artefact = run_dir / TEACHER if index == 0 else run_dir / f"seed-{training.seed}" / TEACHER
                artefact.parent.mkdir(exist_ok=True)
                training.learner.save(artefact, training.spec, provenance)

        sitting = Sitting(
            "teach", run_dir, step=lambda: trainings.step, steps=config.steps, unit="steps", save=save,
            checkpoint_minutes=config.checkpoint_minutes, resumed=resume,
        )  # fmt: skip
        with sitting, going_on_from(checkpoint if resume else None):
            (run_dir / DIVERGED).unlink(missing_ok=True)
            found = _train(trainings, sitting, checkpoint, provenance)
    first = trainings.each[0]
    summary = {
        "environment": config.environment.game, "algorithm": config.algorithm, "precision": config.precision,
        "steps": first.step, "updates": first.updates, "games": first.games,
        "mean_return": found[0]["mean_return"] if found else None, "seconds": sitting.seconds,
        "steps_per_s": sitting.rate,
    }  # fmt: skip
    if config.seeds > 1:
        summary["mean_return_of_seeds"] = [each["mean_return"] for each in found]
    return StageResult(run_dir / TEACHER, summary, first.step >= config.steps)


def _train(
    trainings: Trainings, sitting: Sitting, checkpoint: Path, provenance: Provenance
) -> list[dict[str, Any]]:
    """Train until the steps are done or the user stops it; return the last evaluations."""
    config = trainings.config
    found: list[dict[str, Any]] = []
    if config.device == "cpu" and config.precision not in FIXED and number_format(config.precision).low:
        sitting.bar.say(
            f"{config.precision} is emulated on this processor: every operation's result is rounded to it, products "
            "are summed in fp32"
        )
    while not sitting.stop and trainings.step < config.steps:
        due = (trainings.step // config.evaluation_period + 1) * config.evaluation_period
        until = min(trainings.step + SHOWN_STEPS, due, config.steps)
        with _naming_checkpoint(checkpoint, trainings, sitting, provenance):
            trainings.advance(until)
            if trainings.step >= due or trainings.step >= config.steps:
                with sitting.bar.aside():
                    found = trainings.evaluate()
                for training, values in zip(trainings.each, found, strict=True):
                    sitting.log({"seed": training.seed, **values, **_counts(training)})
        returns = [value for training in trainings.each for value in training.returns]
        sitting.advance(score=float(np.mean(returns)) if returns else "-")
    return found


def _counts(training: Training) -> dict[str, Any]:
    """Return what the curve shows of a training besides its score."""
    found: dict[str, Any] = {"updates": training.updates, "games": training.games, **training.report}
    state = getattr(training.learner, "state", None)
    for name in ("actor", "critics"):  # the encoder's are the critics'
        group = getattr(state, name, None)
        if group is not None:
            found |= {f"{name}_scale": group.scale, f"{name}_skipped": group.skipped}
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in found.items()}


@contextlib.contextmanager
def _naming_checkpoint(
    checkpoint: Path, trainings: Trainings, sitting: Sitting, provenance: Provenance
) -> Iterator[None]:
    """Let the error of a training that diverges name the step and the last good checkpoint; keep it for the results."""
    try:
        yield
    except DivergedError as error:
        told = {
            "diverged": error.what,
            "seeds": error.seeds,
            "step": trainings.step,
            "seconds": sitting.total_seconds,
            "provenance": json.loads(provenance.to_json()),
        }
        write_text(checkpoint.with_name(DIVERGED), json.dumps(told, indent=1) + "\n")
        good = f"the last good checkpoint is {checkpoint}" if checkpoint.exists() else "no checkpoint yet"
        seed, *others = error.seeds
        also = "".join(f"; seed {each} at {error.seeds[each].partition(':')[0]}" for each in others)
        raise UserError(
            f"{trainings.config.environment.game}, seed {seed}, step {trainings.step:,}, {error.what}{also}; {good}",
            error.remedy,
        ) from error
    except SimulationDivergedError as error:
        raise UserError(
            f"step {trainings.step:,}: {error.what}",
            "train in another --run_dir with a lower --learning_rate or another --seed: to resume would do the same "
            "steps again",
        ) from error
    except torch.OutOfMemoryError as error:
        raise UserError(
            f"{trainings.config.environment.game}, step {trainings.step:,}: the GPU has not the memory for an update "
            f"of batch_size {trainings.config.batch_size:,} and hidden {trainings.config.hidden}",
            "train in another --run_dir with a lower --batch_size, or on a larger GPU",
        ) from error
