"""The acting half of Q-learning: epsilon-greedy play of all environments, and the log that replays it.

The emulators' state cannot be saved, so the actor keeps the actions of the current segment (since the
last restart of all games): the same seed and the same actions lead back to the same state.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from spikestill.common.atari import PIXELS
from spikestill.common.precision.operations import NATIVE, Operations
from spikestill.common.progress import Progress
from spikestill.common.training import check_arrays
from spikestill.configs.teach import TeachConfig
from spikestill.teacher.atari import q_network
from spikestill.teacher.atari.environment import VectorGames
from spikestill.teacher.atari.q_network import Weights


@dataclasses.dataclass(frozen=True)
class Transition:
    """One step of every environment, as :meth:`Replay.append` takes it, and the games it ended.

    Attributes:
        frame: uint8 (E, 7056), newest frame of the observation that was acted on.
        action, reward, done, valid, start: (E,), see ``teacher/atari/replay.py``.
        returns: raw scores of the games that ended with this step.
    """

    frame: npt.NDArray[np.uint8]
    action: npt.NDArray[np.int64]
    reward: npt.NDArray[np.float32]
    done: npt.NDArray[np.bool_]
    valid: npt.NDArray[np.bool_]
    start: npt.NDArray[np.bool_]
    returns: tuple[float, ...]


class Actor:
    """Owns the vector environment; :meth:`act` takes one vector step.

    Args:
        config: the training's options.
        threads: emulator threads.
    """

    def __init__(self, config: TeachConfig, threads: int = 1) -> None:
        self.config = config
        self.envs = VectorGames(
            config.environment, config.num_envs, threads=threads, life_loss=config.life_loss_terminal
        )
        self.actions = self.envs.actions
        self.rng = np.random.default_rng([config.seed, 1])
        self.segment = -1
        self.restart()

    def restart(self) -> None:
        """Begin a new segment: restart all games with the segment's own seed."""
        self.segment += 1
        seeds = np.random.default_rng([self.config.seed, 2, self.segment]).integers(
            0, 2**31 - 1, self.config.num_envs
        )
        self.observation, _ = self.envs.reset(seeds.astype(np.int64))
        self.log: list[npt.NDArray[np.int64]] = []
        self.ended = np.zeros(self.config.num_envs, np.bool_)
        self.start = np.ones(self.config.num_envs, np.bool_)
        self.score = np.zeros(self.config.num_envs, np.float64)

    def boundary(self) -> Transition:
        """Return the step that closes a segment: the last observation, on which nothing was done."""
        size = self.config.num_envs
        none = np.zeros(size, np.bool_)
        return Transition(
            self._newest(), np.zeros(size, np.int64), np.zeros(size, np.float32), none, none, self.start, ()
        )

    def act(
        self, weights: Weights, pixel_offset: float, epsilon: float, operations: Operations = NATIVE
    ) -> Transition:
        """Choose epsilon-greedily with ``weights``, step all games, return what happened."""
        size = self.config.num_envs
        explore = self.rng.random(size) < epsilon
        action = self.rng.integers(0, self.actions, size)
        if not explore.all():
            device = weights["conv1.weight"].device
            with torch.no_grad():
                stacks = torch.from_numpy(self.observation).to(device)
                stacks = stacks.contiguous(memory_format=torch.channels_last)
                q = q_network.q_values(weights, stacks, pixel_offset, operations)
                greedy = q.argmax(dim=1).cpu().numpy()
            action = np.where(explore, action, greedy)
        return self._step(action)

    def _newest(self) -> npt.NDArray[np.uint8]:
        return self.observation[:, -1].reshape(self.config.num_envs, PIXELS).copy()

    def _step(self, action: npt.NDArray[np.int64]) -> Transition:
        frame, start, valid = self._newest(), self.start, ~self.ended
        self.observation, reward, terminated, truncated, info = self.envs.step(action)
        self.log.append(action.astype(np.int64))
        lives = np.asarray(info["lives"])
        life_lost = terminated & (lives > 0) & self.config.life_loss_terminal
        game_over = (terminated & ~life_lost) | truncated
        self.score += reward
        returns = tuple(float(score) for score in self.score[game_over & valid])
        self.score[game_over] = 0.0
        self.start, self.ended = self.ended.copy(), game_over & valid
        return Transition(
            frame,
            action,
            np.clip(reward, -1, 1).astype(np.float32),
            (terminated & valid),
            valid,
            start,
            returns,
        )

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the segment, its actions (T, E) and the generator's state, for a checkpoint."""
        log = np.array(self.log, np.uint8).reshape(len(self.log), self.config.num_envs)
        inner = self.rng.bit_generator.state["state"]
        words = [
            value >> shift & (2**64 - 1) for value in (inner["state"], inner["inc"]) for shift in (0, 64)
        ]
        return {
            "log": log,
            "segment": np.array([self.segment], np.int64),
            "rng": np.array(words, np.uint64),
            "rng_half": np.array(
                [self.rng.bit_generator.state["has_uint32"], self.rng.bit_generator.state["uinteger"]],
                np.int64,
            ),
        }

    def set_state(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Replay the segment's actions, which leads the games to the state they were saved in.

        Raises:
            ValueError, LookupError: the actions are not those of a segment.
        """
        like = self.state()
        check_arrays(arrays, {name: like[name] for name in ("segment", "rng", "rng_half")})
        log, most = arrays["log"], self.config.segment_steps
        if log.dtype != np.uint8 or log.shape != (len(log), self.config.num_envs) or len(log) > most:
            raise ValueError(
                f"log is {log.dtype} {log.shape}, at most {most} steps of {self.config.num_envs} games wanted"
            )
        if log.size and log.max() >= self.actions:
            raise ValueError(f"log holds action {log.max()}, the game has {self.actions}")
        self.segment = int(arrays["segment"][0]) - 1
        self.restart()
        log = arrays["log"].astype(np.int64)
        with Progress("replaying the games", len(log) * self.config.num_envs, "steps") as bar:
            for action in log:
                self._step(action)
                bar.advance(self.config.num_envs)
        low_state, high_state, low_inc, high_inc = (int(word) for word in arrays["rng"])
        self.rng.bit_generator.state = {
            "bit_generator": "PCG64",
            "state": {"state": low_state | high_state << 64, "inc": low_inc | high_inc << 64},
            "has_uint32": int(arrays["rng_half"][0]),
            "uinteger": int(arrays["rng_half"][1]),
        }

    def close(self) -> None:
        """Close the emulators."""
        self.envs.close()
