"""The ``teach`` stage: acting and learning in overlapping rounds, with exact resume.

A round acts for a fixed number of steps with the weights it began with, while the learner does its
updates on what the replay held before the round; then the round's steps enter the replay. So the
result does not depend on which of the two is faster, and a resumed run equals one never stopped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spikestill.common.artefacts import RESUMED_FROM, TEACHER
from spikestill.common.atari import PIXELS
from spikestill.common.errors import UserError, restoring
from spikestill.common.memory import room_for
from spikestill.common.processor import compute_device, cores, keep_freed_memory, yield_to_others
from spikestill.common.provenance import Provenance, file_sha256
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
from spikestill.configs.loading import plain
from spikestill.configs.teach import TeachConfig
from spikestill.teacher.atari import q_network
from spikestill.teacher.atari.actor import Actor, Transition
from spikestill.teacher.atari.device_learner import DeviceLearner
from spikestill.teacher.atari.device_replay import DeviceReplay
from spikestill.teacher.atari.environment import action_meanings
from spikestill.teacher.atari.host_learner import HostLearner
from spikestill.teacher.atari.learner import DivergedError, Learner, UpdateReport
from spikestill.teacher.atari.q_network import Weights
from spikestill.teacher.atari.replay import Replay
from spikestill.teacher.atari.rollout_learner import RolloutLearner
from spikestill.teacher.atari.selection import Selection
from spikestill.teacher.checkpoint import CHECKPOINT_SCHEMA, read_teacher, save_teacher
from spikestill.teacher.policy import TeacherPolicy

CHECKPOINT = RESUMED_FROM["teach"]
LOG_UPDATES = 1_000
ROWS_BESIDE = 8
"""Steps that a ring holds beside a rollout: the one after it, the three before it that its first stacks reach back to,
a segment's last observation, and the one that the next append writes over."""


def exploration_rate(config: TeachConfig, step: int) -> float:
    """Return epsilon at an agent step: 1 until ``replay_start``, then linear to ``epsilon_final``.

    A training that goes on from another teacher explores at ``epsilon_final`` throughout.
    """
    if config.initial is not None:
        return config.epsilon_final
    if step < config.replay_start:
        return 1.0
    done = min(1.0, (step - config.replay_start) / config.epsilon_steps)
    return 1.0 + done * (config.epsilon_final - 1.0)


def learning_rate(config: TeachConfig, step: int) -> float:
    """Return the step size: constant for two thirds, then linear to ``learning_rate_final``."""
    done = min(1.0, max(0.0, 3.0 * step / config.steps - 2.0))
    return config.learning_rate + done * (config.learning_rate_final - config.learning_rate)


def _prepare_acting() -> None:
    torch.set_num_threads(1)
    yield_to_others()


class Training:
    """The whole state of a training: actor, replay, learner and counters.

    Args:
        config: the options.
        checkpoint: what an interrupted training left, to go on from it; None: begin.

    Raises:
        UserError: the teacher to begin with, or the checkpoint, cannot be used.
    """

    def __init__(self, config: TeachConfig, checkpoint: Path | None = None) -> None:
        self.config = config
        # Before the games are made, which takes seconds.
        initial = _initial_weights(config) if checkpoint is None and config.initial is not None else None
        torch.set_num_threads(1)
        keep_freed_memory()
        # The emulators' thread, begun in the acting thread, takes over its priority.
        self.pool = ThreadPoolExecutor(1, "acting", initializer=_prepare_acting)
        on_gpu = compute_device(config.device).type == "cuda"
        # Where a GPU learns the cores are free to play. A rollout takes longer than learning from the one before, and
        # goes on with all cores when that is done.
        emulators = max(1, cores() - 2) if on_gpu else cores() if config.algorithm == "pqn" else 1
        self.actor = self.pool.submit(Actor, config, emulators).result()
        self.replay, self.learner = _learning(config, self.actor.actions)
        self.rng = np.random.default_rng([config.seed, 5])
        self.selection = Selection(
            config.environment, config.selection_period, config.selection_games,
            began_with_a_teacher=config.initial is not None,
        )  # fmt: skip
        self.step = 0
        self.segment_began = 0
        self.target_due = config.target_period
        self.returns: deque[float] = deque(maxlen=100)
        self.games = 0
        self.parents: dict[str, str] = {}
        if checkpoint is not None:
            with restoring(checkpoint, BEGIN_ANEW):
                self.restore(checkpoint)
        elif initial is not None:
            self.learner.begin_with(initial)
            self.parents = {"initial": file_sha256(Path(str(config.initial)))}

    def round(self) -> list[UpdateReport]:
        """Run one round; return the reports of its updates (none before ``replay_start``)."""
        config = self.config
        learn = self.step >= config.replay_start
        acting = self.pool.submit(
            self._act,
            self.learner.acting_weights(),
            self.learner.pixel_offset,
            exploration_rate(config, self.step),
        )
        reports = self._learn() if learn else []
        for transition in acting.result():
            self._store(transition)
            self.step += config.num_envs
        if self.step - self.segment_began >= config.segment_steps * config.num_envs:
            self._store(self.actor.boundary())
            self.actor.restart()
            self.segment_began = self.step
        if not learn and self.step >= config.replay_start and config.center_pixels:
            self.learner.center(float(round(self.replay.mean_pixel())))
        if config.algorithm == "ddqn" and self.step >= self.target_due:
            self.learner.refresh_target()
            self.target_due += config.target_period
        return reports

    def _act(self, weights: Weights, pixel_offset: float, epsilon: float) -> list[Transition]:
        operations = self.learner.format.operations
        with torch.cuda.stream(self.learner.acting_stream):
            return [
                self.actor.act(weights, pixel_offset, epsilon, operations)
                for _ in range(self.config.vector_steps_per_round)
            ]

    def _learn(self) -> list[UpdateReport]:
        config, updates = self.config, self.config.updates_per_round
        done = self.step / config.steps
        beta = min(1.0, config.priority_correction + done * (1.0 - config.priority_correction))
        rate = learning_rate(config, self.step)
        return self.learner.learn(self.rng, updates, beta, rate)

    def _store(self, transition: Transition) -> None:
        self.replay.append(
            transition.frame, transition.action, transition.reward,
            transition.done, transition.valid, transition.start,
        )  # fmt: skip
        self.returns.extend(transition.returns)
        self.games += len(transition.returns)

    def selection_due(self) -> bool:
        """Return True where the weights of now are to be compared with the best ones before."""
        return self.selection.due(self.step, self.config.steps)

    @property
    def finished(self) -> bool:
        """Whether the steps are done and the weights compared."""
        return self.step >= self.config.steps and not self.selection_due()

    def select(self, provenance: Provenance, stop: Callable[[], bool]) -> bool:
        """Let the weights of now play for being the teacher; return False where ``stop`` came first."""
        self.learner.check_finite()
        weights, game = self.learner.deployable(), self.config.environment.game
        policy = TeacherPolicy(weights, game, self.actor.actions, provenance, "fp32")
        return self.selection.consider(weights, policy, self.step, stop)

    def teacher(self) -> Weights:
        """Return the weights that are the teacher: the best snapshot's, or those of now where none has played."""
        return self.selection.best or self.learner.deployable()

    def mean_return(self) -> float | None:
        """Return the mean raw score of the last 100 games, None before the first."""
        return float(np.mean(self.returns)) if self.returns else None

    def save(self, path: Path, provenance: Provenance) -> None:
        """Write the whole state to ``path``."""
        tensors = {f"learner.{name}": tensor for name, tensor in self.learner.state().items()}
        for part, arrays in (("actor", self.actor.state()), ("replay", self.replay.state())):
            tensors |= {
                f"{part}.{name}": torch.from_numpy(np.ascontiguousarray(array))
                for name, array in arrays.items()
            }
        best, selection = self.selection.state()
        tensors |= {f"selection.{name}": weight for name, weight in best.items()}
        counters = {
            "step": self.step, "segment_began": self.segment_began, "target_due": self.target_due,
            "games": self.games, "returns": list(self.returns),
            "rng": self.rng.bit_generator.state, "precision": self.learner.format.name, "selection": selection,
        }  # fmt: skip
        write_checkpoint(path, CHECKPOINT_SCHEMA, tensors, counters, plain(self.config), provenance)

    def provenance(self) -> Provenance:
        """Return where the teacher comes from; a resumed one from the files that it began with."""
        found = Provenance.of(self.config, self.config.seed)
        return dataclasses.replace(found, parents=self.parents)

    def restore(self, path: Path) -> None:
        """Restore the state that :meth:`save` wrote.

        Raises:
            UserError: the file cannot be read, or was written with other options.
        """
        tensors, counters, parents = read_checkpoint(
            path,
            CHECKPOINT_SCHEMA,
            plain(self.config),
            plain(TeachConfig()),
            FREE_OPTIONS,
            self.learner.format.name,
        )
        parts: dict[str, dict[str, Any]] = {"learner": {}, "selection": {}, "actor": {}, "replay": {}}
        for name, tensor in tensors.items():
            part, _, inner = name.partition(".")
            parts[part][inner] = tensor if part in ("learner", "selection") else tensor.numpy()
        like = {"step": 0, "segment_began": 0, "target_due": 0, "games": 0, "returns": []}
        check_counters(counters, like)
        self.learner.set_state(parts["learner"])
        try:
            self.learner.check_finite()
        except DivergedError as error:
            raise UserError(f"{path}: {error.what}", BEGIN_ANEW) from error
        self.replay.set_state(parts["replay"])
        played = parts["replay"]["action"]
        if played.size and not 0 <= played.min() <= played.max() < self.actor.actions:
            raise ValueError(f"the replay holds action {played.max()}, the game has {self.actor.actions}")
        self.actor.set_state(parts["actor"])
        if "selection" in counters:
            if parts["selection"]:
                check_arrays(parts["selection"], self.learner.deployable())
            self.selection.set_state(parts["selection"], counters["selection"])
        self.parents = parents
        self.step, self.segment_began = counters["step"], counters["segment_began"]
        self.target_due, self.games = counters["target_due"], counters["games"]
        self.returns = deque(counters["returns"], maxlen=100)
        self.rng.bit_generator.state = counters["rng"]

    def close(self) -> None:
        """End the threads and the emulators."""
        self.pool.shutdown()
        self.learner.close()
        self.actor.close()


def _learning(config: TeachConfig, actions: int) -> tuple[Replay | DeviceReplay, Learner]:
    """Return an empty replay and the learner that learns from it.

    Both lie on a GPU where there is one; a rollout lies in the host's memory.

    Raises:
        UserError: the replay outgrows the host's memory.
    """
    device = compute_device(config.device)
    if config.algorithm == "pqn":
        frames = (config.rollout_steps + ROWS_BESIDE) * config.num_envs
        # The ring, and the steps of a round before they enter it.
        with room_for("rollout_steps times num_envs", frames, 2 * PIXELS, frames, "num_envs"):
            rollout = Replay(frames, config.num_envs, 1, config.discount, 0.0)
        return rollout, RolloutLearner(config, actions, rollout, config.threads or cores())
    shape = (
        config.replay_capacity, config.num_envs, config.n_step, config.discount, config.priority_exponent
    )  # fmt: skip
    if device.type == "cuda":
        on_device = DeviceReplay(*shape, device)
        return on_device, DeviceLearner(config, actions, on_device)
    with room_for("replay_capacity", config.replay_capacity, PIXELS, config.steps):
        on_host = Replay(*shape)
    return on_host, HostLearner(config, actions, on_host, config.threads or cores())


def _initial_weights(config: TeachConfig) -> Weights:
    """Return the weights of the teacher to begin with."""
    actions = len(action_meanings(config.environment.game))
    weights, game, found, _ = read_teacher(Path(str(config.initial)))
    if found != actions:
        raise UserError(
            f"{config.initial}: plays {game} with {found} actions, {config.environment.game} has {actions}",
            "give a teacher of a game with as many actions, or leave --initial out",
        )
    if q_network.is_normalised(weights) != config.normalised:
        raise UserError(
            f"{config.initial}: a network with{'out' if config.normalised else ''} layer norm, and the training's is "
            f"one with{'' if config.normalised else 'out'}",
            f"give --layer_norm {str(not config.normalised).lower()}",
        )
    return weights


# Options that may differ between a run and its resumption. ``steps`` lengthens or shortens a training: its
# schedules then follow the new length from there on. A training that diverged goes on with other step sizes.
# Snapshots may be compared from a resumption on, or more often. ``precision`` is compared as what it stands for,
# and the gradient shares of ``threads`` are the checkpoint's.
FREE_OPTIONS = (
    "checkpoint_minutes", "steps", "learning_rate", "learning_rate_final", "max_gradient_norm", "selection_period",
    "precision", "threads",
)  # fmt: skip


def run(config: TeachConfig, run_dir: Path, *, resume: bool = False) -> StageResult:
    """Train a teacher; write ``teacher.safetensors``, a checkpoint, ``teach.jsonl`` and TensorBoard logs.

    Raises:
        UserError: a loss that is not finite, a full disk, an unusable checkpoint, a training from before without
            ``resume``.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    checkpoint = run_dir / CHECKPOINT
    resume = goes_on("teach", run_dir, TEACHER, resume=resume)
    with going_on_from(checkpoint if resume else config.initial):
        return _run(config, run_dir, checkpoint if resume else None)


def _run(config: TeachConfig, run_dir: Path, resumed: Path | None) -> StageResult:
    from torch.utils.tensorboard import SummaryWriter

    checkpoint, resume = run_dir / CHECKPOINT, resumed is not None
    training = Training(config, resumed)
    provenance = training.provenance()
    if resumed is not None and training.finished:
        provenance = made_before(resumed, CHECKPOINT_SCHEMA)
    if not resume:
        # Of a training that ended before its first checkpoint.
        shutil.rmtree(run_dir / "tensorboard", ignore_errors=True)
    board = SummaryWriter(str(run_dir / "tensorboard"), purge_step=training.step + 1)
    sitting = Sitting(
        "teach",
        run_dir,
        step=lambda: training.step,
        steps=config.steps,
        unit="steps",
        save=lambda: _save(training, checkpoint, run_dir / TEACHER, provenance),
        checkpoint_minutes=config.checkpoint_minutes,
        resumed=resume,
    )
    with sitting, contextlib.closing(board):
        _train(training, sitting, board, checkpoint, provenance)
    summary = {
        "steps": training.step,
        "updates": training.learner.updates,
        "games": training.games,
        "mean_return_100": training.mean_return(),
        "selected_step": training.selection.best_step,
        "selected_score": training.selection.best_score,
        "seconds": sitting.seconds,
        "steps_per_s": sitting.rate,
    }
    training.close()
    return StageResult(run_dir / TEACHER, summary, training.finished)


def _train(
    training: Training, sitting: Sitting, board: Any, checkpoint: Path, provenance: Provenance
) -> None:
    """Train until the steps are done and the snapshots compared, or the user stops it."""
    config, learner = training.config, training.learner
    logged, skipped, scale = learner.updates // LOG_UPDATES, 0, learner.scale.value
    last: UpdateReport | None = None
    if learner.format.emulated:
        sitting.bar.say(
            f"{learner.format.name} is emulated on this processor, and slower than fp32 (--precision fp32)"
        )
    while not sitting.stop and not training.finished:
        if training.selection_due():
            with _naming_checkpoint(training, checkpoint), sitting.bar.aside():
                played = training.select(provenance, sitting.stop.__bool__)
            if played:
                sitting.bar.say(_selected(training))
            continue
        with _naming_checkpoint(training, checkpoint):
            reports = training.round()
        skipped += sum(report.skipped for report in reports)
        last = reports[-1] if reports else last
        if last is not None and learner.updates // LOG_UPDATES > logged:
            logged = learner.updates // LOG_UPDATES
            _log(training, sitting, board, last, skipped)
            if learner.scale.value < scale:
                sitting.bar.say(
                    f"the loss scale fell from {scale:g} to {learner.scale.value:g}: gradients overflow "
                    f"{config.precision}; if it goes on falling, lower --learning_rate"
                )
            skipped, scale, last = 0, learner.scale.value, None
        score = training.mean_return()
        sitting.advance(score="-" if score is None else score, games=training.games)
    if last is not None:  # the curve ends where the training does
        _log(training, sitting, board, last, skipped)


@contextlib.contextmanager
def _naming_checkpoint(training: Training, checkpoint: Path) -> Iterator[None]:
    """Let the error of a training that diverges name the step and the last good checkpoint."""
    try:
        yield
    except DivergedError as error:
        good = f"the last good checkpoint is {checkpoint}" if checkpoint.exists() else "no checkpoint yet"
        raise UserError(f"step {training.step:,}, {error.what}; {good}", error.remedy) from error


def _save(training: Training, checkpoint: Path, artefact: Path, provenance: Provenance) -> None:
    with _naming_checkpoint(training, checkpoint):
        training.learner.check_finite()
    training.save(checkpoint, provenance)
    game, actions = training.config.environment.game, training.actor.actions
    selected = training.selection.selected()
    save_teacher(artefact, training.teacher(), game, actions, provenance, selected=selected)


def _selected(training: Training) -> str:
    selection = training.selection
    best = (
        "the best so far"
        if selection.best_step == training.step
        else f"the best is {selection.best_score:.4g} of step {selection.best_step:,}"
    )
    return f"step {training.step:,} scores {selection.score:.4g}, {best}"


def _log(training: Training, sitting: Sitting, board: Any, report: UpdateReport, skipped: int) -> None:
    dead = training.learner.dead_units(np.random.default_rng(training.step))
    values = {
        "frames": training.step * training.config.environment.frame_skip,
        "updates": training.learner.updates,
        "steps_per_s": round(sitting.rate, 1),
        "mean_return_100": training.mean_return(),
        "games": training.games,
        "snapshot_score": training.selection.score,
        "selected_step": training.selection.best_step,
        "selected_score": training.selection.best_score,
        "epsilon": exploration_rate(training.config, training.step),
        "loss": report.loss,
        "q": report.q,
        "gradient_norm": report.gradient_norm,
        "loss_scale": training.learner.scale.value,
        "skipped_updates": skipped,
        **{
            f"dead_{layer}": value
            for layer, value in zip(("conv1", "conv2", "conv3", "hidden"), dead, strict=True)
        },
    }
    values = sitting.log(values)
    for name, value in values.items():
        if name != "step" and isinstance(value, (int, float)):
            board.add_scalar(f"teach/{name}", value, training.step)
