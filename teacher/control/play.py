"""Playing a control task: joined observations, actions within their bounds, and games with the mean action.

Axis suffixes: N environments, S observation, D action numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.common.environment import Box, Observations, VectorEnvironment
from spikestill.configs.control import PIXELS

Mean = Callable[[npt.NDArray[Any]], npt.NDArray[np.float32]]
"""Joined observations (N, S) to actions (N, D) in -1..1."""


def joined(observations: Observations) -> npt.NDArray[Any]:
    """Return all fields side by side, float32 (N, S), in their order; a single field of pictures as it is, uint8."""
    if len(observations) == 1:
        (only,) = observations.values()
        if only.shape[1:] == PIXELS and only.dtype == np.uint8:
            return only
    parts = [values.reshape(len(values), -1) for values in observations.values()]
    return np.concatenate(parts, axis=1).astype(np.float32)


def within(actions: Box, unit_ND: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return actions in -1..1 stretched to the bounds."""
    low, high = (np.asarray(bound, np.float32) for bound in (actions.low, actions.high))
    return np.clip(low + 0.5 * (unit_ND.astype(np.float32) + 1.0) * (high - low), low, high)


def play_games(
    mean: Mean, envs: VectorEnvironment, actions: Box, seeds_N: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Play one game in each environment; return (returns (N,), decisions (N,)).

    Args:
        mean: decides; each row must depend on itself alone.
        envs: N environments.
        actions: their bounds.
        seeds_N: of the starts.
    """
    observations = envs.reset(seeds_N)
    going_on_N = np.ones(len(seeds_N), np.bool_)
    returns_N, decisions_N = np.zeros(len(seeds_N)), np.zeros(len(seeds_N), np.int64)
    while going_on_N.any():
        envs.send(within(actions, mean(joined(observations))))
        observations, reward_N, terminated_N, truncated_N = envs.receive()
        returns_N += np.where(going_on_N, reward_N, 0.0)
        decisions_N += going_on_N
        going_on_N &= ~(terminated_N | truncated_N)
    return returns_N, decisions_N
