import numpy as np
import pytest
import torch
import torch.nn.functional as F

from spikestill.common.errors import UserError
from spikestill.student.architectures import ARCHITECTURES, LayerSpec, architecture, centred, visible_sizes
from spikestill.student.integer_net import count_votes, naive_forward
from spikestill.student.network import StudentNetwork
from tests.nets import SMALL_ON_STACKS as SMALL
from tests.nets import random_stack


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


NETS = {
    "small": (SMALL, 6),
    **{name: (architecture(name), 6) for name in ("1chip", "2chip", "4chip", "8chip")},
    "1chip of several games": (architecture("1chip"), 18),
}
SELDOM = {
    *((torch.float32, name) for name in ("4chip", "8chip")),
    *((torch.bfloat16, name) for name in NETS if name != "small"),
}


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        pytest.param(
            dtype, name, marks=[pytest.mark.slow] if (dtype, name) in SELDOM else [], id=f"{name}-{dtype}"
        )
        for dtype in (torch.float32, torch.bfloat16)
        for name in NETS
    ],
)
def test_eval_is_the_integer_net(dtype, name):
    layers, actions = NETS[name]
    network, stacks = trained(layers, actions=actions, dtype=dtype)
    network.eval()
    net = network.to_integer()
    found = [naive_forward(net, stack.numpy()) for stack in stacks]
    expected = np.array([count_votes(naive[-1], actions) for naive in found])
    np.testing.assert_array_equal(network.integer().votes(stacks).numpy(), expected)
    np.testing.assert_array_equal(network(stacks).numpy(), expected.astype(np.float32) / network.voters())
    spikes = network.integer().spikes(stacks)
    for index, naive in enumerate(found):
        for layer, expected_spikes in zip(spikes, naive, strict=True):
            np.testing.assert_array_equal(layer[index].numpy(), expected_spikes)


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
    _, whole, _ = network.propagate(stacks, weights)
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
    with pytest.raises(UserError, match="layer 0: 3 groups must divide both 4 inputs and 6 features"):
        StudentNetwork((LayerSpec(6, 3, 1, 0, 3),), 2)


def test_groups_that_break_the_fan_in_are_named():
    layers = (LayerSpec(32, 8, 4, 2, 1), LayerSpec(64, 4, 2, 0, 2))
    with pytest.raises(
        UserError, match=r"layer 1: fan-in 256 \(16 inputs a group, kernel 4\), at most 128 wanted"
    ):
        StudentNetwork(layers, 2)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_visible_sizes_are_what_a_vote_depends_on(name):
    """The furthest pixel that a vote depends on, by the definition of a convolution, neuron by neuron."""
    layers = architecture(name)
    sizes = [84]
    for spec in layers:
        sizes.append((sizes[-1] + 2 * spec.pad - spec.kernel) // spec.stride + 1)
    needed = [set(range(sizes[-1]))]
    for spec, size in zip(reversed(layers), reversed(sizes[:-1]), strict=True):
        read = {i * spec.stride + k - spec.pad for i in needed[-1] for k in range(spec.kernel)}
        needed.append(read & set(range(size)))
    assert visible_sizes(layers, 84) == [max(rows) + 1 for rows in reversed(needed)]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_centred_net_sees_the_middle_with_the_same_neurons(name):
    published = architecture(name)
    layers = centred(published, 84)
    assert layers[1:] == published[1:]
    assert visible_sizes(layers, 84)[1:] == visible_sizes(published, 84)[1:]
    last = (visible_sizes(layers, 84)[1] - 1) * layers[0].stride + layers[0].kernel - layers[0].pad
    assert layers[0].pad == {"1chip": -4, "1chip-wide": -4}.get(name, published[0].pad)
    assert last - 84 == layers[0].pad


@pytest.mark.parametrize(("layers", "first", "last"), [
    (architecture("1chip"), 0, 74), (centred(architecture("1chip"), 84), 4, 80),
])  # fmt: skip
def test_unseen_pixels_change_no_vote_and_are_not_computed(layers, first, last):
    network, stacks = trained(layers)
    changed = stacks.clone()
    changed[:, :, last:] = 0
    changed[:, :, :, last:] = 255
    changed[:, :, :first] = 0
    changed[:, :, :, :first] = 255
    weights = network.working_weights()
    votes, _, spikes = network.propagate(stacks, weights)
    torch.testing.assert_close(network.propagate(changed, weights)[0], votes, rtol=0, atol=0)
    assert [layer.shape[-1] for layer in spikes.values()] == [18, 9, 9, 8, 8, 2, 2, 1, 1, 1]


@pytest.mark.parametrize("layers", [architecture("1chip"), centred(architecture("1chip"), 84)])
def test_cropped_training_forward_fires_as_the_integer_net(layers):
    """With the running statistics the training's spikes are the deployed net's, where both are computed."""
    network, stacks = trained(layers)
    _, _, spikes = network.propagate(stacks, network.working_weights(), renormalise=True)
    for cropped, whole in zip(spikes.values(), network.integer().spikes(stacks), strict=True):
        size = cropped.shape[-1]
        # The threshold in fp32 and the folded one may differ where s lies on the edge.
        assert (cropped == whole[:, :, :size, :size]).float().mean() > 0.999


def test_the_integer_net_follows_loaded_weights():
    layers = (LayerSpec(16, 8, 8, 0, 1), LayerSpec(24, 3, 2, 1, 2))
    one, other = (StudentNetwork(layers, 6, seed=seed).eval() for seed in (0, 1))
    stacks = torch.from_numpy(np.stack([random_stack(seed) for seed in range(4)]))
    assert not torch.equal(one(stacks), other(stacks))
    one.load_state_dict(other.state_dict())
    assert torch.equal(one(stacks), other(stacks))


def test_a_form_of_the_penalty_is_worth_what_it_sums():
    """Where the loss is the penalty alone: the mean rate of a layer, O times that, half the square of each rate, or the
    mean rate of all neurons."""
    stacks, found = torch.from_numpy(np.stack([random_stack(i) for i in range(4)])), {}
    for form in ("layers", "features", "squares", "neurons"):
        network = StudentNetwork(SMALL, 6, sparsity=1.0, sparsity_form=form)
        (network(stacks) * 0.0).sum().backward()
        gradient = network.ternary_layers()[-1].beta.grad
        assert gradient is not None
        found[form] = gradient
        _, _, spikes = network.propagate(stacks, network.working_weights())
    rates = spikes[len(SMALL) - 1].float().mean(dim=(0, 2, 3))
    assert (found["layers"] > 0).any()
    torch.testing.assert_close(found["features"], found["layers"] * SMALL[-1].features)
    torch.testing.assert_close(found["squares"], found["features"] * rates, rtol=1e-4, atol=1e-7)
    neurons = [layer[0].numel() for layer in spikes.values()]
    torch.testing.assert_close(found["neurons"], found["layers"] * (neurons[-1] / sum(neurons)))


def test_shadow_weights_begin_within_the_initial_range():
    network = StudentNetwork(SMALL, 6, initial_range=0.4)
    for layer in network.ternary_layers():
        assert 0.3 < float(layer.shadow.detach().abs().max()) <= 0.4
        assert not layer.ternary.any(), "below 0.5 all ternary weights begin at 0"
