"""Checkpoints of any training: other options are refused, and options that are newer had their default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from spikestill.common.errors import UserError
from spikestill.common.provenance import Provenance
from spikestill.common.training import filled, read_checkpoint, write_checkpoint

DEFAULTS: dict[str, Any] = {
    "steps": 10,
    "rate": 0.1,
    "newer": 3,
    "group": {"old": 1, "newer": 2},
    "precision": "fp32",
}
SAVED: dict[str, Any] = {"steps": 10, "rate": 0.5, "group": {"old": 7}, "precision": "fp32"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A checkpoint that was written before two of the options existed."""
    path = tmp_path / "checkpoint.safetensors"
    tensors = {"weight": torch.arange(4.0)}
    counters = {"step": 5, "precision": "fp32"}
    write_checkpoint(path, "spikestill.test", tensors, counters, SAVED, Provenance.of({}, 0))
    return path


def read(path: Path, options: dict[str, Any], number_format: str = "fp32") -> Any:
    return read_checkpoint(path, "spikestill.test", options, DEFAULTS, ("steps",), number_format)


def test_an_option_that_is_newer_than_the_checkpoint_had_its_default(path: Path) -> None:
    now = {**SAVED, "newer": 3, "group": {"old": 7, "newer": 2}}
    found = read(path, now)
    assert torch.equal(found.tensors["weight"], torch.arange(4.0))
    assert found.counters["step"] == 5
    for changed in ({**now, "newer": 4}, {**now, "group": {"old": 7, "newer": 5}}):
        with pytest.raises(UserError, match=r"was written with (group\.)?newer [23], now it is [45]"):
            read(path, changed)


def test_another_value_is_refused_by_the_options_name_and_a_free_one_is_not(path: Path) -> None:
    now = filled(SAVED, DEFAULTS)
    read(path, {**now, "steps": 99})
    with pytest.raises(
        UserError, match=r"was written with rate 0\.5, now it is 0\.6.*[Rr]esume with the same --rate"
    ):
        read(path, {**now, "rate": 0.6})
    with pytest.raises(UserError, match=r"was written with group\.old 7, now it is 8"):
        read(path, {**now, "group": {"old": 8, "newer": 2}})


def test_another_number_format_is_refused(path: Path) -> None:
    with pytest.raises(UserError, match=r"was trained in fp32; --precision fp32 is bf16 on this machine"):
        read(path, filled(SAVED, DEFAULTS), "bf16")
