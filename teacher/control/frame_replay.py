"""Uniform replay of pictures: each frame once, as bytes; a stack of three is put together when it is drawn.

Slot (t, n) of the ring holds, for environment n at step t, the newest frame of the observation, how many frames of its
episode that observation has, and the action, the reward and the end that followed. Where the action was ignored (the
observation that ends an episode) the slot is never drawn.

Axis suffixes: T slots, N environments, B batch, C frames of a stack, D action numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.common.training import check_arrays
from spikestill.configs.control import PIXELS
from spikestill.teacher.control.actor_critic import Batch

FRAMES = PIXELS[0]
RINGS = ("frame", "age", "action", "reward", "going_on", "kept")
LEAST_KEPT = 0.25
"""Share of the slots that may be drawn; an episode has at least one step, and one that is ignored."""
FIRST, SHORTEST = 4, 8
"""Slots that one stack and the next reach over, and the fewest that a ring has."""


class FrameReplay:
    """The last transitions of N environments.

    Args:
        capacity: frames in all, rounded down to a multiple of N; no less than 8 a stream.
        num_envs: N.
        action: size D.
    """

    def __init__(self, capacity: int, num_envs: int, action: int) -> None:
        self.length, self.written = max(capacity // num_envs, SHORTEST), 0
        shape = (self.length, num_envs)
        # Zeros take no memory before they are written.
        self._rings: dict[str, npt.NDArray[Any]] = {
            "frame": np.zeros((*shape, *PIXELS[1:]), np.uint8),
            "age": np.ones(shape, np.uint8),
            "action": np.zeros((*shape, action), np.float32),
            "reward": np.zeros(shape, np.float32),
            "going_on": np.zeros(shape, np.float32),
            "kept": np.zeros(shape, np.bool_),
        }

    @property
    def size(self) -> int:
        """Slots that may be drawn, kept or not."""
        return (self.written - self._first()) * self._rings["kept"].shape[1]

    def add(
        self,
        obs_NC: npt.NDArray[np.uint8],
        action_ND: npt.NDArray[Any],
        reward_N: npt.NDArray[Any],
        going_on_N: npt.NDArray[Any],
        next_obs_NC: npt.NDArray[np.uint8],
        kept_N: npt.NDArray[np.bool_],
    ) -> None:
        """Add a step of every environment; ``kept_N`` marks those whose action was not ignored."""
        rings, now, following = self._rings, self.written % self.length, (self.written + 1) % self.length
        if self.written == 0:
            rings["frame"][now] = obs_NC[:, -1]
        parts = (action_ND, reward_N, going_on_N, kept_N)
        for name, part in zip(RINGS[2:], parts, strict=True):
            rings[name][now] = part
        rings["frame"][following] = next_obs_NC[:, -1]
        # What follows an ignored action is the first observation of an episode.
        rings["age"][following] = np.where(kept_N, np.minimum(rings["age"][now] + 1, FRAMES), 1)
        rings["kept"][following] = False
        self.written += 1

    def sample(self, rng: np.random.Generator, size: int) -> Batch:
        """Return ``size`` transitions, observations uint8 (B, frame, colour, row, column).

        Raises:
            ValueError: there are none.
        """
        kept_TN, first = self._rings["kept"], self._first()
        if not self.written:
            raise ValueError("the replay is empty")
        time_B: npt.NDArray[np.int64] = np.empty(0, np.int64)
        env_B: npt.NDArray[np.int64] = np.empty(0, np.int64)
        while len(time_B) < size:
            time, env = rng.integers(first, self.written, size), rng.integers(0, kept_TN.shape[1], size)
            kept = kept_TN[time % self.length, env]
            if not kept.any():
                self._check_drawable()
            time_B, env_B = np.concatenate([time_B, time[kept]]), np.concatenate([env_B, env[kept]])
        time_B, env_B = time_B[:size], env_B[:size]
        action, reward, going_on = (self._rings[name][time_B % self.length, env_B] for name in RINGS[2:5])
        return Batch(self._stacks(time_B, env_B), action, reward, going_on, self._stacks(time_B + 1, env_B))

    def _first(self) -> int:
        """Return the first step that may be drawn."""
        return max(0, self.written + FIRST - self.length)

    def _check_drawable(self) -> None:
        """Raise ValueError where so few may be drawn that to draw would take long: no environment ends so often."""
        slots = np.arange(self._first(), self.written) % self.length
        share = float(self._rings["kept"][slots].mean())
        if share < LEAST_KEPT:
            raise ValueError(f"{share:.0%} of the replay's transitions may be drawn, {LEAST_KEPT:.0%} wanted")

    def _stacks(self, time_B: npt.NDArray[np.int64], env_B: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """Return the stacks whose newest frame is there; before an episode's start frames are zero."""
        back = np.arange(FRAMES - 1, -1, -1)
        slots_BC = (time_B[:, None] - back) % self.length
        found: npt.NDArray[np.uint8] = self._rings["frame"][slots_BC, env_B[:, None]]
        found[self._rings["age"][time_B % self.length, env_B][:, None] <= back] = 0
        return found

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return what is in the replay, its rings cut to what they hold."""
        used = min(self.written + 1, self.length)
        found = {name: ring[:used] for name, ring in self._rings.items()}
        return found | {"place": np.array([self.written, self.length], np.int64)}

    def set_state(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore what :meth:`state` returned.

        Raises:
            ValueError, KeyError: an array is missing, of another shape or not finite, or nothing is in it.
        """
        written, length = (int(value) for value in arrays["place"])
        if length != self.length or written < 1:
            raise ValueError(f"a replay of {written} steps in {length} slots, {self.length} slots wanted")
        used = min(written + 1, length)
        check_arrays(arrays, {name: ring[:used] for name, ring in self._rings.items()})
        if arrays["age"].min() < 1 or arrays["age"].max() > FRAMES:
            raise ValueError(
                f"a stack of {arrays['age'].min()} to {arrays['age'].max()} frames, 1..{FRAMES} wanted"
            )
        for name, ring in self._rings.items():
            ring[:used] = arrays[name]
        self.written = written
        self._check_drawable()
