"""The list of long tests."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.conftest import LONG


def test_every_long_test_is_there() -> None:
    for name in LONG:
        file, _, test = name.partition("::")
        tree = ast.parse((Path(__file__).parent / file).read_text())
        known = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert test.partition("[")[0] in known, name
