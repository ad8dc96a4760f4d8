import pytest
import torch

from spikestill.student import grouped, quantise
from spikestill.student.quantise import (
    NormalisedStep,
    Pressure,
    fire,
    initial_ternary,
    ternarise,
)

H = 0.1


@pytest.mark.parametrize(
    ("shadow", "previous", "expected"),
    [
        (0.6, 0, 1), (0.6, -1, 1), (1.0, 0, 1),
        (-0.6, 0, -1), (-0.6, 1, -1), (-1.0, 0, -1),
        (0.4, 1, 0), (-0.4, -1, 0), (0.0, 1, 0), (0.0, -1, 0), (0.4, 0, 0),
        (0.5, 1, 1), (0.5, 0, 0), (0.41, 1, 1), (0.59, 0, 0),
        (-0.5, -1, -1), (-0.5, 0, 0), (-0.41, -1, -1), (-0.59, 0, 0),
        # A previous value of the other sign lies outside the band's two values: the nearer one is 0.
        (0.5, -1, 0), (-0.5, 1, 0),
    ],
)  # fmt: skip
def test_ternary_follows_the_hysteresis_table(shadow, previous, expected):
    # float64, so that 0.5 + 0.1 is the bound itself.
    made = ternarise(torch.tensor([shadow]).double(), torch.tensor([float(previous)]).double(), H)
    assert made.item() == expected


def test_ternary_codomain_and_idempotence():
    shadow = torch.rand(10_000, generator=torch.Generator().manual_seed(0)) * 2 - 1
    first = ternarise(shadow, initial_ternary(shadow), H)
    assert set(first.unique().tolist()) == {-1.0, 0.0, 1.0}
    assert torch.equal(ternarise(shadow, first, H), first)


@pytest.mark.parametrize("hysteresis", [0.0, 0.1, 0.25, 0.5])
def test_the_kernel_requantises_as_the_formula(hysteresis):
    generator = torch.Generator().manual_seed(0)
    borders = torch.tensor([0.5, 0.5 + hysteresis, 0.5 - hysteresis, 0.0, -0.0, 1.0, 1.5])
    near = torch.cat(
        [borders, torch.nextafter(borders, torch.ones(7)), torch.nextafter(borders, -torch.ones(7))]
    )
    shadow = torch.cat([near, -near]).repeat(3)
    previous = torch.tensor([-1.0, 0.0, 1.0]).repeat_interleave(len(near) * 2)
    shadow = torch.cat([shadow, torch.rand(10_000, generator=generator) * 3 - 1.5])
    previous = torch.cat([previous, torch.randint(-1, 2, (10_000,), generator=generator).float()])
    expected = ternarise(shadow.clamp(-1.0, 1.0), previous, hysteresis)
    clipped = shadow.clamp(-1.0, 1.0)
    grouped.requantise(shadow, previous, hysteresis)
    assert torch.equal(previous, expected)
    assert torch.equal(shadow, clipped)


def test_the_kernel_keeps_what_is_not_finite():
    shadow, ternary = torch.tensor([torch.nan, torch.inf, -torch.inf]), torch.zeros(3)
    grouped.requantise(shadow, ternary, H)
    assert shadow.isnan().tolist() == [True, False, False]
    assert ternary.tolist() == [0.0, 1.0, -1.0]


def tensors(dtype, rows=200, features=37):
    generator = torch.Generator().manual_seed(0)
    s = torch.randint(-60, 60, (rows, features), generator=generator).to(dtype)
    dy = torch.randn(rows, features, generator=generator).to(dtype)
    gamma = torch.rand(features, generator=generator) - 0.3
    beta = torch.randn(features, generator=generator) * 0.2
    return s, dy, gamma, beta


@pytest.mark.parametrize("square", [0.0, 40.0])
def test_gradient_is_that_of_batch_normalisation_with_the_triangle_as_slope(square):
    """Beside autograd through a function whose derivative is the triangle: x - x|x|/2 on [-1, 1]."""
    s, dy, gamma, beta = (tensor.double() for tensor in tensors(torch.float32, 60, 5))
    s, gamma, beta = (tensor.requires_grad_() for tensor in (s, gamma, beta))
    variance, mu = torch.var_mean(s, dim=0, correction=0)
    x = (s - mu) / torch.sqrt(variance + quantise.VARIANCE_EPSILON) * gamma + beta
    clipped = x.clamp(-1.0, 1.0)
    penalty = 0.3
    smooth = clipped - clipped * clipped.abs() / 2
    # The penalty's weights are those of spikes, 1 where x >= 0, and held constant.
    rate = (x >= 0).double().mean(dim=0).detach()
    loss = (smooth * dy).sum() + penalty * smooth.mean() + (square / 60 * rate * smooth).sum()
    expected = torch.autograd.grad(loss, [s, gamma, beta])
    leaves = [tensor.detach().float().requires_grad_() for tensor in (s, gamma, beta)]
    image = leaves[0].t().reshape(1, 5, 60, 1)
    y, _, _ = NormalisedStep.apply(
        image, leaves[1], leaves[2], None, None, Pressure(penalty / 300, square / 60)
    )
    made = torch.autograd.grad(y, leaves, dy.float().t().reshape(1, 5, 60, 1))
    for a, b in zip(made, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-4)


def test_step_fires_at_exactly_zero():
    assert fire(torch.zeros(1, 1), torch.ones(1), torch.zeros(1)).item() == 1.0
    assert fire(torch.full((1, 1), -0.0), torch.ones(1), torch.tensor([-0.0])).item() == 1.0
    assert fire(torch.zeros(1, 1), torch.ones(1), torch.tensor([-1e-30])).item() == 0.0


def test_renormalised_gradient_corrects_from_the_running_statistics():
    """Beside autograd through Ioffe's (2017) r and d, held constant, and the triangle's integral."""
    s, dy, gamma, beta = (tensor.double() for tensor in tensors(torch.float32, 60, 5))
    running_mean = s.mean(dim=0) + 3.0
    running_variance = s.var(dim=0, correction=0) * 1.7
    s, gamma, beta = (tensor.requires_grad_() for tensor in (s, gamma, beta))
    variance, mu = torch.var_mean(s, dim=0, correction=0)
    deviation = torch.sqrt(variance + quantise.VARIANCE_EPSILON)
    running_deviation = torch.sqrt(running_variance + quantise.VARIANCE_EPSILON)
    r, d = (deviation / running_deviation).detach(), ((mu - running_mean) / running_deviation).detach()
    x = ((s - mu) / deviation * r + d) * gamma + beta
    clipped = x.clamp(-1.0, 1.0)
    expected = torch.autograd.grad(((clipped - clipped * clipped.abs() / 2) * dy).sum(), [s, gamma, beta])
    leaves = [tensor.detach().float().requires_grad_() for tensor in (s, gamma, beta)]
    y, _, _ = NormalisedStep.apply(
        leaves[0].t().reshape(1, 5, 60, 1),
        *leaves[1:],
        running_mean.float(),
        running_variance.float(),
        Pressure(0, 0),
    )
    fires = ((s - running_mean) / running_deviation * gamma + beta >= 0).float()
    assert torch.equal(y.reshape(5, 60).t(), fires)
    made = torch.autograd.grad(y, leaves, dy.float().t().reshape(1, 5, 60, 1))
    for a, b in zip(made, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("previous", [1.0, 0.0, -1.0])
def test_without_hysteresis_a_weight_on_the_border_stays(sign, previous):
    shadow, ternary = torch.tensor([0.5 * sign]), torch.tensor([previous])
    for _ in range(2):
        ternary = ternarise(shadow, ternary, 0.0)
        assert ternary.item() == sign


def test_pressure_is_the_gradient_of_half_the_squared_means():
    y = (torch.rand(5, 3, 2, 2, generator=torch.Generator().manual_seed(3)) < 0.4).float().requires_grad_()
    (0.7 * 0.5 * y.mean(dim=(0, 2, 3)).square().sum()).backward()
    pushed = Pressure(0.0, 0.7 / (5 * 2 * 2)).on(y.detach().mean(dim=(0, 2, 3)))
    torch.testing.assert_close(y.grad, pushed[:, None, None].expand(5, 3, 2, 2))
