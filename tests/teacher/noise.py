"""A replay of noise, for tests of what learns from it."""

from __future__ import annotations

import numpy as np

from spikestill.teacher.atari.replay import Replay

ACTIONS = 6


def noise_replay(
    rng: np.random.Generator, *, n_step: int, discount: float, alpha: float = 0.0, ends: float = 0.0
) -> Replay:
    """Return 100 steps of 4 environments: random pixels, actions, rewards -1..1; returns end with chance ``ends``."""
    replay = Replay(400, 4, n_step=n_step, discount=discount, alpha=alpha)
    for _ in range(100):
        replay.append(
            rng.integers(0, 256, (4, 84 * 84), np.uint8), rng.integers(0, ACTIONS, 4),
            rng.integers(-1, 2, 4).astype(np.float32), rng.random(4) < ends, np.ones(4, bool), np.zeros(4, bool),
        )  # fmt: skip
    return replay
