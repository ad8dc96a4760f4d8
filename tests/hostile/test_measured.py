"""Small files of every format that ask for much: none takes 2 s or 1 GB before it is refused in words of its own."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import pytest
import torch

from spikestill.common import curve
from spikestill.common.limits import DOCUMENT_BYTES, HEADER_BYTES, NET_NEURONS, PICKLE_BYTES, TENSORS
from spikestill.common.provenance import Provenance, content_sha256
from spikestill.configs.importing import ImportConfig
from spikestill.configs.loading import read_recipe
from spikestill.configs.pipeline import InspectConfig, ReportConfig
from spikestill.configs.sweep import load_sweep
from spikestill.curve_charts import distilling
from spikestill.dataset.format import texts_sha256
from spikestill.dataset.journal import CHECKSUM, HEAD, MAGIC, journal_path
from spikestill.inspection import run as inspect
from spikestill.pipeline import State
from spikestill.report import run as report
from spikestill.student.integer_net import IntegerLayer, IntegerNet, save
from spikestill.sweep.worker import read_outcome
from spikestill.teacher.importing import run as import_agent
from tests.hostile import readers
from tests.hostile.cases import CONTROL, ONNX, subjects
from tests.hostile.measured import MIB, refused

Copied = Callable[[str], Path]


class Case(NamedTuple):
    """A hostile file.

    Attributes:
        like: the fuzzer's subjects that have its format, ``CORPUS/FILE``.
        make: puts the file into a folder, given good ones; returns what reads it.
        match: what the refusal says.
    """

    like: tuple[str, ...]
    make: Callable[[Path, Copied], Callable[[], object]]
    match: str


CASES: dict[str, Case] = {}
DOCUMENTS = tuple(f"pipeline/{stage}.json" for stage in ("evaluate", "verify", "play", "estimate"))


def case(match: str, *like: str) -> Callable[..., Callable[[Path, Copied], Callable[[], object]]]:
    """Add the function to :data:`CASES`, under its name."""

    def add(
        make: Callable[[Path, Copied], Callable[[], object]],
    ) -> Callable[[Path, Copied], Callable[[], object]]:
        CASES[make.__name__] = Case(like, make, match)
        return make

    return add


# --- recipes


@case(
    "more than 5,000 values, aliases counted as often as used", "recipes/recipe.yaml", "recipes/control.yaml"
)
def recipe_whose_aliases_are_many(folder: Path, _: Copied) -> Callable[[], object]:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [" + ", ".join([f"*a{i - 1}"] * 9) + "]" for i in range(1, 12)]
    (folder / "recipe.yaml").write_text("\n".join(lines))
    return lambda: read_recipe(folder / "recipe.yaml")


@case("it asks for 10,000,000,000 trials, at most 10,000", "recipes/sweep.yaml")
def sweep_of_all_combinations(folder: Path, _: Copied) -> Callable[[], object]:
    axes = "".join(
        f"  record.{name}: [{', '.join(map(str, range(1, 101)))}]\n"
        for name in ("frames", "seed", "epsilon", "num_envs", "flush_every")
    )
    (folder / "sweep.yaml").write_text(f"stages: [record]\ngrid:\n{axes}")
    return lambda: load_sweep(str(folder / "sweep.yaml"))


@case(r"record\.config\.yaml: .* bytes, options have at most", "recipes/recipe.yaml")
def options_of_a_run_before(folder: Path, _: Copied) -> Callable[[], object]:
    with open(folder / "record.config.yaml", "wb") as file:
        file.truncate(2 << 30)
    return lambda: readers.told(
        "record", "pong", "--frames", 8, "--num_envs", 2, "--agent", "random", "--run_dir", folder
    )


# --- safetensors

TENSOR_FILES = (
    "student/student.safetensors", "games/student.safetensors", "student/teacher.safetensors",
    "teach/teacher.safetensors", "agents/teacher-ts.safetensors", "agents/teacher-onnx.safetensors",
    "teach/teach-checkpoint.safetensors", "distill/distill-checkpoint.safetensors",
    "control/teacher.safetensors", "control/teach-checkpoint.safetensors", "fixed/teacher.safetensors",
    "fixed/teach-checkpoint.safetensors",
)  # fmt: skip
SCHEMAS = (
    "student", "teacher", "control-agent", "fixed-agent", "teach-checkpoint", "control-checkpoint",
    "distill-checkpoint",
)  # fmt: skip


def tensor_file(path: Path, metadata: dict[str, str], tensors: int) -> None:
    """Write a header with texts and many empty tensors, and nothing behind it."""
    empty = b"".join(
        b',"%x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % index for index in range(tensors)
    )
    head = json.dumps({"__metadata__": metadata})[:-1].encode() + empty + b"}"
    head += b" " * (-len(head) % 8)
    path.write_bytes(struct.pack("<Q", len(head)) + head)


def many_tensors(schema: str) -> Callable[[Path, Copied], Callable[[], object]]:
    def make(folder: Path, _: Copied) -> Callable[[], object]:
        path = folder / "many.safetensors"
        texts = {"schema": f"spikestill.{schema}", "version": "1", "net": "{}", "provenance": "{}"}
        tensor_file(path, texts, TENSORS + 1)
        assert path.stat().st_size < HEADER_BYTES
        return lambda: inspect(InspectConfig(path=path), folder)

    return make


def long_header(schema: str) -> Callable[[Path, Copied], Callable[[], object]]:
    def make(folder: Path, _: Copied) -> Callable[[], object]:
        path = folder / "long.safetensors"
        texts = {"schema": f"spikestill.{schema}", "version": "1", "provenance": "{}"}
        tensor_file(path, {**texts, "net": "[" + "[]," * (16 * MIB // 3) + "[]]"}, 0)
        return lambda: inspect(InspectConfig(path=path), folder)

    return make


for _schema in SCHEMAS:
    CASES[f"{_schema}_of_many_tensors"] = Case(
        TENSOR_FILES, many_tensors(_schema), r"it names 16,385 tensors, at most 16,384"
    )
    CASES[f"{_schema}_with_a_long_header"] = Case(TENSOR_FILES, long_header(_schema), "its header has")


@case("neurons that read .* weights, at most", "student/student.safetensors")
def student_of_many_large_layers(folder: Path, _: Copied) -> Callable[[], object]:
    """Each of its layers is small enough, all together have 200 million neurons in 40 KB."""
    path = folder / "student.safetensors"
    net = json.dumps(
        {
            "layers": [{"shape": [1, 4, 8, 8], "stride": 1, "pad": 450, "groups": 1}]
            + [{"shape": [1, 1, 3, 3], "stride": 1, "pad": 1, "groups": 1}] * 200,
            "actions": 1, "input_shape": [4, 84, 84], "game": "pong",
        }
    )  # fmt: skip
    tensors = {"layer.0.weight": np.full(64, 0x55, np.uint8), "layer.0.theta": np.ones(1, np.int32)}
    for index in range(1, 201):
        tensors[f"layer.{index}.weight"] = np.array([0x55, 0x55, 0x01], np.uint8)
        tensors[f"layer.{index}.theta"] = np.ones(1, np.int32)
    texts = net, Provenance.of({}, 0).to_json()
    metadata = {"schema": "spikestill.student", "version": "2", "net": net, "provenance": texts[1]}
    from safetensors.numpy import save as serialise

    path.write_bytes(serialise(tensors, metadata | {"sha256": content_sha256(texts, tensors)}))
    return lambda: inspect(InspectConfig(path=path), folder)


@case(
    r"the net has [\d,]+ neurons that are read and at the least needs \d+ cores, ns1e has 4096",
    "student/student.safetensors",
)
def student_that_no_board_holds(folder: Path, _: Copied) -> Callable[[], object]:
    """It has 1,700 bytes, and more neurons than the board: the mapper does not begin with its tiles."""
    one = np.ones((1, 1, 3, 3), np.int8)
    layers = [IntegerLayer(np.ones((1, 4, 8, 8), np.int8), np.ones(1, np.int32), 1, 300, 1)]
    layers += [IntegerLayer(one, np.ones(1, np.int32), 1, 1, 1)] * 3
    net = IntegerNet(tuple(layers), 1, game="pong")
    assert 1 << 20 < net.neurons() < NET_NEURONS
    save(net, folder / "student.safetensors", Provenance.of({}, 0))
    return lambda: readers.told("map", "--hardware", "ns1e", "--run_dir", folder)


# --- JSON


def with_many_values(path: Path, size: int) -> Path:
    path.write_bytes(b'{"schema": "spikestill.evaluate", "a": [' + b"[]," * (size // 3) + b"[]]}")
    return path


@case("evaluate.json: not what a stage wrote .it has", *DOCUMENTS)
def document_of_many_values(folder: Path, _: Copied) -> Callable[[], object]:
    path = with_many_values(folder / "evaluate.json", 8 * DOCUMENT_BYTES)
    return lambda: inspect(InspectConfig(path=path), folder)


@case("evaluate.json: not what a stage wrote .it has", *DOCUMENTS)
def document_of_many_values_in_a_report(folder: Path, _: Copied) -> Callable[[], object]:
    with_many_values(folder / "evaluate.json", 8 * DOCUMENT_BYTES)
    return lambda: report(ReportConfig(folder=folder), folder)


@case("pipeline.json: not a pipeline's state .it has", "pipeline/pipeline.json")
def state_of_many_values(folder: Path, _: Copied) -> Callable[[], object]:
    with_many_values(folder / "pipeline.json", 8 * DOCUMENT_BYTES)
    return lambda: State(folder)


@case("pipeline.json: is a device, a regular file is wanted", "pipeline/pipeline.json")
def state_that_is_a_device(folder: Path, _: Copied) -> Callable[[], object]:
    (folder / "pipeline.json").symlink_to("/dev/zero")
    return lambda: State(folder)


@case("done.json: not the outcome of a stage run .it has")
def outcome_of_a_stage_run(folder: Path, _: Copied) -> Callable[[], object]:
    path = with_many_values(folder / "done.json", 8 * DOCUMENT_BYTES)
    return lambda: read_outcome(path)


@case("its line 2 has more than 16,384 characters", "pipeline/distill.jsonl")
def curve_of_one_line(folder: Path, _: Copied) -> Callable[[], object]:
    path = folder / "distill.jsonl"
    line = b'{"samples": 8, "agreement": 0.5, "loss": 0.1}\n'
    path.write_bytes(line + b'{"samples": [' + b"[]," * (64 * MIB // 3) + b"[]]}\n")
    return lambda: distilling(path)


# --- HDF5


@case(
    r"declares 1,000,000,000,000 rows of 2 streams",
    "student/buffer.h5",
    "numbers/buffer.h5",
    "journal/buffer.h5",
)
def buffer_of_many_rows(_: Path, copied: Copied) -> Callable[[], object]:
    path = copied("student") / "buffer.h5"
    with h5py.File(path, "r+") as file:
        for name in file:
            file[name].resize(10**12, axis=0)
    return lambda: inspect(InspectConfig(path=path), path.parent)


@case("not a readable buffer", "student/buffer.h5")
def buffer_with_a_chunk_of_a_gigabyte(_: Path, copied: Copied) -> Callable[[], object]:
    path = copied("student") / "buffer.h5"
    packer = zlib.compressobj(1)
    bomb = b"".join(packer.compress(bytes(16 * MIB)) for _ in range(64)) + packer.flush()
    with h5py.File(path, "r+") as file:
        file["reward"].id.write_direct_chunk((0, 0), bomb)
    return lambda: inspect(InspectConfig(path=path), path.parent)


@case("its attributes have more than", "student/core_map.h5", "student/buffer.h5", "trace/trace.h5")
def core_map_with_a_long_description(folder: Path, copied: Copied) -> Callable[[], object]:
    path = folder / "long.h5"
    with h5py.File(copied("student") / "core_map.h5") as good, h5py.File(path, "w", libver="latest") as file:
        for name in good:
            good.copy(name, file)
        file.attrs.update(good.attrs)
        del file.attrs["description"]
        file.attrs["description"] = "[" + "[]," * (16 * MIB // 3) + "[]]"
    return lambda: inspect(InspectConfig(path=path), folder)


@case("brings the declared content to", "trace/trace.h5")
def trace_of_many_frames(_: Path, copied: Copied) -> Callable[[], object]:
    path = copied("trace") / "trace.h5"
    with h5py.File(path, "r+") as file:
        del file["0_reward"]
        file.create_dataset("0_reward", (10**10,), "<f8", chunks=(1 << 20,), compression="gzip")
    return lambda: readers.trace(path.parent)


@case("fields of 1000000002 values a step", "numbers/buffer.h5")
def buffer_of_a_large_field(_: Path, copied: Copied) -> Callable[[], object]:
    path = copied("numbers") / "buffer.h5"
    with h5py.File(path, "r+", libver=("v108", "v108")) as file:
        fields = json.loads(file.attrs["fields"])
        fields[0]["shape"] = [10**9]
        file.attrs["fields"] = json.dumps(fields)
        file.attrs["sha256"] = texts_sha256(file.attrs)
    return lambda: inspect(InspectConfig(path=path), path.parent)


# --- agents and networks of others


def importing(path: Path) -> Callable[[], object]:
    return lambda: import_agent(ImportConfig(path=path, game="pong"), path.parent / "run")


def pytorch_file(path: Path, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, held in (("data.pkl", content), ("byteorder", b"little"), ("version", b"3\n")):
            archive.writestr(f"archive/{name}", held)
    return path


AGENTS = ("agents/agent.pth", "agents/agent.zip")


@case(r"agent\.pth: holds more than tensors", *AGENTS)
def agent_that_asks_for_two_gigabytes(folder: Path, _: Copied) -> Callable[[], object]:
    """PyTorch's ``weights_only`` reader lets a pickle call bytearray."""
    content = b"\x80\x02cbuiltins\nbytearray\nJ" + struct.pack("<i", 2 * 10**9) + b"\x85R."
    return importing(pytorch_file(folder / "agent.pth", content))


@case(r"agent\.pth: holds more than tensors", *AGENTS)
def agent_that_is_a_list_of_lists(folder: Path, _: Copied) -> Callable[[], object]:
    return importing(pytorch_file(folder / "agent.pth", b"\x80\x02]" + b"]" * 10_000_000 + b"."))


@case(r"agent\.pth: holds more than tensors", *AGENTS)
def agent_of_before_pytorch_1_6_that_is_a_list_of_lists(folder: Path, _: Copied) -> Callable[[], object]:
    (folder / "agent.pth").write_bytes(b"\x80\x02]" + b"]" * 10_000_000 + b".")
    return importing(folder / "agent.pth")


@case(r"agent\.zip: holds more than tensors", *AGENTS)
def agent_in_an_agent(folder: Path, _: Copied) -> Callable[[], object]:
    pytorch_file(folder / "policy.pth", b"\x80\x02]" + b"]" * 10_000_000 + b".")
    with zipfile.ZipFile(folder / "agent.zip", "w") as archive:
        archive.write(folder / "policy.pth", "policy.pth")
    return importing(folder / "agent.zip")


@case("no agent of sb3 that is known here", *AGENTS)
def agent_of_many_words(folder: Path, _: Copied) -> Callable[[], object]:
    held = io.BytesIO()
    torch.save({}, held)
    with zipfile.ZipFile(folder / "agent.zip", "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("policy.pth", held.getvalue())
        archive.writestr("data", b"[" + b"[]," * (48 * MIB // 3) + b"[]]")
    return importing(folder / "agent.zip")


@case(
    r"net\.ts: .*(can't allocate memory|asked for more memory)",
    "agents/net.ts",
    "agents/teacher-ts.safetensors",
)
def torchscript_that_wants_all_memory(folder: Path, _: Copied) -> Callable[[], object]:
    from tests.hostile.test_programs import scripted

    (folder / "net.ts").write_bytes(scripted("x = torch.ones([4000000000]).sum() + x"))
    return importing(folder / "net.ts")


def varint(value: int) -> bytes:
    head = b""
    while value > 127:
        head += bytes([value & 127 | 128])
        value >>= 7
    return head + bytes([value])


if ONNX:

    @case(
        r"net\.onnx: (not a (readable ONNX network|network that ONNX Runtime can run)|the program had no answer after)",
        "agents/net.onnx",
    )
    def onnx_of_many_empty_nodes(folder: Path, _: Copied) -> Callable[[], object]:
        """Two bytes are a node, and a node takes a hundred."""
        graph = b"\x0a\x00" * 10_000_000
        (folder / "net.onnx").write_bytes(b"\x08\x08" + b"\x3a" + varint(len(graph)) + graph)
        return importing(folder / "net.onnx")

    @case(r"net\.onnx: .*(bad_alloc|memory)", "agents/net.onnx", "agents/teacher-onnx.safetensors")
    def onnx_of_a_large_constant(folder: Path, _: Copied) -> Callable[[], object]:
        from onnx import TensorProto as Kind
        from onnx import helper

        graph = helper.make_graph(
            [
                helper.make_node("ConstantOfShape", ["s"], ["c"]),
                helper.make_node("ReduceSum", ["c"], ["r"], keepdims=0),
                helper.make_node("Flatten", ["x"], ["f"]), helper.make_node("Add", ["f", "r"], ["y"]),
            ],
            "net", [helper.make_tensor_value_info("x", Kind.FLOAT, ["B", 4, 84, 84])],
            [helper.make_tensor_value_info("y", Kind.FLOAT, None)],
            [helper.make_tensor("s", Kind.INT64, [1], [4_000_000_000])],
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 8
        (folder / "net.onnx").write_bytes(model.SerializeToString())
        return importing(folder / "net.onnx")


SELDOM = {"torchscript_that_wants_all_memory"}
"""Takes long: PyTorch fills what memory it may have; `test_guard.py` has a child that does."""
STARTS_AN_ENGINE = {"torchscript_that_wants_all_memory": 6.0, "onnx_of_many_empty_nodes": 4.0}
"""What the start of PyTorch or of the reader of ONNX takes is in these, as it is in a good file's."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SELDOM else []) for name in CASES]
)
def test_a_file_that_asks_for_much_is_refused_before_it_has_it(name, tmp_path, copied, peak):
    read = CASES[name].make(tmp_path, copied)
    refused(read, peak, CASES[name].match, STARTS_AN_ENGINE.get(name, 2.0))


ELSEWHERE = {
    "journal/buffer.h5.journal": "test_a_journal_that_declares_much_is_not_taken",
    "teach/teach.jsonl": "test_a_curve_of_one_long_line_is_cut_before_it",
}
NO_FORMAT_OF_ITS_OWN = {"pipeline/run.config.yaml"}


def test_every_format_that_is_fuzzed_has_a_file_that_asks_for_much():
    fuzzed = {f"{subject.corpus}/{subject.file}" for subject in subjects()}
    like = {name for each in CASES.values() for name in each.like}
    assert fuzzed - like - set(ELSEWHERE) - NO_FORMAT_OF_ITS_OWN == set()
    assert set(ELSEWHERE.values()) <= set(globals())
    if CONTROL and ONNX:
        assert like - fuzzed == {"journal/buffer.h5"}


def test_a_journal_that_declares_much_is_not_taken(copied, peak):
    path = copied("journal") / "buffer.h5"
    before = path.read_bytes()
    with open(journal_path(path), "wb") as file:
        body = MAGIC + HEAD.pack(1 << 19, 1 << 62)
        file.write(body)
        file.truncate(4 << 30)
        file.seek(-CHECKSUM.size, os.SEEK_END)
        file.write(CHECKSUM.pack(zlib.crc32(body)))
    memory = peak.restart()
    inspect(InspectConfig(path=path), path.parent)
    assert max(peak.bytes, peak.shared_once()) - memory < 1 << 30
    assert path.read_bytes() == before


def test_a_curve_of_one_long_line_is_cut_before_it(tmp_path, peak):
    path = tmp_path / "teach.jsonl"
    good = b'{"step": 3, "seconds": 1.5}\n'
    path.write_bytes(good + b'{"step": 4, "seconds": [' + b"[]," * (64 * MIB // 3) + b"[]]}\n")
    memory = peak.restart()
    assert curve.cut(path, 10) == 1.5
    assert max(peak.bytes, peak.shared_once()) - memory < 1 << 30
    assert path.read_bytes() == good


@pytest.mark.parametrize("line", ["1" + "0" * 400, "NaN", "-1", "Infinity", "[" * 100_000, "{}", "é"])
def test_a_curve_ends_before_a_line_that_no_training_wrote(tmp_path, line):
    path = tmp_path / "teach.jsonl"
    good = '{"step": 3, "seconds": 1.5}\n'
    path.write_text(good + '{"step": 4, "seconds": ' + line + "}\n" + good)
    assert curve.cut(path, 10) == 1.5
    assert path.read_text() == good


def test_the_pickle_of_an_agent_is_far_smaller_than_the_limit(tmp_path):
    weights = {f"network.{index}.weight": torch.zeros(2) for index in range(60)}
    torch.save(weights, tmp_path / "agent.pth")
    with zipfile.ZipFile(tmp_path / "agent.pth") as archive:
        entry = next(entry for entry in archive.infolist() if entry.filename.endswith("data.pkl"))
    assert entry.file_size * 10 < PICKLE_BYTES


@pytest.mark.parametrize(
    "call",
    [
        b"cbuiltins\nset\n", b"c__builtin__\nbytearray\n", b"ccollections\nCounter\n", b"ctorch\nFloatTensor\n",
        b"ctorch.storage\nUntypedStorage\n", b"ctorch._utils\n_rebuild_wrapper_subclass\n", b"c_codecs\nencode\n",
    ],
)  # fmt: skip
def test_a_pickle_that_calls_more_than_tensors_need_is_refused(call, tmp_path):
    from spikestill.teacher.pytorch_file import MoreThanTensors, allowed_file

    path = pytorch_file(tmp_path / "agent.pth", b"\x80\x02" + call + b")R.")
    with pytest.raises(MoreThanTensors, match="its pickle names"):
        allowed_file(path.read_bytes())
    with pytest.raises(MoreThanTensors, match="its pickle names"):
        allowed_file(b"\x80\x02" + call + b")R.")


@pytest.mark.parametrize("new", [True, False])
def test_tensors_of_every_type_pass(new):
    from spikestill.teacher.pytorch_file import allowed_file

    names = [
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint8",
        "bool",
        "complex64",
        "complex128",
    ]
    state = {name: torch.ones(3, dtype=getattr(torch, name)) for name in names}
    state |= {"parameter": torch.nn.Parameter(torch.ones(2)), "view": torch.ones(4, 4)[1:, ::2]}
    state["sparse"] = torch.eye(3).to_sparse()
    held = io.BytesIO()
    torch.save(state, held, _use_new_zipfile_serialization=new)
    again = torch.load(io.BytesIO(allowed_file(held.getvalue())), weights_only=True)
    assert all(torch.equal(again[name].to_dense(), state[name].to_dense()) for name in state)


def test_a_pickle_behind_the_first_one_is_looked_at_too():
    from spikestill.teacher.pytorch_file import MoreThanTensors, allowed_file

    with pytest.raises(MoreThanTensors, match="bytearray"):
        allowed_file(pickle.dumps(1, 2) + pickle.dumps(2, 2) + b"\x80\x02cbuiltins\nbytearray\n)R.")
    with pytest.raises(MoreThanTensors, match="STACK_GLOBAL"):
        allowed_file(pickle.dumps(Path("/"), 4))


def test_pytorch_reads_the_archive_that_was_looked_at(tmp_path):
    """Its zip reader and Python's may differ on an archive made for that."""
    from spikestill.teacher.pytorch_file import allowed_file

    front = pytorch_file(tmp_path / "front.pth", b"\x80\x02cbuiltins\nbytearray\nK\x05\x85R.").read_bytes()
    held = io.BytesIO()
    torch.save({"w": torch.arange(3.0)}, held)
    anew = allowed_file(front + held.getvalue())
    assert b"bytearray" not in anew
    found = torch.load(io.BytesIO(anew), weights_only=True)
    assert torch.equal(found["w"], torch.arange(3.0))
