"""What reads HDF5 files, called in a guarded process alone (``common/hdf5.py``): the library crashes on damaged ones.

Every function gets an open descriptor and returns (JSON value, arrays).
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from spikestill.common.guard import Arrays
from spikestill.common.limits import HDF5_ATTRIBUTES, HDF5_ENTRIES, HDF5_TEXT_BYTES


class _Content:
    """An open descriptor as the file object that h5py asks for; nothing is written."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._position = descriptor, 0
        self._size = os.lseek(descriptor, 0, os.SEEK_END)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[
            whence
        ] + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: memoryview) -> int:
        view, read = memoryview(buffer).cast("B"), 0
        while read < len(view):
            part = os.pread(self._descriptor, len(view) - read, self._position + read)
            if not part:
                break
            view[read : read + len(part)] = part
            read += len(part)
        view[read:] = bytes(len(view) - read)  # HDF5 is not told of a short read
        self._position += len(view)
        return len(view)

    def read(self, size: int) -> bytes:
        content = bytearray(size)
        self.readinto(memoryview(content))
        return bytes(content)

    def write(self, data: memoryview) -> int:
        raise io.UnsupportedOperation("read only")

    def truncate(self, size: int | None = None) -> int:
        return self._size

    def flush(self) -> None:
        pass


class _Overlay(_Content):
    """The same, whose pages can be written: they are kept and forgotten."""

    PAGE = 4096

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._pages: dict[int, bytearray] = {}

    def _page(self, number: int) -> bytearray:
        if number not in self._pages:
            content = os.pread(self._descriptor, self.PAGE, number * self.PAGE)
            self._pages[number] = bytearray(content.ljust(self.PAGE, b"\0"))
        return self._pages[number]

    def readinto(self, buffer: memoryview) -> int:
        view, start = memoryview(buffer).cast("B"), self._position
        super().readinto(view)
        for number in range(start // self.PAGE, -(-(start + len(view)) // self.PAGE)):
            if number in self._pages:
                low, high = max(start, number * self.PAGE), min(start + len(view), (number + 1) * self.PAGE)
                page = self._pages[number]
                view[low - start : high - start] = page[low - number * self.PAGE : high - number * self.PAGE]
        return len(view)

    def write(self, data: memoryview) -> int:
        view, start = memoryview(data).cast("B"), self._position
        for number in range(start // self.PAGE, -(-(start + len(view)) // self.PAGE)):
            low, high = max(start, number * self.PAGE), min(start + len(view), (number + 1) * self.PAGE)
            self._page(number)[low - number * self.PAGE : high - number * self.PAGE] = view[
                low - start : high - start
            ]
        self._position += len(view)
        self._size = max(self._size, self._position)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        self._size = self._position if size is None else size
        return self._size


def warm_up() -> None:
    """Write and read a small file, so that everything is imported before the right to open files is given up."""
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        file.attrs.update(text="text", number=1, numbers=np.arange(2))
        file.create_dataset("data", data=np.arange(100), chunks=(10,), compression="gzip", shuffle=True)
        file.create_dataset("flags", data=np.ones(3, np.bool_))
    with h5py.File(content, "r+", libver=("v108", "v108")) as file:
        _attributes(file)
        for name in file:
            _entry(file, name)
        _check_found(file["data"], "data")
        file["data"][...]
        _chunk_table(file["data"], "data", 10)


def _attributes(file: h5py.File) -> dict[str, Any]:
    names = list(file.attrs)
    if len(names) > HDF5_ATTRIBUTES:
        raise ValueError(f"it has {len(names)} attributes, at most {HDF5_ATTRIBUTES} are read")
    found: dict[str, Any] = {}
    room = HDF5_TEXT_BYTES
    for name in names:
        room -= file.attrs.get_id(name).get_storage_size()
        value = file.attrs[name] if room >= 0 else ""
        if isinstance(value, str):  # text of any length is 16 bytes to HDF5, which keeps it elsewhere
            room -= len(value)
        if room < 0:
            raise ValueError(f"its attributes have more than {HDF5_TEXT_BYTES} bytes")
        if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "iufb":
            found[name] = value.tolist()
        elif isinstance(value, str):
            found[name] = value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        else:
            raise ValueError(f"its attribute {name} is neither text nor numbers")
    return found


def _entry(file: h5py.File, name: str) -> dict[str, Any]:
    link = file.get(name, getlink=True)
    if not isinstance(link, h5py.HardLink):
        return {"kind": "link"}
    found = file[name]
    if not isinstance(found, h5py.Dataset):
        return {"kind": "group" if isinstance(found, h5py.Group) else "type"}
    plan = found.id.get_create_plist()
    if found.dtype.kind not in "iufb":
        return {"kind": "strange", "why": f"holds {found.dtype}, numbers wanted"}
    if not found.id.get_type().equal(h5py.h5t.py_create(found.dtype, logical=True)):
        why = f"holds numbers of an unusual layout, {found.dtype} as NumPy has it wanted"
        return {"kind": "strange", "why": why}
    if found.shape is None:
        return {"kind": "strange", "why": "has no shape"}
    return {
        "kind": "dataset",
        "dtype": found.dtype.str,
        "shape": list(found.shape),
        "chunks": None if found.chunks is None else list(found.chunks),
        "filters": [plan.get_filter(index)[0] for index in range(plan.get_nfilters())],
        "outside": bool(found.is_virtual or found.external),
        "unlimited": [side is None for side in found.maxshape],
    }


def describe(descriptor: int) -> tuple[dict[str, Any], Arrays]:
    """Return the root group's attributes and entries."""
    with h5py.File(_Content(descriptor), "r") as file:
        names = list(file)
        if len(names) > HDF5_ENTRIES:
            raise ValueError(f"it has {len(names)} entries, at most {HDF5_ENTRIES} are read")
        found = {name: _entry(file, name) for name in names}
        return {"attributes": _attributes(file), "entries": found, "user_block": file.userblock_size}, {}


def read(descriptor: int, wanted: Mapping[str, Sequence[Any]]) -> tuple[None, Arrays]:
    """Return whole datasets.

    Args:
        descriptor: the file.
        wanted: name to (dtype, shape), as :func:`describe` gave them.
    """
    arrays: Arrays = {}
    with h5py.File(_Content(descriptor), "r") as file:
        for name, (dtype, shape) in wanted.items():
            dataset = file[name]
            if dataset.dtype.str != dtype or list(dataset.shape) != list(shape):
                raise ValueError(f"{name} is {dataset.dtype} {dataset.shape}, {dtype} {tuple(shape)} wanted")
            _check_found(dataset, name)
            arrays[name] = dataset[...]
    return None, arrays


def _check_found(dataset: h5py.Dataset, name: str) -> None:
    """Raise ValueError where HDF5 lists a chunk and does not find it by its place: it would read zeros instead."""
    if dataset.chunks is None:
        return
    listed: list[tuple[tuple[int, ...], int]] = []
    dataset.id.chunk_iter(lambda chunk: listed.append((chunk.chunk_offset, chunk.size)))
    for first, size in listed:
        # A chunk behind the end was left there by a session that was killed.
        if all(at < side for at, side in zip(first, dataset.shape, strict=True)):
            try:
                found = len(dataset.id.read_direct_chunk(first)[1])
            except (OSError, RuntimeError, ValueError):
                found = -1
            if found != size:
                raise ValueError(f"{name} has a chunk at {first} in its index that is not found there")


def chunk_index(descriptor: int, most: Mapping[str, int]) -> tuple[None, Arrays]:
    """Return where chunks lie, int64: ``NAME/first`` (chunks, axes), ``/offset``, ``/size`` and ``/mask`` (chunks,).

    Args:
        descriptor: the file.
        most: dataset to how many chunks there may be.
    """
    arrays: Arrays = {}
    with h5py.File(_Content(descriptor), "r") as file:
        for name, count in most.items():
            table = _chunk_table(file[name], name, count)
            arrays[f"{name}/first"] = table[:, 3:]
            arrays |= {
                f"{name}/{key}": table[:, column] for column, key in enumerate(("offset", "size", "mask"))
            }
    return None, arrays


def _chunk_table(dataset: h5py.Dataset, name: str, most: int) -> npt.NDArray[np.int64]:
    rows: list[tuple[int, ...]] = []

    def note(chunk: Any) -> None:
        if len(rows) >= most:
            raise ValueError(f"{name} has more than {most} chunks")
        rows.append((chunk.byte_offset, chunk.size, chunk.filter_mask, *chunk.chunk_offset))

    dataset.id.chunk_iter(note)
    found = np.array(rows, np.uint64).reshape(len(rows), 3 + dataset.ndim)
    if (found >= 1 << 62).any():
        raise ValueError(f"{name} has chunks at impossible places")
    return found.astype(np.int64)


def rehearse_append(descriptor: int, names: Sequence[str]) -> tuple[None, Arrays]:
    """Append a row of zeros to datasets, in memory alone: what HDF5 survives here it survives in the file."""
    with h5py.File(_Overlay(descriptor), "r+", libver=("v108", "v108")) as file:
        for name in ("sessions", "sha256"):
            file.attrs[name] = file.attrs.get(name, "0" * 64)
        for name in names:
            dataset = file[name]
            rows = dataset.shape[0]
            dataset.resize(rows + 1, axis=0)
            dataset[rows:] = 0
        file.flush()
    return None, {}
