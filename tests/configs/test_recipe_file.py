from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from spikestill.common.errors import UserError
from spikestill.configs.recipe_file import read_mapping


def recipe(folder: Path, text: str) -> Path:
    (folder / "recipe.yaml").write_text(text)
    return folder / "recipe.yaml"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7), ("-3", -3), ("1_000", 1000), ("0.5", 0.5), ("1e3", 1000.0), ("-.5", -0.5), (".inf", float("inf")),
        ("true", True), ("no", False), ("null", None), ("pong", "pong"), ("[1, a]", [1, "a"]),
        # What YAML 1.1 makes of these, nobody means.
        ("1:30", "1:30"), ("010", "010"), ("2020-01-01", "2020-01-01"), ("0b_", "0b_"), ("0x_", "0x_"), ("=", "="),
        ("9" * 5000, float("inf")),
    ],
)  # fmt: skip
def test_scalars_are_what_they_look_like(tmp_path, text, value):
    found = read_mapping(recipe(tmp_path, f"a: {text}\n"))["a"]
    assert found == value
    assert type(found) is type(value)


def bomb() -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [" + ", ".join([f"*a{i - 1}"] * 9) + "]" for i in range(1, 12)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (bomb(), "more than 5,000 values, aliases counted as often as used"),
        ("\n".join(f"key{i}: 1" for i in range(20_000)), "bytes, a recipe has at most 65,536"),
        ("\n".join(f"k{i}: 1" for i in range(5001)), "more than 5,000 values"),
        ("{a: " * 40 + "1" + "}" * 40, "lie too deep"),
        ("[" * 3000, "lie too deep|not YAML|no mapping"),
        ("a: &a\n  b: *a\n", "lie too deep|not YAML"),
        ("a: 1\na: 2\n", "a is given twice"),
        ("a.b: 1\na:\n  b: 2\n", "a.b is given twice"),
        ('a: !!int "0b_"\n', "not YAML"),
        ('a: !!timestamp "2020-99-99"\n', "not YAML"),
        ("a: !!python/object/apply:os.system [true]\n", "not YAML"),
        ("? [a, b]\n: 1\n", "not YAML"),
        ("- 1\n", "holds no mapping"),
        ("a: \x00\n", "not YAML"),
    ],
)
def test_what_is_no_recipe_is_refused_at_once(tmp_path, text, match):
    path = recipe(tmp_path, text)
    began = time.process_time()
    with pytest.raises(UserError, match=rf"recipe\.yaml: .*({match})"):
        read_mapping(path)
    assert time.process_time() - began < 2


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "recipe.yaml").write_bytes(b"a: \xff\xfe\n")
    with pytest.raises(UserError, match="not YAML"):
        read_mapping(tmp_path / "recipe.yaml")


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_only_a_regular_file_is_a_recipe(tmp_path, kind):
    path = tmp_path / "recipe.yaml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises(UserError, match=f"is a {kind}, a regular file is wanted for the recipe"):
        read_mapping(path)
