"""Damaged and forged files of the other formats: safetensors, archives, journals, frames."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save as serialise

from spikestill import cli
from spikestill.common.archives import check_archive
from spikestill.common.errors import UserError
from spikestill.common.provenance import Provenance, content_sha256
from spikestill.common.zoo import ROOT, zoo_path
from spikestill.configs.importing import ImportConfig
from spikestill.configs.pipeline import InspectConfig
from spikestill.configs.record import RecordConfig
from spikestill.dataset.format import BufferFile
from spikestill.dataset.journal import CHECKSUM, HEAD, MAGIC, NUMBER, PAGE, journal_path, recover
from spikestill.dataset.recorder import run as record
from spikestill.inspection import run as inspect
from spikestill.inspection import schema_of
from spikestill.student import integer_net
from spikestill.student.architectures import LayerSpec
from spikestill.teacher.checkpoint import read_teacher
from spikestill.teacher.importing import run as import_agent
from tests.dataset.test_format import write_buffer
from tests.nets import random_net

NET = random_net((LayerSpec(8, 8, 8, 0, 1), LayerSpec(12, 4, 3, 1, 2)), seed=3)


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("*/*.safetensors")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_a_flipped_bit_in_a_shipped_file_is_refused(path, tmp_path):
    whole = path.read_bytes()
    read = read_teacher if path.stem == "teacher" else integer_net.load
    rng = np.random.default_rng(0)
    for at in rng.integers(8, len(whole), 12).tolist():
        altered = bytearray(whole)
        altered[at] ^= 1 << int(rng.integers(8))
        (tmp_path / "altered.safetensors").write_bytes(altered)
        with pytest.raises(UserError, match=r"altered\.safetensors"):
            read(tmp_path / "altered.safetensors")


def resealed(change, version: str = "2") -> bytes:
    """Return a student whose description is ``change``\\ d and whose hash is that of its content all the same."""
    content = io.BytesIO()
    tensors: dict[str, np.ndarray] = {}
    layers = []
    for index, layer in enumerate(NET.layers):
        tensors[f"layer.{index}.weight"] = integer_net.pack_ternary(layer.weight_OIHW)
        tensors[f"layer.{index}.theta"] = layer.theta_O
        shape = list(layer.weight_OIHW.shape)
        layers.append({"shape": shape, "stride": layer.stride, "pad": layer.pad, "groups": layer.groups})
    net = {"layers": layers, "actions": NET.actions, "input_shape": list(NET.input_shape), "game": ""}
    change(net)
    texts = json.dumps(net), Provenance.of({}, 0).to_json()
    metadata = {"schema": integer_net.SCHEMA, "version": version, "net": texts[0], "provenance": texts[1]}
    if version != "1":
        metadata["sha256"] = content_sha256(texts, tensors)
    content.write(serialise(tensors, metadata=metadata))
    return content.getvalue()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda net: net["layers"][0].update(pad=4096), "padded by 4096, has more than"),
        (lambda net: net.update(input_shape=[4, 4096, 4096]), "has more than|input shape"),
        (lambda net: net.update(game="*/ int main"), r"game '\*/ int main', lower-case letters"),
        (lambda net: net["layers"][1].update(pad=500), "padded by 500, has more than"),
        (lambda net: net["layers"][0].update(shape=[10**9, 4, 8, 8]), "packed weights for shape"),
        (lambda net: net["layers"][0].update(shape=[-8, -4, 8, 8]), "packed weights for shape"),
        (lambda net: net["layers"][0].update(stride=0), "stride 0"),
        (lambda net: net.update(layers=[]), "at least one layer"),
        (lambda net: net.update(actions=10**6), "1000000 actions"),
        (lambda net: net.update(input_shape=["x"]), "not a readable student"),
    ],
)
def test_a_student_with_a_valid_hash_and_wicked_content_is_refused(tmp_path, change, match):
    (tmp_path / "student.safetensors").write_bytes(resealed(change))
    with pytest.raises(UserError, match=rf"student\.safetensors: .*({match})"):
        integer_net.load(tmp_path / "student.safetensors")


def test_a_file_of_version_1_is_read_with_a_warning(tmp_path, capsys):
    (tmp_path / "student.safetensors").write_bytes(resealed(lambda net: None, version="1"))
    net, _ = integer_net.load(tmp_path / "student.safetensors")
    np.testing.assert_array_equal(net.layers[0].theta_O, NET.layers[0].theta_O)
    assert "student.safetensors has format version 1, without a hash" in capsys.readouterr().err


@pytest.mark.parametrize("version", ["0", "-1", "9" * 5000, "x"])
def test_a_version_that_is_none_is_refused(tmp_path, version):
    (tmp_path / "student.safetensors").write_bytes(resealed(lambda net: None, version=version))
    with pytest.raises(UserError, match=r"student\.safetensors"):
        integer_net.load(tmp_path / "student.safetensors")


def test_deep_json_in_a_header_is_refused(tmp_path):
    header = b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    path = tmp_path / "deep.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(UserError, match=r"deep\.safetensors: neither safetensors nor HDF5"):
        schema_of(path)
    with pytest.raises(UserError, match=r"deep\.safetensors"):
        read_teacher(path)


@pytest.mark.parametrize("target", ["pipe", "/dev/zero", "folder"])
def test_only_regular_files_are_read(tmp_path, target, capsys):
    path = tmp_path / "student.safetensors"
    if target == "pipe":
        os.mkfifo(path)
    elif target == "folder":
        path.mkdir()
    else:
        path.symlink_to(target)
    for words in (
        ["inspect", str(path)],
        ["map", "--student", str(path)],
        ["import", str(path), "--game", "pong"],
    ):
        assert (
            cli.main([*words, *([] if words[0] == "inspect" else ["--run_dir", str(tmp_path / "run")])]) == 1
        )
        told = capsys.readouterr().err
        assert "a regular file is wanted" in told or (target == "folder" and "holds no artefact" in told)


def test_damaged_archives_are_refused_before_pytorch_reads_them(tmp_path):
    torch.save({"network.0.weight": torch.rand(32, 4, 8, 8)}, tmp_path / "agent.pth")
    whole = (tmp_path / "agent.pth").read_bytes()
    check_archive(tmp_path / "agent.pth", whole)
    at = len(whole) // 2
    altered = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    (tmp_path / "agent.pth").write_bytes(altered)
    with pytest.raises(UserError, match=r"agent\.pth: a damaged archive: Bad CRC-32"):
        import_agent(ImportConfig(path=tmp_path / "agent.pth", game="pong"), tmp_path / "run")


def test_an_archive_that_says_it_spans_disks_is_refused():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("policy.pth", b"content")
    # A locator of a 64-bit directory on the third of three disks, right before the end of the directory.
    whole = out.getvalue()
    end = whole.rindex(b"PK\x05\x06")
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 2, 0, 3)
    with pytest.raises(UserError, match=r"agent\.zip: a damaged archive: zipfiles that span multiple disks"):
        check_archive(Path("agent.zip"), whole[:end] + locator + whole[end:])


@pytest.mark.parametrize("name", ["versionz", "é"])
def test_an_unknown_field_of_a_provenance_is_named(name):
    text = json.dumps(dataclasses.asdict(Provenance.of({}, 0)) | {name: 1})
    with pytest.raises(ValueError, match=f"not a provenance record: it has an unknown field '{name}'"):
        Provenance.from_json(text)


def test_an_archive_that_unpacks_to_gigabytes_is_refused_by_its_sizes(tmp_path):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("policy.pth", "w") as file:
        for _ in range(64):
            file.write(bytes(1 << 20))
    with pytest.raises(UserError, match="unpacks to 67,108,864, at most"):
        check_archive(Path("agent.zip"), out.getvalue())


@pytest.mark.parametrize("kind", ["meta", "expanded"])
def test_tensors_without_their_values_are_refused(tmp_path, kind):
    odd = torch.empty(32, 4, 8, 8, device="meta") if kind == "meta" else torch.rand(1).expand(32, 4, 8, 8)
    state = {
        "network.0.weight": odd, "network.0.bias": torch.rand(32), "network.9.weight": torch.rand(6, 512),
        "network.9.bias": torch.rand(6),
    }  # fmt: skip
    torch.save(state, tmp_path / "agent.pth")
    with pytest.raises(UserError, match=r"without content|strides of 0|PyTorch file|more than tensors"):
        import_agent(ImportConfig(path=tmp_path / "agent.pth", game="pong"), tmp_path / "run")


def forged_journal(path: Path, size: int, number: int) -> None:
    body = MAGIC + HEAD.pack(1, size) + NUMBER.pack(number) + b"\xff" * PAGE
    journal_path(path).write_bytes(body + CHECKSUM.pack(zlib.crc32(body)))


@pytest.mark.parametrize(("size", "number"), [(1 << 40, 1 << 27), (1 << 40, 0), (100, 5), (2**63, 2**50)])
def test_a_forged_journal_does_not_grow_a_file(tmp_path, size, number):
    path = write_buffer(tmp_path / "buffer.h5")
    before = path.read_bytes()
    forged_journal(path, size, number)
    assert not recover(path)
    assert path.read_bytes() == before
    assert not journal_path(path).exists()


def test_a_journal_that_is_a_link_is_not_followed(tmp_path):
    path = write_buffer(tmp_path / "buffer.h5")
    journal_path(path).symlink_to("/dev/zero")
    assert not recover(path)


def damaged_buffer(path: Path) -> Path:
    write_buffer(path)
    with BufferFile(path) as file:
        at = int(file._offset[1, 1]) + 40
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)
    return path


def test_inspect_finds_damaged_frames_and_quick_leaves_them_out(tmp_path):
    path = damaged_buffer(tmp_path / "buffer.h5")
    with pytest.raises(UserError, match=r"frames of steps 32\.\.63, stream 1, are damaged"):
        inspect(InspectConfig(path=path), tmp_path)
    assert inspect(InspectConfig(path=path, quick=True), tmp_path).summary["rows"] == 70


def test_nothing_is_appended_to_damaged_frames(tmp_path):
    path = damaged_buffer(tmp_path / "buffer.h5")
    before = path.read_bytes()
    config = RecordConfig(frames=400, num_envs=2, teacher=zoo_path("pong", "teacher.safetensors"))
    with pytest.raises(UserError, match=r"frames of steps 32\.\.63, stream 1, are damaged"):
        record(dataclasses.replace(config), tmp_path, resume=True)
    assert path.read_bytes() == before
