"""Where a command finds itself: folders that may not be written, a disk that is full, a small /dev/shm."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spikestill import cli
from spikestill.common.errors import UserError
from spikestill.configs.pipeline import ReportConfig
from spikestill.report import run as report

ROOT = Path(__file__).resolve().parents[2]
FEW = ["--frames", "2", "--naive_frames", "1", "--lava_frames", "0", "--stock_frames", "0"]
ONE = ["--episodes", "1", "--num_envs", "1", "--compare", "false"]
EVALUATE = {
    "agent": "random",
    "epsilon": 0.05,
    "episodes": 1,
    "mean": -21,
    "ci95": [-21, -21],
    "returns": [-21],
}
CAPABILITIES_3 = 0x20080522
DAC = 1 << 1 | 1 << 2
"""Root's rights to write and to read whatever the file system's modes forbid."""


@pytest.fixture
def ordinary() -> Iterator[None]:
    """Have an ordinary user's rights to files: root gives up its own for the time of a test."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = struct.pack("<Ii", CAPABILITIES_3, 0)
    before = ctypes.create_string_buffer(24)
    if libc.capget(header, before) != 0:
        pytest.skip("root's capabilities cannot be read here")
    words = list(struct.unpack("<6I", before.raw))
    words[0] &= ~DAC
    if libc.capset(header, struct.pack("<6I", *words)) != 0:
        pytest.skip("root cannot give up capabilities here")
    try:
        yield
    finally:
        assert libc.capset(header, before.raw) == 0


def mode_of_all(folder: Path, writable: bool) -> None:
    for path in (folder, *folder.rglob("*")):
        path.chmod((0o755 if path.is_dir() else 0o644) if writable else (0o555 if path.is_dir() else 0o444))


@pytest.mark.parametrize(
    "words",
    [
        ["record", "pong", "--frames", "8", "--num_envs", "2", "--resume"], ["map", "--hardware", "ns1e"],
        ["verify", *FEW], ["evaluate", "pong", "--agent", "random", *ONE], ["run", "pong"], ["estimate"],
        ["play", "pong", "--agent", "random", "--seconds", "0.1", "--view", "none"], ["distill", "--steps", "1"],
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_a_folder_that_may_not_be_written_is_named_and_left_as_it_is(words, copied, ordinary, capsys):
    folder = copied("student")
    mode_of_all(folder, writable=False)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    try:
        status = cli.main([*words, "--run_dir", str(folder)])
    finally:
        mode_of_all(folder, writable=True)
    told = capsys.readouterr().err
    assert status in (cli.FAILED, cli.BAD_ARGUMENTS), told
    assert str(folder) in told
    assert "cannot be written" in told
    assert "unexpected" not in told
    assert "Traceback" not in told
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_folder_that_may_not_be_written_can_be_looked_at(copied, ordinary, capsys):
    folder = copied("student")
    mode_of_all(folder, writable=False)
    try:
        for path in (folder, *sorted(folder.iterdir())):
            if path.suffix in ("", ".h5", ".safetensors") and not path.name.startswith("."):
                assert cli.main(["inspect", str(path)]) == 0, capsys.readouterr().err
    finally:
        mode_of_all(folder, writable=True)


def test_a_file_that_may_not_be_read_is_named(copied, ordinary, capsys):
    folder = copied("student")
    for name in ("student.safetensors", "core_map.h5", "buffer.h5", "teacher.safetensors"):
        (folder / name).chmod(0)
        assert cli.main(["inspect", str(folder / name)]) == cli.FAILED
        told = capsys.readouterr().err
        assert f"{folder / name}: " in told
        assert "unexpected" not in told
        (folder / name).chmod(stat.S_IRUSR | stat.S_IWUSR)


@contextlib.contextmanager
def disk(place: Path, size: str) -> Iterator[Path]:
    """A small disk of its own at ``place``."""
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place)]
    if shutil.which("mount") is None or subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("may not mount a small disk")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_is_full_under_the_report_leaves_the_one_before(tmp_path):
    with disk(tmp_path / "disk", "64k") as folder:
        (folder / "evaluate.json").write_text(json.dumps(EVALUATE))
        report(ReportConfig(folder=folder), folder)
        before = (folder / "report.html").read_bytes()
        with contextlib.suppress(OSError), open(folder / "filling", "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        with pytest.raises(UserError, match=r"report\.html: no space left on the disk"):
            report(ReportConfig(folder=folder), folder)
        assert (folder / "report.html").read_bytes() == before
        assert sorted(path.name for path in folder.iterdir()) == ["evaluate.json", "filling", "report.html"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["play", "pong", "--agent", "random", "--seconds", "1", "--view", "none", "--record", "game.mp4"],
        ["record", "pong", "--frames", "64", "--num_envs", "2"],
        ["evaluate", "pong", "--agent", "student", *ONE],
    ],
    ids=lambda words: words[0],
)
def test_a_small_dev_shm_is_enough(words, tmp_path):
    if shutil.which("unshare") is None:
        pytest.skip("no unshare here")
    script = 'mount -t tmpfs -o size=64k none /dev/shm || exit 99; exec "$@"'
    command = [sys.executable, "-m", "spikestill", *words, "--run_dir", str(tmp_path / "run")]
    found = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", *command], cwd=tmp_path, capture_output=True, text=True,
        timeout=300, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    if found.returncode == 99 or "unshare:" in found.stderr:
        pytest.skip("may not mount a small /dev/shm")
    assert found.returncode == 0, found.stderr
