from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spikestill.student.fold import fold

# Of magnitudes whose products neither vanish nor overflow in float64: there the contract's formula is exact
# to rounding. A gamma of 5e-324 would make beta sigma / gamma meaningless.
finite = st.one_of(st.just(0.0), st.floats(1e-9, 1e4), st.floats(-1e4, -1e-9))


def folded(gamma, beta, mu, sigma, weight=None, first=False):
    weight = np.array([[[[1]], [[-1]], [[1]]]], np.int8) if weight is None else weight
    arrays = (np.array([value], np.float64) for value in (gamma, beta, mu, sigma))
    return fold(weight, *arrays, stride=1, pad=0, groups=1, first=first)


@settings(max_examples=300, deadline=None)
@given(finite, finite, finite, st.floats(1e-3, 1e4))
def test_threshold_decides_as_the_batch_normalisation_does(gamma, beta, mu, sigma):
    layer = folded(gamma, beta, mu, sigma)
    sign = -1 if gamma < 0 else 1
    for s in range(-3, 4):
        exact = Fraction(gamma) * (s - Fraction(mu)) / Fraction(sigma) + Fraction(beta)
        # Where float64 cannot tell the edge apart, either answer is the contract's.
        bound = Fraction(mu) - Fraction(beta) * Fraction(sigma) / Fraction(gamma) if gamma else None
        if bound is not None and abs(bound - s) < Fraction(1, 10**6):
            continue
        assert (sign * s >= layer.theta_O[0]) == (exact >= 0)


def test_gamma_zero_fires_always_or_never():
    assert folded(0.0, 0.0, 1.0, 1.0).theta_O[0] == -3
    assert folded(0.0, -1e-9, 1.0, 1.0).theta_O[0] == 4


def test_negative_gamma_flips_the_weights():
    layer = folded(-2.0, 1.0, 0.5, 1.0)
    np.testing.assert_array_equal(layer.weight_OIHW.ravel(), [-1, 1, -1])
    assert layer.theta_O[0] == -1  # ceil(-0.5 + 1 / -2)


def test_theta_is_clamped_to_the_range_in_which_it_matters():
    assert folded(1.0, 0.0, 1e30, 1.0).theta_O[0] == 4
    assert folded(1.0, 0.0, -1e30, 1.0, first=True).theta_O[0] == -3 * 255


def test_parameters_that_are_not_finite_are_named():
    with pytest.raises(ValueError, match="mu of feature 0 is not finite"):
        folded(1.0, 0.0, np.nan, 1.0)
