import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spikestill.common.atomic import atomic_path, write_text


def fail_to_write(path):
    with atomic_path(path) as temporary:
        temporary.write_text("new")
        raise RuntimeError


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a"
    write_text(path, "old")
    with pytest.raises(RuntimeError):
        fail_to_write(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_permissions_follow_the_umask_whatever_the_writer_did(tmp_path):
    path = tmp_path / "a"
    with atomic_path(path) as temporary:
        temporary.write_text("private")
        temporary.chmod(0o600)
    mask = os.umask(0o077)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


WRITER = """
import sys, time
from pathlib import Path
from spikestill.common.atomic import atomic_path
with atomic_path(Path(sys.argv[1])) as temporary:
    temporary.write_bytes(bytes(1000))
    print("writing", flush=True)
    time.sleep(60)
"""


def test_a_file_that_another_writer_removed_before_it_was_locked_is_made_again(tmp_path, monkeypatch):
    path = tmp_path / "a"
    removed: list[Path] = []
    lock = fcntl.flock

    def after_another_came(file, kind):
        if not removed:
            removed.append(next(tmp_path.iterdir()))
            removed[0].unlink()
        lock(file, kind)

    monkeypatch.setattr(fcntl, "flock", after_another_came)
    with atomic_path(path) as temporary:
        monkeypatch.undo()
        assert removed == [temporary]
        with open(temporary, "rb") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        temporary.write_text("whole")
    assert path.read_text() == "whole"


def test_a_file_system_without_locks_is_written_to_and_nothing_there_is_taken_for_abandoned(
    tmp_path, monkeypatch
):
    def refused(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refused)
    another = tmp_path / ".a.1.tmp"
    another.touch()
    write_text(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "new"
    assert another.exists()


def test_what_a_killed_writer_left_is_removed_and_what_another_writes_is_not(tmp_path):
    path = tmp_path / "a"
    killed, alive = (
        subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    )
    try:
        for process in (killed, alive):
            assert process.stdout is not None
            assert process.stdout.readline() == "writing\n"
        killed.kill()
        killed.wait()
        assert len(os.listdir(tmp_path)) == 2
        write_text(path, "new")
        assert sorted(os.listdir(tmp_path)) == [f".a.{alive.pid}.tmp", "a"]
    finally:
        alive.kill()
        alive.wait()
