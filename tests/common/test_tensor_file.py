"""The head of a safetensors file of ours."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.numpy import save

from spikestill.common.provenance import Provenance
from spikestill.common.tensor_file import sort_metadata
from spikestill.common.tensors import read_tensors, write_tensors

# What JSON writes as it is, and what it escapes: quotes, backslashes, control characters.
TEXT = 'Ms. Pac-Man \u00e9 \u4e16 \U0001f600 "quoted" \\ / \n\t\r\b\f \x00 \x1f \x7f \u2028'


def test_equal_content_makes_equal_files(tmp_path: Path) -> None:
    made = Provenance.of({"steps": 3}, seed=5)
    tensors = {"b": torch.arange(3.0), "a": torch.zeros(2, 2, dtype=torch.int32)}
    texts = {f"key{number}": f"{number} {TEXT}" for number in range(20)}
    for name in ("first", "second"):
        write_tensors(tmp_path / name, tensors, "test", made, **texts)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    found, metadata = read_tensors(tmp_path / "second", "test", "")
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    assert {name: metadata[name] for name in texts} == texts


def test_sorting_keeps_the_length_and_all_that_the_head_says() -> None:
    content = save({"x": torch.zeros(5).numpy()}, metadata={f"{number}{TEXT}": TEXT for number in range(30)})
    head = content[: 8 + int.from_bytes(content[:8], "little")]
    found = sort_metadata(head)
    assert (len(found), found[:8]) == (len(head), head[:8])
    texts = json.loads(found[8:])
    assert texts == json.loads(head[8:])
    assert list(texts["__metadata__"]) == sorted(texts["__metadata__"])
