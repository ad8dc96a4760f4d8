"""Layer norm and ReLU in one pass beside PyTorch's in fp64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from spikestill.teacher.atari.feature_norm import feature_norm
from spikestill.teacher.atari.q_network import EPSILON

# Of the network's layers; features that fill no vector, which PyTorch normalises.
SHAPES = [(3, 32, 20, 20), (2, 64, 7, 7), (5, 512), (4, 20, 3, 3)]
# Of one rounding: an operand, a sum and the result are rounded to the format.
ERRORS = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}


def operands(shape, dtype, mean=2.0):
    """Return sums (channels-last) far from a mean of 0, gain, shift, and the gradient of the result."""
    generator = torch.Generator().manual_seed(0)
    sums, slopes = (torch.randn(shape, generator=generator) for _ in range(2))
    affine = [torch.randn(shape[1], generator=generator) * 0.3 + centre for centre in (1.0, 0.0)]
    made = [(3 * sums + mean).to(dtype), *(each.to(dtype) for each in affine), slopes.to(dtype)]
    if len(shape) == 4:
        made[0] = made[0].contiguous(memory_format=torch.channels_last)
    return made


@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize("shape", SHAPES)
def test_result_and_gradients_are_pytorchs(shape, dtype):
    sums, gain, shift, slope = operands(shape, dtype)
    leaves = [each.requires_grad_() for each in (sums, gain, shift)]
    exact = [each.detach().double().requires_grad_() for each in leaves]
    found = feature_norm(leaves[0], leaves[1], leaves[2], EPSILON)
    wanted = F.relu(
        F.layer_norm(exact[0].movedim(1, -1), (shape[1],), exact[1], exact[2], EPSILON).movedim(-1, 1)
    )
    assert found.dtype == dtype
    assert found.shape == sums.shape
    assert 0.3 < float((found == 0).double().mean()) < 0.7
    close(found, wanted, ERRORS[dtype])
    # A unit that rounding has moved over the edge is active in one of the two: leave its gradient out.
    slope = slope * ((found > 0) == (wanted > 0)) * (wanted.abs() > ERRORS[dtype])
    gradients = torch.autograd.grad(found, leaves, slope)
    # PyTorch adds bf16 gradients of gain and shift up in bf16, wherever it is that adds them.
    native = shape[1] % 16 == 0 and dtype != torch.float16
    for gradient, other in zip(gradients, torch.autograd.grad(wanted, exact, slope.double()), strict=True):
        assert gradient.dtype == dtype
        close(gradient, other, ERRORS[dtype] * (1 if native else 10))


def close(found, wanted, error):
    """Assert that no element differs by more than ``error`` of the largest."""
    found, wanted = found.detach().double(), wanted.detach()
    assert float((found - wanted).abs().max()) <= error * float(wanted.abs().max())


def test_a_mean_of_a_hundred_deviations_costs_no_more_than_its_own_rounding():
    sums, gain, shift, _ = operands((3, 64, 7, 7), torch.float32, mean=300.0)
    exact = F.layer_norm(sums.double().movedim(1, -1), (64,), gain.double(), shift.double(), EPSILON)
    close(feature_norm(sums, gain, shift, EPSILON), F.relu(exact.movedim(-1, 1)), 3e-5)


def test_a_place_where_all_features_are_equal_is_the_shift():
    sums = torch.full((2, 32, 3, 3), 7.0).contiguous(memory_format=torch.channels_last)
    shift = torch.linspace(-1, 1, 32)
    found = feature_norm(sums, torch.ones(32), shift, EPSILON)
    torch.testing.assert_close(found, shift.clamp(0)[:, None, None].expand(2, 32, 3, 3))
