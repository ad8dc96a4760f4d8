"""Artefacts shared by the runtime's tests."""

from __future__ import annotations

import pytest

from tests.runtime.artefacts import Files, make_files


@pytest.fixture(scope="session")
def pong(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return make_files(tmp_path_factory.mktemp("pong"), "pong", 6)


@pytest.fixture(scope="session")
def breakout(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return make_files(tmp_path_factory.mktemp("breakout"), "breakout", 4)
