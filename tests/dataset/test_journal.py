import contextlib
import os

import numpy as np
import pytest

from spikestill.common.errors import UserError
from spikestill.dataset.journal import JournaledFile, journal_path, recover, replacing


class Killed(BaseException):
    """Stands for the instant of a kill."""


def changed(path, rng):
    """Write at random places below and behind the end, commit; return the content that this should give."""
    file = JournaledFile(path)
    content = bytearray(path.read_bytes())
    try:
        for _ in range(6):
            start, length = int(rng.integers(0, len(content) + 1)), int(rng.integers(1, 9000))
            data = rng.bytes(length)
            content[start : start + length] = data
            file.seek(start)
            file.write(data)
            file.seek(0)
            assert file.read() == bytes(content), "reads must see writes that wait"
        file.commit()
    finally:
        file.close()
    return bytes(content)


@pytest.fixture
def original(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(np.random.default_rng(1).bytes(30_000))
    return path


def test_uncommitted_writes_leave_the_file_as_it_was(original):
    before = original.read_bytes()
    file = JournaledFile(original)
    file.write(b"x" * 50_000)
    assert original.read_bytes()[: len(before)] == before
    file.close()
    assert original.read_bytes() == before


def fail_to_replace(path):
    """Begin to put another file in its place, on a full disk."""
    with contextlib.suppress(OSError), replacing(path):
        raise OSError("no space left")


@pytest.mark.parametrize(("killed", "next_use"), [(True, recover), (True, fail_to_replace), (False, recover)])
def test_a_kill_or_an_interrupt_at_any_system_call_leaves_the_old_or_the_new_content(
    original, monkeypatch, killed, next_use
):
    """After a kill nothing more is done; an interrupt is an exception, after which the file is closed."""
    before = original.read_bytes()
    expected = changed(original, np.random.default_rng(2))
    assert expected != before
    outcomes = []
    real = {name: getattr(os, name) for name in ("pwrite", "fsync", "posix_fallocate")}
    for calls in range(200):
        original.write_bytes(before)
        left = calls

        def dying(name):
            def call(descriptor, *rest):
                nonlocal left
                left -= 1
                if left == -1:
                    if name == "pwrite":  # a kill can cut a write short
                        real["pwrite"](descriptor, bytes(rest[0])[: len(rest[0]) // 2], rest[1])
                    raise Killed
                if left < -1 and killed:
                    raise Killed
                return real[name](descriptor, *rest)

            return call

        with monkeypatch.context() as patch:
            for name in real:
                patch.setattr(os, name, dying(name))
            if killed:  # it does not tidy up either
                patch.setattr(os, "ftruncate", lambda *_: None)
            try:
                changed(original, np.random.default_rng(2))
                finished = left >= 0
            except Killed:
                finished = False
        next_use(original)
        assert not journal_path(original).exists()
        found = original.read_bytes()
        is_new = found == expected
        assert is_new or found[: len(before)] == before, f"killed at call {calls}: neither old nor new"
        outcomes.append(is_new)
        if finished:
            break
    assert finished
    assert outcomes[0] is False
    assert outcomes[-1] is True
    assert outcomes == sorted(outcomes), "once the journal is whole, the commit stands"
    assert sum(outcomes) > 2, "some kills must fall between the journal and the end of the commit"


def test_a_torn_journal_is_ignored(original):
    before = original.read_bytes()
    journal_path(original).write_bytes(b"SPKJRNL1" + b"\x01\0\0\0" + b"\0" * 100)
    assert recover(original) is False
    assert original.read_bytes() == before
    assert not journal_path(original).exists()


def test_a_file_being_written_is_refused(original):
    file = JournaledFile(original)
    with pytest.raises(UserError, match="another process has it open"):
        JournaledFile(original)
    file.close()
    JournaledFile(original).close()
