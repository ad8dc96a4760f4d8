"""The live emulator against the training's vector environment: same seed and actions, same pixels."""

from __future__ import annotations

import numpy as np
import pytest

from spikestill.common.atari import PAPER_GAMES
from spikestill.configs.environment import EnvironmentConfig
from spikestill.runtime.area_resize import area_taps
from spikestill.runtime.emulator import Emulator
from spikestill.teacher.atari.environment import VectorGames


def compare(config: EnvironmentConfig, seed: int, decisions: int) -> int:
    """Play both with the same random actions; return how many games ended."""
    envs = VectorGames(config, 1, threads=1)
    live = Emulator(config, seed)
    rng = np.random.default_rng(seed)
    observation, _ = envs.reset(seed)
    live.reset()
    np.testing.assert_array_equal(live.stack(), observation[0])
    games = 0
    for _ in range(decisions):
        action = int(rng.integers(len(live.actions)))
        observation, reward, terminated, truncated, info = envs.step(np.array([action]))
        if live.over:
            live.reset()
            games += 1
            assert reward[0] == 0
        else:
            got = 0.0
            for _ in range(config.frame_skip):
                got += live.step(action)
                if live.decision_due:
                    break
            assert got == reward[0]
        np.testing.assert_array_equal(live.stack(), observation[0])
        assert live.over == bool(terminated[0] or truncated[0])
        assert live.lives == info["lives"][0]
    envs.close()
    live.close()
    return games


@pytest.mark.parametrize("game", PAPER_GAMES)
def test_stacks_equal_the_vector_environments_in_every_game(game: str) -> None:
    compare(EnvironmentConfig(game=game), seed=11, decisions=250)


@pytest.mark.parametrize("frame_skip", [1, 2, 3, 5, 16])
def test_stacks_equal_at_every_frame_skip(frame_skip: int) -> None:
    compare(EnvironmentConfig(game="breakout", frame_skip=frame_skip), seed=3, decisions=150)


def test_stacks_equal_across_ends_of_games_with_sticky_actions() -> None:
    games = compare(EnvironmentConfig(game="breakout", sticky=0.25), seed=5, decisions=900)
    assert games >= 2


def test_stacks_equal_without_no_op_starts() -> None:
    compare(EnvironmentConfig(game="pong", noop_max=0), seed=0, decisions=50)


def test_area_taps_share_out_one_pixel_each() -> None:
    for source, size in ((160, 84), (210, 84), (84, 84), (7, 3)):
        taps = area_taps(source, size)
        sums = np.add.reduceat(taps.weight.astype(np.float64), taps.start[:-1])
        np.testing.assert_allclose(sums, 1.0, atol=1e-6)
        assert taps.source.min() == 0
        assert taps.source.max() == source - 1
    with pytest.raises(ValueError, match="84 pixels cannot become 160"):
        area_taps(84, 160)


def test_impossible_steps_are_refused() -> None:
    live = Emulator(EnvironmentConfig(game="pong"), 0)
    with pytest.raises(ValueError, match="the game is over"):
        live.step(0)
    live.reset()
    with pytest.raises(ValueError, match=r"action 6, the game has 0\.\.5"):
        live.step(6)
    live.close()
