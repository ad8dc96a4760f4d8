from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spikestill.common.errors import UserError
from spikestill.deploy.lava.lowering import MAX_FAN_IN, bias_mantissa, synapses
from spikestill.student.integer_net import IntegerLayer, layer_sums


@st.composite
def layers_with_input(draw):
    groups, per_in, per_out = (draw(st.integers(1, 3)) for _ in range(3))
    kernel, stride, pad = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(0, 3))
    height, width = (draw(st.integers(max(1, kernel - 2 * pad), 7)) for _ in range(2))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    weight = rng.integers(-1, 2, (groups * per_out, per_in, kernel, kernel), dtype=np.int8)
    layer = IntegerLayer(weight, np.zeros(groups * per_out, np.int32), stride, pad, groups)
    return layer, rng.integers(0, 2, (groups * per_in, height, width), dtype=np.uint8)


@settings(max_examples=60, deadline=None)
@given(layers_with_input())
def test_synapses_times_input_are_the_sums_of_the_naive_layer(case):
    layer, x_CHW = case
    sums = layer_sums(layer, x_CHW)
    product = synapses(layer, x_CHW.shape) @ x_CHW.reshape(-1).astype(np.int32)
    assert np.array_equal(product.reshape(sums.shape), sums)


def test_thresholds_beyond_the_reachable_sums_are_clamped_to_always_and_never():
    weight = np.array([[1, 1, -1, 0]] * 6, np.int8).reshape(6, 4, 1, 1)
    theta = np.array([-(2**31), -4, -3, 2, 4, 2**31 - 1], np.int32)
    bias = bias_mantissa(IntegerLayer(weight, theta, 1, 0, 1), (4, 1, 2))
    assert np.array_equal(bias, np.repeat([4, 4, 4, -1, -3, -3], 2))


def test_a_fan_in_beyond_the_fixed_point_neuron_is_refused():
    def layer(inputs: int) -> IntegerLayer:
        return IntegerLayer(np.ones((1, inputs, 1, 1), np.int8), np.zeros(1, np.int32), 1, 0, 1)

    assert bias_mantissa(layer(MAX_FAN_IN), (MAX_FAN_IN, 1, 1)).tolist() == [1]
    with pytest.raises(
        UserError, match=r"fan-in 512, Lava's fixed-point neuron holds up to 511\. Use the fused"
    ):
        bias_mantissa(layer(512), (512, 1, 1))
