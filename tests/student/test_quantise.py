import pytest
import torch

from spikestill.student import quantise
from spikestill.student.quantise import (
    NormalisedStep,
    fire,
    initial_ternary,
    statistics,
    step_gradient,
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


def tensors(dtype, rows=200, features=37):
    generator = torch.Generator().manual_seed(0)
    s = torch.randint(-60, 60, (rows, features), generator=generator).to(dtype)
    dy = torch.randn(rows, features, generator=generator).to(dtype)
    gamma = torch.rand(features, generator=generator) - 0.3
    beta = torch.randn(features, generator=generator) * 0.2
    return s, dy, gamma, beta


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cpu_kernels_equal_the_plain_formulas(dtype):
    s, dy, gamma, beta = tensors(dtype)
    variance, mu = statistics(s)
    expected_variance, expected_mu = torch.var_mean(s.float(), dim=0, correction=0)
    torch.testing.assert_close(mu, expected_mu)
    torch.testing.assert_close(variance, expected_variance)
    scale = torch.rsqrt(variance + quantise.VARIANCE_EPSILON)
    slope = gamma * scale
    y = fire(s, slope, beta - mu * slope)
    assert torch.equal(y, ((s.float() * slope + (beta - mu * slope)) >= 0).to(dtype))
    kernel = step_gradient(s, dy, mu, scale, slope, beta - mu * slope, 0.01)
    plain = quantise._step_gradient_torch(s, dy, mu, scale, slope, beta - mu * slope, 0.01)
    for a, b in zip(kernel, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2 if dtype == torch.bfloat16 else 1e-4, atol=1e-4)


def test_statistics_survive_a_mean_far_above_the_spread():
    s = 30_000.0 + torch.randint(-3, 4, (5000, 5), generator=torch.Generator().manual_seed(0)).float()
    variance, mu = statistics(s)
    expected_variance, expected_mu = torch.var_mean(s.double(), dim=0, correction=0)
    torch.testing.assert_close(variance.double(), expected_variance, rtol=1e-4, atol=0)
    torch.testing.assert_close(mu.double(), expected_mu, rtol=1e-6, atol=0)


def test_gradient_is_that_of_batch_normalisation_with_the_triangle_as_slope():
    """Beside autograd through a function whose derivative is the triangle: x - x|x|/2 on [-1, 1]."""
    s, dy, gamma, beta = (tensor.double() for tensor in tensors(torch.float32, 60, 5))
    s, gamma, beta = (tensor.requires_grad_() for tensor in (s, gamma, beta))
    variance, mu = torch.var_mean(s, dim=0, correction=0)
    x = (s - mu) / torch.sqrt(variance + quantise.VARIANCE_EPSILON) * gamma + beta
    clipped = x.clamp(-1.0, 1.0)
    penalty = 0.3
    smooth = clipped - clipped * clipped.abs() / 2
    loss = (smooth * dy).sum() + penalty * smooth.mean()
    expected = torch.autograd.grad(loss, [s, gamma, beta])
    leaves = [tensor.detach().float().requires_grad_() for tensor in (s, gamma, beta)]
    image = leaves[0].t().reshape(1, 5, 60, 1)
    y, _, _ = NormalisedStep.apply(image, leaves[1], leaves[2], None, None, penalty)
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
        leaves[0].t().reshape(1, 5, 60, 1), *leaves[1:], running_mean.float(), running_variance.float(), 0.0
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
