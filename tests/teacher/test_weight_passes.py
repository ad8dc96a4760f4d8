"""The two passes of an update beside PyTorch's operations."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spikestill.teacher.atari.weight_passes import CHUNK, AdamStep, Moments, WeightPasses, readable

# Several chunks and a rest, less than a vector, a kernel whose gradient lies channels last.
SHAPES = {"wide": (3, CHUNK + 5), "few": (6,), "kernel": (32, 4, 8, 8)}


def in_threads(threads):
    """Return what calls each of so many threads, here one after the other."""
    return lambda work: [work(thread, threads) for thread in range(threads)]


def weights_and_shares(shares, dtype):
    """Return weights, and gradients of each share."""
    generator = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    parts = []
    for _ in range(shares):
        part = [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES.values()]
        part[2] = part[2].contiguous(memory_format=torch.channels_last)
        parts.append(part)
    return weights, parts


@pytest.mark.parametrize("shares", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_sum_of_the_shares_is_exact_and_the_norm_its_own(dtype, shares):
    weights, parts = weights_and_shares(shares, dtype)
    passes = WeightPasses(weights, in_threads(2))
    norm = passes.add(parts, 0.25)
    square = 0.0
    for index, name in enumerate(weights):
        wanted = parts[0][index].float()
        for part in parts[1:]:
            wanted = wanted + part[index].float()
        assert torch.equal(passes.gradients[name], wanted * 0.25), name
        square += float((wanted.double() * 0.25).square().sum())
    assert norm == pytest.approx(square**0.5, rel=1e-5)


def test_a_gradient_that_is_not_finite_shows_in_the_norm():
    weights, parts = weights_and_shares(2, torch.float32)
    passes = WeightPasses(weights, in_threads(2))
    for wrong in (1e20, np.inf, np.nan):  # 1e40 is no fp32 number, and a second moment would be one
        parts[1][1][5] = wrong
        assert not np.isfinite(passes.add(parts, 1.0))


@pytest.mark.parametrize("averaging", [0.0, 0.9, 0.99999])
def test_the_step_is_pytorchs_adam(averaging):
    weights, _ = weights_and_shares(1, torch.float32)
    passes = WeightPasses(weights, in_threads(2))
    theirs = {name: weight.double() for name, weight in weights.items()}
    mean = {name: weight.clone() for name, weight in weights.items()} if averaging else {}
    their_mean = {name: weight.clone() for name, weight in theirs.items()}
    adam = torch.optim.Adam(list(theirs.values()), lr=1e-2, eps=1e-5)
    moments = {
        name: Moments(*(np.zeros(weight.numel(), np.float32) for _ in range(2)))
        for name, weight in weights.items()
    }
    generator = torch.Generator().manual_seed(1)
    for update in range(1, 8):
        gradients = [torch.randn(shape, generator=generator) for shape in SHAPES.values()]
        passes.add([gradients], 1.0)
        step = AdamStep.at(update, 0.5, 1e-2, 1e-5, averaging)
        passes.step(weights, mean, moments, dict.fromkeys(weights, step))
        for weight, gradient in zip(theirs.values(), gradients, strict=True):
            weight.grad = gradient.double() * 0.5
        adam.step()
        for name, weight in theirs.items():
            their_mean[name].lerp_(weight, 1.0 - averaging)
    for name, weight in theirs.items():
        np.testing.assert_allclose(weights[name], weight, rtol=0, atol=2e-6, err_msg=name)
        state = adam.state[weight]
        np.testing.assert_allclose(moments[name].m, state["exp_avg"].reshape(-1), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(moments[name].v, state["exp_avg_sq"].reshape(-1), rtol=1e-4, atol=1e-7)
        if averaging:
            np.testing.assert_allclose(mean[name], their_mean[name], rtol=0, atol=2e-6, err_msg=name)


def test_the_number_of_threads_changes_no_bit():
    found = []
    for threads in (1, 2, 3, 7):
        weights, parts = weights_and_shares(2, torch.bfloat16)
        passes = WeightPasses(weights, in_threads(threads))
        moments = {
            name: Moments(np.ones(w.numel(), np.float32), np.ones(w.numel(), np.float32))
            for name, w in weights.items()
        }
        norm = passes.add(parts, 1.0)
        step = AdamStep.at(3, 1.0 / norm, 1e-2, 1e-5, 0.0)
        passes.step(weights, {}, moments, dict.fromkeys(weights, step))
        found.append((norm, *(readable(weight).tobytes() for weight in weights.values())))
    assert found[1:] == found[:1] * 3
