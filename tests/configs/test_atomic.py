import os

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
