"""Uniform replay in host memory: a ring of transitions, drawn with replacement.

Axis suffixes: K capacity, N environments, B batch, S observation, D action numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.common.training import check_arrays
from spikestill.teacher.control.actor_critic import Batch

RINGS = ("obs", "action", "reward", "going_on", "next_obs")


class Replay:
    """The last K transitions.

    Args:
        capacity: K.
        observation, action: sizes S, D.
    """

    def __init__(self, capacity: int, observation: int, action: int) -> None:
        self.capacity, self.size, self._next = capacity, 0, 0
        shapes = {
            "obs": (observation,),
            "action": (action,),
            "reward": (),
            "going_on": (),
            "next_obs": (observation,),
        }
        # Zeros take no memory before they are written.
        self._rings = {name: np.zeros((capacity, *shape), np.float32) for name, shape in shapes.items()}

    def add(
        self,
        obs_NS: npt.NDArray[Any],
        action_ND: npt.NDArray[Any],
        reward_N: npt.NDArray[Any],
        going_on_N: npt.NDArray[Any],
        next_obs_NS: npt.NDArray[Any],
        kept_N: npt.NDArray[np.bool_],
    ) -> None:
        """Add a transition of every environment that ``kept_N`` marks: those whose action was not ignored."""
        parts = (obs_NS, action_ND, reward_N, going_on_N, next_obs_NS)
        for index in np.flatnonzero(kept_N):
            for name, part in zip(RINGS, parts, strict=True):
                self._rings[name][self._next] = part[index]
            self._next = (self._next + 1) % self.capacity
            self.size = min(self.size + 1, self.capacity)

    def sample(self, rng: np.random.Generator, size: int) -> Batch:
        """Return ``size`` transitions.

        Raises:
            ValueError: there are none.
        """
        if not self.size:
            raise ValueError("the replay is empty")
        chosen_B = rng.integers(0, self.size, size)
        return Batch(*(self._rings[name][chosen_B] for name in RINGS))

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return what is in the replay, its rings cut to what they hold."""
        found = {name: ring[: self.size] for name, ring in self._rings.items()}
        return found | {"place": np.array([self.size, self._next, self.capacity], np.int64)}

    def set_state(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore what :meth:`state` returned.

        Raises:
            ValueError, KeyError: an array is missing, of another shape or not finite, or nothing is in it.
        """
        size, place, capacity = (int(value) for value in arrays["place"])
        if capacity != self.capacity:
            raise ValueError(f"a replay of {capacity} transitions, {self.capacity} wanted")
        if not 0 <= place < capacity or not 0 < size <= capacity:
            raise ValueError(f"a replay of {size} transitions of {capacity}, the next at {place}")
        check_arrays(arrays, {name: ring[:size] for name, ring in self._rings.items()})
        for name, ring in self._rings.items():
            ring[:size] = arrays[name]
        self.size, self._next = size, place
