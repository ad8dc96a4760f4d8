import tracemalloc

import numpy as np
import pytest
import torch

import spikestill.teacher.evaluation as evaluation_module
from spikestill.common.provenance import Provenance
from spikestill.configs.environment import EnvironmentConfig
from spikestill.teacher.atari.q_network import initial_weights
from spikestill.teacher.evaluation import bootstrap_ci, evaluate, in_fixed_batches
from spikestill.teacher.policy import TeacherPolicy


def brightness_policy(observations):
    """Act on the newest frame alone, differently in different states."""
    stacks = observations["stack"]
    sums = stacks[:, -1].reshape(len(stacks), -1).sum(axis=1)
    return sums % 4


def test_scores_do_not_depend_on_the_number_of_environments():
    config = EnvironmentConfig(game="breakout")
    runs = [evaluate(brightness_policy, config, episodes=5, num_envs=n) for n in (1, 3, 5)]
    assert runs[0].returns == runs[1].returns == runs[2].returns
    assert len(set(runs[0].returns)) > 1
    assert runs[0].frames == runs[1].frames


def test_bootstrap_interval_holds_the_mean_and_shrinks_with_the_spread():
    low, high = bootstrap_ci([1.0, 2.0, 3.0, 4.0] * 25)
    assert low < 2.5 < high
    assert high - low < 0.6
    assert bootstrap_ci([3.0] * 10) == (3.0, 3.0)


def test_the_bootstrap_of_many_games_takes_little_memory():
    """All resamples of 100,000 games at once would be 16 GB."""
    returns = np.random.default_rng(0).integers(-21, 22, 100_000).astype(float).tolist()
    tracemalloc.start()
    low, high = bootstrap_ci(returns, resamples=20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert low < high
    assert peak < 8e6


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_a_stacks_q_values_do_not_depend_on_those_beside_it_nor_on_the_cores(precision, monkeypatch):
    weights = initial_weights(6, torch.Generator().manual_seed(0))
    policy = TeacherPolicy(weights, "pong", 6, Provenance.of({}, 0), precision)
    stacks = np.random.default_rng(0).integers(0, 256, (19, 4, 84, 84), np.uint8)
    order = np.random.default_rng(1).permutation(19)
    with in_fixed_batches(lambda shown: policy.q_values(shown["stack"])) as ask:
        whole = ask({"stack": stacks})
        assert whole.shape == (19, 6)
        for index in range(19):
            np.testing.assert_array_equal(ask({"stack": stacks[index : index + 1]})[0], whole[index])
        np.testing.assert_array_equal(ask({"stack": stacks[order]}), whole[order])
    monkeypatch.setattr(evaluation_module, "cores", lambda: 1)
    with in_fixed_batches(lambda shown: policy.q_values(shown["stack"])) as ask:
        np.testing.assert_array_equal(ask({"stack": stacks}), whole)
