"""Hostile HDF5: buffers and core maps whose metadata is damaged or forged."""

from __future__ import annotations

import io
import os
import shutil
import time
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest

from spikestill.common.errors import UserError
from spikestill.common.hdf5 import Hdf5File
from spikestill.common.limits import MIB
from spikestill.dataset.format import BufferFile, BufferWriter, hdf5_schema
from tests.dataset.test_format import write_buffer


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    return write_buffer(tmp_path_factory.mktemp("whole") / "buffer.h5").read_bytes()


@pytest.fixture
def buffer(whole, tmp_path: Path) -> Path:
    (tmp_path / "buffer.h5").write_bytes(whole)
    return tmp_path / "buffer.h5"


def open_buffer(path: Path) -> None:
    with BufferFile(path):
        pass


def metadata_bytes(content: bytes) -> list[int]:
    """Return where the bytes are that are neither zero nor a frame's: HDF5's own."""
    frames = h5py.File(io.BytesIO(content))["frames"]
    used = np.frombuffer(content, np.uint8) != 0
    frames.id.chunk_iter(
        lambda chunk: used.__setitem__(slice(chunk.byte_offset, chunk.byte_offset + chunk.size), 0)
    )
    return np.flatnonzero(used).tolist()


def test_a_flipped_bit_in_the_indices_of_a_buffer_never_ends_the_interpreter(whole, tmp_path):
    rng = np.random.default_rng(0)
    refused = 0
    for at in rng.choice(metadata_bytes(whole), 60).tolist():
        altered = bytearray(whole)
        altered[at] ^= 1 << int(rng.integers(8))
        path = tmp_path / "altered.h5"
        path.write_bytes(altered)
        for read in (open_buffer, hdf5_schema):
            try:
                read(path)
            except UserError as error:
                refused += "altered.h5" in str(error)
    assert refused > 10


@pytest.mark.parametrize("name", ["frames", "q_values", "start"])
@pytest.mark.parametrize("soft", [False, True])
def test_links_out_of_a_buffer_are_refused(buffer, tmp_path, name, soft):
    shutil.copy(buffer, tmp_path / "other.h5")
    with h5py.File(buffer, "r+") as file:
        if soft:
            file["elsewhere"] = file[name]
        del file[name]
        file[name] = h5py.SoftLink("/elsewhere") if soft else h5py.ExternalLink("other.h5", name)
    with pytest.raises(UserError, match=f"{name} is not kept in the file itself"):
        open_buffer(buffer)


def test_external_storage_of_a_buffer_is_refused(buffer, tmp_path):
    with h5py.File(buffer, "r+") as file:
        shape = file["action"].shape
        del file["action"]
        file.create_dataset(
            "action", shape, "|u1", external=[(str(tmp_path / "secret"), 0, h5py.h5f.UNLIMITED)]
        )
    with pytest.raises(UserError, match="action keeps its content outside the file"):
        open_buffer(buffer)


@pytest.mark.parametrize("rows", [10**6, 10**9, 10**12, 2**62])
def test_declared_rows_are_compared_with_the_file_first(buffer, rows):
    with h5py.File(buffer, "r+") as file:
        for name in file:
            file[name].resize(rows, axis=0)
    began = time.monotonic()
    with pytest.raises(UserError, match=rf"declares {rows:,} rows of 2 streams"):
        open_buffer(buffer)
    assert time.monotonic() - began < 15


def test_a_chunk_that_unpacks_to_a_gigabyte_is_refused(buffer):
    packer = zlib.compressobj(1)
    bomb = b"".join(packer.compress(bytes(16 * MIB)) for _ in range(64)) + packer.flush()
    with h5py.File(buffer, "r+") as file:
        file["reward"].id.write_direct_chunk((0, 0), bomb)
    with pytest.raises(UserError, match="not a readable buffer"):
        open_buffer(buffer)


def test_a_user_block_is_refused(buffer):
    buffer.write_bytes(bytes(512) + buffer.read_bytes())
    with pytest.raises(UserError, match="not a readable buffer"):
        open_buffer(buffer)


def test_what_hdf5_cannot_append_to_is_refused_before_it_is_opened_for_writing(buffer):
    with h5py.File(buffer, "r+") as file:
        action = file["action"][...]
        del file["action"]
        file.create_dataset("action", data=action, chunks=(32, 2))
    open_buffer(buffer)
    before = buffer.read_bytes()
    with pytest.raises(UserError, match=r"buffer\.h5: rows cannot be appended"):
        BufferWriter.append(buffer)
    assert buffer.read_bytes() == before


def test_a_rehearsal_leaves_the_file_as_it_was(buffer):
    before = buffer.read_bytes()
    with Hdf5File(buffer, "buffer", "give another") as file:
        file.rehearse_append(("frames", "action"))
    assert buffer.read_bytes() == before


@pytest.mark.parametrize("make", ["pipe", "folder", "device"])
def test_only_a_regular_file_is_read(tmp_path, make):
    path = tmp_path / "buffer.h5"
    if make == "pipe":
        os.mkfifo(path)
    elif make == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(UserError, match=f"is a {make}, a regular file is wanted"):
        open_buffer(path)


def test_strange_types_and_filters_are_refused(tmp_path):
    path = tmp_path / "strange.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("text", data=["a", "b"], dtype=h5py.string_dtype())
    with pytest.raises(ValueError, match="text holds object, numbers wanted"):
        Hdf5File(path, "file", "give another")
    with h5py.File(path, "w") as file:
        file.create_dataset("packed", data=np.arange(100), compression="lzf")
    with (
        Hdf5File(path, "file", "give another") as file,
        pytest.raises(ValueError, match="packed is packed by filter 32000"),
    ):
        file.dataset("packed")
