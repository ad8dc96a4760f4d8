"""The ``record`` stage: the teacher plays all streams, a thread of its own packs and writes what it saw.

The streams are played in two halves: while one half's emulators step, the teacher looks at the other.
A resumed recording starts a new game in every stream; the emulators' state is not kept.

Axis suffixes: N streams, P pixels, A actions.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spikestill.common.artefacts import BUFFER, TEACHER
from spikestill.common.atari import PIXELS
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
from spikestill.teacher.atari.environment import action_meanings, make_vector_env

# Blocks that may wait to be packed before the games wait for the disk.
BLOCKS_IN_FLIGHT = 2
# Options that may differ between a recording and its resumption. Teacher and student are compared by their hashes.
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
        config: the recording's options.
        low: first stream.
        high: end of the streams.
        session: row that the session starts at; it gives the session seeds of its own.
        threads: emulator threads.
        player: who plays every second stream in the policy's place; None: nobody does.
    """

    def __init__(
        self,
        config: RecordConfig,
        low: int,
        high: int,
        session: int,
        threads: int,
        player: Player | None = None,
    ) -> None:
        self._player, self._played = player, slice(low % 2, None, 2)
        self.streams = slice(low, high)
        self._size, self._epsilon = high - low, stream_epsilons(config)[low:high]
        self._envs = make_vector_env(config.environment, self._size, threads=threads)
        self._rng = np.random.default_rng([config.seed, 11, session, low])
        seeds = np.random.default_rng([config.seed, 12, session]).integers(0, 2**31 - 1, config.num_envs)
        self._observation, _ = self._envs.reset(seed=seeds[low:high].astype(np.int64))
        self._start = np.ones(self._size, np.bool_)
        self._over = np.zeros(self._size, np.bool_)

    def act(
        self, policy: Policy, frames_NRP: npt.NDArray[np.uint8], steps: Steps, row: int, step: int
    ) -> None:
        """Fill this group's part of a row, as far as it is known before the games step, and let them step.

        Args:
            policy: gives the Q-values.
            frames_NRP: uint8 (N, rows, 7056) of the block.
            steps: the block's other columns.
            row: row in the block.
            step: row in the buffer, for error messages.

        Raises:
            UserError: the scores are not one for each action, or not finite.
        """
        stacks, part = self._observation, self.streams
        # The stored frames give this stack back only if the environment zero-pads it.
        assert not stacks[self._start, :3].any(), "the first stack of a game holds older frames"
        q, actions = policy.act({"stack": stacks}).scores, steps.q_values.shape[2]
        if q.shape != (self._size, actions):
            raise UserError(
                f"the teacher gives scores of shape {q.shape} for {self._size} games of {actions} actions",
                f"{(self._size, actions)} is wanted: give a teacher of this game",
            )
        finite = np.isfinite(q).all(axis=1)
        if not finite.all():
            env = int(np.flatnonzero(~finite)[0])
            raise UserError(
                f"the teacher's Q-values at step {step}, stream {part.start + env} are {q[env].tolist()}, "
                "finite numbers wanted",
                "train the teacher again, or give another one",
            )
        explore = self._rng.random(self._size) < self._epsilon
        greedy = q.argmax(axis=1)
        if self._player is not None and len(greedy[self._played]):
            greedy[self._played] = self._player(stacks[self._played])
        action = np.where(explore, self._rng.integers(0, actions, self._size), greedy)
        self._envs.send(action.astype(np.int64))
        frames_NRP[part, row] = stacks[:, -1].reshape(self._size, PIXELS)
        steps.q_values[row, part] = q
        steps.action[row, part] = action
        steps.start[row, part] = self._start
        steps.valid[row, part] = ~self._over

    def receive(self, steps: Steps, row: int) -> None:
        """Wait for the games and fill the rest of the row that :meth:`act` began."""
        self._observation, reward, terminated, truncated, _ = self._envs.recv()
        alive = ~self._over
        steps.reward[row, self.streams] = np.where(alive, reward, 0.0)
        steps.terminated[row, self.streams] = terminated & alive
        steps.truncated[row, self.streams] = truncated & alive
        # The step after the end of a game ignores its action and returns the next game's first stack.
        self._start, self._over = self._over, (terminated | truncated) & alive

    def close(self) -> None:
        """Close the emulators."""
        self._envs.close()


class BackgroundWriter:
    """Packs and writes blocks in a thread, in order; an error comes out at the next call.

    Args:
        writer: the buffer.
        flush_rows: rows between two commits.
    """

    def __init__(self, writer: BufferWriter, flush_rows: int) -> None:
        self._writer, self._flush_rows = writer, flush_rows
        self._pool = ThreadPoolExecutor(1, "packing")
        self._waiting: deque[Future[None]] = deque()
        self._committed = writer.rows

    def put(self, frames_NRP: npt.NDArray[np.uint8], steps: Steps) -> None:
        """Hand over a block; wait while too many are on their way."""
        while len(self._waiting) >= BLOCKS_IN_FLIGHT:
            self._waiting.popleft().result()
        self._waiting.append(self._pool.submit(self._write, frames_NRP, steps))

    def _write(self, frames_NRP: npt.NDArray[np.uint8], steps: Steps) -> None:
        self._writer.write(frames_NRP, steps)
        if self._writer.rows - self._committed >= self._flush_rows:
            self._writer.commit()
            self._committed = self._writer.rows

    def finish(self) -> None:
        """Write what is on its way, commit, and end the thread."""
        try:
            while self._waiting:
                self._waiting.popleft().result()
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
    """
    game = config.environment.game
    names = tuple(action_meanings(game))
    provenance = Provenance.of(config, config.seed, parents)
    target = -(-config.frames // config.num_envs)
    # What a signal raised while HDF5 calls back for its file would be lost: from here on it only asks to stop.
    with stop_on_signal() as stop:
        if resume and path.exists():
            writer = _reopen(path, config, provenance)
        else:
            writer = BufferWriter.create(
                path, Header(game, names, config.num_envs, provenance), config.compression
            )
        with writer:
            first, began = writer.rows, time.monotonic()
            rows = _play(policy, config, writer, target, player, stop) if first < target else first
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


def check_teacher(teacher_game: str, teacher_actions: int, game: str) -> None:
    """Raise UserError unless a teacher of one game plays ``game``."""
    if teacher_game != game:
        raise UserError(
            f"the teacher plays {teacher_game}, the environment is {game}",
            f"give --environment.game {teacher_game}, or a teacher of {game}",
        )
    if teacher_actions != (actions := len(action_meanings(game))):
        raise UserError(
            f"the teacher has {teacher_actions} actions, {game} has {actions}", "give another one"
        )


def _reopen(path: Path, config: RecordConfig, provenance: Provenance) -> BufferWriter:
    writer = BufferWriter.append(path, config.compression)
    try:
        saved, now = (
            filled(record.config, plain(RecordConfig()))
            | {role: record.parents.get(role) for role in ("teacher", "student")}
            for record in (writer.header.provenance, provenance)
        )
        check_same_options(saved, now, path, FREE_OPTIONS)
    except BaseException:
        writer.close()
        raise
    return writer


def _play(
    policy: Policy,
    config: RecordConfig,
    writer: BufferWriter,
    target: int,
    player: Player | None,
    stop: StopRequest,
) -> int:
    """Record rows until there are ``target`` or the user stops it; return how many there are."""
    streams, first = config.num_envs, writer.rows
    bounds = [0, streams // 2, streams] if streams > 1 else [0, streams]
    threads = max(1, cores() // 2)
    groups = [
        StreamGroup(config, low, high, first, threads, player) for low, high in itertools.pairwise(bounds)
    ]
    background = BackgroundWriter(writer, -(-config.flush_every // streams))
    row, room = first, writer.room()
    try:
        with Progress("record", target * streams, "frames", first * streams) as bar:
            while row < target and not stop:
                block = min(room, target - row)
                frames_NRP = np.empty((streams, block, PIXELS), np.uint8)
                steps = Steps.empty(block, streams, writer.header.actions)
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
                    background.put(frames_NRP[:, :done], steps.first(done))
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

    from spikestill.teacher.policy import load_teacher

    resume = goes_on("record", run_dir, BUFFER, resume=resume)
    teacher = config.teacher if config.teacher is not None else zoo_path(config.environment.game, TEACHER)
    policy = load_teacher(teacher)
    check_teacher(policy.game, policy.actions, config.environment.game)
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, cores() // 2))
    try:
        parents = {"teacher": teacher} | ({"student": config.student} if config.student is not None else {})
        return record(policy, config, run_dir / BUFFER, resume=resume, parents=parents, player=player)
    finally:
        torch.set_num_threads(threads)
