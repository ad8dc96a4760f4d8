"""Progress where there is no terminal: what was done, how fast, how long it takes still."""

import re
from types import SimpleNamespace

import pytest

from spikestill.common import progress
from spikestill.common.progress import Progress


@pytest.fixture
def clock(monkeypatch):
    """Return the time, a list of one, that the module reads."""
    now = [100.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_the_rate_counts_what_was_done_here_and_leaves_other_work_out(clock, capsys):
    with Progress("work", 1_000, "steps", start=500) as bar:
        with bar.aside():
            clock[0] += 60.0
        clock[0] += 10.0
        bar.advance(100, score=1.5)
        assert capsys.readouterr().err == "work: 600/1,000 steps (10/s, 40 s left)  score 1.5\n"
        clock[0] += 10.0
        with bar.aside():
            clock[0] += 500.0
    line = capsys.readouterr().err
    assert re.fullmatch(r"work: 600/1,000 steps \(5/s, 80 s left\)  score 1\.5\n", line)
