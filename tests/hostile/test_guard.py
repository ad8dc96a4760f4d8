from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from spikestill.common import guard as guards
from spikestill.common.guard import Guard, GuardedError
from spikestill.common.limits import MIB


@pytest.fixture(scope="module")
def guard():
    made = Guard("tests.hostile.offences", "the reader")
    yield made
    made.close()


def ask(guard, function, *, seconds=5, memory=64 * MIB, array_bytes=1 << 20, **arguments):
    return guard.call(function, arguments, [], memory=memory, seconds=seconds, array_bytes=array_bytes)


def test_values_and_arrays_come_back(guard):
    value, arrays = ask(guard, "echo", value={"a": [1, "ü"]})
    assert value == {"a": [1, "ü"]}
    np.testing.assert_array_equal(arrays["numbers"], [0, 1, 2])
    assert arrays["none"].shape == (0, 2)
    assert arrays["none"].dtype == np.float32


def test_a_crash_is_an_error_and_the_next_call_works(guard):
    with pytest.raises(GuardedError, match=r"the reader crashes on it \(SIGSEGV\)"):
        ask(guard, "crash")
    assert ask(guard, "echo", value=1)[0] == 1


def test_an_endless_loop_ends(guard):
    began = time.monotonic()
    with pytest.raises(GuardedError, match="had not done with it after 1 s"):
        ask(guard, "loop", seconds=1)
    assert time.monotonic() - began < 25


def test_an_endless_wait_ends(guard, monkeypatch):
    monkeypatch.setattr(guards, "WALL_EXTRA_S", -9)
    with pytest.raises(GuardedError, match="had not done with it after 1 s"):
        ask(guard, "sleep", seconds=1)
    monkeypatch.undo()
    assert ask(guard, "echo", value=2)[0] == 2


def test_memory_has_a_limit(guard):
    assert ask(guard, "allocate", size=32 * MIB)[0] == 32 * MIB
    with pytest.raises(GuardedError, match="more memory than a file of its size may"):
        ask(guard, "allocate", size=256 * MIB)


def test_threads_may_be_started(guard):
    assert ask(guard, "thread")[0] == "done"


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("read_file", {"path": "/etc/hostname"}),
        ("start_program", {}),
        ("fork", {}),
        ("connect", {}),
        ("kill", {"process": os.getpid()}),
    ],
)
def test_nothing_but_arithmetic_is_allowed(guard, function, arguments):
    with pytest.raises(GuardedError, match=r"(?i)permi"):
        ask(guard, function, **arguments)


def test_no_file_can_be_written(guard, tmp_path: Path):
    (tmp_path / "mine").write_text("yours")
    with pytest.raises(GuardedError, match=r"(?i)permi"):
        ask(guard, "write_file", path=str(tmp_path / "mine"))
    assert (tmp_path / "mine").read_text() == "yours"


def test_more_bytes_than_declared_are_not_taken(guard):
    with pytest.raises(GuardedError, match="big has 2,097,152 bytes, more than was declared"):
        ask(guard, "flood", size=2 * MIB, array_bytes=MIB)


def test_an_answer_without_end_is_not_taken(guard):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        with pytest.raises(GuardedError):
            guard.call("lie", {}, [writing], memory=MIB, seconds=1)
    finally:
        os.close(writing)


def test_a_guard_that_has_ended_is_started_again(guard):
    ask(guard, "echo", value=1)
    guard._process.kill()
    guard._process.wait()
    assert ask(guard, "echo", value=3)[0] == 3
