"""A teacher that plays into a ring in memory while a student learns from it (McKinstry 2018, 3).

The ring's frames are not saved: a checkpoint holds the actions and the Q-values, and a resumption plays the games
again from the last restart of all games before the ring begins. The same seeds and actions lead to the same frames.

Axis suffixes: L rows of the ring (vector steps), N games, P pixels, A actions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spikestill.common.atari import FRAMES, PIXELS, SIDE
from spikestill.common.errors import UserError
from spikestill.common.legal import LegalActions
from spikestill.common.progress import Progress
from spikestill.configs.environment import EnvironmentConfig
from spikestill.dataset.preferences import check_prefers
from spikestill.student.sources import VALIDATION_FRAMES, Drawn
from spikestill.teacher.atari.environment import VectorGames

SEGMENT_ROWS = 30_000
"""Rows after which all games restart with new seeds, which bounds what a resumption plays again; more than the longest
game has (27,000 at a frame skip of 4)."""
QFunction = Callable[[npt.NDArray[np.uint8]], npt.NDArray[Any]]


class TeacherStream:
    """Games that a teacher plays, and the ring of what it saw last.

    Args:
        q_values: gives Q-values (B, A) of stacks (B, 4, 84, 84), the same bits whatever stands beside a stack.
        game: in snake case.
        actions: A.
        ring: frames that the ring holds, rounded down to whole rows.
        start: frames played before the first batch.
        period: frames played for every batch.
        envs: N.
        epsilon: probability of a random action.
        seed: of games and exploration.
    """

    held_out = 0
    legal: tuple[LegalActions, ...] = ()

    def __init__(
        self,
        q_values: QFunction,
        game: str,
        actions: int,
        *,
        ring: int,
        start: int,
        period: int,
        envs: int,
        epsilon: float,
        seed: int,
    ) -> None:
        self.game, self.actions = game, actions
        self._q_values, self._epsilon, self._seed, self._size = q_values, epsilon, seed, envs
        self._begin, self._period = -(-start // envs), period
        self._rng = np.random.default_rng([seed, 21])
        self._envs = VectorGames(EnvironmentConfig(game=game), envs)
        rows = self._length = ring // envs
        self._frames = np.zeros((rows, envs, PIXELS), np.uint8)
        self._q = np.zeros((rows, envs, actions), np.float32)
        self._start = np.zeros((rows, envs), np.bool_)
        self._valid = np.zeros((rows, envs), np.bool_)
        self._log: dict[int, list[npt.NDArray[np.uint8]]] = {}
        self.rows, self._batches = 0, 0

    def advance(self) -> None:
        """Play until the next batch may be drawn: ``start`` frames, and ``period`` more for every batch."""
        self._batches += 1
        wanted = self._begin + (self._batches - 1) * self._period // self._size
        if self._batches > 1:
            while self.rows < wanted:
                self._play()
            return
        with Progress(f"playing {self.game}", wanted * self._size, "frames", self.rows * self._size) as bar:
            while self.rows < wanted:
                self._play()
                bar.advance(self._size)
        seen = self._q[: min(self.rows, self._length)].reshape(-1, self.actions)
        check_prefers(seen, f"the stream of {self.game}", "give another --teacher")

    def _restart(self, segment: int) -> None:
        seeds = np.random.default_rng([self._seed, 22, segment]).integers(0, 2**31 - 1, self._size)
        self._observation, _ = self._envs.reset(seeds.astype(np.int64))
        self._begins, self._over = np.ones(self._size, np.bool_), np.zeros(self._size, np.bool_)

    def _play(self) -> None:
        """Play one row: look, choose, step."""
        if self.rows % SEGMENT_ROWS == 0:
            self._restart(self.rows // SEGMENT_ROWS)
        q = self._q_values(self._observation)
        if not np.isfinite(q).all():
            env, action = np.argwhere(~np.isfinite(q))[0].tolist()
            raise UserError(
                f"the teacher of {self.game}: in row {self.rows} of the stream its Q-value of action {action} in game "
                f"{env} of {self._size} is {q[env, action]}",
                "give another --teacher",
            )
        explore = self._rng.random(self._size) < self._epsilon
        chosen = self._rng.integers(0, self.actions, self._size)
        self._step(np.where(explore, chosen, q.argmax(axis=1)).astype(np.uint8), q)

    def _step(self, action: npt.NDArray[np.uint8], q: npt.NDArray[Any] | None) -> None:
        """Store a row and step the games; ``q`` None: the ring has the row's Q-values already."""
        slot, segment = self.rows % self._length, self.rows // SEGMENT_ROWS
        self._frames[slot] = self._observation[:, -1].reshape(self._size, PIXELS)
        if q is not None:
            self._q[slot] = q
        self._start[slot], self._valid[slot] = self._begins, ~self._over
        self._log.setdefault(segment, []).append(action)
        self._observation, _, terminated, truncated, _ = self._envs.step(action.astype(np.int64))
        self._begins, self._over = self._over, (terminated | truncated) & ~self._over
        self.rows += 1
        for old in [each for each in self._log if (each + 1) * SEGMENT_ROWS <= self.rows - self._length]:
            del self._log[old]

    def _oldest(self) -> int:
        """Return the first row all of whose stack is in the ring."""
        return max(0, self.rows - self._length + FRAMES - 1)

    def draw(self, rng: np.random.Generator, size: int) -> Drawn:
        """Return ``size`` valid steps of the ring, drawn uniformly with replacement."""
        found: list[npt.NDArray[np.int64]] = []
        while sum(map(len, found)) < size:
            drawn = rng.integers(self._oldest() * self._size, self.rows * self._size, size)
            row, game = np.divmod(drawn, self._size)
            found.append(drawn[self._valid[row % self._length, game]])
        return self._at(np.concatenate(found)[:size])

    def validation(self) -> Drawn:
        """Return steps that lie evenly in the ring: they are of the training's own."""
        first, end = self._oldest() * self._size, self.rows * self._size
        chosen = np.unique(np.linspace(first, end - 1, VALIDATION_FRAMES).astype(np.int64))
        row, game = np.divmod(chosen, self._size)
        return self._at(chosen[self._valid[row % self._length, game]])

    def origin(self, q_value: float) -> str:
        """Return whose play it is: all Q-values are one teacher's."""
        return f"the teacher of {self.game}"

    def _at(self, steps: npt.NDArray[np.int64]) -> Drawn:
        row, game = np.divmod(steps, self._size)
        stacks = np.zeros((len(steps), FRAMES, PIXELS), np.uint8)
        for b, (r, n) in enumerate(zip(row.tolist(), game.tolist(), strict=True)):
            for back in range(FRAMES):
                slot = (r - back) % self._length
                stacks[b, FRAMES - 1 - back] = self._frames[slot, n]
                if self._start[slot, n]:
                    break
        q_values = self._q[row % self._length, game]
        return Drawn(stacks.reshape(-1, FRAMES, SIDE, SIDE), q_values, np.zeros(len(steps), np.int64))

    def state(self) -> Mapping[str, Tensor]:
        """Return the log of actions since the restart before the ring's first row, and the ring's Q-values."""
        used = min(self.rows, self._length)
        rng = json.dumps(self._rng.bit_generator.state).encode()
        actions = [action for segment in sorted(self._log) for action in self._log[segment]]
        return {
            "actions": torch.from_numpy(np.array(actions, np.uint8).reshape(len(actions), self._size)),
            "q_values": torch.from_numpy(self._q[:used].copy()),
            "counters": torch.tensor([self.rows, self._batches], dtype=torch.int64),
            "rng": torch.from_numpy(np.frombuffer(rng, np.uint8).copy()),
        }

    def set_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state` returned: play the logged actions again."""
        arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
        rows, self._batches = arrays["counters"].tolist()
        self._q[: len(arrays["q_values"])] = arrays["q_values"]
        self._log, self.rows = {}, rows - len(arrays["actions"])
        if self.rows % SEGMENT_ROWS or (rows and not len(arrays["actions"])):
            raise ValueError(f"the log of actions begins in row {self.rows}, no restart of the games")
        with Progress(f"playing {self.game} again", len(arrays["actions"]) * self._size, "frames") as bar:
            for action in arrays["actions"]:
                if self.rows % SEGMENT_ROWS == 0:
                    self._restart(self.rows // SEGMENT_ROWS)
                self._step(action, None)
                bar.advance(self._size)
        self._rng.bit_generator.state = json.loads(arrays["rng"].tobytes())

    def close(self) -> None:
        """Release the emulators."""
        self._envs.close()
