"""RMSProp against its formula in float64, and where PyTorch's differs from it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spikestill.teacher.atari.rmsprop import CenteredRMSprop

DECAY, EPSILON = 0.95, 0.01 / 32**2


def walk(gradients: np.ndarray, rate: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (moments n, g and weights) after steps by the rows of ``gradients``, from 0."""
    n = g = w = np.zeros(gradients.shape[1])
    for d in gradients:
        n, g = DECAY * n + (1 - DECAY) * d**2, DECAY * g + (1 - DECAY) * d
        w = w - rate * d / np.sqrt(n - g**2 + EPSILON)
    return n, g, w


@pytest.mark.parametrize("rate", [2.5e-4, torch.tensor(2.5e-4)])
def test_steps_follow_the_formula(rate: float | torch.Tensor) -> None:
    gradients = np.random.default_rng(0).normal(0.001, 0.01, (200, 50))
    weight = torch.zeros(50)
    optimizer = CenteredRMSprop([{"params": [weight]}], rate, DECAY, EPSILON)
    for d in gradients:
        weight.grad = torch.from_numpy(d.astype(np.float32))
        optimizer.step()
    n, g, w = walk(gradients, float(rate))
    np.testing.assert_allclose(optimizer.state[weight]["square_avg"], n, rtol=1e-4)
    np.testing.assert_allclose(optimizer.state[weight]["grad_avg"], g, rtol=1e-4, atol=1e-8)
    np.testing.assert_allclose(weight, w, rtol=1e-3, atol=1e-6)


def test_groups_have_rates_of_their_own() -> None:
    weights = [torch.zeros(3), torch.zeros(3)]
    optimizer = CenteredRMSprop(
        [{"params": weights[:1]}, {"params": weights[1:], "lr": 1e-3}], 1e-2, DECAY, EPSILON
    )
    for weight in weights:
        weight.grad = torch.ones(3)
    optimizer.step()
    torch.testing.assert_close(weights[0], 10.0 * weights[1])


def test_a_gradient_that_stays_the_same_keeps_weights_finite() -> None:
    """n - g^2 goes to 0 then, in fp32 to either side of it; the step goes to rate * d / sqrt(epsilon)."""
    d = torch.linspace(1.0, 1000.0, 500)
    weight = torch.zeros(500)
    optimizer = CenteredRMSprop([{"params": [weight]}], 1e-3, DECAY, 1e-12)
    below = False
    for _ in range(600):
        weight.grad = d
        optimizer.step()
        moments = optimizer.state[weight]
        below |= bool((moments["square_avg"] - moments["grad_avg"] ** 2 < 0).any())
    assert below
    assert torch.isfinite(weight).all()
