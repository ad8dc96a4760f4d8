"""DDPG and SAC in floating point, and TD3, learn; the integers' own test is in ``test_fixed_ddpg.py``."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from spikestill.teacher.control.learner import FloatLearner
from spikestill.teacher.control.replay import Replay
from tests.teacher.control.agents import config_of, pendulum_returns


def returns(learner: FloatLearner) -> float:
    return pendulum_returns(lambda obs_BS: learner.act(obs_BS, None))


def learn_pendulum(learner: FloatLearner, steps: int) -> None:
    environment, rng = gymnasium.make("Pendulum-v1"), np.random.default_rng(0)
    replay, one = Replay(steps, 3, 1), np.ones(1)
    obs, _ = environment.reset(seed=0)
    for step in range(steps):
        action = rng.uniform(-1, 1, 1) if step < 400 else learner.act(obs[None], rng)[0]
        after, reward, _, cut, _ = environment.step(2.0 * action)
        replay.add(obs[None], action[None], float(reward) * one, one, after[None], one.astype(bool))
        obs = environment.reset()[0] if cut else after
        if step >= 400:
            learner.update(replay.sample(rng, learner.config.batch_size), rng)


TD3 = {"twin_critics": True, "target_noise": 0.2, "actor_period": 2, "target_period": 2}


@pytest.mark.parametrize(
    ("algorithm", "options", "steps"),
    [
        ("ddpg", {}, 4400),
        ("ddpg", {"precision": "fp16"}, 4400),
        pytest.param("ddpg", {"precision": "bf16"}, 4400, marks=pytest.mark.slow),
        ("ddpg", TD3, 7000),
        ("sac", {}, 4400),
        pytest.param("sac", {"precision": "bf16"}, 4400, marks=pytest.mark.slow),
    ],
    ids=["ddpg", "ddpg-fp16", "ddpg-bf16", "td3", "sac", "sac-bf16"],
)
def test_an_agent_learns_to_swing_a_pendulum_up(algorithm, options, steps):
    """Random and untrained agents get some -1,100 and less, these some -150."""
    small = {
        "precision": "fp32",
        "hidden": (48, 32),
        "batch_size": 64,
        "learning_rate": 2e-3,
        "target_rate": 0.02,
    }
    learner = FloatLearner(config_of(algorithm, methods={}, **small | options), 3, 1, seed=0)
    assert returns(learner) < -900
    learn_pendulum(learner, steps)
    assert returns(learner) > -400
