import hashlib
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.lib.stride_tricks import sliding_window_view
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from spikestill.common.errors import UserError
from spikestill.common.provenance import Provenance, content_sha256
from spikestill.common.zoo import ROOT
from spikestill.student.architectures import LayerSpec, architecture
from spikestill.student.integer_net import (
    IntegerLayer,
    IntegerNet,
    choose,
    count_votes,
    layer_sums,
    load,
    naive_forward,
    pack_ternary,
    save,
    unpack_ternary,
)
from tests.nets import random_net, random_stack, table1_net


@settings(max_examples=100, deadline=None)
@given(hnp.arrays(np.int8, hnp.array_shapes(min_dims=1, max_dims=4), elements=st.integers(-1, 1)))
def test_packing_round_trip(weight):
    packed = pack_ternary(weight)
    assert len(packed) == -(-weight.size // 4)
    np.testing.assert_array_equal(unpack_ternary(packed, weight.shape), weight)


def test_sums_by_hand():
    weight = np.array([[[[1, -1], [0, 1]]], [[[1, 1], [1, 1]]]], np.int8)
    layer = IntegerLayer(weight, np.zeros(2, np.int32), stride=1, pad=1, groups=1)
    x = np.array([[[1, 2], [3, 4]]], np.uint8)
    sums = layer_sums(layer, x)
    assert sums.shape == (2, 3, 3)
    assert sums[0, 1, 1] == 1 - 2 + 4
    assert sums[0, 0, 0] == 1
    assert sums[0, 2, 2] == 4
    assert sums[1, 1, 1] == 10


def test_votes_use_whole_rounds_of_actions_and_ties_go_low():
    spikes = np.array([1, 0, 0, 0, 1, 0, 1], np.uint8).reshape(7, 1, 1)
    votes = count_votes(spikes, 3)
    np.testing.assert_array_equal(votes, [1, 1, 0])
    assert choose(votes) == 0


@pytest.mark.parametrize(("name", "neurons"), [("1chip", 216_352), ("2chip", 394_272)])
def test_table_1_nets_have_the_counted_neurons(name, neurons):
    assert table1_net(name).neurons() == neurons


def test_only_the_first_layer_leaves_pixels_out():
    layers = (LayerSpec(8, 8, 8, -2, 1), LayerSpec(7, 3, 2, -1, 1))
    assert random_net(layers[:1], 0).shapes() == [(8, 10, 10)]
    with pytest.raises(ValueError, match="layer 1: pad -1, only the first"):
        random_net(layers, 0)


def test_file_round_trip(tmp_path):
    net = random_net((LayerSpec(8, 8, 8, 0, 1), LayerSpec(7, 3, 2, 1, 1)), 0, actions=3)
    provenance = Provenance.of({"a": 1}, 5)
    save(net, tmp_path / "s", provenance)
    again, read = load(tmp_path / "s")
    assert read == provenance
    assert (again.actions, again.input_shape, again.game) == (3, (4, 84, 84), "pong")
    for a, b in zip(net.layers, again.layers, strict=True):
        np.testing.assert_array_equal(a.weight_OIHW, b.weight_OIHW)
        np.testing.assert_array_equal(a.theta_O, b.theta_O)
        assert (a.stride, a.pad, a.groups) == (b.stride, b.pad, b.groups)


def test_one_chip_student_takes_half_a_megabyte(tmp_path):
    save(table1_net("1chip"), tmp_path / "s", Provenance.of({}, 0))
    assert (tmp_path / "s").stat().st_size < 500_000


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "s.safetensors"
    save(random_net((LayerSpec(8, 8, 8, 0, 1),), 0), path, Provenance.of({}, 0))
    return path


@pytest.mark.parametrize("keep", [0, 5, 200, 600])
def test_truncated_student_is_refused(written, keep):
    written.write_bytes(written.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"not a readable student.*Give a student that"):
        load(written)


def rewrite(path, **changes):
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    for name, value in changes.pop("tensors", {}).items():
        tensors[name] = value
    metadata |= changes
    metadata["sha256"] = content_sha256((metadata["net"], metadata["provenance"]), tensors)
    save_file(tensors, path, metadata=metadata)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": "cake"}, "schema 'cake', 'spikestill.student' wanted"),
        ({"version": "7"}, r"format version 7, this program reads up to 3\. Update spikestill"),
        ({"net": "{}"}, "not a readable student"),
        ({"tensors": {"layer.0.weight": np.full(512, 255, np.uint8)}}, "unused code 3"),
        ({"tensors": {"layer.0.weight": np.zeros(3, np.uint8)}}, "3 bytes of packed weights"),
        ({"tensors": {"layer.0.theta": np.zeros(9, np.int32)}}, "theta must be int32 of shape"),
        ({"tensors": {"layer.0.theta": np.full(8, np.nan, np.float32)}}, "theta must be int32"),
    ],
)
def test_foreign_newer_and_misshapen_students_are_refused(written, changes, message):
    rewrite(written, **changes)
    with pytest.raises(UserError, match=message):
        load(written)


@pytest.mark.parametrize("seed", range(20))
def test_any_altered_byte_of_the_tensors_is_found(written, seed):
    content = bytearray(written.read_bytes())
    rng = np.random.default_rng(seed)
    header = 8 + int.from_bytes(content[:8], "little")
    content[rng.integers(header, len(content))] ^= 1 << int(rng.integers(8))
    written.write_bytes(content)
    with pytest.raises(UserError, match=r"not a readable student: its content hashes to .* was written"):
        load(written)


def test_a_student_of_version_1_has_no_hash_and_is_read(written):
    rewrite(written, version="1")
    assert len(load(written)[0].layers) == 1


def test_geometry_that_does_not_fit_names_the_layer(written):
    from safetensors import safe_open

    with safe_open(written, framework="numpy") as file:
        net = json.loads(file.metadata()["net"])
    net["input_shape"] = [3, 84, 84]
    rewrite(written, net=json.dumps(net))
    with pytest.raises(UserError, match="layer 0: layer reads 4 channels, its input has 3"):
        load(written)


def test_weights_outside_the_ternary_range_are_refused():
    with pytest.raises(ValueError, match=r"weights must lie in -1..1, got 0..2"):
        IntegerLayer(np.array([[[[2]], [[0]]]], np.int8), np.zeros(1, np.int32), 1, 0, 1)
    with pytest.raises(ValueError, match="9 actions for 8 output features"):
        IntegerNet(random_net((LayerSpec(8, 8, 8, 0, 1),), 0).layers, 9)


def test_unknown_architecture_names_the_nearest():
    with pytest.raises(UserError, match=r"unknown architecture '3chip'"):
        architecture("3chip")


@pytest.mark.parametrize(
    ("change", "because"),
    [
        ({"stride": float("inf")}, "cannot convert float infinity to integer"),
        ({"stride": 10**30}, r"stride 10+ \(1\.\.4096\)"),
        ({"pad": 10**7}, r"pad 10000000 \(-4096\.\.4096\)"),
        ({"input_shape": [4, 84]}, r"input shape \(4, 84\), \(C, H, W\)"),
        ({"input_shape": [4, 10**9, 84]}, "H and W at most 4096"),
        ({"input_shape": "abc"}, "invalid literal"),
        ({"actions": float("inf")}, "cannot convert float infinity to integer"),
        ({"nested": True}, "recursion"),
    ],
)
def test_impossible_geometry_is_refused_when_it_is_read(tmp_path, change, because):
    path = tmp_path / "s"
    save(random_net((LayerSpec(8, 8, 8, 0, 1), LayerSpec(12, 1, 1, 0, 1)), 0), path, Provenance.of({}, 0))
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    tensors, net = load_file(path), json.loads(metadata["net"])
    for name, value in change.items():
        (net if name in net else net["layers"][0])[name] = value
    metadata["net"] = "[" * 100_000 + "]" * 100_000 if "nested" in change else json.dumps(net)
    metadata["sha256"] = content_sha256((metadata["net"], metadata["provenance"]), tensors)
    save_file(tensors, path, metadata=metadata)
    with pytest.raises(UserError, match=rf"s: not a readable student: .*{because}"):
        load(path)


@pytest.mark.parametrize("shape", [(4, 1, 0, 0), (4, 0, 1, 1), (0, 1, 1, 1)])
def test_a_layer_without_weights_is_refused(shape):
    with pytest.raises(ValueError, match="at least one value"):
        IntegerLayer(np.zeros(shape, np.int8), np.zeros(shape[0], np.int32), 1, 0, 1)


def test_a_program_that_has_read_the_page_alone_reads_a_shipped_student():
    """docs/student.md, without ours: weights, thresholds, hash and votes."""
    path = ROOT / "pong" / "student-1chip.safetensors"
    net, _ = load(path)
    with safe_open(path, "np") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    told = json.loads(metadata["net"])
    assert (metadata["schema"], metadata["version"], told["game"]) == ("spikestill.student", "2", "pong")
    digest = hashlib.sha256(f"{metadata['net']}\n{metadata['provenance']}\n".encode())
    for name, array in sorted(tensors.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode() + array.tobytes())
    assert digest.hexdigest() == metadata["sha256"]
    stack = random_stack(3)
    x = stack.astype(np.int64)
    for index, layer in enumerate(told["layers"]):
        features, inputs, kernel, _ = layer["shape"]
        codes = np.stack(
            [tensors[f"layer.{index}.weight"] >> shift & 3 for shift in (0, 2, 4, 6)], axis=1
        ).ravel()
        weight = np.array([0, 1, -1])[codes[: features * inputs * kernel**2]].reshape(layer["shape"])
        pad, stride = layer["pad"], layer["stride"]
        x = np.pad(x, ((0, 0), (pad, pad), (pad, pad))) if pad >= 0 else x[:, -pad:pad, -pad:pad]
        patches = sliding_window_view(x, kernel, axis=1)[:, ::stride]
        patches = sliding_window_view(patches, kernel, axis=2)[:, :, ::stride]
        shares = zip(np.split(patches, layer["groups"]), np.split(weight, layer["groups"]), strict=True)
        sums = np.concatenate([np.einsum("chwuv,ocuv->ohw", part, own) for part, own in shares])
        x = (sums >= tensors[f"layer.{index}.theta"][:, None, None]).astype(np.int64)
    used = told["actions"] * (len(x) // told["actions"])
    votes = x[:used].sum(axis=(1, 2)).reshape(-1, told["actions"]).sum(axis=0)
    np.testing.assert_array_equal(votes, count_votes(naive_forward(net, stack)[-1], net.actions))
