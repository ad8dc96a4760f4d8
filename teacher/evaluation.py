"""Evaluation: full games, raw scores, epsilon 0.05, no-op starts; the same number for any number of envs.

Every episode has random numbers of its own (its index and the seed), and every environment plays
one episode after a seeded reset, so that how episodes are spread over environments does not matter.
Source: van Hasselt 2016, Mnih 2015 (protocol).
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.common.environment import Observations, environment
from spikestill.common.processor import cores
from spikestill.common.progress import Progress
from spikestill.configs.environment import EnvironmentConfig

SHOWN_STEPS = 50
"""Steps between two looks at the games under way: full games take minutes, and all end late."""
Choose = Callable[[Observations], npt.NDArray[Any]]
"""Maps observations, each field (B, *shape), to actions (B,) or (B, D). A row's action depends on that row alone."""


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Scores of N episodes.

    Attributes:
        mean: mean of the returns.
        ci95: 95 % bootstrap interval of the mean.
        returns: raw score of each episode, by index.
        frames: simulated frames, in Atari ``frame_skip`` for each decision; no-ops are not counted.
    """

    mean: float
    ci95: tuple[float, float]
    returns: list[float]
    frames: int


def bootstrap_ci(returns: list[float], seed: int = 0, resamples: int = 10_000) -> tuple[float, float]:
    """Return the percentile 95 % bootstrap interval of the mean (Efron 1979)."""
    values = np.asarray(returns, np.float64)
    rng = np.random.default_rng(seed)
    # One resample at a time: all of them are 160 kB a game.
    means = [values[rng.integers(0, len(values), len(values))].mean() for _ in range(resamples)]
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def evaluate(
    choose: Choose,
    options: EnvironmentConfig,
    *,
    episodes: int = 100,
    epsilon: float = 0.05,
    seed: int = 0,
    num_envs: int = 32,
    label: str = "",
) -> Evaluation:
    """Play ``episodes`` full games with the actions of ``choose``, epsilon-greedily.

    Args:
        choose: who plays.
        options: the environment and how it is played.
        episodes: N, >= 1.
        epsilon: probability of a uniformly random action.
        seed: seed of games and exploration.
        num_envs: games played at a time, at most; as many rounds as that takes are made of equal size, for an
            emulator whose games are over plays on unseen until the last game ends.
        label: what the progress bar says; '': that the game is evaluated.
    """
    rounds = -(-episodes // num_envs)
    num_envs, spec = -(-episodes // rounds), environment(options.game)
    frames_per_decision = spec.frames_per_decision(options)
    with (
        contextlib.closing(spec.make(options, num_envs, 0)) as envs,
        Progress(label or f"evaluating {spec.name}", episodes, "games") as bar,
    ):
        returns = np.zeros(episodes)
        finished: list[int] = []
        frames = steps = 0
        episode = np.arange(num_envs)
        following = num_envs
        rngs = [np.random.default_rng([seed, 3, index]) for index in range(num_envs)]
        observations = envs.reset(_seeds(seed, episode))
        active = np.ones(num_envs, np.bool_)
        while active.any():
            action = np.zeros((num_envs, *spec.actions.shape), spec.actions.dtype)
            action[active] = choose({name: values[active] for name, values in observations.items()})
            for env in np.flatnonzero(active):
                explore, random_action = rngs[env].random(), spec.actions.sample(rngs[env], 1)[0]
                if explore < epsilon:
                    action[env] = random_action
            envs.send(action)
            observations, reward, terminated, truncated = envs.receive()
            frames += int(active.sum()) * frames_per_decision
            returns[episode[active]] += reward[active]
            ended = active & (terminated | truncated)
            if not ended.any():
                steps += 1
                if steps % SHOWN_STEPS == 0:
                    bar.advance(0, points=float(returns[episode[active]].mean()), steps=steps)
                continue
            for env in np.flatnonzero(ended):
                finished.append(int(episode[env]))
                bar.advance(1, mean=float(returns[finished].mean()))
                if following < episodes:
                    episode[env], following = following, following + 1
                    rngs[env] = np.random.default_rng([seed, 3, int(episode[env])])
                else:
                    active[env] = False
            again = ended & active
            if again.any():
                observations = envs.reset(_seeds(seed, episode[again]), again)
    scores = [float(value) for value in returns]
    return Evaluation(float(np.mean(scores)), bootstrap_ci(scores, seed), scores, frames)


@contextlib.contextmanager
def in_fixed_batches(choose: Choose, rows: int = 4) -> Iterator[Choose]:
    """Yield ``choose`` asked ``rows`` observations at a time, the last batch filled with zeros, a batch on each core.

    Matrix products round by the shape of the whole batch and by the threads that share it: so what is chosen for an
    observation is the same, whatever stands beside it and however many cores there are. They also round a row by the
    tile that it is in: four rows are in one with AVX2 (MKL takes six, and eight would be in two) as with AVX-512.
    """
    with ThreadPoolExecutor(cores(), "policy", initializer=_one_thread) as pool:

        def ask(observations: Observations) -> npt.NDArray[Any]:
            size = len(next(iter(observations.values())))
            filled = {}
            for name, values in observations.items():
                filled[name] = np.zeros((-(-size // rows) * rows, *values.shape[1:]), values.dtype)
                filled[name][:size] = values
            batches = [
                {name: values[first : first + rows] for name, values in filled.items()}
                for first in range(0, size, rows)
            ]
            return np.concatenate(list(pool.map(choose, batches)))[:size]

        yield ask


def _one_thread() -> None:
    """Keep PyTorch, where it is loaded, on the calling thread."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)


def _seeds(seed: int, episodes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.array(
        [np.random.default_rng([seed, 4, int(e)]).integers(2**31 - 1) for e in episodes], np.int64
    )
