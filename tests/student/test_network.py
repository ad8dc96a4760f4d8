import numpy as np
import pytest
import torch
import torch.nn.functional as F

from student.architectures import ARCHITECTURES, LayerSpec, architecture
from student.integer_net import count_votes, naive_forward
from student.network import StudentNetwork, initial_shadow
from tests.nets import random_stack

SMALL = (LayerSpec(16, 8, 8, 0, 1), LayerSpec(32, 3, 2, 1, 2), LayerSpec(24, 5, 1, 0, 4))


def trained(layers, actions=6, **options):
    """Return a network whose statistics, gains and shadow weights have moved."""
    torch.manual_seed(0)
    network = StudentNetwork(layers, actions, **options)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
    stacks = torch.from_numpy(np.stack([random_stack(i) for i in range(4)]))
    for _ in range(3):
        loss = (network(stacks) * torch.randn(4, actions)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        network.requantise()
    return network, stacks


@pytest.mark.parametrize("layers", [SMALL, architecture("1chip")], ids=["small", "1chip"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_eval_is_the_integer_net(layers, dtype):
    network, stacks = trained(layers, dtype=dtype)
    network.eval()
    net = network.to_integer()
    expected = np.array([count_votes(naive_forward(net, stack.numpy())[-1], 6) for stack in stacks])
    np.testing.assert_array_equal(network.integer().votes(stacks).numpy(), expected)
    np.testing.assert_array_equal(network(stacks).numpy(), expected.astype(np.float32) / network.voters())
    spikes = network.integer().spikes(stacks)
    for index in range(len(stacks)):
        for layer, naive in zip(spikes, naive_forward(net, stacks[index].numpy()), strict=True):
            np.testing.assert_array_equal(layer[index].numpy(), naive)


def test_eval_sees_changed_weights():
    network, stacks = trained(SMALL)
    network.eval()
    before = network(stacks)
    with torch.no_grad():
        for layer in network.ternary_layers():
            layer.shadow.neg_()
    network.requantise()
    assert not torch.equal(network(stacks), before)


def test_training_forward_is_convolution_normalisation_and_step():
    network, stacks = trained(SMALL)
    network.train()
    x = stacks.float()
    for layer in network.ternary_layers():
        s = F.conv2d(
            x, layer.ternary, stride=layer.spec.stride, padding=layer.spec.pad, groups=layer.spec.groups
        )
        normal = F.batch_norm(s, None, None, layer.gamma, layer.beta, training=True, eps=1e-5)
        # The step is discontinuous: keep clear of its edge.
        assert (normal.abs() > 1e-6).all()
        x = (normal >= 0).float()
    expected = x.mean(dim=(2, 3))[:, :24].reshape(4, 4, 6).mean(dim=1)
    torch.testing.assert_close(network(stacks), expected)


def test_statistics_of_shares_are_those_of_the_batch():
    network, stacks = trained(SMALL)
    weights = network.working_weights()
    # Of the first layer, whose input does not depend on the other samples.
    _, whole = network.propagate(stacks, weights)
    halves = [network.propagate(part, weights)[1] for part in (stacks[:2], stacks[2:])]
    network.absorb(halves, momentum=1.0)
    first = network.ternary_layers()[0]
    torch.testing.assert_close(first.mu, whole[0][0], rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(first.variance, whole[0][1], rtol=1e-4, atol=1e-3)


def test_table_1_nets_keep_the_fan_in_limit():
    for layers in ARCHITECTURES.values():
        channels = 4
        for index, spec in enumerate(layers):
            fan_in = channels // spec.groups * spec.kernel**2
            assert fan_in == 256 if index == 0 else fan_in in (64, 72, 128)
            channels = spec.features


def test_groups_that_do_not_divide_are_named():
    with pytest.raises(ValueError, match="3 groups divide neither 4 inputs"):
        StudentNetwork((LayerSpec(6, 3, 1, 0, 3),), 2)


def test_neurons_begin_with_the_wanted_number_of_inputs():
    shadow = initial_shadow((50, 8, 3, 3), 3, torch.Generator().manual_seed(0))
    assert ((shadow.abs() >= 0.5).flatten(1).sum(dim=1) == 3).all()
    assert set(torch.sign(shadow[shadow.abs() >= 0.5]).tolist()) == {-1.0, 1.0}
    everywhere = initial_shadow((50, 8, 3, 3), 0, torch.Generator().manual_seed(0))
    assert 0.45 < (everywhere.abs() >= 0.5).float().mean() < 0.55


def test_first_layer_senses_change_and_not_the_background():
    background = np.full((4, 84, 84), 87, np.uint8)
    background[:, :12] = background[:, 72:] = 236
    background[:, 12:72, ::20] = 0
    stacks = np.repeat(background[None], 64, axis=0)
    for index in range(64):
        row = 14 + index % 54
        stacks[index, :, row : row + 3, 24:26] = 150
    stacks_BCHW = torch.from_numpy(stacks)

    def changing(sense):
        network = StudentNetwork(architecture("1chip"), 6, inputs=(4, 1))
        if sense:
            network.sense_change(stacks_BCHW, torch.Generator().manual_seed(0))
        network(stacks_BCHW)
        with torch.no_grad():
            layer = network.ternary_layers()[0]
            layer.absorb(*_statistics(network, stacks_BCHW), 1.0)
        return network.integer().spikes(stacks_BCHW)[0].float().std(dim=0).gt(0).float().mean()

    assert changing(True) > 1.2 * changing(False)


def _statistics(network, stacks):
    return network.propagate(stacks, network.working_weights())[1][0]
