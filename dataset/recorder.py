"""The ``record`` stage: the teacher plays all streams, a thread of its own packs and writes what it saw.

The streams are played in two halves: while one half's emulators step, the teacher looks at the other.
A resumed recording starts a new game in every stream; the emulators' state is not kept.

Axis suffixes: N streams, P pixels, A actions.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.common.agents import agent
from spikestill.common.artefacts import BUFFER, TEACHER, numbered
from spikestill.common.atari import FAMILY as ATARI
from spikestill.common.atari import PIXELS, STACK
from spikestill.common.environment import Discrete, EnvironmentSpec, environment
from spikestill.common.errors import UserError
from spikestill.common.policy import Policy
from spikestill.common.processor import cores
from spikestill.common.progress import Progress
from spikestill.common.provenance import Provenance
from spikestill.common.stage import StageResult, StopRequest, goes_on, stop_on_signal
from spikestill.common.training import check_same_options, filled
from spikestill.common.zoo import zoo_path
from spikestill.configs.loading import plain
from spikestill.configs.record import RecordConfig
from spikestill.dataset.format import (
    CHUNK_ROWS,
    BufferFile,
    BufferWriter,
    Header,
    Steps,
    game_returns,
)
from spikestill.dataset.preferences import FirstRows, PrefersNothingError
from spikestill.teacher.atari.environment import action_meanings

# Blocks that may wait to be packed before the games wait for the disk.
BLOCKS_IN_FLIGHT = 2
# Options that may differ between a recording and its resumption. Teachers and student are compared by their hashes.
FREE_OPTIONS = (*RecordConfig.WITHOUT_EFFECT, "frames", "compression")


# Gives the actions, int64 (B,), of uint8 stacks (B, 4, 84, 84).
Player = Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.int64]]


def stream_epsilons(config: RecordConfig) -> npt.NDArray[np.float64]:
    """Return each stream's epsilon (N,): epsilon^(1 - i / (N - 1)) epsilon_high^(i / (N - 1)) for stream i."""
    if config.epsilon_high is None:
        return np.full(config.num_envs, config.epsilon)
    share = np.linspace(0.0, 1.0, config.num_envs)
    return np.asarray(config.epsilon ** (1.0 - share) * config.epsilon_high**share, np.float64)


class StreamGroup:
    """Streams ``low`` .. ``high - 1``, one emulator each, and what the coming row needs to know of them.

    Args:
        spec: the environment.
        config: the recording's options.
        low: first stream.
        high: end of the streams.
        session: row that the session starts at; it gives the session seeds of its own.
        threads: emulator threads.
        player: who plays every second stream in the policy's place; None: nobody does.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        config: RecordConfig,
        low: int,
        high: int,
        session: int,
        threads: int,
        player: Player | None = None,
    ) -> None:
        self._spec = spec
        self._player, self._played = player, slice(low % 2, None, 2)
        self.streams = slice(low, high)
        self._size, self._epsilon = high - low, stream_epsilons(config)[low:high]
        self._envs = spec.make(config.environment, self._size, threads)
        self._rng = np.random.default_rng([config.seed, 11, session, low])
        seeds = np.random.default_rng([config.seed, 12, session]).integers(0, 2**31 - 1, config.num_envs)
        self._observations = self._envs.reset(seeds[low:high].astype(np.int64))
        self._start: npt.NDArray[np.bool_] = np.ones(self._size, np.bool_)
        self._over: npt.NDArray[np.bool_] = np.zeros(self._size, np.bool_)

    def act(
        self, policy: Policy, frames_NRP: npt.NDArray[np.uint8] | None, steps: Steps, row: int, step: int
    ) -> None:
        """Fill this group's part of a row, as far as it is known before the games step, and let them step.

        Args:
            policy: gives the actions and their scores.
            frames_NRP: uint8 (N, rows, 7056) of the block, where the newest frames go; None: they are a column.
            steps: the block's other columns.
            row: row in the block.
            step: row in the buffer, for error messages.

        Raises:
            UserError: the scores are not as many as the buffer's, or not finite.
        """
        decision = policy.act(self._observations)
        scores = decision.scores.reshape(self._size, -1)
        self._check_scores(scores, steps.q_values.shape[2], step)
        exploring = self._rng.random(self._size) < self._epsilon
        action = decision.action
        if self._player is not None and len(action[self._played]):
            action = action.copy()
            action[self._played] = self._player(self._observations[STACK.name][self._played])
        random_action = self._spec.actions.sample(self._rng, self._size)
        by_action = exploring.reshape(-1, *(1 for _ in self._spec.actions.shape))
        action = np.where(by_action, random_action, action)
        self._envs.send(action.astype(self._spec.actions.dtype))
        self._note_observations(frames_NRP, steps, row)
        part = self.streams
        steps.q_values[row, part] = scores
        steps.action[row, part] = action
        steps.start[row, part] = self._start
        steps.valid[row, part] = ~self._over

    def _note_observations(self, frames_NRP: npt.NDArray[np.uint8] | None, steps: Steps, row: int) -> None:
        """Keep what was observed, of a stack the newest frame: the older ones are the rows' before."""
        for field in self._spec.fields:
            values = self._observations[field.name]
            if field.stacked:
                # The stored frames give this stack back only if the environment zero-pads it.
                assert not values[self._start, :-1].any(), "an episode's first stack holds older frames"
                values = values[:, -1]
            if frames_NRP is None:
                steps.observations[field.name][row, self.streams] = values
            else:
                frames_NRP[self.streams, row] = values.reshape(self._size, PIXELS)

    def _check_scores(self, scores: npt.NDArray[Any], wanted: int, step: int) -> None:
        if scores.shape != (self._size, wanted):
            raise UserError(
                f"the teacher gives scores of shape {scores.shape} for {self._size} games of {wanted} actions",
                f"{(self._size, wanted)} is wanted: give a teacher of this game",
            )
        finite = np.isfinite(scores).all(axis=1)
        if not finite.all():
            env = int(np.flatnonzero(~finite)[0])
            raise UserError(
                f"the teacher's Q-values at step {step}, stream {self.streams.start + env} are "
                f"{scores[env].tolist()}, finite numbers wanted",
                "train the teacher again, or give another one",
            )

    def receive(self, steps: Steps, row: int) -> None:
        """Wait for the games and fill the rest of the row that :meth:`act` began."""
        self._observations, reward, terminated, truncated = self._envs.receive()
        alive = ~self._over
        steps.reward[row, self.streams] = np.where(alive, reward, 0.0)
        steps.terminated[row, self.streams] = terminated & alive
        steps.truncated[row, self.streams] = truncated & alive
        # The step after the end of a game ignores its action and returns the next game's first observation.
        self._start, self._over = self._over, (terminated | truncated) & alive

    def close(self) -> None:
        """Close the emulators."""
        self._envs.close()


class BackgroundWriter:
    """Packs and writes blocks in a thread, in order; an error comes out at the next call.

    After a block that failed none is written: rows that follow a gap would be read as if they followed what was before.

    Args:
        writer: the buffer.
        flush_rows: rows between two commits.
    """

    def __init__(self, writer: BufferWriter, flush_rows: int) -> None:
        self._writer, self._flush_rows = writer, flush_rows
        self._pool = ThreadPoolExecutor(1, "packing")
        self._waiting: deque[Future[None]] = deque()
        self._committed, self._broken = writer.rows, False

    def put(self, frames_NRP: npt.NDArray[np.uint8] | None, steps: Steps) -> None:
        """Hand over a block; wait while too many are on their way."""
        while len(self._waiting) >= BLOCKS_IN_FLIGHT:
            self._waiting.popleft().result()
        self._waiting.append(self._pool.submit(self._write, frames_NRP, steps))

    def _write(self, frames_NRP: npt.NDArray[np.uint8] | None, steps: Steps) -> None:
        if self._broken:
            return
        try:
            self._writer.write(frames_NRP, steps)
            if self._writer.rows - self._committed >= self._flush_rows:
                self._writer.commit()
                self._committed = self._writer.rows
        except BaseException:
            self._broken = True
            raise

    def finish(self) -> None:
        """Write what is on its way, commit, and end the thread; after a block that failed nothing is committed."""
        try:
            while self._waiting:
                self._waiting.popleft().result()
            if not self._broken:
                self._writer.commit()
        finally:
            self._pool.shutdown()


def record(
    policy: Policy,
    config: RecordConfig,
    path: Path,
    *,
    resume: bool = False,
    parents: Mapping[str, Path] | None = None,
    player: Player | None = None,
) -> StageResult:
    """Record ``policy``'s play into the buffer at ``path``.

    Args:
        policy: who plays.
        config: the options; ``config.teacher`` is not read.
        path: the buffer.
        resume: append to what is there up to ``config.frames``; every stream starts a new game.
        parents: files that the policy and the player come from, hashed into the provenance.
        player: who plays every second stream, the even ones; the Q-values are the policy's there too.

    Raises:
        UserError: the policy gives scores that are not one for each action or not finite, the disk is full, or
            the buffer at ``path`` was recorded otherwise. All that was flushed stays readable.
        PrefersNothingError: a teacher's Q-values in the first rows say nothing; the buffer is taken away again.
    """
    game = config.environment.game
    spec = environment(game)
    provenance = Provenance.of(config, config.seed, parents)
    target = -(-config.frames // config.num_envs)
    # What a signal raised while HDF5 calls back for its file would be lost: from here on it only asks to stop.
    with stop_on_signal() as stop:
        if resume and path.exists():
            writer = _reopen(path, config, provenance)
        else:
            writer = BufferWriter.create(path, _header(spec, policy, config, provenance), config.compression)
        first, began, rows = writer.rows, time.monotonic(), writer.rows
        judged = None
        if config.agent == "teacher" and isinstance(spec.actions, Discrete) and not first:
            judged = FirstRows(target, str((parents or {}).get("teacher", f"record {game}")))
        try:
            with writer:
                if first < target:
                    rows = _play(spec, policy, config, writer, target, player, judged, stop)
        except PrefersNothingError:
            path.unlink()
            raise
        seconds = time.monotonic() - began
    with BufferFile(path) as written:
        returns = game_returns(written.steps)
        valid = int(written.steps.valid.sum())
    summary = {
        "frames": rows * config.num_envs,
        "valid": valid,
        "episodes": len(returns),
        "mean_return": float(np.mean(returns)) if returns else None,
        "bytes": path.stat().st_size,
        "seconds": seconds,
        "frames_per_s": (rows - first) * config.num_envs / max(seconds, 1e-9),
    }
    return StageResult(path, summary, rows >= target)


def _header(spec: EnvironmentSpec, policy: Policy, config: RecordConfig, provenance: Provenance) -> Header:
    """Return what a new buffer begins with; how many scores a decision has is asked of the policy where it may vary."""
    shape = (config.num_envs, provenance)
    if isinstance(spec.actions, Discrete):
        return Header(spec.name, spec.actions.names, *shape, fields=spec.fields)
    with contextlib.closing(spec.make(config.environment, 1, 1)) as one:
        scores = policy.act(one.reset(np.array([config.seed], np.int64))).scores
    return Header(spec.name, (), *shape, fields=spec.fields, box=spec.actions, scores=int(scores[0].size))


def check_teacher(path: Path, teacher_game: str, teacher_actions: int, game: str) -> None:
    """Raise UserError unless the teacher in the file at ``path``, one of ``teacher_game``, plays ``game``."""
    if teacher_game != game:
        raise UserError(
            f"{path}: plays {teacher_game}, the environment is {game}",
            f"give --environment.game {teacher_game}, or a teacher of {game}",
        )
    if teacher_actions != (actions := len(action_meanings(game))):
        raise UserError(
            f"{path}: has {teacher_actions} actions, {game} has {actions}", f"give a teacher of {game}"
        )


def _reopen(path: Path, config: RecordConfig, provenance: Provenance) -> BufferWriter:
    with BufferFile(path) as recorded:
        recorded.check_frames()
    writer = BufferWriter.append(path, config.compression)
    try:
        saved, now = (
            filled(record.config, plain(RecordConfig())) | _hashes(record.parents)
            for record in (writer.header.provenance, provenance)
        )
        check_same_options(saved, now, path, FREE_OPTIONS)
    except BaseException:
        writer.close()
        raise
    return writer


def _hashes(parents: Mapping[str, str]) -> dict[str, Any]:
    """Return the hashes of the files that play, by the option that gives them."""
    roles = (numbered("teacher", index) for index in range(1, len(parents) + 1))
    further = [parents[role] for role in roles if role in parents]
    return {"teacher": parents.get("teacher"), "student": parents.get("student"), "ensemble": further}


def _play(
    spec: EnvironmentSpec,
    policy: Policy,
    config: RecordConfig,
    writer: BufferWriter,
    target: int,
    player: Player | None,
    judged: FirstRows | None,
    stop: StopRequest,
) -> int:
    """Record rows until there are ``target`` or the user stops it; return how many there are."""
    streams, first = config.num_envs, writer.rows
    bounds = [0, streams // 2, streams] if streams > 1 else [0, streams]
    threads = max(1, cores() // 2)
    groups = [
        StreamGroup(spec, config, low, high, first, threads, player)
        for low, high in itertools.pairwise(bounds)
    ]
    background = BackgroundWriter(writer, -(-config.flush_every // streams))
    row, room = first, writer.room()
    try:
        with Progress("record", target * streams, "frames", first * streams) as bar:
            while row < target and not stop:
                block = min(room, target - row)
                packed = writer.header.version == 1
                frames_NRP = np.empty((streams, block, PIXELS), np.uint8) if packed else None
                steps = Steps.empty(block, writer.header)
                done = 0
                while done < block and not stop:
                    for group in groups:
                        if done:
                            group.receive(steps, done - 1)
                        group.act(policy, frames_NRP, steps, done, row + done)
                    done += 1
                for group in groups:
                    if done:
                        group.receive(steps, done - 1)
                if done:
                    background.put(None if frames_NRP is None else frames_NRP[:, :done], steps.first(done))
                    if judged is not None:
                        judged.note(steps.first(done))
                row, room = row + done, CHUNK_ROWS
                bar.advance(done * streams)
    finally:
        try:
            background.finish()
        finally:
            for group in groups:
                group.close()
    return row


def run(
    config: RecordConfig, run_dir: Path, *, resume: bool = False, player: Player | None = None
) -> StageResult:
    """Record ``buffer.h5`` in ``run_dir``; ``player`` is ``config.student``, ready to play.

    Raises:
        UserError: see :func:`record`; the teacher cannot be read; a buffer from before without ``resume``.
    """
    import torch

    resume = goes_on("record", run_dir, BUFFER, resume=resume)
    policy, parents = _policy(config)
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, cores() // 2))
    try:
        if config.student is not None:
            parents["student"] = config.student
        return record(policy, config, run_dir / BUFFER, resume=resume, parents=parents, player=player)
    finally:
        torch.set_num_threads(threads)


def _policy(config: RecordConfig) -> tuple[Policy, dict[str, Path]]:
    """Return who plays, and the file it comes from by role."""
    from spikestill.teacher.policy import EnsemblePolicy, load_teacher

    spec, entry = environment(config.environment.game), agent(config.agent)
    files: dict[str, Path] = {}
    if entry.role == "teacher":
        files["teacher"] = config.teacher if config.teacher is not None else zoo_path(spec.name, TEACHER)
    elif entry.role is not None:
        raise UserError(
            f"agent {entry.name} plays a {entry.role.replace('_', ' ')}; a recording is of a teacher's play",
            "give --agent teacher, and --student for a student that plays beside it",
        )
    if entry.name == "teacher" and spec.family == ATARI:
        files |= {numbered("teacher", index + 1): path for index, path in enumerate(config.ensemble)}
        teachers = [load_teacher(path) for path in files.values()]
        for path, teacher in zip(files.values(), teachers, strict=True):
            check_teacher(path, teacher.game, teacher.actions, spec.name)
        return EnsemblePolicy(teachers) if config.ensemble else teachers[0], files
    if config.ensemble:
        raise UserError(
            f"ensemble is of Atari teachers, {entry.name} plays {spec.name}", "leave --ensemble out"
        )
    return entry.maker()(files, spec), files
