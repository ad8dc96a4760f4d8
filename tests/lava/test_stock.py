from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from spikestill.common.errors import UserError
from spikestill.deploy.lava.stock import MAX_PROCESSES, MAX_SYNAPSES, StockLava, check_size
from spikestill.student.architectures import LayerSpec
from spikestill.student.integer_net import (
    IntegerLayer,
    IntegerNet,
    count_votes,
    layer_sums,
    naive_forward,
    sum_bound,
)
from tests.nets import random_net, random_stack, table1_net

SHAPE = (4, 12, 10)
LAYERS = (
    LayerSpec(8, 4, 2, 1, 1),
    LayerSpec(16, 3, 1, 1, 2),
    LayerSpec(24, 2, 2, 0, 4),
    LayerSpec(18, 1, 1, 0, 2),
)
FRAMES = [
    np.zeros(SHAPE, np.uint8),
    np.full(SHAPE, 255, np.uint8),
    *(random_stack(seed, SHAPE) for seed in range(4)),
]


def assert_equal_to_naive(net: IntegerNet, frames: list[np.ndarray]) -> list[np.ndarray]:
    """Check every layer of every frame, and return the spikes."""
    with StockLava(net) as stock:
        found = stock.spikes_many(frames)
    for index, frame in enumerate(frames):
        for layer, wanted in enumerate(naive_forward(net, frame)):
            assert found[layer].dtype == np.uint8
            assert np.array_equal(found[layer][index], wanted), f"frame {index}, layer {layer}"
    return found


def with_theta(layer: IntegerLayer, theta: np.ndarray) -> IntegerLayer:
    return dataclasses.replace(layer, theta_O=theta.astype(np.int32))


@pytest.mark.lava
@pytest.mark.parametrize("seed", [0, 1])
def test_every_layer_equals_the_naive_net(session_pids, seed):
    net = random_net(LAYERS, seed, input_shape=SHAPE)
    spikes = assert_equal_to_naive(net, FRAMES)
    assert all(0.02 < layer.mean() < 0.98 for layer in spikes)


@pytest.mark.lava
@pytest.mark.parametrize("ones", [False, True])
def test_all_zero_and_all_one_spikes_meet_every_kind_of_threshold(session_pids, ones):
    net = random_net(LAYERS[:3], 7, input_shape=SHAPE)
    rng = np.random.default_rng(8)
    first = with_theta(net.layers[0], np.full(8, -(2**31) if ones else 2**31 - 1))
    rest = []
    for layer in net.layers[1:]:
        bound = sum_bound(layer, first=False)
        kinds = [
            np.full_like(bound, -(2**31)),
            -bound - 1,
            -bound,
            0 * bound,
            0 * bound + 1,
            bound,
            bound + 1,
        ]
        choice = rng.integers(0, len(kinds), len(bound))
        rest.append(with_theta(layer, np.stack(kinds)[choice, np.arange(len(bound))]))
    spikes = assert_equal_to_naive(dataclasses.replace(net, layers=(first, *rest)), FRAMES[:3])
    assert spikes[0].all() if ones else not spikes[0].any()


@pytest.mark.lava
def test_a_sum_that_meets_its_threshold_fires_and_one_below_does_not(session_pids):
    net = random_net(LAYERS[:2], 9, input_shape=SHAPE)
    hidden = naive_forward(net, FRAMES[2])[0]
    sums = layer_sums(net.layers[1], hidden)
    theta = sums[:, 2, 2] + np.arange(16) % 2  # even features stand on the edge, odd ones one below it
    edge = dataclasses.replace(net, layers=(net.layers[0], with_theta(net.layers[1], theta)))
    spikes = assert_equal_to_naive(edge, FRAMES[2:4])
    assert np.array_equal(spikes[1][0, :, 2, 2], 1 - np.arange(16) % 2)


@pytest.mark.lava
def test_frames_in_a_row_equal_frames_alone(session_pids):
    net = random_net(LAYERS[:3], 10, input_shape=SHAPE)
    frames = [random_stack(seed, SHAPE) for seed in range(40)]
    with StockLava(net) as stock:
        row = stock.spikes_many(frames)
        for index in (0, 15, 16, 39):
            alone = stock.spikes(frames[index])
            assert all(np.array_equal(alone[layer], row[layer][index]) for layer in range(3))
            votes = stock.votes(frames[index])
            assert votes.dtype == np.int64
            assert np.array_equal(votes, count_votes(naive_forward(net, frames[index])[-1], net.actions))
        with pytest.raises(ValueError, match="no stack was given"):
            stock.spikes_many([])
        with pytest.raises(ValueError, match="input must be uint8"):
            stock.spikes(frames[0].astype(np.int32))
        assert np.array_equal(stock.spikes(frames[3])[-1], row[-1][3])


@pytest.mark.lava
@pytest.mark.slow
def test_the_1_chip_net_equals_the_naive_net(session_pids):
    assert_equal_to_naive(table1_net("1chip", seed=4), [random_stack(seed) for seed in range(3)])


def test_nets_that_stock_processes_cannot_hold_are_refused():
    shape = (1, 4, 4)
    with pytest.raises(UserError, match="has only a transduction layer"):
        StockLava(random_net((LayerSpec(6, 1, 1, 0, 1),), 0, input_shape=shape))
    deep = random_net((LayerSpec(6, 1, 1, 0, 1),) * (MAX_PROCESSES // 2 + 2), 0, input_shape=shape)
    with pytest.raises(
        UserError, match=f"17 layers .* take 34 stock Lava Processes, at most {MAX_PROCESSES}"
    ):
        StockLava(deep)
    wide = random_net((LayerSpec(600, 1, 1, 0, 1), LayerSpec(6, 1, 1, 0, 1)), 0, input_shape=shape)
    with pytest.raises(UserError, match="fan-in 600"):
        StockLava(wide)
    with pytest.raises(UserError, match=f"synapses, stock Lava Processes are given at most {MAX_SYNAPSES}"):
        StockLava(table1_net("8chip"))


def test_the_1_and_2_chip_nets_are_within_the_limits():
    for name in ("1chip", "2chip"):
        check_size(table1_net(name))


def test_loihi_2_without_intels_compiler_is_refused_with_what_is_missing():
    shape = (2, 4, 4)
    net = random_net((LayerSpec(6, 1, 1, 0, 1), LayerSpec(6, 1, 1, 0, 1)), 0, input_shape=shape)
    with pytest.raises(UserError, match="lava/magma/compiler/subcompilers/nc is not installed") as caught:
        StockLava(net, target="loihi2")
    assert "lava-loihi" in str(caught.value.remedy)
