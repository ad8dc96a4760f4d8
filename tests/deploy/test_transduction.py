from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spikestill.deploy.transduction import plan_transduction, transduce_planned
from spikestill.student.architectures import architecture
from spikestill.student.integer_net import IntegerLayer, layer_sums, naive_layer
from tests.nets import random_stack, table1_net


def layer_of(
    weight: np.ndarray, theta: np.ndarray, stride: int = 1, pad: int = 0, groups: int = 1
) -> IntegerLayer:
    return IntegerLayer(weight.astype(np.int8), theta.astype(np.int32), stride, pad, groups)


def transduce(layer: IntegerLayer, stack_CHW: np.ndarray) -> np.ndarray:
    return transduce_planned(plan_transduction(layer, stack_CHW.shape), stack_CHW)


@st.composite
def layers_and_stacks(draw: st.DrawFn) -> tuple[IntegerLayer, np.ndarray]:
    """Any geometry that fits, any density, thresholds on and around the sums that occur."""
    groups = draw(st.integers(1, 3))
    per_in, per_out = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    height, width, pad = draw(st.integers(1, 13)), draw(st.integers(1, 13)), draw(st.integers(-5, 3))
    pad = max(pad, -((min(height, width) - 1) // 2))
    kernel = draw(st.integers(1, min(8, min(height, width) + 2 * pad)))
    stride = draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    kind = draw(st.sampled_from(["random", "plus", "minus", "zero"]))
    shape = (groups * per_out, per_in, kernel, kernel)
    weight = {"random": rng.integers(-1, 2, shape), "plus": np.ones(shape), "minus": -np.ones(shape)}.get(
        kind, np.zeros(shape)
    )
    pixel = draw(st.sampled_from(["random", 0, 255]))
    size = (groups * per_in, height, width)
    stack = rng.integers(0, 256, size) if pixel == "random" else np.full(size, pixel)
    layer = layer_of(weight, np.zeros(shape[0]), stride, pad, groups)
    sums = layer_sums(layer, stack.astype(np.uint8)).reshape(shape[0], -1)
    chosen = sums[np.arange(shape[0]), rng.integers(0, sums.shape[1], shape[0])]
    theta = chosen + rng.integers(-1, 2, shape[0])
    extremes = rng.choice([-(2**31), 2**31 - 1], shape[0])
    theta = np.where(rng.random(shape[0]) < 0.2, extremes, theta)
    return layer_of(weight, theta, stride, pad, groups), stack.astype(np.uint8)


@settings(deadline=None, max_examples=150, derandomize=True)
@given(layers_and_stacks())
def test_equals_the_naive_layer(case: tuple[IntegerLayer, np.ndarray]) -> None:
    layer, stack = case
    assert np.array_equal(transduce(layer, stack), naive_layer(layer, stack))


@pytest.mark.parametrize("name", ["1chip", "2chip", "4chip", "8chip"])
def test_equals_the_naive_layer_on_table_1(name: str) -> None:
    layer = table1_net(name).layers[0]
    assert layer.features == architecture(name)[0].features
    stack = random_stack(3)
    assert np.array_equal(transduce(layer, stack), naive_layer(layer, stack))


@pytest.mark.parametrize("sign", [1, -1])
def test_sums_of_a_thousand_bright_pixels_do_not_overflow(sign: int) -> None:
    """1,024 taps of 255 give 261,120: past int16 many times, in one feature of one sign."""
    stack = np.full((4, 16, 16), 255, np.uint8)
    weight = np.full((2, 4, 16, 16), sign)
    total = sign * 255 * 1024
    spikes = transduce(layer_of(weight, np.array([total, total + 1])), stack)
    assert spikes.reshape(-1).tolist() == [1, 0]


def test_a_plan_serves_many_stacks() -> None:
    layer = table1_net("1chip").layers[0]
    plan = plan_transduction(layer, (4, 84, 84))
    for seed in range(3):
        stack = random_stack(seed)
        assert np.array_equal(transduce_planned(plan, stack), naive_layer(layer, stack))


def test_reads_a_stack_that_is_not_contiguous() -> None:
    layer = table1_net("1chip").layers[0]
    stack = np.asfortranarray(random_stack(5))
    assert np.array_equal(transduce(layer, stack), naive_layer(layer, stack))


@pytest.mark.parametrize("stack", [np.zeros((4, 84, 84), np.int16), np.zeros((4, 84, 83), np.uint8)])
def test_refuses_another_dtype_or_shape(stack: np.ndarray) -> None:
    plan = plan_transduction(table1_net("1chip").layers[0], (4, 84, 84))
    with pytest.raises(ValueError, match=r"input must be uint8 of shape \(4, 84, 84\)"):
        transduce_planned(plan, stack)
