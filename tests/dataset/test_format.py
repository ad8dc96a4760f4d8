import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from spikestill.common.errors import UserError
from spikestill.common.provenance import Provenance
from spikestill.dataset.format import CHUNK_ROWS, BufferFile, BufferWriter, Header, Steps, texts_sha256
from spikestill.dataset.journal import journal_path
from spikestill.dataset.reader import BufferReader

ROOT = Path(__file__).parents[2]
STREAMS, ACTIONS = 2, 3


def header():
    return Header("pong", ("NOOP", "UP", "DOWN"), STREAMS, Provenance.of({"seed": 0}, 0))


def block(first: int, rows: int, sessions: tuple[int, ...] = (0,)):
    """Return rows that depend on their number alone; the noise keeps them from being packed away."""
    frames = np.stack(
        [
            np.stack([np.random.default_rng([e, t]).bytes(7056) for t in range(first, first + rows)])
            for e in range(STREAMS)
        ]
    )
    frames = np.frombuffer(frames.tobytes(), np.uint8).reshape(STREAMS, rows, 7056)
    steps = Steps.empty(rows, header())
    number = np.arange(first, first + rows)[:, None]
    steps.q_values[:] = number[..., None] + np.arange(ACTIONS)
    steps.action[:] = number % ACTIONS
    steps.reward[:] = number
    steps.terminated[:] = steps.truncated[:] = False
    steps.start[:] = np.isin(number, sessions)
    steps.valid[:] = True
    return frames, steps


def fill(writer: BufferWriter, rows: int) -> None:
    while writer.rows < rows:
        writer.write(*block(writer.rows, min(writer.room(), rows - writer.rows), writer.header.sessions))


def write_buffer(path: Path, rows: int = 70) -> Path:
    with BufferWriter.create(path, header()) as writer:
        fill(writer, rows)
        writer.commit()
    return path


def check_content(path: Path) -> int:
    """Assert that all rows of the buffer are those of :func:`block`; return how many there are."""
    with BufferFile(path) as file:
        for chunk in range(-(-file.rows // CHUNK_ROWS)):
            first, rows = chunk * CHUNK_ROWS, min(CHUNK_ROWS, file.rows - chunk * CHUNK_ROWS)
            frames, steps = block(first, rows)
            for stream in range(STREAMS):
                assert np.array_equal(file.decode(chunk, stream)[:rows], frames[stream])
            assert np.array_equal(file.steps.q_values[first : first + rows], steps.q_values)
            assert np.array_equal(file.steps.action[first : first + rows], steps.action)
        return file.rows


def write_for_ever(path: str, new: str) -> None:
    """Write and commit, saying after each commit how many rows stand; the parent process kills this one."""
    writer = BufferWriter.create(Path(path), header()) if new == "new" else BufferWriter.append(Path(path))
    print(writer.rows, flush=True)
    while True:
        fill(writer, writer.rows + 8)
        writer.commit()
        print(writer.rows, flush=True)


def test_rows_written_in_pieces_read_back_the_same(tmp_path):
    path = tmp_path / "buffer.h5"
    with BufferWriter.create(path, header()) as writer:
        for rows in (1, 5, 31, 32, 40, 70):
            fill(writer, rows)
            writer.commit()
            assert path.stat().st_size > 0
    assert check_content(path) == 70
    with BufferWriter.append(path) as writer:
        fill(writer, 100)
        writer.commit()
        fill(writer, 130)
    assert check_content(path) == 100, "rows that were not committed are dropped"


def test_any_hdf5_program_reads_the_buffer(tmp_path):
    path = write_buffer(tmp_path / "buffer.h5")
    frames, steps = block(0, 70)
    with h5py.File(path) as file:
        assert np.array_equal(file["frames"][:], frames.reshape(STREAMS, 70, 84, 84).transpose(1, 0, 2, 3))
        assert np.array_equal(file["reward"][:], steps.reward)


def test_kill_while_writing_loses_at_most_the_last_flush(tmp_path):
    path = tmp_path / "buffer.h5"
    rng = np.random.default_rng(5)
    stood = 0
    for kill in range(5):
        script = (
            "import sys; from tests.dataset.test_format import write_for_ever; write_for_ever(*sys.argv[1:])"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(path), "old" if kill else "new"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        for _ in range(int(rng.integers(2, 6))):
            told = int(process.stdout.readline())
        time.sleep(float(rng.random()) * 0.03)
        process.kill()
        lines = process.stdout.read().split("\n")[:-1]
        process.wait()
        told = int(lines[-1]) if lines else told
        rows = check_content(path)
        assert told <= rows <= told + 8, "what was said to be flushed is there, and at most one flush more"
        assert rows > stood
        stood = rows


def fill_until_full(path: Path) -> None:
    with BufferWriter.create(path, header()) as writer:
        while writer.rows < 10_000:
            fill(writer, writer.rows + 32)
            writer.commit()
    raise AssertionError("the disk never was full")


def report_full_disk(path: str) -> None:
    """Fill a file up to this process's file size limit; print the error."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, resource.RLIM_INFINITY))
    try:
        fill_until_full(Path(path))
    except UserError as error:
        print(error)


def test_file_size_limit_gives_a_clear_error_and_a_readable_file(tmp_path):
    path = tmp_path / "buffer.h5"
    script = f"from tests.dataset.test_format import report_full_disk as r; r({str(path)!r})"
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "no space left on the disk" in run.stdout
    assert "--resume" in run.stdout
    rows = check_content(path)
    assert 32 <= rows < 10_000
    with BufferWriter.append(path) as writer:
        fill(writer, rows + 50)
        writer.commit()
    assert check_content(path) == rows + 50


def test_full_disk_gives_a_clear_error_and_a_readable_file(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("may not mount a small disk")
    try:
        path = disk / "buffer.h5"
        with pytest.raises(UserError, match=r"buffer\.h5: no space left on the disk .*--resume"):
            fill_until_full(path)
        assert check_content(path) >= 32
        with pytest.raises(UserError, match="no space left on the disk"), BufferWriter.append(path) as writer:
            fill(writer, 10_000)
        assert check_content(path) >= 32
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"nothing\.h5: no such buffer"):
        BufferFile(tmp_path / "nothing.h5")


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.9, 0.999])
def test_truncated_file_is_refused(tmp_path, share):
    path = write_buffer(tmp_path / "buffer.h5")
    os.truncate(path, int(path.stat().st_size * share))
    with pytest.raises(UserError, match=r"buffer\.h5: not a readable buffer"):
        BufferFile(path)


def test_foreign_files_are_refused(tmp_path):
    text = tmp_path / "text.h5"
    text.write_text("not HDF5 at all")
    with pytest.raises(UserError, match=r"text\.h5: not a readable buffer"):
        BufferFile(text)
    other = tmp_path / "other.h5"
    with h5py.File(other, "w") as file:
        file["x"] = np.arange(3)
    with pytest.raises(UserError, match=r"other\.h5: schema None, 'spikestill.buffer' wanted"):
        BufferFile(other)


def test_newer_version_is_refused(tmp_path):
    path = write_buffer(tmp_path / "buffer.h5")
    with h5py.File(path, "r+") as file:
        file.attrs["version"] = 99
    with pytest.raises(UserError, match="format version 99, this program reads up to 2"):
        BufferFile(path)


def replace(name, change):
    def edit(file):
        values = change(file[name][:])
        del file[name]
        packed = {"compression": "gzip", "shuffle": values.dtype == np.float32}
        file.create_dataset(name, data=values, chunks=(CHUNK_ROWS, *values.shape[1:]), **packed)

    return edit


def put(name, where, value):
    def edit(file):
        file[name][where] = value

    return edit


def delete(name):
    def edit(file):
        del file[name]

    return edit


def attribute(name, value):
    def edit(file):
        file.attrs[name] = value
        file.attrs["sha256"] = texts_sha256(file.attrs)

    return edit


def uncompressed(file):
    del file["frames"]
    file.create_dataset("frames", (70, STREAMS, 84, 84), "u1", chunks=(CHUNK_ROWS, 1, 84, 84))


def unwritten(file):
    file["frames"].resize(200, axis=0)
    for name in ("q_values", "action", "reward", "terminated", "truncated", "start", "valid"):
        file[name].resize(200, axis=0)
        file[name][70:] = 0


def forgotten(name):
    def edit(file):
        file[name].resize(64, axis=0)
        file[name].resize(70, axis=0)

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            replace("q_values", lambda q: q[:, :, :2]),
            r"q_values is float32 \(70, 2, 2\), float32 \(70, 2, 3\) wanted",
        ),
        (replace("q_values", lambda q: q.astype(np.float64)), r"q_values is float64"),
        (replace("action", lambda a: a[:-1]), r"action is uint8 \(69, 2\), uint8 \(70, 2\) wanted"),
        (replace("frames", lambda f: f[:, :, :80]), r"frames has shape \(70, 2, 80, 84\)"),
        (delete("reward"), "reward"),
        (put("q_values", (5, 1, 2), np.nan), r"q_values\[5, 1, 2\] is nan"),
        (put("q_values", (69, 0, 0), np.inf), r"q_values\[69, 0, 0\] is inf"),
        (put("reward", (3, 0), np.nan), r"reward\[3, 0\] is nan"),
        (put("action", (7, 1), 3), r"action\[7, 1\] is 3"),
        (put("valid", (7, 1), 2), r"valid holds 2, its range is 0..1"),
        (put("start", (0, 1), 0), "a session starts at step 0"),
        (attribute("game", "tenis"), "unknown game 'tenis'"),
        (attribute("sessions", np.array([0, 99])), r"sessions is \(0, 99\)"),
        (attribute("action_names", "[]"), "action_names"),
        (attribute("provenance", "{}"), "not a provenance record"),
        (uncompressed, "Deflate chunks of"),
        (forgotten("q_values"), "q_values of steps 64 and following is missing"),
        (forgotten("valid"), "valid of steps 64 and following is missing"),
        (unwritten, "frames of steps 96 and following of stream 0 are missing"),
    ],
)
def test_impossible_content_is_named(tmp_path, edit, message):
    path = write_buffer(tmp_path / "buffer.h5")
    with h5py.File(path, "r+") as file:
        edit(file)
    with pytest.raises(UserError, match=r"buffer\.h5: not a readable buffer: .*" + message):
        BufferFile(path)


@pytest.mark.parametrize("memory", [None, 0])
def test_damaged_frames_are_named(tmp_path, memory):
    path = write_buffer(tmp_path / "buffer.h5")
    with h5py.File(path) as file:
        info = file["frames"].id.get_chunk_info_by_coord((32, 1, 0, 0))
    with open(path, "r+b") as raw:
        raw.seek(info.byte_offset + info.size // 2)
        raw.write(b"\xff" * 64)
    with pytest.raises(UserError, match=r"frames of steps 32\.\.63, stream 1, are damaged"):  # noqa: SIM117
        with BufferReader(path, memory) as reader:
            reader.stacks(np.arange(len(reader)))


def test_a_chunk_is_checked_whole_however_little_of_it_is_asked_for(tmp_path):
    path = write_buffer(tmp_path / "buffer.h5")
    with h5py.File(path) as file:
        info = file["frames"].id.get_chunk_info_by_coord((0, 0, 0, 0))
    with open(path, "r+b") as raw:
        raw.seek(info.byte_offset + info.size - 1)  # of the checksum
        last = raw.read(1)[0]
        raw.seek(info.byte_offset + info.size - 1)
        raw.write(bytes([last ^ 1]))
    with (
        BufferFile(path) as file,
        pytest.raises(UserError, match=r"frames of steps 0\.\.31, stream 0, are damaged"),
    ):
        file.decode(0, 0, 1)


def test_a_new_buffer_is_whole_or_absent(tmp_path, monkeypatch):
    """Killed while it is made, it has not touched what was there; a journal of that is never applied to the new one."""
    path = tmp_path / "buffer.h5"
    with BufferWriter.create(path, header()) as writer:
        fill(writer, 32)
        writer.commit()

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            BufferWriter.create(path, header())
    assert check_content(path) == 32
    assert list(tmp_path.iterdir()) == [path]
    journal_path(path).write_bytes(b"of the old one")
    with BufferWriter.create(path, header()) as writer:
        assert not journal_path(path).exists()
        with pytest.raises(UserError, match="another process has it open"):
            BufferWriter.create(path, header())
        fill(writer, 8)
        writer.commit()
    assert check_content(path) == 8


def test_buffer_being_recorded_is_refused(tmp_path):
    path = tmp_path / "buffer.h5"
    with BufferWriter.create(path, header()) as writer:
        fill(writer, 32)
        writer.commit()
        with pytest.raises(UserError, match="another process has it open"):
            BufferFile(path)
    assert check_content(path) == 32
