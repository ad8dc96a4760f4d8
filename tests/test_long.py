"""The list of long tests."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.conftest import LONG


def test_every_long_test_is_there() -> None:
    known = {
        f"{file}::{node.name}"
        for file in {name.partition("::")[0] for name in LONG}
        for node in ast.parse((Path(__file__).parent / file).read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    assert {name.partition("[")[0] for name in LONG} <= known
