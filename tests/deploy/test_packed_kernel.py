from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from spikestill.deploy.packed_kernel import PackedNet, bit_field, pack_weights, patch_words
from spikestill.deploy.popcount import popcount
from spikestill.student.architectures import LayerSpec
from spikestill.student.integer_net import IntegerLayer, IntegerNet, count_votes, naive_forward
from tests.nets import random_net, random_stack


def agree(net: IntegerNet, stack: np.ndarray) -> None:
    packed, reference = PackedNet(net), naive_forward(net, stack)
    for layer, (found, wanted) in enumerate(zip(packed.spikes(stack), reference, strict=True)):
        assert np.array_equal(found, wanted), f"layer {layer}"
    assert np.array_equal(packed.votes(stack), count_votes(reference[-1], net.actions))


@pytest.mark.parametrize(
    ("channels", "kernel", "groups"),
    [(1, 1, 1), (1, 9, 1), (3, 5, 1), (21, 2, 1), (33, 2, 1), (64, 1, 1), (64, 3, 1), (65, 1, 1), (96, 3, 3),
     (130, 2, 1), (260, 1, 2), (200, 3, 1)],
)  # fmt: skip
def test_any_fan_in_and_channel_count(channels: int, kernel: int, groups: int) -> None:
    """1 to 1,800 inputs: taps that share a word, fill one, and take several."""
    layers = (LayerSpec(channels, 2, 1, 0, 1), LayerSpec(7 * groups, kernel, 1, 1, groups))
    net = random_net(layers, seed=channels, input_shape=(2, 11, 10), actions=3)
    agree(net, random_stack(1, (2, 11, 10)))


@pytest.mark.parametrize(
    ("features", "groups"), [(1, 1), (63, 1), (64, 1), (65, 5), (130, 2), (48, 16), (300, 3)]
)
def test_any_feature_count(features: int, groups: int) -> None:
    """Blocks of 64 lanes that are full, part-filled, and shared by groups; the next layer reads them."""
    first = LayerSpec(2 * groups, 3, 1, 1, 1)
    layers = (first, LayerSpec(features, 3, 2, 1, groups), LayerSpec(5, 1, 1, 0, 1))
    agree(random_net(layers, seed=features, input_shape=(2, 9, 9), actions=2), random_stack(2, (2, 9, 9)))


@pytest.mark.parametrize("theta", [-(2**31), -3, -2, 2, 3, 4, 2**31 - 1])
@pytest.mark.parametrize("lit", [0, 1])
def test_thresholds_at_the_clamp_edges_and_at_the_int32_ends(theta: int, lit: int) -> None:
    """s is 3 (weights +1) and -3 (weights -1) with every input lit, 0 with none."""
    host = IntegerLayer(np.ones((3, 1, 1, 1), np.int8), np.full(3, 1, np.int32), 1, 0, 1)
    weight = np.ones((2, 3, 1, 1), np.int8)
    weight[1] = -1
    core = IntegerLayer(weight, np.full(2, theta, np.int32), 1, 0, 1)
    net = IntegerNet((host, core), 2, (1, 2, 2))
    stack = np.full((1, 2, 2), lit, np.uint8)
    spikes = PackedNet(net).spikes(stack)[1]
    assert (spikes[0] == (3 * lit >= theta)).all()
    assert (spikes[1] == (-3 * lit >= theta)).all()


def test_a_net_of_the_transduction_layer_alone() -> None:
    net = random_net((LayerSpec(70, 3, 2, 1, 1),), seed=4, input_shape=(2, 9, 9))
    agree(net, random_stack(4, (2, 9, 9)))


def test_threads_may_share_one_net() -> None:
    net = random_net((LayerSpec(16, 4, 2, 1, 1), LayerSpec(64, 3, 1, 1, 2)), seed=5, input_shape=(4, 30, 30))
    packed, stacks = PackedNet(net), [random_stack(seed, (4, 30, 30)) for seed in range(40)]
    alone = [packed.votes(stack) for stack in stacks]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(packed.votes, stacks))
    assert np.array_equal(alone, together)


def test_masks_hold_every_weight_once() -> None:
    net = random_net((LayerSpec(24, 1, 1, 0, 1), LayerSpec(70, 3, 1, 1, 2)), seed=6, input_shape=(2, 5, 5))
    layer = net.layers[1]
    plus, minus = pack_weights(layer)
    assert plus.shape == minus.shape == (2, patch_words(layer), 64)
    assert not (plus & minus).any()
    for mask, sign in ((plus, 1), (minus, -1)):
        per_feature = np.unpackbits(mask.transpose(0, 2, 1).copy().view(np.uint8), axis=2).sum(axis=2)
        wanted = (layer.weight_OIHW == sign).sum(axis=(1, 2, 3))
        assert per_feature.reshape(-1)[:70].tolist() == wanted.tolist()
        assert not per_feature.reshape(-1)[70:].any()


@pytest.mark.parametrize(("start", "count"), [(0, 64), (0, 1), (63, 1), (60, 8), (64, 64), (1, 64), (65, 63)])
def test_bit_fields_cross_word_borders(start: int, count: int) -> None:
    words = np.random.default_rng(7).integers(0, 2**64, 3, dtype=np.uint64)
    whole = sum(int(word) << 64 * index for index, word in enumerate(words))
    assert int(bit_field(words, start, count)) == whole >> start & (1 << count) - 1


def test_popcount_counts_ones() -> None:
    from numba import njit

    count = njit(lambda word: popcount(word))
    for word in (0, 1, 2**63, 2**64 - 1, 0x0123456789ABCDEF):
        assert count(np.uint64(word)) == bin(word).count("1")


def test_refuses_a_stack_of_another_shape() -> None:
    net = random_net((LayerSpec(4, 1, 1, 0, 1),), seed=8, input_shape=(2, 5, 5), actions=2)
    with pytest.raises(ValueError, match=r"input must be uint8 of shape \(2, 5, 5\), got uint8 \(2, 5, 4\)"):
        PackedNet(net).votes(np.zeros((2, 5, 4), np.uint8))
