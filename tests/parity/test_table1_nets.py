"""The ladder on the nets of Table 1, with random weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spikestill.configs.hardware import hardware
from spikestill.deploy.equivalence import first_deviation
from spikestill.deploy.lava.loader import available
from spikestill.deploy.mapping import map_net
from spikestill.deploy.packed_kernel import PackedNet
from spikestill.deploy.simulator import CoreSimulator
from spikestill.student.architectures import LayerSpec, architecture, centred
from spikestill.student.integer_net import count_votes, naive_forward
from spikestill.student.torch_net import TorchIntegerNet
from tests.nets import random_net, random_stack, table1_net


@pytest.mark.parametrize(("name", "frames"), [("1chip", 8), ("2chip", 4), ("4chip", 2), ("8chip", 1)])
def test_packed_kernel_equals_pytorch(name: str, frames: int) -> None:
    net = table1_net(name, seed=1)
    stacks = np.stack([random_stack(seed) for seed in range(frames)])
    reference, packed = TorchIntegerNet(net), PackedNet(net)
    layers = [layer.numpy() for layer in reference.spikes(torch.from_numpy(stacks))]
    votes = reference.votes(torch.from_numpy(stacks)).numpy()
    for frame, stack in enumerate(stacks):
        for layer, found in enumerate(packed.spikes(stack)):
            assert 0.02 < found.mean() < 0.98
            assert np.array_equal(found, layers[layer][frame])
        assert np.array_equal(packed.votes(stack), votes[frame])


@pytest.mark.parametrize("layers", [architecture("1chip"), centred(architecture("1chip"), 84)])
def test_the_1_chip_net_on_every_rung(layers: tuple[LayerSpec, ...]) -> None:
    net = random_net(layers, seed=2)
    stacks = np.stack([random_stack(10), np.zeros((4, 84, 84), np.uint8), random_stack(11)])
    wanted = [naive_forward(net, stack) for stack in stacks]
    votes = np.stack([count_votes(layers[-1], net.actions) for layers in wanted])
    torch_net, packed = TorchIntegerNet(net), PackedNet(net)
    simulator = CoreSimulator(map_net(net, hardware("truenorth"), anneal_seconds=0))
    torch_layers = [layer.numpy() for layer in torch_net.spikes(torch.from_numpy(stacks))]
    pipelined_votes, pipelined = simulator.pipelined_spikes(stacks)
    assert np.array_equal(pipelined_votes, votes)
    assert np.array_equal(simulator.pipelined(stacks), votes)
    for frame, stack in enumerate(stacks):
        packed_layers, core_layers = packed.spikes(stack), simulator.spikes(stack)
        assert np.array_equal(simulator.votes(stack), votes[frame])
        for layer, reference in enumerate(wanted[frame]):
            kept = reference * simulator.kept[layer]
            assert np.array_equal(torch_layers[layer][frame], reference)
            assert np.array_equal(packed_layers[layer], reference)
            assert np.array_equal(core_layers[layer], kept)
            assert np.array_equal(pipelined[frame][layer], kept)


@pytest.mark.lava
@pytest.mark.skipif(available() is not None, reason=str(available()))
def test_the_1_chip_net_on_fused_lava() -> None:
    from spikestill.deploy.lava.fused import FusedLava

    net = table1_net("1chip", seed=2)
    packed = PackedNet(net)
    with FusedLava(net) as lava:
        for seed in range(20):
            stack = random_stack(seed)
            assert np.array_equal(lava.votes(stack), packed.votes(stack))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["2chip", "4chip", "8chip"])
def test_bigger_nets_on_the_core_simulator(name: str) -> None:
    net = table1_net(name, seed=3)
    core_map, packed = map_net(net, hardware("ns16e")), PackedNet(net)
    assert first_deviation(core_map, net) is None
    for layer, wanted in enumerate(naive_forward(net, random_stack(7))):
        assert np.array_equal(packed.spikes(random_stack(7))[layer], wanted)
    simulator = CoreSimulator(core_map)
    stacks = np.stack([random_stack(seed) for seed in range(2)])
    votes, pipelined = simulator.pipelined_spikes(stacks)
    for frame, stack in enumerate(stacks):
        assert np.array_equal(simulator.votes(stack), packed.votes(stack))
        assert np.array_equal(votes[frame], packed.votes(stack))
        reference, alone = packed.spikes(stack), simulator.spikes(stack)
        for layer, kept in enumerate(simulator.kept):
            assert np.array_equal(alone[layer], reference[layer] * kept)
            assert np.array_equal(pipelined[frame][layer], reference[layer] * kept)


@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")
def test_pytorch_is_exact_without_onednn() -> None:
    """PyTorch then takes NNPACK for batches of 16 and more unless it is kept out, and its transforms round."""
    net = table1_net("1chip", seed=1)
    stacks = np.stack([random_stack(seed) for seed in range(16)])
    with torch.backends.mkldnn.flags(enabled=False):
        layers = TorchIntegerNet(net).spikes(torch.from_numpy(stacks))
    for frame in (0, 15):
        for layer, found in enumerate(PackedNet(net).spikes(stacks[frame])):
            assert np.array_equal(layers[layer][frame].numpy(), found)
