from pathlib import Path

import pytest
import torch

from spikestill.common.errors import UserError
from spikestill.common.provenance import Provenance
from spikestill.common.tensors import write_tensors
from spikestill.teacher.atari import q_network
from spikestill.teacher.checkpoint import TEACHER_SCHEMA, read_teacher, save_teacher
from spikestill.teacher.policy import load_teacher


@pytest.fixture
def weights():
    return q_network.initial_weights(6, torch.Generator().manual_seed(0))


@pytest.fixture
def provenance():
    return Provenance.of({}, 0)


def test_round_trip_in_fp32_is_exact_and_in_fp16_rounded(tmp_path, weights, provenance):
    save_teacher(tmp_path / "t", weights, "pong", 6, provenance)
    again, game, actions, read = read_teacher(tmp_path / "t")
    assert (game, actions, read) == ("pong", 6, provenance)
    assert all(torch.equal(again[name], weights[name]) for name in weights)
    save_teacher(tmp_path / "h", weights, "pong", 6, provenance, half=True)
    half = read_teacher(tmp_path / "h")[0]
    assert all(torch.equal(half[name], weights[name].half().float()) for name in weights)
    assert (tmp_path / "h").stat().st_size < 3.6e6


def test_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"none.safetensors: no such file\. Give a teacher"):
        load_teacher(tmp_path / "none.safetensors")


@pytest.mark.parametrize("keep", [0, 7, 1000, 100_000])
def test_truncated_file_is_refused(tmp_path, weights, provenance, keep):
    path = tmp_path / "t"
    save_teacher(path, weights, "pong", 6, provenance)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match="not a readable safetensors file"):
        load_teacher(path)


def test_a_flipped_bit_is_found_and_version_1_is_read(tmp_path, weights, provenance):
    path = tmp_path / "t"
    save_teacher(path, weights, "pong", 6, provenance)
    good = path.read_bytes()
    size = int.from_bytes(good[:8], "little")
    for place in (8 + size + 5, len(good) // 2, len(good) - 1, good.index(b"pong")):
        damaged = bytearray(good)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(UserError, match="its content hashes to"):
            load_teacher(path)
    path.write_bytes(good.replace(b'"version":"2"', b'"version":"1"').replace(b'"sha256"', b'"sha000"'))
    assert load_teacher(path).game == "pong"


def test_foreign_newer_misshapen_and_nan_files_are_refused(tmp_path, weights, provenance):
    path = tmp_path / "t"
    write_tensors(path, {"a": torch.zeros(1)}, "else", provenance)
    with pytest.raises(UserError, match=r"schema 'else', 'spikestill\.teacher' wanted"):
        load_teacher(path)
    write_tensors(path, {"a": torch.zeros(1)}, TEACHER_SCHEMA, provenance, version="99")
    with pytest.raises(UserError, match="format version 99"):
        load_teacher(path)
    save_teacher(path, {**weights, "head.bias": torch.zeros(7)}, "pong", 6, provenance)
    with pytest.raises(UserError, match=r"head.bias is \(7,\), shape \(6,\) wanted"):
        load_teacher(path)
    save_teacher(path, {**weights, "head.bias": torch.full((6,), torch.nan)}, "pong", 6, provenance)
    with pytest.raises(UserError, match=r"head\.bias holds NaN"):
        load_teacher(path)


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("half_cheetah/teacher.safetensors", "an agent of a control task, in fixed point"),
        ("cartpole_swingup/teacher.safetensors", "an agent of a control task"),
        ("pong/student-1chip.safetensors", "a student"),
    ],
)
def test_another_file_of_ours_is_told_what_it_is(file, kind):
    with pytest.raises(UserError, match=rf"'spikestill\.teacher' wanted; it is {kind}\."):
        load_teacher(Path(__file__).parents[2] / "zoo" / file)


def test_policy_refuses_wrong_stacks(tmp_path, weights, provenance):
    import numpy as np

    save_teacher(tmp_path / "t", weights, "pong", 6, provenance)
    policy = load_teacher(tmp_path / "t")
    assert policy.q_values(np.zeros((2, 4, 84, 84), np.uint8)).shape == (2, 6)
    with pytest.raises(ValueError, match=r"got uint8 \(4, 84, 84\)"):
        policy.q_values(np.zeros((4, 84, 84), np.uint8))
