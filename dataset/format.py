"""The buffer's HDF5 format, written and read; docs/dataset.md describes it for other programs.

Rows are vector steps, columns are streams: entry (t, e) is step t of stream e, and the steps of a stream
follow each other in its column. Axis suffixes: T rows, N streams, A actions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from spikestill.common.atari import MAX_ACTIONS, PIXELS, SIDE, STACK, check_game
from spikestill.common.atomic import is_no_space, no_space, write_bytes
from spikestill.common.environment import ActionSpace, Box, Discrete, Field
from spikestill.common.errors import MALFORMED, UserError
from spikestill.common.hdf5 import DEFLATE, SHUFFLE, Hdf5File
from spikestill.common.limits import BUFFER_FACTOR, CHUNK_BYTES, HDF5_EXTRA, regular_file
from spikestill.common.progress import Progress
from spikestill.common.provenance import Provenance, check_schema, content_sha256, warn_unchecked
from spikestill.dataset.journal import JournaledFile, in_use, recover, replacing

if TYPE_CHECKING:
    import h5py

SCHEMA = "spikestill.buffer"
VERSION = 2
"""1: Atari's stacks and discrete actions, as written still; 2: any other observations and actions."""
CHUNK_ROWS = 32
MAX_STREAMS = 1024
MAX_FIELDS, MAX_VALUES, MAX_SCORES = 64, 1 << 24, 1 << 16
"""Of version 2: fields, numbers in one observation, scores of one decision."""
REMEDY = "give a buffer that `spikestill record` wrote"
FLAGS = ("terminated", "truncated", "start", "valid")
OBSERVATIONS = "obs_"
TEXTS: dict[int, tuple[str, ...]] = {1: ("game", "action_names", "provenance")}
TEXTS[2] = (*TEXTS[1], "fields", "box", "scores")
"""Attributes, by version, that ``sha256`` covers beside ``sessions``."""


def hdf5_schema(path: Path) -> str:
    """Return the schema that an HDF5 file names, be it a buffer or another artefact; '' where it names none.

    Raises:
        UserError: the file is damaged, or being written.
    """
    recover(path)
    try:
        with Hdf5File(path, "artefact", "make it again") as file:
            return str(file.attributes.get("schema", ""))
    except BlockingIOError as error:
        raise in_use(path) from error
    except UserError:
        raise
    except MALFORMED as error:
        raise UserError(f"{path}: damaged HDF5 ({error})", "make it again") from error


@dataclasses.dataclass(frozen=True)
class Header:
    """What holds for a whole buffer.

    Attributes:
        game: the environment in snake case.
        action_names: A names, e.g. ``("NOOP", "FIRE")``; their positions are the action numbers. () with ``box``.
        streams: N, games played side by side.
        provenance: config, seed, commit, versions, and the teacher's hash under parent ``teacher``.
        sessions: first row of each recording session; every stream starts a new game there.
        fields: what was observed.
        box: the bounds of continuous actions; None: the actions are discrete.
        scores: numbers that the teacher gave for a decision; None: A.
    """

    game: str
    action_names: tuple[str, ...]
    streams: int
    provenance: Provenance
    sessions: tuple[int, ...] = (0,)
    fields: tuple[Field, ...] = (STACK,)
    box: Box | None = None
    scores: int | None = None

    @property
    def actions(self) -> int:
        """A, the number of discrete actions, or D, the numbers of a continuous one."""
        return len(self.action_names) if self.box is None else len(self.box.low)

    @property
    def space(self) -> ActionSpace:
        """What was done."""
        return Discrete(self.action_names) if self.box is None else self.box

    @property
    def version(self) -> int:
        """Version of the format that holds it: 1 for Atari's stacks."""
        return 1 if self.fields == (STACK,) and self.box is None else 2


@dataclasses.dataclass(frozen=True, eq=False)
class Steps:
    """All of some rows but their frames.

    Attributes:
        q_values: float32 (T, N, A), the teacher's, finite; other scores (T, N, S) where ``Header.scores`` is S.
        action: uint8 (T, N), what was played, 0..A-1; float32 (T, N, D) where actions are continuous.
        reward: float32 (T, N), raw score that the action earned.
        terminated, truncated: bool (T, N), the game ended with this action.
        start: bool (T, N), first observation of a game: the older three of its stack are zero.
        valid: bool (T, N); False where the game had ended, so that the action was ignored.
        observations: field name to (T, N, *shape), of stacked fields the newest frame; {} in version 1, whose frames
            are packed apart.
    """

    q_values: npt.NDArray[np.float32]
    action: npt.NDArray[np.uint8]
    reward: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    start: npt.NDArray[np.bool_]
    valid: npt.NDArray[np.bool_]
    observations: Mapping[str, npt.NDArray[Any]] = dataclasses.field(default_factory=dict)

    @staticmethod
    def empty(rows: int, header: Header) -> Steps:
        """Return uninitialised steps of a buffer with this header."""
        found = {
            name: np.empty((rows, *shape), np.bool_ if name in FLAGS else dtype)
            for name, (dtype, shape) in _columns(header).items()
        }
        return _steps(found)

    def first(self, rows: int) -> Steps:
        """Return the first ``rows`` rows."""
        return _steps({name: column[:rows] for name, column in self.columns().items()})

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Return all columns by the name of their dataset."""
        own = {name: getattr(self, name) for name in ("q_values", "action", "reward", *FLAGS)}
        return own | {OBSERVATIONS + name: column for name, column in self.observations.items()}


def _steps(columns: Mapping[str, Any]) -> Steps:
    """Return the steps whose :meth:`Steps.columns` these are."""
    own = {name: column for name, column in columns.items() if not name.startswith(OBSERVATIONS)}
    observed = {
        name.removeprefix(OBSERVATIONS): column
        for name, column in columns.items()
        if name.startswith(OBSERVATIONS)
    }
    return Steps(**own, observations=observed)


def game_returns(steps: Steps) -> list[float]:
    """Return the raw score of every game that ended within the rows, stream after stream."""
    returns: list[float] = []
    over = (steps.terminated | steps.truncated) & steps.valid
    for stream in range(steps.start.shape[1]):
        total = np.cumsum(steps.reward[:, stream], dtype=np.float64)
        starts = np.flatnonzero(steps.start[:, stream])
        for end in np.flatnonzero(over[:, stream]):
            first = starts[np.searchsorted(starts, end, side="right") - 1]
            returns.append(float(total[end] - (total[first - 1] if first else 0.0)))
    return returns


def _columns(header: Header) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return dataset name to (stored dtype, shape after T) of all but version 1's frames."""
    one = (header.streams,)
    scores = header.actions if header.scores is None else header.scores
    action = ("|u1", one) if header.box is None else ("<f4", (*one, header.actions))
    stored: dict[str, tuple[str, tuple[int, ...]]]
    stored = {"q_values": ("<f4", (*one, scores)), "action": action, "reward": ("<f4", one)}
    stored |= {name: ("|u1", one) for name in FLAGS}
    if header.version > 1:
        for field in header.fields:
            shape = field.shape[1:] if field.stacked else field.shape
            stored[OBSERVATIONS + field.name] = (np.dtype(field.dtype).str, (*one, *shape))
    return stored


class BufferWriter:
    """A buffer open for appending; what :meth:`commit` did not commit is lost on a kill, nothing else is.

    Used by one thread at a time. Use :meth:`create` or :meth:`append`.

    Attributes:
        header: what holds for the whole buffer.
        rows: T so far, committed or not.
    """

    def __init__(self, journaled: JournaledFile, file: h5py.File, header: Header, level: int) -> None:
        self._journaled, self._file, self.header, self._level = journaled, file, header, level
        self.rows = int(file["reward"].shape[0])

    @classmethod
    def create(cls, path: Path, header: Header, level: int = 1) -> BufferWriter:
        """Start a new buffer at ``path``, in place of what is there.

        Args:
            path: the file.
            header: what holds for the whole buffer.
            level: Deflate level, 1..9.

        Raises:
            UserError: the disk is full, or another process writes the file.
        """
        import h5py

        # Whole from the first moment: made in memory, written beside its place and renamed.
        content = io.BytesIO()
        # HDF5 1.8's format: it has no "open for writing" mark, which a kill would leave behind.
        with h5py.File(content, "w", libver=("v108", "v108")) as file:
            file.attrs.update(schema=SCHEMA, version=header.version, game=header.game)
            file.attrs["action_names"] = json.dumps(header.action_names)
            if header.version > 1:
                file.attrs["fields"] = json.dumps([dataclasses.asdict(field) for field in header.fields])
                file.attrs["box"] = json.dumps(dataclasses.asdict(header.box) if header.box else None)
                file.attrs["scores"] = header.actions if header.scores is None else header.scores
            file.attrs["provenance"] = header.provenance.to_json()
            file.attrs["sessions"] = np.array(header.sessions, "<i8")
            file.attrs["sha256"] = texts_sha256(file.attrs)
            n = header.streams
            if header.version == 1:
                # SIDE x SIDE per frame; gzip is HDF5's name for Deflate in a zlib wrapper.
                file.create_dataset(
                    "frames", (0, n, SIDE, SIDE), "|u1", maxshape=(None, n, SIDE, SIDE),
                    chunks=(CHUNK_ROWS, 1, SIDE, SIDE), compression="gzip", compression_opts=level,
                )  # fmt: skip
            for name, (dtype, shape) in _columns(header).items():
                file.create_dataset(
                    name, (0, *shape), dtype, maxshape=(None, *shape), chunks=(CHUNK_ROWS, *shape),
                    compression="gzip", compression_opts=level, shuffle=SHUFFLE in _filters(dtype),
                )  # fmt: skip
        with replacing(path):
            write_bytes(path, content.getvalue())
        return cls.append(path, level)

    @classmethod
    def append(cls, path: Path, level: int = 1) -> BufferWriter:
        """Open the buffer at ``path`` for more rows, as a new session.

        Raises:
            UserError: it cannot be read, is not ours, or another process writes it.
        """
        import h5py

        recover(path)
        with BufferFile(path) as existing:
            header = existing.header
        _rehearse(path, header)
        journaled = JournaledFile(path)
        file = h5py.File(journaled, "r+", libver=("v108", "v108"))
        writer = cls(journaled, file, header, level)
        if writer.rows and writer.rows != header.sessions[-1]:
            writer._set_sessions((*header.sessions, writer.rows))
        return writer

    def _set_sessions(self, sessions: tuple[int, ...]) -> None:
        self.header = dataclasses.replace(self.header, sessions=sessions)
        self._file.attrs["sessions"] = np.array(sessions, "<i8")
        self._file.attrs["sha256"] = texts_sha256(self._file.attrs)

    def room(self) -> int:
        """Return how many rows fit into the current chunk, 1..CHUNK_ROWS: what :meth:`write` takes."""
        return CHUNK_ROWS - self.rows % CHUNK_ROWS

    def write(self, frames_NTP: npt.NDArray[np.uint8] | None, steps: Steps) -> None:
        """Append rows, at most :meth:`room` of them.

        Args:
            frames_NTP: uint8 (N, rows, 7056), the newest frame of each observation; None in version 2.
            steps: the rest of the rows.

        Raises:
            UserError: the disk is full; the file keeps its last commit.
        """
        rows, first = len(steps.reward), self.rows
        assert 0 < rows <= self.room()
        with _disk(self._journaled):
            if frames_NTP is not None:
                self._write_frames(frames_NTP, first)
            for name, values in steps.columns().items():
                column = self._file[name]
                column.resize(first + rows, axis=0)
                column[first:] = values
            self.rows = first + rows

    def _write_frames(self, frames_NTP: npt.NDArray[np.uint8], first: int) -> None:
        rows, dataset = frames_NTP.shape[1], self._file["frames"]
        inside = first % CHUNK_ROWS
        chunk = np.zeros((CHUNK_ROWS, PIXELS), np.uint8)
        before = dataset[first - inside : first] if inside else None
        dataset.resize(first + rows, axis=0)
        for stream in range(self.header.streams):
            if before is not None:
                chunk[:inside] = before[:, stream].reshape(inside, PIXELS)
            chunk[inside : inside + rows] = frames_NTP[stream]
            dataset.id.write_direct_chunk(
                (first - inside, stream, 0, 0), zlib.compress(chunk.data, self._level)
            )

    def commit(self) -> None:
        """Make all rows so far survive a kill and a power cut.

        Raises:
            UserError: the disk is full; the file keeps its last commit.
        """
        with _disk(self._journaled):
            self._file.flush()
            self._journaled.commit()

    def close(self) -> None:
        """Close the file; rows that were not committed are dropped."""
        with contextlib.suppress(OSError, RuntimeError):
            self._file.close()
        self._journaled.close()

    def __enter__(self) -> BufferWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def _disk(journaled: JournaledFile) -> Iterator[None]:
    """Turn a full disk into UserError, however HDF5 dresses it."""
    try:
        yield
        if journaled.failure is not None:
            raise journaled.failure
    except UserError:
        raise
    except Exception as error:
        cause = journaled.failure if journaled.failure is not None else error
        if isinstance(cause, OSError) and is_no_space(cause):
            raise no_space(journaled.path, cause) from error
        raise


def _rehearse(path: Path, header: Header) -> None:
    """Raise UserError where HDF5 cannot append to the buffer: tried in a confined process, on a copy of its indices."""
    try:
        with Hdf5File(path, "buffer", REMEDY) as file:
            file.rehearse_append((*(("frames",) if header.version == 1 else ()), *_columns(header)))
    except BlockingIOError as error:
        raise in_use(path) from error
    except UserError:
        raise
    except MALFORMED as error:
        raise UserError(f"{path}: rows cannot be appended: {error}", "record a new buffer") from error


class BufferFile:
    """A buffer open for reading, checked: schema, version, shapes, dtypes, ranges, completeness.

    Frames are read with :meth:`decode`, from any number of threads; all else is in :attr:`steps`.

    Attributes:
        header: what holds for the whole buffer.
        rows: T.
        steps: all rows but their frames.

    Args:
        path: the file. A flush that a kill cut short is finished first.

    Raises:
        UserError: missing, truncated, foreign, newer, impossible content, or being written.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        regular_file(self.path, "buffer", REMEDY)
        recover(self.path)
        try:
            with Hdf5File(self.path, "buffer", REMEDY) as file:
                self.header, self.rows = _read_header(file, self.path)
                self.steps = _read_steps(file, self.header, self.rows)
                if self.header.version == 1:
                    self._offset, self._size = _read_chunks(file, self.header, self.rows)
            _check_steps(self.steps, self.header)
        except UserError:
            raise
        except BlockingIOError as error:
            raise in_use(self.path) from error
        except MALFORMED as error:
            raise UserError(f"{self.path}: not a readable buffer: {error}", REMEDY) from error
        self._descriptor = os.open(self.path, os.O_RDONLY)

    def decode(self, chunk: int, stream: int, rows: int = CHUNK_ROWS) -> npt.NDArray[np.uint8]:
        """Return frames, uint8 (rows, 7056): the first ``rows`` of a chunk of a stream.

        Args:
            chunk: rows ``chunk * CHUNK_ROWS`` and following, 0..ceil(T / CHUNK_ROWS) - 1.
            stream: 0..N-1.
            rows: 1..CHUNK_ROWS; rows behind T are zero. The whole chunk is checked against its checksum, whatever
                ``rows`` is.

        Raises:
            UserError: the chunk is damaged.
        """
        packed = os.pread(self._descriptor, int(self._size[chunk, stream]), int(self._offset[chunk, stream]))
        unpacker = zlib.decompressobj()
        wanted = CHUNK_ROWS * PIXELS
        try:
            # One byte more than a chunk holds, so that the checksum behind it is read as well.
            content = unpacker.decompress(packed, wanted + 1)
        except zlib.error as error:
            raise self._damaged(chunk, stream, str(error)) from error
        if len(content) != wanted or not unpacker.eof:
            raise self._damaged(chunk, stream, f"{len(content)} bytes, {wanted} wanted")
        return np.frombuffer(content, np.uint8).reshape(CHUNK_ROWS, PIXELS)[:rows]

    def check_frames(self) -> None:
        """Unpack every frame and check it against its checksum, with a progress bar.

        Raises:
            UserError: a chunk is damaged; the first is named.
        """
        if self.header.version > 1:
            return  # its observations were unpacked, and so checked, with the other columns
        streams = range(self.header.streams)
        with (
            Progress("checking frames", self.rows * len(streams), "frames") as bar,
            ThreadPoolExecutor(min(8, os.cpu_count() or 1), "checking") as pool,
        ):
            for chunk in range(len(self._offset)):
                for _ in pool.map(self.decode, itertools.repeat(chunk, len(streams)), streams):
                    pass
                bar.advance(min(self.rows, (chunk + 1) * CHUNK_ROWS) * len(streams) - bar.done)

    def _damaged(self, chunk: int, stream: int, what: str) -> UserError:
        steps = f"{chunk * CHUNK_ROWS}..{(chunk + 1) * CHUNK_ROWS - 1}"
        return UserError(
            f"{self.path}: frames of steps {steps}, stream {stream}, are damaged: {what}",
            "record it again",
        )

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> BufferFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read_header(file: Hdf5File, path: Path) -> tuple[Header, int]:
    """Return the header and T, checked against what a file of its size can hold."""
    attributes = file.attributes
    version = check_schema(path, attributes, SCHEMA, VERSION, REMEDY)
    _check_texts(attributes, version, path)
    game, names = str(attributes["game"]), json.loads(attributes["action_names"])
    fields, box, scores = _read_spaces(attributes, version, game, names)
    reward = file.dataset("reward")
    rows, streams = reward.shape if len(reward.shape) == 2 else (0, 0)
    if not 1 <= streams <= MAX_STREAMS:
        raise ValueError(f"reward has shape {reward.shape}, (T, 1..{MAX_STREAMS}) wanted")
    if version == 1:
        _check_frames(file, rows, streams)
    sessions = tuple(int(row) for row in attributes["sessions"])
    # A session that was killed before its first flush may stand at the very end.
    if sessions[:1] != (0,) or any(a >= b for a, b in itertools.pairwise(sessions)) or sessions[-1] > rows:
        raise ValueError(f"sessions is {sessions}, rising row numbers from 0 to at most {rows} wanted")
    provenance = Provenance.from_json(str(attributes["provenance"]))
    return Header(game, tuple(map(str, names)), streams, provenance, sessions, fields, box, scores), rows


def texts_sha256(attributes: Mapping[str, Any]) -> str:
    """Return the SHA-256 of what a buffer's attributes say, as its attribute ``sha256`` has it."""
    version = int(attributes["version"])
    sessions = json.dumps([int(row) for row in attributes["sessions"]])
    texts = [str(attributes[name]) for name in TEXTS[version]]
    return content_sha256((SCHEMA, str(version), *texts, sessions), {})


def _check_texts(attributes: Mapping[str, Any], version: int, path: Path) -> None:
    """Raise ValueError unless the attributes have their hash; warn where a buffer is from before there was one."""
    strange = set(attributes) - {"schema", "version", "sessions", "sha256", *TEXTS[version]}
    if strange:
        raise ValueError(f"its attribute {min(strange)!r} is none of a buffer of version {version}")
    if "sha256" not in attributes:
        warn_unchecked(path, "attributes")
    elif texts_sha256(attributes) != attributes["sha256"]:
        raise ValueError("its attributes are not those that its sha256 was made of: it is damaged")


def _read_spaces(
    attributes: Mapping[str, Any], version: int, game: str, names: Any
) -> tuple[tuple[Field, ...], Box | None, int | None]:
    """Return what was observed, the bounds of continuous actions, and the scores of a decision."""
    if not isinstance(names, list) or len(set(map(str, names))) != len(names):
        raise ValueError(f"action_names is {names!r}, different names wanted")
    if version == 1:
        if not 2 <= len(names) <= MAX_ACTIONS:
            raise ValueError(f"action_names is {names!r}, 2..{MAX_ACTIONS} different names wanted")
        try:
            check_game(game)
        except UserError as error:
            raise ValueError(error.what) from error
        return (STACK,), None, None
    described = json.loads(attributes["fields"])
    if not isinstance(described, list) or not 1 <= len(described) <= MAX_FIELDS:
        raise ValueError(f"fields is {described!r}, a list of 1..{MAX_FIELDS} wanted")
    fields = tuple(Field(**field) for field in described)
    values = sum(math.prod(field.shape) for field in fields)
    if values > MAX_VALUES or len({field.name for field in fields}) != len(fields):
        raise ValueError(f"fields of {values} values a step, at most {MAX_VALUES} in different fields wanted")
    bounds, scores = json.loads(attributes["box"]), int(attributes["scores"])
    box = None if bounds is None else Box(**bounds)
    if (box is None) == (len(names) < 2) or not 0 <= scores <= MAX_SCORES or len(names) > 256:
        raise ValueError(
            f"actions are {names!r} within {bounds!r} with {scores} scores, 2..256 names or a box, "
            f"and 0..{MAX_SCORES} scores wanted"
        )
    return fields, box, scores


def _check_frames(file: Hdf5File, rows: int, streams: int) -> None:
    """Raise ValueError unless the frames are declared as version 1 writes them, in a file that can hold them."""
    frames = file.dataset("frames")
    if frames.shape != (rows, streams, SIDE, SIDE):
        raise ValueError(f"frames has shape {frames.shape}, {(rows, streams, SIDE, SIDE)} wanted")
    if (
        frames.dtype != np.uint8
        or frames.chunks != (CHUNK_ROWS, 1, SIDE, SIDE)
        or frames.filters != (DEFLATE,)
    ):
        raise ValueError(
            f"frames is {frames.dtype} in chunks of {frames.chunks}, "
            f"uint8 in Deflate chunks of {(CHUNK_ROWS, 1, SIDE, SIDE)} wanted"
        )
    chunks = -(-rows // CHUNK_ROWS) * streams
    if chunks * CHUNK_BYTES > file.size:
        raise ValueError(
            f"it declares {rows:,} rows of {streams} streams, {chunks:,} chunks of at least {CHUNK_BYTES} bytes; "
            f"the file has {file.size:,} bytes"
        )


def _read_steps(file: Hdf5File, header: Header, rows: int) -> Steps:
    columns = _columns(header)
    for name, (dtype, shape) in columns.items():
        declared = file.dataset(name)
        if declared.dtype != np.dtype(dtype) or declared.shape != (rows, *shape):
            raise ValueError(
                f"{name} is {declared.dtype} {declared.shape}, {np.dtype(dtype)} {(rows, *shape)} wanted"
            )
    _check_chunks(file, {name: dtype for name, (dtype, _) in columns.items()})
    found = file.read(columns, HDF5_EXTRA + BUFFER_FACTOR * file.size)
    for name in FLAGS:
        values = found[name]
        if values.size and values.max() > 1:
            raise ValueError(f"{name} holds {values.max()}, its range is 0..1")
        found[name] = values.view(np.bool_)
    return _steps(found)


def _filters(dtype: str) -> tuple[int, ...]:
    """Return the filters that a column of this dtype is packed by."""
    return (SHUFFLE, DEFLATE) if dtype == "<f4" else (DEFLATE,)


def _check_chunks(file: Hdf5File, columns: Mapping[str, str]) -> None:
    """Raise ValueError where a column is not packed as the format says, or a chunk is not there.

    HDF5 would read a missing chunk as zeros; what Deflate did not pack has no checksum.

    Args:
        file: the buffer.
        columns: name to dtype.
    """
    grids: dict[str, tuple[int, ...]] = {}
    steps: dict[str, tuple[int, ...]] = {}
    for name, dtype in columns.items():
        declared = file.dataset(name)
        wanted = (CHUNK_ROWS, *declared.shape[1:])
        if declared.chunks != wanted or declared.filters != _filters(dtype):
            raise ValueError(
                f"{name} lies in chunks of {declared.chunks} packed by filters {declared.filters}, "
                f"{wanted} and {_filters(dtype)} wanted"
            )
        steps[name] = wanted
        grids[name] = tuple(
            -(-side // step) for side, step in zip(declared.shape, declared.chunks, strict=True)
        )
        if math.prod(grids[name]) * 8 > file.size:  # Deflate's shortest stream
            raise ValueError(
                f"{name} declares {math.prod(grids[name]):,} chunks, the file has {file.size:,} bytes"
            )
    # A session that was killed before its commit may have left chunks behind the last row.
    found = file.chunk_index({name: 2 * math.prod(grid) + 16 for name, grid in grids.items()})
    for name, grid in grids.items():
        there = np.zeros(grid, np.bool_)
        if found[name][3].any():
            raise ValueError(f"{name} has chunks that are not packed")
        place = found[name][0] // np.array(steps[name])
        there[tuple(place[(place < np.array(grid)).all(axis=1)].T)] = True
        if not there.all():
            at = int(np.argwhere(~there)[0][0]) * steps[name][0]
            raise ValueError(f"{name} of steps {at} and following is missing")


def _check_steps(steps: Steps, header: Header) -> None:
    """Raise ValueError where values are out of range, naming the first."""
    for name, bad in (
        ("q_values", ~np.isfinite(steps.q_values)),
        ("reward", ~np.isfinite(steps.reward)),
        ("action", steps.action >= header.actions if header.box is None else ~np.isfinite(steps.action)),
    ):
        if bad.any():
            where = tuple(int(index) for index in np.argwhere(bad)[0])
            raise ValueError(f"{name}[{', '.join(map(str, where))}] is {getattr(steps, name)[where]}")
    for row in header.sessions:
        if row < len(steps.start) and not steps.start[row].all():
            raise ValueError(f"a session starts at step {row}, yet not every stream starts a game there")


def _read_chunks(
    file: Hdf5File, header: Header, rows: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return where the frames' chunks lie in the file: byte offset and size, (chunks of T, N)."""
    shape = (-(-rows // CHUNK_ROWS), header.streams)
    # A session that was killed before its commit may have left chunks behind the last row.
    most = 2 * math.prod(shape) + 4 * header.streams + 16
    first, offsets, sizes, mask = file.chunk_index({"frames": most})["frames"]
    chunk, stream = first[:, 0] // CHUNK_ROWS, first[:, 1]
    mine = (mask == 0) & (chunk < shape[0]) & (stream < shape[1])
    offset, size = np.full(shape, -1, np.int64), np.zeros(shape, np.int64)
    offset[chunk[mine], stream[mine]], size[chunk[mine], stream[mine]] = offsets[mine], sizes[mine]
    if (offset < 0).any():
        at, of = np.argwhere(offset < 0)[0]
        raise ValueError(f"frames of steps {at * CHUNK_ROWS} and following of stream {of} are missing")
    return offset, size
