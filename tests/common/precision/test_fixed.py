from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spikestill.common.precision import fixed
from spikestill.common.precision.fixed import Affine, QFormat

INT32 = st.integers(-(2**31), 2**31 - 1)


def clip(value: int, bits: int) -> int:
    return max(-(1 << (bits - 1)), min((1 << (bits - 1)) - 1, value))


@given(st.lists(st.tuples(INT32, INT32), min_size=1, max_size=40), st.integers(0, 62), st.integers(2, 32))
def test_narrowed_product_is_the_exact_sum_rounded_and_saturated(pairs, shift, bits):
    stream = np.array([[a for a, _ in pairs]], np.int32)
    weight = np.array([[b] for _, b in pairs], np.int32)
    exact = sum(a * b for a, b in pairs)
    want = math.floor(Fraction(exact, 1 << shift) + Fraction(1, 2)) if shift else exact
    found, clipped = fixed.narrow(fixed.product(stream, weight), shift, bits)
    assert int(found[0, 0]) == clip(want, bits)
    assert clipped == (clip(want, bits) != want)


def test_sums_of_the_largest_products_do_not_wrap():
    low = np.full((1, fixed.TERMS), -(2**31), np.int32)
    for factor in (-(2**31), 2**31 - 1):
        sums = fixed.product(low, np.full((fixed.TERMS, 1), factor, np.int32))
        assert int(sums.upper_SO[0, 0]) * 65536 + int(sums.lower_SO[0, 0]) == fixed.TERMS * -(2**31) * factor


def test_more_terms_than_a_sum_holds_are_refused():
    with pytest.raises(ValueError, match="32769 terms, 32768 is what a 64-bit sum holds"):
        fixed.product(np.ones((1, 32769), np.int32), np.ones((32769, 1), np.int32))


@given(st.integers(-(2**31), 0), st.integers(0, 2**31 - 1), st.lists(INT32, min_size=1, max_size=8))
def test_sixteen_bit_activations_follow_algorithm_1(minimum, maximum, values):
    affine = Affine.of(minimum, maximum)
    delta = Fraction(affine.mantissa) * Fraction(2) ** (affine.exponent - 16)
    span = max(1, maximum - minimum)
    assert 2**15 <= affine.mantissa < 2**16
    assert span <= delta * 65536 <= span * (1 + Fraction(1, 2**15))
    zero = math.floor(-minimum / delta)
    found, beyond = affine.quantise(np.array(values, np.int32))
    want = [math.floor(value / delta) + zero for value in values]
    assert found.tolist() == [max(0, min(65535, q)) - zero for q in want]
    assert beyond == sum(not 0 <= q <= 65535 for q in want)


@given(st.integers(-(2**31), 0), st.integers(0, 2**31 - 1), st.integers(-(2**56), 2**56), st.integers(16, 40))
def test_reading_back_multiplies_by_delta(minimum, maximum, total, shift):
    affine = Affine.of(minimum, maximum)
    delta = Fraction(affine.mantissa) * Fraction(2) ** (affine.exponent - 16)
    found, clipped = fixed.narrow_affine(np.array([[total]], np.int64), affine, shift, 48)
    want = total * delta / (1 << shift)
    # What the first shift drops is at most half of 2^8 delta.
    assert abs(int(found[0, 0]) - want) <= Fraction(1, 2) + 128 * delta / (1 << shift) or clipped


@given(st.integers(0, 2**62 - 1))
def test_roots_are_exact(x):
    assert int(fixed.integer_root(np.array([x]))[0]) == math.isqrt(x)
    assert int(fixed.ceil_root(np.array([x]))[0]) == (math.isqrt(x - 1) + 1 if x else 0)


@given(st.integers(-(2**61), 2**61), st.integers(1, 2**61))
def test_quotients_round_to_nearest_with_halves_away_from_zero(numerator, denominator):
    want = math.floor(abs(Fraction(numerator, denominator)) + Fraction(1, 2))
    found = int(fixed.rounded_quotient(np.array([numerator]), np.array([denominator]))[0])
    assert found == (want if numerator >= 0 else -want)


@pytest.mark.parametrize(("fraction", "error"), [(20, 7e-6), (24, 7e-6), (6, 2**-7 + 7e-6)])
def test_tanh_is_as_near_as_its_documentation_says(fraction, error):
    form = QFormat(32, fraction)
    x = form.quantise(np.linspace(-10, 10, 200_001))
    y = form.real(fixed.tanh(x, form))
    assert np.abs(y - np.tanh(form.real(x))).max() <= error
    assert (fixed.tanh(-x, form) == -fixed.tanh(x, form)).all()


def test_quantising_rounds_halves_up_saturates_and_refuses_nan():
    form = QFormat(8, 4)
    assert form.quantise([0.03125, -0.03125, 9.0, -9.0]).tolist() == [1, 0, 127, -128]
    with pytest.raises(ValueError, match=r"NaN has no value in Q\(8, 4\)"):
        form.quantise([math.nan])


def test_noise_is_near_normal_and_its_draws_go_on_where_they_ended():
    whole = fixed.gaussian(7, 0, 20_000, 20)
    real = whole * 2.0**-20
    assert abs(real.mean()) < 0.02
    assert abs(real.std() - 1) < 0.02
    assert 2.4 < (real**4).mean() < 3.2
    assert (fixed.gaussian(7, 6 * 100, 50, 20) == whole[100:150]).all()
