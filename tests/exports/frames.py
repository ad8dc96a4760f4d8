"""Frames for the exports, with the votes of the naive reference."""

from __future__ import annotations

import numpy as np

from spikestill.deploy.exports.replay import Replay
from spikestill.student.integer_net import IntegerNet, count_votes, naive_forward
from tests.nets import SMALL_SHAPE, random_stack


def stacks_of(count: int, shape: tuple[int, int, int] = SMALL_SHAPE) -> np.ndarray:
    """Return random stacks."""
    return np.stack([random_stack(seed, shape) for seed in range(count)])


def replay_for(net: IntegerNet, stacks: np.ndarray) -> Replay:
    """Return the stacks with their votes."""
    votes = np.stack([count_votes(naive_forward(net, stack)[-1], net.actions) for stack in stacks])
    return Replay(stacks, votes, "random", np.arange(len(stacks)))
