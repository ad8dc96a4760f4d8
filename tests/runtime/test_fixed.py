"""The teacher in integers: three forms equal bit for bit, no sum overflows, close to the network; and as ONNX."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from spikestill.common.environment import environment
from spikestill.common.errors import UserError
from spikestill.common.zoo import zoo_path
from spikestill.runtime.agents import open_agent
from spikestill.teacher.atari.fixed_kernel import FixedKernel
from spikestill.teacher.atari.fixed_network import INT32_MAX, calibrate, forward, torch_forward
from spikestill.teacher.atari.fixed_network import q_values as fixed_q_values
from spikestill.teacher.atari.q_network import initial_weights, q_values
from spikestill.teacher.checkpoint import nature_network, read_teacher_file
from spikestill.teacher.policy import load_teacher
from tests.runtime.artefacts import Files

TEACHER = zoo_path("pong", "teacher.safetensors")


def noise(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 4, 84, 84), np.uint8)


@pytest.mark.parametrize("bits", [16, 8])
@pytest.mark.parametrize("dueling", [False, True])
def test_reference_kernel_and_pytorch_give_the_same_integers(bits: int, dueling: bool) -> None:
    weights = initial_weights(6, torch.Generator().manual_seed(1), dueling)
    layers = calibrate(weights, noise(4), bits)
    extremes = np.stack([np.zeros((4, 84, 84)), np.full((4, 84, 84), 255)]).astype(np.uint8)
    stacks = np.concatenate([noise(2, 7), extremes])
    reference = forward(layers, stacks)
    assert reference.dtype == np.int32
    np.testing.assert_array_equal(FixedKernel(layers)(stacks), reference)
    np.testing.assert_array_equal(torch_forward(layers, torch.from_numpy(stacks)).numpy(), reference)


@pytest.mark.parametrize("bits", [16, 8])
def test_no_input_overflows_a_sum_of_32_bits(bits: int) -> None:
    """Every weight equal and as large as it gets: the largest sums that there are."""
    weights = initial_weights(6, torch.Generator().manual_seed(0))
    weights = {name: torch.full_like(tensor, 0.5) for name, tensor in weights.items()}
    layers = calibrate(weights, noise(1), bits)
    for layer in layers:
        largest = 256 * np.abs(layer.weight_KO.astype(np.int64)).sum(axis=0) + np.abs(
            layer.bias_O.astype(np.int64)
        )
        assert (largest <= INT32_MAX).all()
    full = np.full((1, 4, 84, 84), 255, np.uint8)
    np.testing.assert_array_equal(FixedKernel(layers)(full), forward(layers, full))


def test_an_activation_beyond_the_calibrated_range_saturates() -> None:
    weights = initial_weights(6, torch.Generator().manual_seed(3))
    layers = calibrate(weights, np.zeros((1, 4, 84, 84), np.uint8), 8)
    saturating = [dataclasses.replace(layer, shift_O=np.maximum(layer.shift_O - 12, 1)) for layer in layers]
    stacks = noise(1)
    reference = forward(tuple(saturating), stacks)
    np.testing.assert_array_equal(FixedKernel(tuple(saturating))(stacks), reference)
    assert not np.array_equal(reference, forward(layers, stacks))


def test_sixteen_bits_are_the_teacher_but_for_rounding() -> None:
    weights, *_ = nature_network(TEACHER, read_teacher_file(TEACHER))
    agent = open_agent("fixed", environment("pong"), {"teacher": TEACHER})
    eight = open_agent("fixed8", environment("pong"), {"teacher": TEACHER})
    policy, frames = load_teacher(TEACHER), noise(4) // 4
    q_BA = policy.q_values(frames)
    error = np.abs(agent.act({"stack": frames}).scores - q_BA).max()
    assert 0 < error < 0.01
    assert error < np.abs(eight.act({"stack": frames}).scores - q_BA).max()
    assert calibrate(weights, frames, 16)[0].planes == 1


@pytest.mark.parametrize("bits", [16, 8])
def test_what_all_actions_have_in_common_takes_none_of_the_advantages_bits(bits: int) -> None:
    weights, frames = initial_weights(4, torch.Generator().manual_seed(4)), noise(3)
    # Few bits each and four actions, so that sums and means are exact.
    weights |= {name: torch.round(4096 * weights[name]) / 4096 for name in ("head.weight", "head.bias")}
    layers = calibrate(weights, frames, bits)
    common = torch.round(torch.linspace(-192, 192, weights["head.weight"].shape[1])) / 64
    raised = weights | {
        "head.weight": weights["head.weight"] + common,
        "head.bias": weights["head.bias"] + 100,
    }
    high = calibrate(raised, frames, bits)
    found, more = forward(layers, frames), forward(high, frames)
    np.testing.assert_array_equal(more[:, :-1], found[:, :-1])
    exact = (
        q_values(raised, torch.from_numpy(frames)).numpy()
        - q_values(weights, torch.from_numpy(frames)).numpy()
    )
    stood = fixed_q_values(high, more) - fixed_q_values(layers, found)
    np.testing.assert_allclose(stood, exact, atol=2.0 if bits == 8 else 0.02)


def test_onnx_gives_the_teachers_q_values(pong: Files) -> None:
    pytest.importorskip("onnxruntime")
    agent = open_agent("onnx", environment("pong"), {"teacher": pong.teacher})
    stacks = noise(3)
    np.testing.assert_allclose(
        agent.act({"stack": stacks}).scores, load_teacher(pong.teacher).q_values(stacks), atol=1e-5
    )


@pytest.mark.parametrize("name", ["fixed", "onnx"])
def test_a_teacher_of_another_game_is_refused(name: str, pong: Files, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is for pong with 6 actions, the game is breakout with 4"):
        open_agent(name, environment("breakout"), {"teacher": pong.teacher})
    with pytest.raises(UserError, match="nothing"):
        open_agent(name, environment("pong"), {"teacher": tmp_path / "nothing"})
