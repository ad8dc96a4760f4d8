from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spikestill.common.precision import fixed_fast as fast
from spikestill.common.precision import fixed_reference as reference
from spikestill.common.precision import sharing
from spikestill.common.precision.fixed import Affine, Int32
from spikestill.common.precision.fixed_adam import AdamRule, approach, next_powers, step_size
from spikestill.common.processor import cores

SIZE = st.integers(1, 70)


def words(rng: np.random.Generator, shape: tuple[int, ...], bits: int) -> np.ndarray:
    """Integers of every size: full words, and shifted right by chance."""
    high = 1 << (bits - 1)
    return (rng.integers(-high, high, shape) >> rng.integers(0, bits, shape)).astype(np.int32)


def same(found: tuple, want: tuple) -> None:
    for each, other in zip(found, want, strict=True):
        np.testing.assert_array_equal(each, other)


@settings(deadline=None, max_examples=60)
@given(SIZE, SIZE, SIZE, st.integers(0, 2**32), st.integers(0, 3), st.booleans(), st.sampled_from([16, 32]))
def test_layers_are_the_reference_bit_for_bit(batch, outputs, inputs, seed, shrink, affine_too, bits):
    rng = np.random.default_rng(seed)
    weight, bias = words(rng, (outputs, inputs), bits) >> 8 * shrink, words(rng, (outputs,), bits)
    x, error = words(rng, (batch, inputs), bits), words(rng, (batch, outputs), bits)
    affine = None
    if affine_too:
        affine = Affine.of(int(min(0, x.min()) // 2), int(max(0, x.max()) // 2))
        same(fast.quantise(x, affine), reference.quantise(x, affine))
        x = fast.quantise(x, affine)[0]
    for relu in (False, True):
        arguments = x, affine, weight, bias, 24, 4, bits, relu
        same(fast.forward(*arguments), reference.forward(*arguments))
    for mask in (None, x):
        same(fast.backward(error, weight, mask, 22, bits), reference.backward(error, weight, mask, 22, bits))
    same(
        fast.gradient(error, x, affine, 20, 14, bits),
        reference.gradient(error, x, affine, 20, 14, bits),
    )


def test_work_is_shared_by_as_many_threads_as_are_given():
    def parts(cost):
        return sharing.share(64, 4, cost, lambda first, last: (first, last))

    with sharing.at_most(1):
        assert parts(10**9) == [(0, 64)]
    with sharing.at_most(2):
        assert parts(10**9) == ([(0, 32), (32, 64)] if cores() > 1 else [(0, 64)])
        assert parts(10) == [(0, 64)]


def test_callers_at_a_time_share_the_threads_and_each_gets_its_own_results():
    def sums(seed):
        numbers_N = np.random.default_rng(seed).integers(0, 1000, 4096)
        return [
            sum(sharing.share(4096, 4, 10**9, lambda first, last: int(numbers_N[first:last].sum())))
            == numbers_N.sum()
            for _ in range(300)
        ]

    with ThreadPoolExecutor(4) as pool:
        assert all(all(found) for found in pool.map(sums, range(4)))
    assert len(sharing.free_threads()) == cores() - 1


@pytest.mark.parametrize("shift", [1, 15, 16, 17, 40])
def test_sums_beyond_64_bits_saturate_as_in_the_reference(shift):
    rng = np.random.default_rng(shift)
    x, weight = np.full((5, 40), -(2**31), np.int32), np.full((3, 40), 2**31 - 1, np.int32)
    weight[1] = words(rng, (40,), 32)
    arguments = x, None, weight, np.zeros(3, np.int32), shift, 0, 32, False
    same(fast.forward(*arguments), reference.forward(*arguments))


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 2**32), st.sampled_from([(32, 24), (16, 12)]), st.booleans(), st.booleans(),
    st.floats(1e-9, 3e-3), st.integers(1, 1000),
)  # fmt: skip
def test_adam_is_the_reference_bit_for_bit(seed, word, root, stochastic, rate, epsilon):
    rng, bits = np.random.default_rng(seed), word[0]
    high = 1 << (bits - 1)
    weight, m, gradient = (words(rng, (257,), bits) for _ in range(3))
    v = np.abs(words(rng, (257,), bits).astype(np.int64)).clip(0, high - 1).astype(np.int32)
    gradient[:2], m[:2], v[:2] = [-high, high - 1], [-high, high - 1], [0, high - 1]
    rule = AdamRule(bits, word[1], round(0.1 * 2**31), round(0.001 * 2**31), epsilon, root, stochastic)
    arguments = weight, m, v, gradient, round(rate * 2**40), rule, seed
    same(fast.adam(*arguments), reference.adam(*arguments))
    same((fast.approach(weight, m, 10737418),), (approach(weight, m, 10737418),))


@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("root", [False, True])
def test_a_step_of_integer_adam_is_adams(root, stochastic):
    """Against float64 Adam (Kingma 2015) over 300 steps of noisy gradients, to a thousandth of the way gone.

    hAdam's root is that of the second moment (Bjorck 2021), so that its steps are the same.
    """
    rng = np.random.default_rng(0)
    rule = AdamRule(32, 24, round(0.1 * 2**31), round(0.001 * 2**31), 1, root, stochastic)
    weight: Int32 = np.zeros(50, np.int32)
    m = v = weight
    w_real: Any = np.zeros(50)
    m_real = v_real = w_real
    powers = (1 << 30, 1 << 30)
    for t in range(1, 301):
        gradient = rng.normal(0.3, 1.0, 50)
        powers = next_powers(powers, rule)
        alpha = step_size(round(1e-3 * 2**40), powers)
        weight, m, v, clipped = fast.adam(weight, m, v, (gradient * 2**28).astype(np.int32), alpha, rule, t)
        assert clipped == 0
        m_real = 0.9 * m_real + 0.1 * gradient
        v_real = 0.999 * v_real + 0.001 * gradient**2
        w_real = w_real - 1e-3 * (m_real / (1 - 0.9**t)) / np.sqrt(v_real / (1 - 0.999**t))
    second = v * 2.0**-28 if root else np.sqrt(v * 2.0**-25)
    np.testing.assert_allclose(second, np.sqrt(v_real), rtol=1e-4)
    assert np.abs(weight * 2.0**-24 - w_real).max() < 1e-3 * np.abs(w_real).max()


@pytest.mark.parametrize("root", [False, True])
def test_stochastic_rounding_is_right_on_average(root):
    """Means over 160,000 draws of what is no whole number; each draw is one of its two neighbours."""
    decays = round(0.1 * 2**31), round(0.001 * 2**31)
    rule = AdamRule(32, 24, *decays, 1, root, stochastic=True)
    size = 4000

    def drawn(weight, m, v, gradient, alpha):
        weight_N, m_N, v_N, g_N = (np.full(size, each, np.int32) for each in (weight, m, v, gradient))
        runs = [fast.adam(weight_N, m_N, v_N, g_N, alpha, rule, key)[:3] for key in range(40)]
        return [np.concatenate([run[index] for run in runs]).astype(np.float64) for index in range(3)]

    _, m, v = drawn(0, 7, 1000, 2**24 if not root else 1100, 1)
    gradient = (2**24, 2**17) if not root else (1100, 0)
    wanted_m = 7 + (gradient[0] - 7) * 0.1
    wanted_v = (
        math.sqrt(1000**2 + (1100**2 - 1000**2) * 0.001) if root else 1000 + (gradient[1] - 1000) * 0.001
    )
    for found, wanted in ((m, wanted_m), (v, wanted_v)):
        assert set(np.unique(found)) == {math.floor(wanted), math.ceil(wanted)}
        assert abs(found.mean() - wanted) < 4 * 0.5 / math.sqrt(found.size)
    # Moments that stay as they are: what is drawn is the quotient of the weight's step.
    square = 2**17 if not root else 2**24
    alpha = round(1e-3 * 2**40)
    weight, m, v = drawn(5, 2**24, square, 2**24, alpha)
    assert set(m) == {2**24}
    assert set(v) == {square}
    wanted = 5 - alpha * 2**24 / ((2**24 + 1) * 2**16)
    assert set(np.unique(weight)) == {math.floor(wanted), math.ceil(wanted)}
    assert abs(weight.mean() - wanted) < 4 * 0.5 / math.sqrt(weight.size)


def test_a_second_moment_never_falls_to_zero_under_a_first_one():
    rule = AdamRule(32, 24, round(0.1 * 2**31), round(0.001 * 2**31), 1)
    weight: Int32 = np.zeros(1, np.int32)
    m = v = weight
    for gradient in [1 << 20] * 50 + [0] * 20_000:
        weight, m, v, _ = fast.adam(weight, m, v, np.array([gradient], np.int32), 1 << 26, rule, 0)
        assert v[0] > 0
    assert v[0] <= 999
