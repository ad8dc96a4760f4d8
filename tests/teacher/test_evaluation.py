import numpy as np

from configs.environment import EnvironmentConfig
from teacher.evaluation import bootstrap_ci, evaluate


def brightness_policy(stacks):
    """Act on the newest frame alone, differently in different states."""
    sums = stacks[:, -1].reshape(len(stacks), -1).sum(axis=1)
    return np.eye(4)[sums % 4]


def test_scores_do_not_depend_on_the_number_of_environments():
    config = EnvironmentConfig(game="breakout")
    runs = [evaluate(brightness_policy, config, episodes=5, num_envs=n, progress=False) for n in (1, 3, 5)]
    assert runs[0].returns == runs[1].returns == runs[2].returns
    assert len(set(runs[0].returns)) > 1
    assert runs[0].frames == runs[1].frames


def test_bootstrap_interval_holds_the_mean_and_shrinks_with_the_spread():
    low, high = bootstrap_ci([1.0, 2.0, 3.0, 4.0] * 25)
    assert low < 2.5 < high
    assert high - low < 0.6
    assert bootstrap_ci([3.0] * 10) == (3.0, 3.0)
