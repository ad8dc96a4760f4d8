import numpy as np
import pytest
import torch

from spikestill.common.errors import UserError
from spikestill.common.precision.rounding import number_format

EDGES = [
    65519.9, 65520, -65520, 65504, 3.3e38, np.inf, -np.inf, np.nan, 0.0, -0.0, 2.0**-24, 2.0**-25, 1.0001 * 2.0**-25,
    1e-30, -1e-30, 57344, 61439, 61440, 464, 465, 448, 1.5 * 2.0**-14,
]  # fmt: skip


def values():
    rng = np.random.default_rng(0)
    random = rng.standard_normal(50_000) * 10.0 ** rng.integers(-12, 8, 50_000)
    # Halfway between two numbers of fp16, bf16 and E5M2.
    halves = (2 * rng.integers(1 << 10, 1 << 11, 1000) + 1) * 2.0**-12
    return np.concatenate([random, halves, EDGES]).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("fp16", torch.float16),
        ("bf16", torch.bfloat16),
        ("fp8-e5m2", torch.float8_e5m2),
        ("e5m10", torch.float16),
    ],
)
def test_rounding_is_the_hardware_format_s(name, dtype):
    x = values()
    wanted = torch.from_numpy(x).to(dtype).float().numpy()
    found = number_format(name).round(x)
    assert np.array_equal(found, wanted, equal_nan=True)
    told = ~np.isnan(x)
    assert np.array_equal(np.signbit(found[told]), np.signbit(wanted[told]))


def test_e4m3_ends_at_448_and_has_nan_beyond():
    form = number_format("fp8-e4m3")
    assert form.round([448.0, 464.0, -449.0, 0.00195, 1.0625]).tolist() == [448, 448, -448, 0.001953125, 1.0]
    assert np.isnan(form.round([465.0, np.inf])).all()


@pytest.mark.parametrize(("exponent", "mantissa"), [(2, 1), (4, 3), (6, 9), (8, 10)])
def test_every_number_of_a_format_rounds_to_itself_and_its_neighbours_halves_to_even(exponent, mantissa):
    form = number_format(f"e{exponent}m{mantissa}")
    bias = 2 ** (exponent - 1) - 1
    powers = range(max(1 - bias, -20), min(bias, 20))
    steps = np.array(
        [(1 + k * 2.0**-mantissa) * 2.0**e for e in powers for k in range(min(1 << mantissa, 64))]
    )
    assert np.array_equal(form.round(steps), steps)
    step = 2.0**-mantissa
    assert form.round([1 + step / 2, 1 + 1.5 * step]).tolist() == [1.0, 1 + 2 * step]
    tiny = 2.0 ** (1 - bias - mantissa)
    assert form.round([tiny, tiny / 2, 0.76 * tiny]).tolist() == [np.float32(tiny), 0.0, np.float32(tiny)]


@pytest.mark.parametrize(
    ("name", "words"), [("fp17", "unknown precision 'fp17'"), ("e9m4", "2..8 and 1..10")]
)
def test_a_format_that_cannot_be_says_so(name, words):
    with pytest.raises(UserError, match=words):
        number_format(name)
