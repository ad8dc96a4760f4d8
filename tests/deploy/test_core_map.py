from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from spikestill.common.errors import UserError
from spikestill.common.provenance import Provenance
from spikestill.configs.hardware import HardwareSpec
from spikestill.deploy.core_map import ARRAYS, CoreMap, load, save
from spikestill.deploy.mapping import map_net
from spikestill.student.architectures import LayerSpec
from tests.nets import random_net

SMALL = HardwareSpec(name="small", axons=128, neurons=32, cores_x=16, cores_y=16)
PROVENANCE = Provenance.of({"recipe": "test"}, seed=7)


@pytest.fixture(scope="module")
def core_map() -> CoreMap:
    layers = (LayerSpec(8, 2, 1, 0, 1), LayerSpec(24, 2, 1, 1, 2), LayerSpec(12, 1, 1, 0, 1))
    return map_net(random_net(layers, 9, input_shape=(2, 6, 6)), SMALL, PROVENANCE)


@pytest.fixture
def path(core_map: CoreMap, tmp_path: Path) -> Path:
    save(core_map, tmp_path / "core_map.h5")
    return tmp_path / "core_map.h5"


def assert_same(one: CoreMap, other: CoreMap) -> None:
    for name in ARRAYS:
        mine, its = getattr(one, name), getattr(other, name)
        assert mine.dtype == its.dtype, name
        np.testing.assert_array_equal(mine, its, name)
    for name in ("spec", "actions", "input_shape", "game", "provenance"):
        assert getattr(one, name) == getattr(other, name), name
    for name in ("weight_OIHW", "theta_O"):
        np.testing.assert_array_equal(getattr(one.transduction, name), getattr(other.transduction, name))
    for name in ("stride", "pad", "groups"):
        assert getattr(one.transduction, name) == getattr(other.transduction, name)


def test_save_and_load_return_the_same_map(core_map: CoreMap, path: Path) -> None:
    assert_same(load(path), core_map)


def test_the_hash_is_the_documented_one(path: Path) -> None:
    with h5py.File(path) as file:
        digest = hashlib.sha256()
        digest.update((file.attrs["description"] + "\n" + file.attrs["provenance"] + "\n").encode())
        for name in sorted(file):
            array = file[name][...]
            digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode() + array.tobytes())
        assert file.attrs["sha256"] == digest.hexdigest()


def test_saving_leaves_no_temporary_file(path: Path) -> None:
    assert [each.name for each in path.parent.iterdir()] == ["core_map.h5"]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.h5: no such core map"):
        load(tmp_path / "nowhere.h5")


@pytest.mark.parametrize("share", [0.0, 0.01, 0.2, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(path: Path, share: float) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(UserError, match=r"core_map\.h5: not a readable core map"):
        load(path)


def test_a_file_that_is_not_hdf5_is_refused(tmp_path: Path) -> None:
    (tmp_path / "foreign.h5").write_bytes(b"PK\x03\x04" + bytes(5000))
    with pytest.raises(UserError, match=r"foreign\.h5: not a readable core map"):
        load(tmp_path / "foreign.h5")


def test_hdf5_of_another_schema_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "buffer.h5", "w") as file:
        file.attrs["schema"] = "spikestill.buffer"
    with pytest.raises(UserError, match=r"schema 'spikestill\.buffer', 'spikestill\.core_map' wanted"):
        load(tmp_path / "buffer.h5")


def test_a_newer_version_is_refused(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs["version"] = 3
    with pytest.raises(UserError, match=r"format version 3, this program reads up to 2.*Update spikestill"):
        load(path)


def test_a_flipped_bit_never_gives_another_map(core_map: CoreMap, path: Path, tmp_path: Path) -> None:
    whole = bytearray(path.read_bytes())
    rng = np.random.default_rng(0)
    refused = 0
    written = np.flatnonzero(np.frombuffer(whole, np.uint8))  # HDF5 leaves gaps of zeros that nothing reads
    for at in rng.choice(written, 120).tolist():
        altered = bytearray(whole)
        altered[at] ^= 1 << int(rng.integers(8))
        (tmp_path / "altered.h5").write_bytes(altered)
        try:
            found = load(tmp_path / "altered.h5")
        except UserError:
            refused += 1
        else:
            assert_same(found, core_map)
    assert refused > 60


def test_a_changed_value_breaks_the_hash(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["theta_CN"][0, 0] += 1
    with pytest.raises(UserError, match=r"its content hashes to"):
        load(path)


def describe(change: Callable[[dict], object]) -> Callable[[h5py.File], None]:
    def mutate(file: h5py.File) -> None:
        description = json.loads(file.attrs["description"])
        change(description)
        file.attrs["description"] = json.dumps(description)

    return mutate


def replace(name: str, **dataset: object) -> Callable[[h5py.File], None]:
    def mutate(file: h5py.File) -> None:
        del file[name]
        if dataset:
            file.create_dataset(name, **dataset)

    return mutate


@pytest.mark.parametrize(
    ("mutate", "match"),
    [
        (describe(lambda d: d["sizes"].update(C=10**9)), "declares 1000000000 cores, the range is 1..65536"),
        (describe(lambda d: d["sizes"].update(C=0)), "declares 0 cores"),
        (describe(lambda d: d["sizes"].update(E=10**15)), "input_core_E has shape .* its header declares"),
        (describe(lambda d: d["sizes"].update(C=math.inf)), "cannot convert float infinity"),
        (describe(lambda d: d["spec"].update(axons=0)), "its hardware has axons 0"),
        (describe(lambda d: d["spec"].update(colour=1)), "colour"),
        (describe(lambda d: d["transduction"].update(shape=[10**9, 4, 8, 8])), "its content hashes to"),
        (replace("theta_CN"), "theta_CN"),
        (replace("theta_CN", shape=(3, 3), dtype="int32"), r"theta_CN has shape \(3, 3\)"),
        (replace("theta_CN", shape=(3, 3), dtype="float64"), r"theta_CN is float64, int32 wanted"),
        (
            replace("transduction_weight", shape=(1 << 45,), chunks=(1 << 16,), dtype="uint8"),
            r"transduction_weight brings the declared content to \d+ bytes",
        ),
    ],
)
def test_impossible_declarations_are_refused_before_anything_is_read(
    path: Path, mutate: Callable[[h5py.File], None], match: str
) -> None:
    with h5py.File(path, "r+") as file:
        mutate(file)
    with pytest.raises(UserError, match=match):
        load(path)


def test_content_outside_the_file_is_refused(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        shape = file["theta_CN"].shape
        del file["theta_CN"]
        file.create_dataset("theta_CN", shape, "int32", external=[("/etc/hostname", 0, h5py.h5f.UNLIMITED)])
    with pytest.raises(UserError, match="theta_CN keeps its content outside the file"):
        load(path)


def test_a_link_to_another_file_is_refused(path: Path, tmp_path: Path) -> None:
    with h5py.File(path, "r+") as file, h5py.File(tmp_path / "other.h5", "w") as other:
        other["theta"] = file["theta_CN"][...]
        del file["theta_CN"]
        file["theta_CN"] = h5py.ExternalLink("other.h5", "theta")
    with pytest.raises(UserError, match="theta_CN is not kept in the file itself"):
        load(path)


@pytest.mark.parametrize(
    ("field", "value", "match"),
    [
        ("dest_core_CN", 10**6, r"dest_core_CN spans .*1000000, its range is -1\.\."),
        ("core_layer_C", 0, r"core_layer_C spans 0\.\..*, its range is 1\.\.2"),
        ("output_action_V", 6, r"output_action_V spans 0\.\.6, its range is 0\.\.5"),
        ("input_axon_E", -1, r"input_axon_E spans -1"),
    ],
)
def test_indices_out_of_range_are_refused(core_map: CoreMap, field: str, value: int, match: str) -> None:
    array = getattr(core_map, field).copy()
    array.reshape(-1)[0] = value
    with pytest.raises(ValueError, match=match):
        dataclasses.replace(core_map, **{field: array})


def test_a_word_of_axons_has_one_type(core_map: CoreMap) -> None:
    types = core_map.axon_type_CA.copy()
    types[0, 5] ^= 1
    with pytest.raises(ValueError, match="two types in one word"):
        dataclasses.replace(core_map, axon_type_CA=types)


def test_a_map_without_layers_is_refused(core_map: CoreMap) -> None:
    with pytest.raises(ValueError, match="it has no layer"):
        dataclasses.replace(
            core_map, layer_shape_L3=core_map.layer_shape_L3[:0], layer_tick_L=core_map.layer_tick_L[:0]
        )
