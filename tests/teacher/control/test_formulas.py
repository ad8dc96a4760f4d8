"""What each of the six methods saves in fp16, on the formulas themselves; fp64 has the value that is wanted."""

import math

import numpy as np
import pytest

from spikestill.common.compiling import njit
from spikestill.common.precision.rounding import number_format
from spikestill.teacher.control import formulas

FP16 = number_format("fp16")
Q16, Q64 = FP16.rounding, number_format("fp64").rounding
LIMIT = 10.0


@njit(error_model="numpy")
def softplus(x, limit, fix, q):
    return formulas.softplus(x, limit, fix, q), formulas.softplus_slope(x, limit, fix, q)


@njit(error_model="numpy")
def log_density(mean, std, u, limit, normal_fix, q):
    return formulas.log_density(mean, std, u, limit, normal_fix, True, q)


@njit(error_model="numpy")
def roots(v, w, g, beta2, rest2, root_beta2, root_rest2, q):
    plain = formulas.square_root(formulas.second_moment(v, g, beta2, rest2, q), q)
    return plain, formulas.second_moment_root(w, g, root_beta2, root_rest2, q)


@njit(error_model="numpy")
def plain_change(p, change, q):
    return formulas.changed(p, change, q)


@njit(error_model="numpy")
def kahan_change(p, c, change, q):
    return formulas.changed_kahan(p, c, change, q)


@njit(error_model="numpy")
def plain_average(target, p, tau, rest, q):
    return formulas.averaged(target, p, tau, rest, q)


@njit(error_model="numpy")
def kahan_average(total, c, p, tau, scale, q):
    return formulas.averaged_kahan(total, c, p, tau, scale, q)


def half(value):
    return np.float32(FP16.round(value))


@pytest.mark.parametrize("x", [-20.0, -3.0, 0.0, 3.0, 9.0, 10.0])
def test_up_to_its_limit_the_softplus_fix_changes_nothing(x):
    found = softplus(half(x), np.float32(LIMIT), True, Q16)
    assert found == softplus(half(x), np.float32(LIMIT), False, Q16)
    wanted = math.log1p(math.exp(x)), 1 / (1 + math.exp(-x))
    np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=1e-3)


def test_the_softplus_fix_holds_value_and_slope_where_exp_overflows():
    """u = -6 of a squashed action asks for softplus(12); exp(12) is 162,755, fp16 ends at 65,504."""
    value, slope = softplus(half(12.0), np.float32(LIMIT), False, Q16)
    assert math.isinf(value)
    assert math.isnan(slope)
    assert softplus(half(12.0), np.float32(LIMIT), True, Q16) == (12.0, 1.0)
    np.testing.assert_allclose(softplus(12.0, LIMIT, True, Q64), softplus(12.0, LIMIT, False, Q64), rtol=1e-5)


def test_the_normal_fix_holds_the_density_where_a_deviation_s_square_is_0():
    """Of a deviation of e^-9 the square, 1.5e-8, is 0 in fp16; the noise is one deviation."""
    std = math.exp(-9.0)
    naive, fixed = (
        log_density(half(0.0), half(std), half(std), np.float32(LIMIT), fix, Q16) for fix in (False, True)
    )
    wanted = log_density(0.0, std, std, LIMIT, True, Q64)
    np.testing.assert_allclose(wanted, log_density(0.0, std, std, LIMIT, False, Q64), rtol=1e-12)
    assert not math.isfinite(naive)
    np.testing.assert_allclose(fixed, wanted, rtol=5e-3)


def test_at_the_smallest_deviation_the_naive_density_is_rounded_coarsely():
    """e^-5 is SAC's lower bound: its square is a subnormal number of fp16, 762 steps of 2^-24."""
    std = math.exp(-5.0)
    u = 2.5 * std
    wanted = log_density(0.0, std, u, LIMIT, True, Q64)
    naive, fixed = (
        log_density(half(0.0), half(std), half(u), np.float32(LIMIT), fix, Q16) for fix in (False, True)
    )
    assert abs(fixed - wanted) < 1e-2
    assert abs(fixed - wanted) < abs(naive - wanted)


def test_hadam_keeps_the_moment_of_a_gradient_whose_square_is_0():
    """1e-5 squared times 1 - beta2 is 1e-13."""
    beta2, gradient = 0.999, 1e-5
    coefficients = beta2, 1 - beta2, math.sqrt(beta2), math.sqrt(1 - beta2)
    low = [np.float32(each) for each in coefficients]
    plain, root = roots(half(0.0), half(0.0), half(gradient), *low, Q16)
    wanted, exact = roots(0.0, 0.0, gradient, *coefficients, Q64)
    assert wanted == pytest.approx(exact, rel=1e-12)
    assert plain == 0.0
    # 3.2e-7 is five of fp16's least steps.
    assert abs(root - wanted) <= 2.0**-24


def test_kahan_gradients_add_up_steps_below_half_a_last_place():
    """Around 1 fp16 has steps of 2^-10; a hundred changes of 1e-4, each a tenth of that, are 0.01."""
    plain, p, c = half(1.0), half(1.0), half(0.0)
    for _ in range(100):
        plain = np.float32(plain_change(plain, half(1e-4), Q16))
        p, c = (np.float32(each) for each in kahan_change(p, c, half(1e-4), Q16))
    assert plain == 1.0
    assert abs(p - 1.01) <= 2.0**-10


def test_kahan_momentum_moves_a_target_by_less_than_half_a_last_place():
    """tau = 0.005 of a distance of 0.05 is 2.5e-4, a quarter of fp16's step at 1."""
    tau, scale = np.float32(0.005), np.float32(1e4)
    plain, own = half(1.0), half(1.05)
    total, c, target = half(1e4), half(0.0), half(1.0)
    for _ in range(200):
        plain = np.float32(plain_average(plain, own, tau, np.float32(0.995), Q16))
        total, c, target = (np.float32(each) for each in kahan_average(total, c, own, tau, scale, Q16))
    wanted = 1.0 + (float(own) - 1.0) * (1 - 0.995**200)
    assert abs(target - wanted) < 2e-3
    assert abs(plain - wanted) > 1e-2
