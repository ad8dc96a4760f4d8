"""The good files that hostile ones are made from, made once for a process."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hostile.corpus import make
from tests.hostile.fuzz import Peak


@pytest.fixture(scope="module")
def peak() -> Iterator[Peak]:
    """What watches the memory of this process and of those that it started."""
    thread = Peak()
    thread.start()
    yield thread
    thread.stop()


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corpus")


@pytest.fixture
def copied(corpus: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Return a function from a set's name to a copy of its folder."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(make(name, corpus), tmp_path / name))

    return copy
