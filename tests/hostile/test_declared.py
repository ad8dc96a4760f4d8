"""Small files that declare a great deal, at the full size that they declare: refused before time or memory is spent."""

from __future__ import annotations

import json
import zipfile
import zlib
from pathlib import Path

import h5py
import pytest

from spikestill.configs.importing import ImportConfig
from spikestill.deploy.core_map import load
from spikestill.teacher.importing import run as import_agent
from tests.hostile.measured import MIB, refused


def declare_cores(path: Path, cores: int) -> None:
    """Let a core map have ``cores`` cores, every array at its full size, all of it zeros, and say so."""
    with h5py.File(path, "r+") as file:
        description = json.loads(file.attrs["description"])
        before = description["sizes"]["C"]
        description["sizes"]["C"] = cores
        file.attrs["description"] = json.dumps(description)
        for name in list(file):
            shape, dtype = file[name].shape, file[name].dtype
            if not shape or shape[0] != before or "_C" not in name:
                continue
            del file[name]
            chunk = (2048, *shape[1:])
            made = file.create_dataset(
                name, (cores, *shape[1:]), dtype, chunks=chunk, compression="gzip", shuffle=True
            )
            packed = zlib.compress(bytes(dtype.itemsize * 2048 * (shape[1] if shape[1:] else 1)), 9)
            for first in range(0, cores, 2048):
                made.id.write_direct_chunk((first, *(0 for _ in shape[1:])), packed)


@pytest.mark.parametrize(
    ("cores", "message"), [(130_134, "it declares 130134 cores"), (65_536, "brings the declared content to")]
)
def test_a_core_map_of_many_cores_at_their_full_size_is_refused(cores, message, copied, peak):
    path = copied("student") / "core_map.h5"
    load(path)
    declare_cores(path, cores)
    assert path.stat().st_size < 4 * MIB
    with h5py.File(path) as file:
        assert sum(each.size * each.dtype.itemsize for each in file.values()) > cores * 256 * 8
    refused(lambda: load(path), peak, rf"core_map\.h5: .*{message}")


def zeros(blocks: int) -> bytes:
    """Return ``blocks`` times 16 MiB of zeros as one Deflate stream."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(bytes(16 * MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    return block * blocks + zlib.compressobj(9, zlib.DEFLATED, -15).flush()


def test_an_archive_that_unpacks_to_three_gigabytes_is_refused(tmp_path, peak):
    blocks = 203
    packed = zeros(blocks)
    assert len(zlib.decompress(zeros(2), -15)) == 32 * MIB
    path = tmp_path / "agent.zip"
    entry = zipfile.ZipInfo("policy.pth")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(entry, packed)
    content = bytearray(path.read_bytes())
    size, whole = len(packed).to_bytes(4, "little"), (blocks * 16 * MIB).to_bytes(4, "little")
    # What was stored as it is is said to be packed: method 8, and the size of what it unpacks to.
    local, central = content.index(b"PK\x03\x04"), content.rindex(b"PK\x01\x02")
    for method, length in ((local + 8, local + 22), (central + 10, central + 24)):
        content[method : method + 2] = (8).to_bytes(2, "little")
        assert content[length : length + 4] == size
        content[length : length + 4] = whole
    path.write_bytes(content)
    with zipfile.ZipFile(path) as archive, archive.open("policy.pth") as file:
        assert file.read(MIB) == bytes(MIB)
    assert path.stat().st_size < 4 * MIB
    refused(
        lambda: import_agent(ImportConfig(path=path, game="pong"), tmp_path / "run"),
        peak,
        r"agent\.zip: an archive of .* bytes that unpacks to 3,405,774,848",
    )
