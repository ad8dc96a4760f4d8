"""Small players with the interface of a teacher, for recordings that take a second."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from spikestill.common.policy import Decision, Observations
from spikestill.configs.environment import EnvironmentConfig
from spikestill.configs.record import RecordConfig
from spikestill.dataset.recorder import record
from spikestill.teacher.atari.environment import action_meanings


class LinearPlayer:
    """Q-values linear in some pixels of the stack."""

    def __init__(self, game: str = "breakout", seed: int = 0) -> None:
        pixels = 4 * 14 * 14
        weight = np.random.default_rng(seed).standard_normal((pixels, len(action_meanings(game))))
        self._weight = (weight / pixels).astype(np.float32)

    def q_values(self, obs_BCHW: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        return obs_BCHW[:, :, ::6, ::6].reshape(len(obs_BCHW), -1).astype(np.float32) @ self._weight

    def act(self, observations: Observations) -> Decision:
        return Decision.best(self.q_values(observations["stack"]))


class WatchedPlayer(LinearPlayer):
    """Keeps every observation that it is shown."""

    def __init__(self, game: str = "breakout") -> None:
        super().__init__(game)
        self.seen: list[npt.NDArray[np.uint8]] = []

    def q_values(self, obs_BCHW: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        self.seen.append(obs_BCHW.copy())
        return super().q_values(obs_BCHW)


class DivergingPlayer(LinearPlayer):
    """Gives a Q-value that is not finite from its n-th look on."""

    def __init__(self, looks: int, value: float) -> None:
        super().__init__()
        self.looks, self.value = looks, value

    def q_values(self, obs_BCHW: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        q = super().q_values(obs_BCHW)
        self.looks -= 1
        if self.looks < 0:
            q[-1, 1] = self.value
        return q


class FixedPlayer(LinearPlayer):
    """Gives the same Q-values whatever it sees."""

    def __init__(self, q_A: npt.ArrayLike) -> None:
        super().__init__()
        self.q_A, self.looks = np.asarray(q_A, np.float32), 0

    def q_values(self, obs_BCHW: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        self.looks += 1
        return np.tile(self.q_A, (len(obs_BCHW), 1))


def small_config(frames: int, **options: object) -> RecordConfig:
    """Return options for a short recording of Breakout, whose games are short when played at random."""
    given = {"epsilon": 0.5, "num_envs": 4, "flush_every": 64, **options}
    return RecordConfig(environment=EnvironmentConfig(game="breakout"), frames=frames, **given)


def main(path: str, frames: str, resume: str) -> None:
    """Record with :class:`LinearPlayer`; run in a process of its own by the tests that kill it."""
    result = record(LinearPlayer(), small_config(int(frames)), Path(path), resume=resume == "resume")
    print(result.finished, result.summary["frames"])


if __name__ == "__main__":
    import sys

    main(*sys.argv[1:])
