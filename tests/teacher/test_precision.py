"""Number formats of training: what is stored in what, loss scaling, FP8 products, refusals."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from spikestill.common.errors import UserError
from spikestill.common.precision import fp8
from spikestill.common.precision.formats import FORMATS, number_format
from spikestill.common.precision.scaling import LossScale
from spikestill.common.processor import fast_bf16, native_bf16
from spikestill.configs.teach import TeachConfig
from spikestill.teacher.atari.host_learner import HostLearner
from spikestill.teacher.atari.replay import Batch, Replay
from spikestill.teacher.atari.teach import run
from tests.teacher.noise import ACTIONS, noise_replay
from tests.teacher.test_teach import TINY

CPU = torch.device("cpu")
FP16 = ("fp16", "fp16-master")


@pytest.fixture(scope="module")
def replay() -> Replay:
    return noise_replay(np.random.default_rng(0), n_step=1, discount=0.99, ends=0.1)


@pytest.fixture
def batch(replay: Replay) -> Batch:
    return replay.sample(np.random.default_rng(1), 16, 0.0)


def learner(precision: str, replay: Replay, **options: object) -> HostLearner:
    config = dataclasses.replace(TINY, precision=precision, batch_size=16, **options)
    return HostLearner(config, ACTIONS, replay, threads=2)


def gradient(precision: str, replay: Replay, batch: Batch, **options: object) -> torch.Tensor:
    made = learner(precision, replay, **options)
    found = torch.cat([part.reshape(-1) for part in made.gradients(batch)[0].values()])
    made.close()
    return found


def test_the_scale_halves_on_overflow_and_doubles_after_good_updates():
    scale = LossScale(8.0, period=3)
    history = []
    for finite in (True, True, False, True, True, True, True, True, True, False):
        scale.update(finite)
        history.append(scale.value)
    assert history == [8, 8, 4, 4, 4, 8, 8, 8, 16, 8]


@pytest.mark.parametrize(("precision", "alike"), [("bf16", 0.995), ("fp16", 0.9995), ("fp16-master", 0.9995)])
def test_gradients_are_those_of_fp32_rounded(precision, alike, replay, batch):
    reference, found = (gradient(name, replay, batch) for name in ("fp32", precision))
    assert F.cosine_similarity(reference, found, dim=0) > alike
    assert float(found.norm()) == pytest.approx(float(reference.norm()), rel=0.03)


@pytest.mark.parametrize("precision", FP16)
def test_without_a_scale_small_gradients_underflow(precision, replay, batch):
    small = dataclasses.replace(batch, weight=np.full(16, 1e-3, np.float32))

    def lost(**options):
        return float(((gradient(precision, replay, small, **options) == 0) & (reference != 0)).float().mean())

    reference = gradient("fp32", replay, small)
    scaled, plain = lost(), lost(loss_scale=1.0)
    assert plain > 0.02
    assert scaled < plain / 4


@pytest.mark.parametrize("precision", FP16)
def test_an_update_that_overflows_is_skipped_until_the_scale_fits(precision, replay, batch):
    made = learner(precision, replay, loss_scale=2.0**40)
    before = {name: weight.clone() for name, weight in made.master.items()}
    skipped = 0
    while made.update(batch, 1e-3).skipped:
        skipped += 1
        assert made.scale.value == 2.0 ** (40 - skipped)
        assert all(torch.equal(weight, before[name]) for name, weight in made.master.items())
    assert 5 < skipped < 40
    assert made.updates == 1
    assert not torch.equal(made.master["hidden.weight"], before["hidden.weight"])
    made.close()


def test_what_is_stored_in_what(replay):
    for precision, body, head in (
        ("fp32", torch.float32, torch.float32), ("bf16", torch.bfloat16, torch.float32),
        ("fp16", torch.float16, torch.float32), ("fp16-master", torch.float16, torch.float16),
    ):  # fmt: skip
        made = learner(precision, replay)
        assert {weight.dtype for weight in made.master.values()} == {torch.float32}
        for weights in (made.working, made.target):
            assert {weight.dtype for name, weight in weights.items() if "head" not in name} == {body}
            assert weights["head.weight"].dtype == head
        made.close()


@pytest.mark.parametrize("precision", ["fp32", "fp16-master"])
@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_flat_masters_learn_the_same(precision, optimizer, replay, batch):
    found = []
    for flat in (False, True):
        made = learner(precision, replay, flat_masters=flat, optimizer=optimizer, max_gradient_norm=0.0)
        made.update(batch, 1e-4)
        found.append({name: weight.clone() for name, weight in made.master.items()})
        assert len(made.hand_over(made.gradients(batch)[0])) == (2 if flat else 10)
        made.close()
    for name, weight in found[0].items():
        torch.testing.assert_close(found[1][name], weight, rtol=1e-6, atol=1e-8)


def test_the_head_learns_at_its_own_rate(replay, batch):
    made = learner(
        "fp32", replay, head_learning_rate_factor=0.25, optimizer_epsilon=1e-12, max_gradient_norm=0.0
    )
    before = {name: weight.clone() for name, weight in made.master.items()}
    made.update(batch, 1e-3)
    step = {name: float((weight - before[name]).abs().max()) for name, weight in made.master.items()}
    assert step["hidden.weight"] == pytest.approx(
        1e-3, rel=1e-2
    )  # Adam's first step has the size of the rate
    assert step["head.weight"] == pytest.approx(0.25e-3, rel=1e-2)
    made.close()


@pytest.mark.parametrize(
    ("precision", "reason"), [("tf32", "TensorFloat-32"), ("fp8", "compute capability 8.9")]
)
def test_formats_that_the_cpu_lacks_are_refused(precision, reason):
    with pytest.raises(UserError, match=rf"precision {precision}: .*{reason}.* runs on cpu"):
        number_format(precision, CPU)


@pytest.mark.parametrize(("native", "fast"), [(True, True), (True, False), (False, False)])
def test_auto_is_bf16_where_that_is_faster_and_else_fp32(native, fast, monkeypatch):
    monkeypatch.setattr("spikestill.common.precision.formats.native_bf16", lambda: native)
    monkeypatch.setattr("spikestill.common.precision.formats.fast_bf16", lambda: fast)
    assert number_format("auto", CPU) == FORMATS["bf16" if fast else "fp32"]
    assert number_format("bf16", CPU).emulated == (not native)
    assert number_format("fp16", CPU).emulated
    assert not number_format("fp32", CPU).emulated


@pytest.mark.parametrize(
    ("told", "isa", "native", "fast"),
    [
        ("vendor_id : AuthenticAMD flags : avx2 avx512_bf16", "", True, True),
        ("vendor_id : AuthenticAMD flags : avx2 avx512_bf16", "AVX2", False, False),
        ("vendor_id : GenuineIntel flags : avx2 avx512_bf16", "", True, False),
        ("vendor_id : GenuineIntel flags : avx512_bf16 amx_bf16", "", True, True),
        ("vendor_id : GenuineIntel flags : avx512_bf16 amx_bf16", "avx512_core_bf16", True, False),
        ("vendor_id : GenuineIntel flags : avx2", "", False, False),
    ],
)
def test_what_a_processor_says_of_bf16(told, isa, native, fast, tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text(told)
    monkeypatch.setattr("spikestill.common.processor.Path", lambda _: tmp_path / "cpuinfo")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", isa)
    assert (native_bf16(), fast_bf16()) == (native, fast)


def test_where_onednn_is_held_to_avx2_bf16_is_not_native(monkeypatch):
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    free = native_bf16()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_AMX")
    assert native_bf16() == free
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "avx2")
    assert not native_bf16()


def test_a_falling_loss_scale_is_logged_and_warned_about(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("spikestill.teacher.atari.teach.LOG_UPDATES", 2)
    config = dataclasses.replace(TINY, precision="fp16", loss_scale=2.0**40, update_period=1, steps=176)
    run(config, tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "teach.jsonl").read_text().splitlines()]
    skipped = sum(line["skipped_updates"] for line in lines)
    assert 5 < skipped < 40
    assert lines[-1]["loss_scale"] == 2.0 ** (40 - skipped)
    told = capsys.readouterr().err
    assert (
        f"the loss scale fell from 1.09951e+12 to {lines[0]['loss_scale']:g}: gradients overflow fp16" in told
    )
    assert "fp16 is emulated on this processor" in told


def test_fp8_products_are_those_of_the_rounded_factors():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, 64, generator=generator).bfloat16() for size in (32, 48))
    for a_dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        found = fp8.product(a, b, a_dtype, torch.float8_e4m3fn)
        (qa, sa), (qb, sb) = fp8.quantise(a, a_dtype), fp8.quantise(b, torch.float8_e4m3fn)
        assert float(qa.float().abs().max()) == torch.finfo(a_dtype).max
        wanted = (qa.float() * sa) @ (qb.float() * sb).t()
        torch.testing.assert_close(found.float(), wanted, rtol=2**-7, atol=1e-3)


def test_fp8_convolutions_and_their_gradients_are_near_exact_ones():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(16, 32, 10, 10, generator=generator).bfloat16()
    weight = (torch.randn(64, 32, 4, 4, generator=generator) / 16).bfloat16()
    bias = torch.randn(64, generator=generator).bfloat16()
    dy = torch.randn(16, 64, 4, 4, generator=generator).bfloat16()
    found: list[torch.Tensor] = []
    wanted: list[torch.Tensor] = []
    for convolve, results in ((fp8.conv2d, found), (F.conv2d, wanted)):
        x, weight, bias = (tensor.detach().clone().requires_grad_() for tensor in (x, weight, bias))
        y = convolve(x, weight, bias, 2)
        results += [y, *torch.autograd.grad(y, [x, weight, bias], dy)]
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        assert one.dtype == torch.bfloat16
        assert F.cosine_similarity(one.float().reshape(-1), other.float().reshape(-1), dim=0) > 0.997


def test_a_batch_that_fp8_cannot_take_is_refused_by_name():
    with pytest.raises(UserError, match=r"batch_size 24 .* multiple of 16"):
        TeachConfig(precision="fp8", batch_size=24)
