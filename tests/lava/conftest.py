from __future__ import annotations

import os
from pathlib import Path

import pytest

from spikestill.deploy.lava.loader import available
from spikestill.deploy.lava.session import LavaSession
from tests.lava.traces import leaked_shared_memory, surviving_processes


def pytest_collection_modifyitems(items):
    reason = available()
    for item in items:
        if reason is not None and "lava" in item.keywords and Path(item.path).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def session_pids(monkeypatch):
    """The hosts started in a test, at whose end nothing of them may be left."""
    before = set(os.listdir("/dev/shm"))
    pids = []
    receive = LavaSession._receive

    def noting(self, *arguments):
        pids.append(self.host_pid)
        return receive(self, *arguments)

    monkeypatch.setattr(LavaSession, "_receive", noting)
    yield pids
    assert pids
    assert [surviving_processes(pid) for pid in set(pids)] == [[]] * len(set(pids))
    assert leaked_shared_memory(before) == []
