from __future__ import annotations

import threading

import numpy as np
import pytest
from numba import njit, prange

from spikestill.deploy.lava.fused import FusedLava
from spikestill.deploy.lava.session import LavaError
from spikestill.deploy.lava.wire import pack_stack
from spikestill.student.architectures import LayerSpec
from spikestill.student.integer_net import IntegerNet, count_votes, naive_forward
from tests.nets import random_net, random_stack, table1_net

pytestmark = pytest.mark.lava

NETS = {
    "one layer only": ((LayerSpec(7, 3, 2, 1, 1),), (3, 9, 9), 4),
    "pixels that fill no whole word": ((LayerSpec(9, 3, 1, 0, 3), LayerSpec(12, 1, 1, 0, 3)), (3, 5, 7), 5),
    "many groups": (
        (LayerSpec(64, 4, 2, 1, 4), LayerSpec(128, 3, 2, 1, 32), LayerSpec(256, 2, 1, 0, 16)),
        (4, 20, 16),
        18,
    ),
}


def naive_votes(net: IntegerNet, stack: np.ndarray) -> np.ndarray:
    return count_votes(naive_forward(net, stack)[-1], net.actions)


def edge_stacks(shape: tuple[int, int, int]) -> list[np.ndarray]:
    flat = [np.full(shape, pixel, np.uint8) for pixel in (0, 255)]
    return [random_stack(1, shape), random_stack(2, shape), *flat]


@pytest.mark.parametrize("name", NETS)
def test_votes_equal_the_naive_net(session_pids, name):
    layers, shape, actions = NETS[name]
    net = random_net(layers, 5, actions=actions, input_shape=shape)
    with FusedLava(net) as fused:
        for stack in edge_stacks(shape):
            votes = fused.votes(stack)
            assert votes.dtype == np.int64
            assert np.array_equal(votes, naive_votes(net, stack))


def test_the_1_chip_net_plays_after_torch_and_parallel_numba_were_used_here(session_pids):
    import torch

    torch.set_num_threads(2)
    torch.nn.functional.conv2d(torch.randn(16, 32, 64, 64), torch.randn(32, 32, 3, 3)).sum().item()
    assert sum_in_parallel(np.ones(100_000)) == 100_000
    net = table1_net("1chip", seed=3)
    with FusedLava(net) as fused:
        for stack in edge_stacks(net.input_shape)[1:3]:
            assert np.array_equal(fused.votes(stack), naive_votes(net, stack))


@njit(parallel=True)
def sum_in_parallel(values):
    total = 0.0
    for index in prange(len(values)):
        total += values[index]
    return total


def test_two_agents_and_many_threads_get_their_own_answers(session_pids):
    layers, shape, _ = NETS["many groups"]
    nets = [random_net(layers, seed, input_shape=shape) for seed in (1, 2)]
    stacks = [random_stack(seed, shape) for seed in range(8)]
    wanted = [[naive_votes(net, stack) for stack in stacks] for net in nets]
    assert not np.array_equal(wanted[0], wanted[1])
    with FusedLava(nets[0]) as first, FusedLava(nets[1]) as second:
        found: dict[tuple[int, int], np.ndarray] = {}

        def ask(agent: int, index: int) -> None:
            found[agent, index] = (first, second)[agent].votes(stacks[index])

        threads = [
            threading.Thread(target=ask, args=(agent, index)) for agent in (0, 1) for index in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all(np.array_equal(found[agent, index], wanted[agent][index]) for agent, index in found)
    assert len(found) == 16


def test_a_wrong_stack_is_refused_and_the_agent_plays_on(session_pids):
    layers, shape, actions = NETS["one layer only"]
    net = random_net(layers, 5, actions=actions, input_shape=shape)
    fused = FusedLava(net)
    with pytest.raises(
        ValueError, match=r"input must be uint8 of shape \(3, 9, 9\), got float64 \(3, 9, 9\)"
    ):
        fused.votes(np.zeros(shape))
    assert np.array_equal(fused.votes(random_stack(1, shape)), naive_votes(net, random_stack(1, shape)))
    fused.close()
    fused.close()
    with pytest.raises(LavaError, match="the Lava session is closed"):
        fused.votes(random_stack(1, shape))


def test_a_stack_travels_as_words_of_four_pixels():
    words = pack_stack(np.arange(1, 7, dtype=np.uint8).reshape(1, 2, 3))
    assert words.dtype == np.int32
    assert words.view(np.uint8).tolist() == [1, 2, 3, 4, 5, 6, 0, 0]
