"""HDF5 files of strangers, read by a confined process: a damaged one ends with an error, not with the program's end.

HDF5's library crashes on damaged object headers, and follows links out of the file. Nothing of a file is parsed here:
:class:`Hdf5File` asks a guarded process what the file declares, checks it against the file's size, and only then asks
for arrays. The first file of a process costs the start of that process (0.14 s), each call after it a few milliseconds.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.common.file_lock import LET_GO_S, take_lock
from spikestill.common.guard import Arrays, Guard, GuardedError
from spikestill.common.limits import (
    HDF5_BYTES_PER_S,
    HDF5_CHUNKS_PER_S,
    HDF5_MEMORY,
    HDF5_SECONDS,
    MAX_DEFLATE_RATIO,
    MIB,
    regular_file,
)

MAGIC = b"\x89HDF\r\n\x1a\n"
"""With which every HDF5 file begins."""
DEFLATE, SHUFFLE = 1, 2
FILTERS = (DEFLATE, SHUFFLE)
BATCH_BYTES = 32 * MIB
"""Datasets are read so many bytes at a time, or one by one where one has more."""
_guard = Guard("spikestill.common.hdf5_child", "HDF5")


@dataclasses.dataclass(frozen=True)
class Declared:
    """What a dataset declares.

    Attributes:
        dtype: of numbers or truth values.
        shape: its sides.
        chunks: the sides of a chunk; None: it is contiguous.
        filters: the numbers of its filters, in order.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    chunks: tuple[int, ...] | None
    filters: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes of the whole array."""
        return math.prod(self.shape) * self.dtype.itemsize


class Hdf5File:
    """An HDF5 file open for reading.

    Attributes:
        path: the file.
        size: its bytes.
        attributes: those of the root group: text, numbers, lists of numbers.

    Args:
        path: the file.
        what: what it should be, for error messages.
        remedy: what to give in its place.

    Raises:
        UserError: there is no regular file.
        BlockingIOError: another process writes it.
        ValueError: HDF5 cannot read it.
    """

    def __init__(self, path: Path, what: str, remedy: str) -> None:
        self.path = Path(path)
        regular_file(self.path, what, remedy)
        # Without waiting, should a pipe have taken the file's place.
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            take_lock(self._descriptor, "shared", LET_GO_S)
            self.size = os.fstat(self._descriptor).st_size
            found, _ = self._ask("describe")
            self.attributes: dict[str, Any] = dict(found["attributes"])
            self._entries: dict[str, dict[str, Any]] = dict(found["entries"])
            self._user_block = int(found["user_block"])
        except BaseException:
            os.close(self._descriptor)
            raise

    def _ask(self, function: str, declared: int = 0, **arguments: Any) -> tuple[Any, Arrays]:
        return _guard.call(
            function, arguments, [self._descriptor], array_bytes=declared,
            memory=HDF5_MEMORY + 3 * declared, seconds=HDF5_SECONDS + declared / HDF5_BYTES_PER_S,
        )  # fmt: skip

    def dataset(self, name: str) -> Declared:
        """Return what a dataset declares.

        Raises:
            ValueError: it is missing, a link, kept outside the file, or packed by an unknown filter.
        """
        if self._user_block:
            raise ValueError("it has a user block before its content")
        entry = self._entries.get(name)
        if entry is None:
            raise ValueError(f"it has no {name}")
        if entry["kind"] == "link":
            raise ValueError(f"{name} is not kept in the file itself")
        if entry["kind"] == "strange":
            raise ValueError(f"{name} {entry['why']}")
        if entry["kind"] != "dataset":
            raise ValueError(f"{name} is not a dataset")
        if entry["outside"]:
            raise ValueError(f"{name} keeps its content outside the file")
        strange = [number for number in entry["filters"] if number not in FILTERS]
        if strange:
            raise ValueError(f"{name} is packed by filter {strange[0]}; Deflate and shuffle are read")
        chunks = None if entry["chunks"] is None else tuple(map(int, entry["chunks"]))
        return Declared(
            np.dtype(entry["dtype"]), tuple(map(int, entry["shape"])), chunks, tuple(entry["filters"])
        )

    def names(self) -> tuple[str, ...]:
        """Return the names of everything in the root group."""
        return tuple(self._entries)

    def check_size(self, names: Iterable[str], limit: int | None = None) -> int:
        """Return the bytes that datasets declare together.

        Raises:
            ValueError: more than a file of this size can hold, or than ``limit``.
        """
        most = MAX_DEFLATE_RATIO * self.size
        whole = 0
        for name in names:
            dataset = self.dataset(name)
            if dataset.chunks is None and dataset.bytes > self.size:
                raise ValueError(f"{name} declares {dataset.bytes:,} bytes, the file has {self.size:,}")
            whole += dataset.bytes
            if whole > most:
                raise ValueError(
                    f"{name} brings the declared content to {whole} bytes, "
                    f"a file of {self.size} bytes holds at most {most}"
                )
            if limit is not None and whole > limit:
                raise ValueError(
                    f"{name} brings the declared content to {whole:,} bytes, at most {limit:,} are read"
                )
        return whole

    def read(self, names: Iterable[str], limit: int | None = None) -> Arrays:
        """Return whole datasets by name, writable.

        Raises:
            ValueError: they declare more than the file can hold or than ``limit``; HDF5 fails on them.
        """
        names = tuple(names)
        self.check_size(names, limit)
        arrays: Arrays = {}
        for batch in self._batches(names):
            wanted = {name: (each.dtype.str, each.shape) for name, each in batch.items()}
            _, found = self._ask("read", sum(each.bytes for each in batch.values()), wanted=wanted)
            for name, each in batch.items():
                if name not in found or found[name].dtype != each.dtype or found[name].shape != each.shape:
                    raise GuardedError(f"{name} came back otherwise than it is declared")
            arrays |= found
        return arrays

    def _batches(self, names: Iterable[str]) -> Iterator[dict[str, Declared]]:
        """Yield what is read at a time: a child holds a batch twice, and all of it would be twice in memory."""
        batch: dict[str, Declared] = {}
        for name in names:
            if batch and sum(each.bytes for each in batch.values()) + self.dataset(name).bytes > BATCH_BYTES:
                yield batch
                batch = {}
            batch[name] = self.dataset(name)
        if batch:
            yield batch

    def chunk_index(self, most: Mapping[str, int]) -> dict[str, tuple[npt.NDArray[np.int64], ...]]:
        """Return (first (chunks, axes), offset, size, mask) of the chunks of some datasets, int64, by name.

        ``first`` has the position of a chunk's first element, ``mask`` a bit for every filter that was left out.

        Args:
            most: dataset to how many chunks there may be.

        Raises:
            ValueError: there are more, or one lies outside the file.
        """
        axes = {name: len(self.dataset(name).shape) for name in most}
        table_bytes = sum(8 * (axes[name] + 3) * count for name, count in most.items())
        # The child keeps a chunk's row as Python integers, before it is an array.
        _, arrays = _guard.call(
            "chunk_index", {"most": dict(most)}, [self._descriptor], array_bytes=table_bytes,
            memory=HDF5_MEMORY + 8 * table_bytes,
            seconds=HDF5_SECONDS + sum(most.values()) / HDF5_CHUNKS_PER_S,
        )  # fmt: skip
        found: dict[str, tuple[npt.NDArray[np.int64], ...]] = {}
        for name in most:
            first, offset, size, mask = (
                arrays[f"{name}/{key}"] for key in ("first", "offset", "size", "mask")
            )
            count = len(offset)
            if first.shape != (count, axes[name]) or any(
                each.shape != (count,) for each in (offset, size, mask)
            ):
                raise GuardedError(f"the index of {name} came back with other shapes")
            if count and (int((offset + size).max()) > self.size or int(min(offset.min(), size.min())) < 0):
                raise ValueError(f"{name} ends at byte {int((offset + size).max())}, the file at {self.size}")
            found[name] = (first, offset, size, mask)
        return found

    def rehearse_append(self, names: Iterable[str]) -> None:
        """Let HDF5 append a row to datasets and forget it: what fails in a confined process must not be tried here.

        Raises:
            ValueError: HDF5 fails.
        """
        self._ask("rehearse_append", names=list(names))

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Hdf5File:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
