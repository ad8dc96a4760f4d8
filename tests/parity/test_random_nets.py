"""The ladder on random nets: naive NumPy = PyTorch = packed kernel = core simulator, both ways."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

from spikestill.common.errors import UserError
from spikestill.common.provenance import Provenance
from spikestill.configs.hardware import hardware
from spikestill.deploy.mapping import map_net
from spikestill.deploy.packed_kernel import PackedNet
from spikestill.deploy.simulator import CoreSimulator
from spikestill.student.integer_net import (
    IntegerLayer,
    IntegerNet,
    count_votes,
    layer_sums,
    naive_forward,
    sum_bound,
)
from spikestill.student.torch_net import TorchIntegerNet

INT32 = np.iinfo(np.int32)
PROVENANCE = Provenance.of({}, seed=0)


def thresholds(layer: IntegerLayer, x: np.ndarray, first: bool, rng: np.random.Generator) -> np.ndarray:
    """Return int32 thresholds: on and beside sums that occur, at the clamp edges, at int32's ends."""
    sums = layer_sums(layer, x).reshape(layer.features, -1)
    met = sums[np.arange(layer.features), rng.integers(0, sums.shape[1], layer.features)]
    bound = sum_bound(layer, first=first)
    kinds = np.stack([
        met, met + 1, met - 1, -bound, bound + 1, bound, -bound + 1, 0 * met,
        np.full_like(met, INT32.min), np.full_like(met, INT32.max),
    ])  # fmt: skip
    weights = np.array([6, 4, 4, 1, 1, 1, 1, 2, 1, 1])
    kind = rng.choice(len(kinds), layer.features, p=weights / weights.sum())
    return kinds[kind, np.arange(layer.features)].astype(np.int32)


@st.composite
def nets_and_stacks(draw: st.DrawFn) -> tuple[IntegerNet, np.ndarray]:
    """A net of 1-4 layers with any kernels, strides, pads and groups, and stacks: random, dark, bright."""
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    shape = (draw(st.integers(1, 4)), draw(st.integers(3, 12)), draw(st.integers(3, 12)))
    stacks = np.stack([
        rng.integers(0, 256, shape), np.zeros(shape), np.full(shape, 255), rng.choice([0, 255], shape),
    ]).astype(np.uint8)  # fmt: skip
    x, layers = stacks[0], []
    for index in range(draw(st.integers(1, 4))):
        channels, smallest = x.shape[0], min(x.shape[1:])
        groups = draw(st.sampled_from([g for g in (1, 2, 3, 4) if channels % g == 0]))
        pad = draw(st.integers(0 if index else max(-2, -((smallest - 1) // 2)), 2))
        kernel = draw(st.integers(1, min(4, smallest + 2 * pad)))
        features = groups * draw(st.integers(1, 24))
        density = draw(st.sampled_from([0.0, 0.3, 0.7, 1.0]))
        size = (features, channels // groups, kernel, kernel)
        weight = rng.choice([-1, 0, 1], size, p=[density / 2, 1 - density, density / 2]).astype(np.int8)
        stride = draw(st.integers(1, 3))
        free = IntegerLayer(weight, np.zeros(features, np.int32), stride, pad, groups)
        layer = IntegerLayer(weight, thresholds(free, x, index == 0, rng), stride, pad, groups)
        x = (layer_sums(layer, x) >= layer.theta_O[:, None, None]).astype(np.uint8)
        layers.append(layer)
    return IntegerNet(tuple(layers), draw(st.integers(1, min(6, x.shape[0]))), shape), stacks


@settings(deadline=None, max_examples=60, derandomize=True)
@given(nets_and_stacks())
def test_every_rung_gives_the_same_spikes(case: tuple[IntegerNet, np.ndarray]) -> None:
    net, stacks = case
    wanted = [naive_forward(net, stack) for stack in stacks]
    votes = np.stack([count_votes(layers[-1], net.actions) for layers in wanted])

    torch_net = TorchIntegerNet(net)
    torch_layers = [layer.numpy() for layer in torch_net.spikes(torch.from_numpy(stacks))]
    assert np.array_equal(torch_net.votes(torch.from_numpy(stacks)).numpy(), votes)
    packed = PackedNet(net)
    for frame, stack in enumerate(stacks):
        assert np.array_equal(packed.votes(stack), votes[frame])
        for layer, found in enumerate(packed.spikes(stack)):
            assert np.array_equal(found, wanted[frame][layer])
            assert np.array_equal(torch_layers[layer][frame], wanted[frame][layer])

    spec = hardware("truenorth")
    if len(net.layers) == 1 or max(layer.fan_in for layer in net.layers[1:]) > spec.max_fan_in:
        event("is not for cores")
        with pytest.raises(UserError):
            map_net(net, spec, PROVENANCE)
        return
    event("mapped")
    simulator = CoreSimulator(map_net(net, spec, PROVENANCE))
    pipelined_votes, pipelined = simulator.pipelined_spikes(stacks)
    assert np.array_equal(pipelined_votes, votes)
    assert np.array_equal(simulator.pipelined(stacks), votes)
    for frame, stack in enumerate(stacks):
        assert np.array_equal(simulator.votes(stack), votes[frame])
        for layer, found in enumerate(simulator.spikes(stack)):
            kept = wanted[frame][layer] * simulator.kept[layer]
            assert np.array_equal(found, kept)
            assert np.array_equal(pipelined[frame][layer], kept)
