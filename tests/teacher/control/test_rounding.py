import numpy as np
import pytest
import torch

from spikestill.common.errors import UserError
from spikestill.common.precision import rounding
from spikestill.common.precision.rounding import number_format, round_all
from spikestill.teacher.control.operations import HostOperations
from tests.teacher.control.agents import Agent, config_of, numbers

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


@pytest.fixture
def by_bits(monkeypatch):
    """fp16 as it is rounded where the processor has no instruction for it."""
    monkeypatch.setattr(rounding, "converts_to_half", lambda: False)
    return number_format.__wrapped__("fp16")


def halves_and_what_lies_beside_them():
    """Every number of fp16 and every middle of two, with the three numbers of fp32 on both sides."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    finite = np.unique(halves[np.isfinite(halves)])
    middles = (finite[1:] + finite[:-1]) / 2
    bits = np.concatenate([halves, middles, np.float32([65520])]).view(np.int32)
    return np.concatenate([(bits + np.int32(step)).view(np.float32) for step in range(-3, 4)])


def same(first, second):
    told = ~np.isnan(second)
    return np.array_equal(np.isnan(first), ~told) and np.array_equal(
        first[told].view(np.uint32), second[told].view(np.uint32)
    )


def test_fp16_is_the_same_by_the_processor_by_bits_and_by_numpy(by_bits):
    x = np.concatenate([values(), halves_and_what_lies_beside_them()])
    with np.errstate(all="ignore"):
        wanted = x.astype(np.float16).astype(np.float32)
    assert len(by_bits.rounding) == 5
    for form in (by_bits, number_format("fp16")):
        assert form.largest == 65504.0
        assert same(form.round(x), wanted)


def test_an_agent_in_fp16_is_the_same_by_the_processor_and_by_bits(by_bits):
    batches = [numbers(np.random.default_rng(seed)) for seed in range(20)]
    found = []
    for form in (by_bits, number_format("fp16")):
        agent = Agent(config_of(precision="fp16", methods={}), o=HostOperations(form))
        for batch in batches:
            agent.update(batch)
        found.append(agent.weights())
    assert np.array_equal(*found)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_number_of_fp32_becomes_the_same_fp16(by_bits):
    for begin in range(0, 1 << 32, 1 << 26):
        x = np.arange(begin, begin + (1 << 26), dtype=np.uint64).astype(np.uint32).view(np.float32)
        y = x.copy()
        assert round_all(x, by_bits.rounding) == round_all(y, number_format("fp16").rounding)
        assert same(x, y)


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
