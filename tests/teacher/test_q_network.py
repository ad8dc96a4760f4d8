import pytest
import torch
import torch.nn.functional as F
from torch import nn

from spikestill.teacher.atari import q_network


@pytest.fixture
def weights():
    return q_network.initial_weights(6, torch.Generator().manual_seed(0))


@pytest.fixture
def stacks():
    return torch.randint(
        0, 256, (3, 4, 84, 84), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )


def test_network_is_the_nature_network(weights, stacks):
    net = nn.Sequential(
        nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 6),
    )  # fmt: skip
    net.load_state_dict(dict(zip(net.state_dict(), weights.values(), strict=True)))
    torch.testing.assert_close(q_network.q_values(weights, stacks), net(stacks / 255.0), rtol=1e-4, atol=1e-5)


def test_a_dueling_head_is_the_published_equation_and_becomes_a_plain_one(stacks):
    weights = q_network.initial_weights(6, torch.Generator().manual_seed(1), dueling=True)
    hidden = q_network.features(weights, stacks)[-1]
    value = F.linear(hidden[:, :256], weights["value.weight"], weights["value.bias"])
    advantage = F.linear(hidden[:, 256:], weights["advantage.weight"], weights["advantage.bias"])
    wanted = value + advantage - advantage.mean(dim=1, keepdim=True)
    for found in (weights, q_network.plain(weights)):
        torch.testing.assert_close(q_network.q_values(found, stacks), wanted, rtol=1e-4, atol=1e-6)
    assert {name: tuple(w.shape) for name, w in q_network.plain(weights).items()} == q_network.shapes(6)


def test_folding_the_pixel_offset_keeps_the_q_values(weights, stacks):
    folded = q_network.fold_offset(weights, 90.0)
    torch.testing.assert_close(
        q_network.q_values(folded, stacks), q_network.q_values(weights, stacks, 90.0), rtol=1e-4, atol=1e-5
    )


def test_bf16_working_copy_keeps_the_head_in_fp32(weights, stacks):
    copy = q_network.working_copy(weights, torch.bfloat16, requires_grad=False)
    assert copy["head.weight"].dtype == torch.float32
    assert copy["conv1.weight"].dtype == torch.bfloat16
    q = q_network.q_values(copy, stacks)
    assert q.dtype == torch.float32
    torch.testing.assert_close(q, q_network.q_values(weights, stacks), rtol=0.1, atol=0.02)


def test_dead_fraction_counts_units_that_no_input_activates():
    layer = torch.zeros(2, 4, 3, 3)
    layer[0, 1, 2, 2] = 1.0
    assert q_network.dead_fractions([layer]) == [0.75]
