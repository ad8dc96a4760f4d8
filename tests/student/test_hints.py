import numpy as np
import pytest
import torch

from spikestill.common.errors import UserError
from spikestill.student.architectures import ARCHITECTURES, architecture
from spikestill.student.hints import Hints, _mean, hinted_layers, principal_components
from spikestill.student.network import StudentNetwork
from spikestill.teacher.atari import q_network
from tests.nets import random_stack


def test_hinted_layers_of_the_1chip_net():
    assert hinted_layers(architecture("1chip")) == [4, 6, 8]
    for layers in ARCHITECTURES.values():
        assert 0 not in hinted_layers(layers)
        assert hinted_layers(layers)[-1] == len(layers) - 2


def test_components_are_centred_uncorrelated_and_of_unit_mean_square():
    units = torch.from_numpy(np.random.default_rng(0).normal(size=(400, 30)) @ np.diag(np.arange(30))).float()
    units[:, 1:4] = units[:, :1] + 5.0  # of deviation 0: dead
    mean, projection = principal_components(units, 8)
    found = (units - mean) @ projection
    covariance = found.T @ found / len(found)
    assert found.shape == (400, 8)
    torch.testing.assert_close(covariance.diagonal().mean(), torch.tensor(1.0))
    assert (covariance - covariance.diagonal().diag()).abs().max() < 1e-3
    assert (covariance.diagonal().diff() < 0).all()
    assert (projection[:4] == 0).all()


ONE_GAME = torch.zeros(12, dtype=torch.int64)


@pytest.fixture
def made():
    torch.manual_seed(0)
    stacks = torch.from_numpy(np.stack([random_stack(i) for i in range(12)]))
    network = StudentNetwork(architecture("1chip"), 6)
    _, _, spikes = network.propagate(stacks, network.working_weights())
    teacher = q_network.initial_weights(6, torch.Generator().manual_seed(1))
    chosen = {index: spikes[index] for index in hinted_layers(architecture("1chip"))}
    return network, stacks, Hints([teacher], stacks, ONE_GAME, chosen, 4, torch.float32)


def test_a_teacher_whose_hidden_layer_is_dead_gives_no_hints(made):
    _, stacks, _ = made
    teacher = q_network.initial_weights(6, torch.Generator().manual_seed(1))
    teacher["hidden.bias"] -= 1e3
    with pytest.raises(
        UserError, match=r"its last hidden layer is the same on all of 12 frames.*--hint_weight 0"
    ):
        Hints([teacher], stacks, ONE_GAME, {}, 4, torch.float32)


def test_loss_is_the_squared_error_of_centred_readouts(made):
    network, stacks, hints = made
    with torch.no_grad():
        for parameter in hints.parameters:
            parameter.uniform_(-0.01, 0.01)
    _, _, spikes = network.propagate(stacks, network.working_weights())
    targets = hints.targets(stacks, ONE_GAME)
    expected = 0.0
    for index, layer in enumerate(hints.layers):
        flat = spikes[layer].detach().permute(0, 2, 3, 1).reshape(len(stacks), -1).double()
        centred = flat - hints.centres[layer].double()
        predicted = (
            centred @ hints.parameters[index].detach().double().T + hints.parameters[3 + index].detach()
        )
        expected += float(((predicted - targets) ** 2).mean().detach())
    assert float(hints.loss(spikes, targets, hints.parameters)[0].detach()) == pytest.approx(
        expected, rel=1e-4
    )


def test_gradient_reaches_every_layer_below_a_readout(made):
    network, stacks, hints = made
    with torch.no_grad():
        for parameter in hints.parameters:
            parameter.uniform_(-0.01, 0.01)
    weights = network.working_weights()
    _, _, spikes = network.propagate(stacks, weights)
    loss, _ = hints.loss(spikes, hints.targets(stacks, ONE_GAME), hints.parameters)
    gradients = torch.autograd.grad(loss, weights, allow_unused=True)
    assert gradients[9] is None
    assert all(bool((gradient != 0).any()) for gradient in gradients[:9])


def test_state_comes_back(made):
    _, _, hints = made
    state = {name: tensor.clone() for name, tensor in hints.state().items()}
    with torch.no_grad():
        for parameter in hints.parameters:
            parameter.add_(1.0)
    hints.absorb([[centre + 1.0 for centre in hints.centres.values()]])
    hints.set_state(state)
    for name, tensor in hints.state().items():
        assert torch.equal(tensor, state[name]), name


def test_of_several_games_each_frame_is_hinted_by_its_own_teacher_alone(made):
    """Loss and gradients are those of one set of hints a game, each weighed by its frames' targets."""
    network, stacks, one = made
    _, _, spikes = network.propagate(stacks, network.working_weights())
    chosen = {layer: spikes[layer].detach() for layer in one.layers}
    teachers = [q_network.initial_weights(6, torch.Generator().manual_seed(seed)) for seed in (1, 2)]
    game = torch.tensor([0, 1, 1] * 4)
    both = Hints(teachers, stacks, game, chosen, 3, torch.float32)
    alone = [
        Hints([teacher], stacks[game == index], ONE_GAME[game == index], chosen, 3, torch.float32)
        for index, teacher in enumerate(teachers)
    ]
    random = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for index, parameter in enumerate(both.parameters):
            parameter.uniform_(-0.01, 0.01, generator=random)
            for part, own in zip(parameter.split(3), alone, strict=True):
                own.parameters[index].copy_(part)
    loss, _ = both.loss(chosen, both.targets(stacks, game), both.parameters)
    wanted = torch.zeros(())
    for index, own in enumerate(alone):
        rows = game == index
        mine = {layer: values[rows] for layer, values in chosen.items()}
        part, _ = own.loss(mine, own.targets(stacks[rows], ONE_GAME[rows]), own.parameters)
        wanted = wanted + part * rows.sum() / len(game)
    torch.testing.assert_close(loss, wanted)
    gradients = torch.autograd.grad(loss, both.parameters)
    theirs = torch.autograd.grad(wanted, [parameter for own in alone for parameter in own.parameters])
    for index, gradient in enumerate(gradients):
        torch.testing.assert_close(gradient, torch.cat([theirs[index], theirs[index + len(gradients)]]))
    with torch.no_grad():
        wiped = Hints(teachers, stacks.flip(0), game, chosen, 3, torch.float32)
        assert not torch.equal(wiped.means[1], both.means[1])
        wiped.set_state({name: tensor.clone() for name, tensor in both.state().items()})
    assert torch.equal(wiped.loss(chosen, wiped.targets(stacks, game), wiped.parameters)[0], loss)


def test_a_game_that_hardly_occurs_is_named(made):
    _, stacks, _ = made
    teachers = [q_network.initial_weights(6, torch.Generator().manual_seed(1))] * 2
    with pytest.raises(UserError, match="0 of the 12 frames that the hints begin with are of game 2"):
        Hints(teachers, stacks, ONE_GAME, {}, 3, torch.float32)


def test_readouts_work_in_their_own_format_and_the_gradient_is_the_parameters(made):
    network, stacks, _ = made
    _, _, spikes = network.propagate(stacks, network.working_weights())
    chosen = {index: spikes[index].detach().bfloat16() for index in hinted_layers(architecture("1chip"))}
    teacher = q_network.initial_weights(6, torch.Generator().manual_seed(1))
    hints = Hints([teacher], stacks, ONE_GAME, chosen, 4, torch.float32, torch.bfloat16)
    with torch.no_grad():
        for parameter in hints.parameters:
            parameter.uniform_(-0.01, 0.01)
    readouts = hints.working_readouts()
    assert [each.dtype for each in readouts] == 3 * [torch.bfloat16] + 3 * [torch.float32]
    targets = hints.targets(stacks, ONE_GAME)
    loss, means = hints.loss(chosen, targets, readouts)
    found = torch.autograd.grad(loss, readouts)
    wide = {layer: each.float() for layer, each in chosen.items()}
    wanted, wanted_means = hints.loss(wide, targets, hints.parameters)
    assert float(loss.detach()) == pytest.approx(float(wanted.detach()), rel=0.02)
    for one, other in zip(found, torch.autograd.grad(wanted, hints.parameters), strict=True):
        # A bias's is a mean of errors that nearly cancel.
        assert (one.float() - other).norm() < (0.05 if one.ndim == 2 else 0.3) * other.norm()
    for one, other in zip(means, wanted_means, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("rows", [3, 256, 515])
def test_the_mean_of_spikes_is_exact_in_bf16(rows):
    spikes = (torch.rand(rows, 40, generator=torch.Generator().manual_seed(0)) < 0.9).bfloat16()
    spikes[:, 0] = 1.0
    assert torch.equal(_mean(spikes), spikes.float().sum(dim=0) / rows)
