"""The ``distill`` stage: train a student on a recorded buffer, with checkpoint and exact resume."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from spikestill.common.artefacts import RESUMED_FROM, STUDENT, TEACHER, numbered
from spikestill.common.atari import PIXELS, STACK
from spikestill.common.errors import UserError
from spikestill.common.legal import TOGETHER
from spikestill.common.memory import room_for
from spikestill.common.processor import cores, keep_freed_memory
from spikestill.common.provenance import file_sha256
from spikestill.common.stage import StageResult, goes_on
from spikestill.common.training import (
    BEGIN_ANEW,
    Sitting,
    going_on_from,
    made_before,
)
from spikestill.common.zoo import zoo_path
from spikestill.configs.distill import DistillConfig
from spikestill.dataset.reader import GO_ON, BufferReader, check_different
from spikestill.student import integer_net
from spikestill.student.branches import BRANCHES
from spikestill.student.distillation import SCHEMA, Distillation, Fitted, learning_rate
from spikestill.student.game_check import check_file_game
from spikestill.student.judging import Judged
from spikestill.student.own_play import OwnPlay
from spikestill.student.schedule import LEAST_STEPS, about, measured_pace, scheduled
from spikestill.student.sources import BufferSource, Source
from spikestill.student.stream import TeacherStream
from spikestill.teacher.atari.environment import action_meanings
from spikestill.teacher.checkpoint import read_teacher
from spikestill.teacher.evaluation import in_fixed_batches
from spikestill.teacher.policy import load_teacher

CHECKPOINT = RESUMED_FROM["distill"]
# Steps of a stream after which is said how long it will take.
STREAM_STEPS = 50


def hinting_teachers(config: DistillConfig, readers: Sequence[BufferReader]) -> list[Path]:
    """Return the files of the teachers that give the hints, one for each game: those that recorded the buffers.

    Raises:
        UserError: there is no such file, or another teacher recorded a game's first buffer, or there are more teachers
            than games.
    """
    first: dict[str, tuple[Path, BufferReader]] = {}
    for path, reader in zip((config.buffer, *config.also), readers, strict=True):
        first.setdefault(reader.game, (path, reader))
    given = [config.teacher, *config.also_teachers]
    if len(given) > len(first):
        raise UserError(
            f"also_teachers has {len(config.also_teachers)} files, and the buffers are of {', '.join(first)}",
            "give one for each game but the first, in the order of --also",
        )
    found = []
    for (game, (buffer, reader)), option in itertools.zip_longest(first.items(), given):
        path = teacher_file(option, game)
        recorded, theirs = reader.header.provenance.parents.get("teacher"), file_sha256(path)
        if recorded != theirs:
            raise UserError(
                f"{buffer} was recorded by the teacher with SHA-256 {str(recorded)[:12]}, {path} is "
                f"{theirs[:12]}",
                "give --teacher (for further games --also_teachers) the file that recorded it, or train without "
                "hints: --hint_weight 0",
            )
        found.append(path)
    return found


def teacher_file(
    given: Path | None, game: str, remedy: str = "give --teacher the file that recorded the buffer"
) -> Path:
    """Return the teacher's file: the one that is given, or the zoo's for the game.

    Raises:
        UserError: there is no such file; ``remedy`` says what to do.
    """
    path = given if given is not None else zoo_path(game, TEACHER)
    if not path.is_file():
        raise UserError(f"{path}: no such teacher of {game}", remedy)
    return path


def _tell_of_interruptions(readers: Sequence[BufferReader]) -> None:
    """Say which recordings ended before their frames were complete."""
    for told in filter(None, (reader.interruption() for reader in readers)):
        print(f"distill: {told}; {GO_ON}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def opened(config: DistillConfig) -> Iterator[tuple[Source, list[Path]]]:
    """Yield what the training draws from, and the teachers' files: of those that give hints, or of the one that plays.

    Raises:
        UserError: the buffer or the teacher cannot be read, they do not belong together, or the ring outgrows the
            memory.
    """
    if not config.stream:
        with contextlib.ExitStack() as stack:
            readers = [stack.enter_context(BufferReader(path)) for path in (config.buffer, *config.also)]
            check_different(readers)
            _tell_of_interruptions(readers)
            source = BufferSource(readers, config.validation)
            yield source, hinting_teachers(config, readers) if config.hinted else []
        return
    game = config.stream_game
    remedy = f"give --teacher a teacher of {game}, or --stream_game the game of this one"
    path = teacher_file(config.teacher, game, remedy)
    policy = load_teacher(path)
    check_file_game(path, policy.game, policy.actions, game, len(action_meanings(game)), remedy=remedy)
    played = config.stream_start + config.steps * config.stream_period
    with in_fixed_batches(lambda observations: policy.act(observations).scores) as scores:
        with room_for("stream_ring", config.stream_ring, PIXELS, played):
            stream = TeacherStream(
                lambda stacks_BCHW: scores({STACK.name: stacks_BCHW}),
                policy.game,
                policy.actions,
                ring=config.stream_ring,
                start=config.stream_start,
                period=config.stream_period,
                envs=config.stream_envs,
                epsilon=config.stream_epsilon,
                seed=config.seed,
            )
        with contextlib.closing(stream):
            yield stream, [path]


def run(config: DistillConfig, run_dir: Path, *, resume: bool = False) -> StageResult:
    """Distil a student; write ``student.safetensors``, a checkpoint and ``distill.jsonl``.

    Raises:
        UserError: an unreadable buffer or checkpoint, a loss that is not finite, a full disk, a training from before
            without ``resume``.
    """
    began = time.monotonic()
    run_dir.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(cores())
    checkpoint = run_dir / CHECKPOINT
    keep_freed_memory()
    resume = goes_on("distill", run_dir, STUDENT, resume=resume)
    origin = checkpoint if resume else config.initial
    with opened(config) as (source, teachers), going_on_from(origin):
        hinting = [read_teacher(path)[0] for path in teachers] if config.hinted else []
        training = Distillation(config, source, hinting, checkpoint if resume else None)
        for index, path in enumerate(teachers):
            role, found = numbered("teacher", index), file_sha256(path)
            if training.parents.get(role, found) != found:
                raise UserError(f"{checkpoint}: was trained on another teacher than {path}", BEGIN_ANEW)
            training.parents[role] = found
        if _measured(training):
            anew = dataclasses.replace(config, initial=None, initial_beside=None)
            with contextlib.closing(Distillation(anew, source, hinting)) as trial:
                left = training.config.steps - training.step
                pace = measured_pace(trial, max(0, training.hinted_steps - training.step) / left)
            steps = scheduled(training, pace, time.monotonic() - began)
            if config.minutes is not None and training.fitted is None:
                training.keep(Fitted(config.minutes, config.steps, steps))
        config = training.config
        provenance = training.provenance()
        if resume and training.step >= config.steps:
            provenance = made_before(checkpoint, SCHEMA)
        sitting = Sitting(
            "distill",
            run_dir,
            step=lambda: training.step,
            steps=config.steps,
            unit="batches",
            save=lambda: training.save(checkpoint, provenance),
            checkpoint_minutes=config.checkpoint_minutes,
            resumed=resume,
        )
        with sitting, _own_play(config, source) as own_play:
            _train(training, sitting, own_play)
        finished = training.step >= config.steps
        if finished and len(training.pruned) != config.prune:
            raise UserError(
                f"prune {config.prune}: the training ended at step {training.step} before branches were taken out",
                "go on with more --steps and --resume",
            )
        if finished and config.recalibration_batches:
            print("distill: takes the statistics of the finished weights", file=sys.stderr, flush=True)
            training.recalibrate(config.recalibration_batches)
        integer_net.save(training.network.to_integer(), run_dir / STUDENT, provenance)
        validation = training.validate()
        summary = {
            "steps": training.step,
            "samples": training.step * config.batch_size,
            "held_out_steps": source.held_out,
            "seconds": sitting.seconds,
            "samples_per_s": sitting.rate * config.batch_size,
            "agreement": validation["agreement"],
            "regret": validation["regret"],
            "actions": source.actions,
            "fitted": training.fitted._asdict() if training.fitted is not None else None,
        }
        training.close()
    return StageResult(run_dir / STUDENT, summary, finished)


def _measured(training: Distillation) -> bool:
    """Return whether to measure how long the training takes before it begins; a stream must not be drawn from."""
    left = training.config.steps - training.step
    fits = training.config.minutes is not None and training.fitted is None
    return not training.config.stream and left > 0 and (fits or left >= LEAST_STEPS)


@contextlib.contextmanager
def _own_play(config: DistillConfig, source: Source) -> Iterator[OwnPlay | None]:
    """Yield the games that the student plays by itself; None: it plays none."""
    if not config.own_play:
        yield None
        return
    games = source.game.split(TOGETHER)
    files = [
        teacher_file(path, game)
        for game, path in itertools.zip_longest(games, (config.teacher, *config.also_teachers)[: len(games)])
    ]
    teachers = {}
    for game, path in zip(games, files, strict=True):
        teacher = teachers[game] = load_teacher(path)
        check_file_game(
            path,
            teacher.game,
            teacher.actions,
            game,
            len(action_meanings(game)),
            remedy=f"give --teacher, or --also_teachers for further games, a teacher of {game}",
        )
    with contextlib.closing(OwnPlay(teachers, source.legal, config.seed)) as playing:
        yield playing


def _train(training: Distillation, sitting: Sitting, own_play: OwnPlay | None) -> None:
    """Train until the steps are done or the user stops it."""
    found: list[tuple[float, float]] = []
    first, whole = training.step, not training.pruned
    while training.step < training.config.steps and not sitting.stop:
        found.append(training.train_step())
        if training.step % training.config.log_steps == 0:
            loss, agreement = np.mean(found, axis=0)
            _log(training, sitting, loss, agreement, own_play)
            found.clear()
        if training.pruned and whole:
            whole = False
            sitting.bar.say(f"takes out branches {', '.join(map(str, training.pruned))} of 0..{BRANCHES - 1}")
        if training.config.stream and training.step == first + STREAM_STEPS:
            left = training.config.steps - training.step
            most = "at most " if training.step < training.hinted_steps < training.config.steps else ""
            sitting.bar.say(f"{left:,} batches take {most}about {about(left / sitting.rate)} here")
        sitting.advance(**({"loss": found[-1][0], "agreement": found[-1][1]} if found else {}))


def _log(
    training: Distillation, sitting: Sitting, loss: float, agreement: float, own_play: OwnPlay | None
) -> None:
    validation = training.validate()
    values = {
        "samples": training.step * training.config.batch_size,
        "learning_rate": learning_rate(training.config, training.step),
        "loss": float(loss),
        "agreement": float(agreement),
        "validation_loss": validation["loss"],
        "validation_agreement": validation["agreement"],
        "validation_regret": validation["regret"],
        "layers": [each._asdict() for each in training.activity()],
    }
    if own_play is not None:
        found = own_play(training.votes, training.config.own_play)
        for name in Judged._fields:
            by_game = {game: float(getattr(each, name)) for game, each in found.items()}
            values[f"own_{name}"] = float(np.mean(list(by_game.values())))
            if len(by_game) > 1:
                values |= {f"own_{name}_{game}": value for game, value in by_game.items()}
    sitting.log(values)
