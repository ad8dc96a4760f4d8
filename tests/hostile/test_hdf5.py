"""Hostile HDF5: buffers and core maps whose metadata is damaged or forged."""

from __future__ import annotations

import io
import os
import shutil
import struct
import time
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest

from spikestill.common.errors import UserError
from spikestill.common.hdf5 import Hdf5File
from spikestill.common.limits import MIB
from spikestill.dataset.format import BufferFile, BufferWriter, hdf5_schema, texts_sha256
from tests.dataset.test_format import fill, write_buffer


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


def test_a_buffer_whose_rows_lie_in_another_file_is_refused(buffer, tmp_path):
    """HDF5's virtual datasets: one that is made of parts of others."""
    shutil.copy(buffer, tmp_path / "other.h5")
    with h5py.File(buffer, "r+") as file:
        layout = h5py.VirtualLayout(file["reward"].shape, file["reward"].dtype)
        layout[:] = h5py.VirtualSource("other.h5", "reward", file["reward"].shape)
        del file["reward"]
        file.create_virtual_dataset("reward", layout)
    with pytest.raises(UserError, match="reward keeps its content outside the file"):
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


@pytest.mark.parametrize("name", ["game", "action_names", "provenance", "sessions"])
def test_a_buffers_attributes_have_a_hash(buffer, name):
    with h5py.File(buffer, "r+") as file:
        value = file.attrs[name]
        file.attrs[name] = value.swapcase() if isinstance(value, str) else value + 1
    with pytest.raises(UserError, match=r"buffer\.h5: not a readable buffer: its attributes are not those"):
        open_buffer(buffer)


def test_a_buffer_from_before_its_attributes_had_a_hash_is_read_with_a_warning(buffer, capsys):
    with h5py.File(buffer, "r+") as file:
        file.attrs["shb256"] = file.attrs["sha256"]
        del file.attrs["sha256"]
    with pytest.raises(UserError, match="its attribute 'shb256' is none of a buffer"):
        open_buffer(buffer)
    with h5py.File(buffer, "r+") as file:
        del file.attrs["shb256"]
    open_buffer(buffer)
    assert "has attributes, without a hash" in capsys.readouterr().err
    with BufferWriter.append(buffer) as writer:
        fill(writer, writer.rows + 40)
        writer.commit()
    with h5py.File(buffer) as file:
        assert file.attrs["sha256"] == texts_sha256(file.attrs)


def test_a_column_that_deflate_did_not_pack_is_refused(buffer):
    with h5py.File(buffer, "r+") as file:
        reward = file["reward"][...]
        del file["reward"]
        file.create_dataset("reward", data=reward, maxshape=(None, 2), chunks=(32, 2))
    with pytest.raises(UserError, match=r"reward lies in chunks of \(32, 2\) packed by filters \(\)"):
        open_buffer(buffer)


@pytest.mark.parametrize("name", ["reward", "action", "start"])
def test_a_chunk_that_hdf5_lists_and_does_not_find_is_refused(buffer, whole, name):
    """Its key in the index has one offset more than the dataset has axes: HDF5 would read zeros in its place."""
    places: list[int] = []
    with h5py.File(buffer) as file:
        file[name].id.chunk_iter(lambda chunk: places.append(chunk.byte_offset))
    at = whole.index(struct.pack("<Q", places[0])) - 8
    assert whole[at : at + 8] == bytes(8)
    buffer.write_bytes(whole[:at] + b"\x08" + whole[at + 1 :])
    with pytest.raises(
        UserError, match=rf"{name} has a chunk at \(0, 0\) in its index that is not found there"
    ):
        open_buffer(buffer)


def test_a_chunk_whose_filters_are_masked_is_refused(buffer):
    with h5py.File(buffer, "r+") as file:
        file["reward"].id.write_direct_chunk((0, 0), bytes(32 * 2 * 4), filter_mask=3)
    with pytest.raises(UserError, match="reward has chunks that are not packed"):
        open_buffer(buffer)


@pytest.mark.parametrize("change", ["bias", "bits"])
def test_numbers_of_an_unusual_layout_are_refused(tmp_path, change):
    path = tmp_path / "strange.h5"
    kind = (h5py.h5t.IEEE_F32LE if change == "bias" else h5py.h5t.STD_I32LE).copy()
    kind.set_ebias(126) if change == "bias" else kind.set_precision(31)
    with h5py.File(path, "w") as file:
        h5py.h5d.create(file.id, b"numbers", kind, h5py.h5s.create_simple((4,)))
    with (
        Hdf5File(path, "file", "give another") as file,
        pytest.raises(ValueError, match="numbers holds numbers of an unusual layout"),
    ):
        file.dataset("numbers")


@pytest.mark.parametrize("read", [open_buffer, hdf5_schema])
def test_an_object_header_in_which_hdf5_loops_takes_one_second(buffer, whole, read):
    at = whole.index(b'["NOOP"')
    buffer.write_bytes(whole[:at] + bytes(56) + whole[at + 56 :])
    with pytest.raises(
        UserError, match=r"buffer\.h5: .*HDF5 had not done with it after 1 s of the processor"
    ):
        read(buffer)


def test_a_user_block_is_refused(buffer):
    buffer.write_bytes(bytes(512) + buffer.read_bytes())
    with pytest.raises(UserError, match="not a readable buffer"):
        open_buffer(buffer)


def test_what_hdf5_cannot_append_to_is_refused_before_it_is_opened_for_writing(buffer):
    with h5py.File(buffer, "r+") as file:
        action = file["action"][...]
        del file["action"]
        file.create_dataset("action", data=action, chunks=(32, 2), compression="gzip")
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
    with (
        Hdf5File(path, "file", "give another") as file,
        pytest.raises(ValueError, match="text holds object, numbers wanted"),
    ):
        file.read(["text"], 1 << 20)
    with h5py.File(path, "w") as file:
        file.create_dataset("packed", data=np.arange(100), compression="lzf")
    with (
        Hdf5File(path, "file", "give another") as file,
        pytest.raises(ValueError, match="packed is packed by filter 32000"),
    ):
        file.dataset("packed")
