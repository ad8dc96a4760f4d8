"""Foreign programs that try to do more than arithmetic."""

from __future__ import annotations

import io
import itertools
import time
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from spikestill.common.errors import UserError
from spikestill.common.provenance import Provenance
from spikestill.configs.importing import ImportConfig
from spikestill.teacher.importing import run
from spikestill.teacher.policy import load_teacher
from spikestill.teacher.program import Program, probe, save_program, start
from spikestill.teacher.torchscript_code import Disallowed, allowed_archive

_numbers = itertools.count()


def scripted(body: str) -> bytes:
    """Return a TorchScript archive whose forward runs ``body`` and gives six scores."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.jit.script(type(f"Net{next(_numbers)}", (nn.Module,), {})())
        module.define(f"def forward(self, x):\n{lines}\n    return x.flatten(1)[:, :6]\n")
    out = io.BytesIO()
    torch.jit.save(module, out)
    return out.getvalue()


def ask(content: bytes) -> np.ndarray:
    network = start(Program(content, "torchscript", 1.0, 0), "net.ts")
    return probe(network, "net.ts")


@pytest.mark.slow
def test_a_harmless_program_runs():
    assert ask(scripted("x = x * 2")).shape == (2, 6)


OPERATORS = {schema.name.partition("::")[2] for schema in torch._C._jit_get_all_schemas()}
WICKED = {
    "maps a file": 'x = x + torch.from_file("/etc/hostname", False, 9, dtype=torch.uint8).float().sum()',
    "saves": "x.resize_([1])",
    "takes another's memory": "x.set_(x)",
    "starts a thread": "x = torch.jit._wait(torch.jit._fork(torch.relu, x))",
    "names one in a text": 'assert x.dim() > 0, "not by from_file"',
}


@pytest.mark.parametrize("body", WICKED.values(), ids=WICKED)
def test_a_program_that_names_more_than_arithmetic_is_refused_by_its_code(body):
    with pytest.raises(Disallowed, match="its code names"):
        allowed_archive(scripted(body), OPERATORS)


class Reading(nn.Module):
    """A network that maps a file as soon as it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.ones(6, 4 * 84 * 84)

    def forward(self, x):
        return x.flatten(1) @ self.weight.t()

    @torch.jit.export
    def __getstate__(self):
        return (self.weight, self.training)

    @torch.jit.export
    def __setstate__(self, state: tuple[torch.Tensor, bool]):
        read = torch.from_file("/etc/hostname", False, 1, dtype=torch.uint8)
        self.weight, self.training = state[0] + read.sum(), state[1]


def test_what_a_program_does_when_it_is_read_is_looked_at_too(tmp_path):
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(Reading()), content)
    with pytest.raises(Disallowed, match="its code names from_file"):
        allowed_archive(content.getvalue(), OPERATORS)
    (tmp_path / "net.ts").write_bytes(content.getvalue())
    with pytest.raises(
        UserError, match=r"net\.ts: .*could do more than arithmetic: its code names from_file"
    ):
        run(ImportConfig(path=tmp_path / "net.ts", game="pong"), tmp_path / "run")


def test_an_object_of_a_class_of_cpp_is_refused():
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.packed = torch.ops.quantized.linear_prepack(
                torch.quantize_per_tensor(torch.rand(6, 6), 0.1, 0, torch.qint8), torch.zeros(6)
            )

        def forward(self, x):
            return x.flatten(1)[:, :6]

    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(Packed()), out)
    with pytest.raises(Disallowed, match=r"class of C\+\+"):
        allowed_archive(out.getvalue(), OPERATORS)


def test_a_file_that_zip_readers_see_otherwise_is_written_anew():
    """PyTorch's zip reader and Python's may differ on an archive made for that: only what was looked at is run."""
    content = scripted("x = x * 2")
    front = scripted('x = x + torch.from_file("/etc/hostname", False, 9, dtype=torch.uint8).float().sum()')
    anew = allowed_archive(front + content, OPERATORS)
    assert b"from_file" not in anew
    assert zipfile.ZipFile(io.BytesIO(anew)).testzip() is None
    assert not [name for name in zipfile.ZipFile(io.BytesIO(anew)).namelist() if name.endswith(".debug_pkl")]


@pytest.mark.parametrize("traced", [False, True])
def test_networks_of_convolutions_and_linear_layers_are_allowed(traced):
    class Dueling(nn.Module):
        def __init__(self):
            super().__init__()
            parts = (nn.Conv2d(4, 8, 8, 4), nn.BatchNorm2d(8), nn.ELU(), nn.MaxPool2d(4), nn.Flatten())
            self.body = nn.Sequential(*parts, nn.Linear(200, 16), nn.LayerNorm(16), nn.GELU())
            self.value, self.advantage = nn.Linear(16, 1), nn.Linear(16, 6)

        def forward(self, x):
            h = self.body(x.float() / 255.0)
            a = self.advantage(h)
            return self.value(h) + a - a.mean(1, keepdim=True)

    torch.manual_seed(0)
    net, stacks, out = Dueling().eval(), torch.rand(2, 4, 84, 84), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(net, stacks) if traced else torch.jit.script(net), out)
        again = torch.jit.load(io.BytesIO(allowed_archive(out.getvalue(), OPERATORS)))
    assert torch.equal(again(stacks), net(stacks))


@pytest.mark.slow
def test_a_program_writes_no_file(tmp_path: Path):
    victim = tmp_path / "victim"
    victim.write_text("precious" * 20)
    with pytest.raises(UserError, match=r"net\.ts"):
        ask(
            scripted(
                f'x = x + torch.from_file("{victim}", True, 100, dtype=torch.uint8).fill_(65).float().sum()'
            )
        )
    assert victim.read_text() == "precious" * 20


@pytest.mark.slow
def test_a_program_reads_no_file(tmp_path: Path):
    (tmp_path / "secret").write_text("s" * 100)
    with pytest.raises(UserError, match=r"net\.ts"):
        ask(
            scripted(
                f'x = torch.from_file("{tmp_path / "secret"}", False, 100, dtype=torch.uint8).float() + x.sum()'
            )
        )


def test_an_imported_program_is_confined_when_it_plays(tmp_path: Path):
    victim = tmp_path / "victim"
    victim.write_text("precious" * 20)
    program = Program(
        scripted(
            f'x = x + torch.from_file("{victim}", True, 100, dtype=torch.uint8).fill_(65).float().sum()'
        ),
        "torchscript",
        1.0,
        0,
    )
    path = tmp_path / "teacher.safetensors"
    save_program(path, program, "pong", 6, Provenance.of({}, 0))
    with pytest.raises(UserError, match=r"teacher\.safetensors"):
        load_teacher(path).q_values(np.zeros((1, 4, 84, 84), np.uint8))
    assert victim.read_text() == "precious" * 20


WITHOUT_THE_LIST = (
    "import sys; sys.path[:] = sys.argv[3:]; import spikestill.teacher.program_child as child; "
    "child.allowed_archive = lambda content, operators: bytes(content); child.main()"
)
WITHOUT_FENCES = (
    "import sys; sys.path[:] = sys.argv[3:]; import spikestill.teacher.program_child as child; "
    "child.confine = lambda: (); child.main()"
)


@pytest.mark.parametrize("shared", [False, True])
def test_the_fences_hold_without_the_list(tmp_path, monkeypatch, shared):
    """The list of operators is one defence; a process without rights is another, and stands alone."""
    monkeypatch.setattr("spikestill.teacher.program.START", WITHOUT_THE_LIST)
    victim = tmp_path / "victim"
    victim.write_text("precious" * 20)
    mapped = f'torch.from_file("{victim}", {shared}, 100, dtype=torch.uint8)'
    with pytest.raises(
        UserError, match=r"net\.ts: .*(unable to open file|Operation not permitted|Permission)"
    ):
        ask(scripted(f"x = x + {mapped + ('.fill_(65)' if shared else '')}.float().sum()"))
    assert victim.read_text() == "precious" * 20


def test_torchscript_is_refused_where_no_fence_stands(monkeypatch):
    monkeypatch.setattr("spikestill.teacher.program.START", WITHOUT_FENCES)
    with pytest.raises(UserError, match=r"net\.ts: .*neither seccomp nor Landlock.*Export it as ONNX"):
        ask(scripted("x = x * 2"))


@pytest.mark.slow
def test_a_loop_without_end_that_begins_in_a_game_ends_too():
    """It answers while it is looked at, and is busy for ever with a stack of black frames."""
    network = start(
        Program(scripted("while bool(x.sum() == 0):\n    x = x * 1"), "torchscript", 1.0, 0), "net.ts"
    )
    assert probe(network, "net.ts").shape == (2, 6)
    with pytest.raises(
        UserError, match=r"net\.ts: the program had no answer after [0-9.]+ s of the processor"
    ):
        network(np.zeros((1, 4, 84, 84), np.uint8))


def test_a_flipped_bit_in_torchscript_is_refused(tmp_path):
    """PyTorch reads other weights without a word."""
    net, content = nn.Sequential(nn.Flatten(), nn.Linear(4 * 84 * 84, 6)), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(net, torch.zeros(2, 4, 84, 84)), content)
    whole = bytearray(content.getvalue())
    with zipfile.ZipFile(content) as archive:
        largest = max(archive.infolist(), key=lambda entry: entry.file_size)
    whole[largest.header_offset + largest.file_size // 2] ^= 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = torch.jit.load(io.BytesIO(bytes(whole)))
    assert not all(torch.equal(*pair) for pair in zip(again.parameters(), net.parameters(), strict=True))
    (tmp_path / "net.ts").write_bytes(whole)
    with pytest.raises(UserError, match=r"net\.ts: a damaged archive: Bad CRC-32"):
        run(ImportConfig(path=tmp_path / "net.ts", game="pong"), tmp_path / "run")


def test_an_endless_loop_ends_with_an_error():
    began = time.monotonic()
    with pytest.raises(UserError, match=r"no answer after [0-9.]+ s of the processor's time"):
        ask(scripted("while bool(x.sum() > -1):\n    x = x + 1"))
    assert time.monotonic() - began < 90


class Awaking(torch.nn.Module):
    """A network that is busy for ever as soon as it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.ones(6, 4 * 84 * 84)

    def forward(self, x):
        return x.flatten(1) @ self.weight.t()

    @torch.jit.export
    def __getstate__(self):
        return (self.weight, self.training)

    @torch.jit.export
    def __setstate__(self, state: tuple[torch.Tensor, bool]):
        self.weight, self.training = state[0], state[1]
        turns = 0
        while turns >= 0:
            turns = (turns + 1) % 7


def test_a_program_that_is_busy_while_it_is_read_has_two_seconds_and_no_more():
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(Awaking()), content)
    # What an engine needs to start is not its time.
    with pytest.raises(UserError, match=r"no answer after 2 s of the processor's time"):
        start(Program(content.getvalue(), "torchscript", 1.0, 0), "net.ts")


@pytest.mark.slow
def test_a_program_that_wants_all_memory_is_an_error():
    with pytest.raises(UserError, match=r"net\.ts"):
        ask(scripted("x = torch.ones([4000000000]).sum() + x"))


def test_one_call_at_a_time_and_in_order(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    network = start(Program(scripted("x = x * 2"), "torchscript", 1.0, 0), "net.ts")
    stacks = np.random.default_rng(0).integers(0, 256, (20, 1, 4, 84, 84), np.uint8)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(network, stacks))
    for scores, stack in zip(found, stacks, strict=True):
        np.testing.assert_array_equal(scores, 2.0 * stack.reshape(1, -1)[:, :6].astype(np.float32))


def onnx_model(nodes, initializers=(), input_shape=("B", 4, 84, 84)):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, kinds = onnx.helper, onnx.TensorProto
    graph = helper.make_graph(
        nodes(helper), "net",
        [helper.make_tensor_value_info("x", kinds.FLOAT, input_shape)],
        [helper.make_tensor_value_info("y", kinds.FLOAT, None)],
        initializer=list(initializers),
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return onnx, model


@pytest.mark.parametrize("place", ["../secret", "/etc/passwd", "inner/../../secret", "link"])
def test_weights_outside_the_networks_folder_are_refused(tmp_path, place):
    folder = tmp_path / "net"
    (folder / "inner").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(bytes(4 * 24))
    (folder / "link").symlink_to(tmp_path / "secret")
    onnx, model = onnx_model(lambda helper: [helper.make_node("Flatten", ["x"], ["y"])])
    tensor = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[24])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", place
    model.graph.initializer.append(tensor)
    (folder / "net.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match=r"its weights lie in .*outside its folder"):
        run(ImportConfig(path=folder / "net.onnx", game="pong"), tmp_path / "run")
    assert not (tmp_path / "run" / "teacher.safetensors").exists()


def test_weights_beside_the_network_in_no_file_are_named(tmp_path):
    onnx, model = onnx_model(lambda helper: [helper.make_node("Flatten", ["x"], ["y"])])
    tensor = onnx.TensorProto(name="lost", data_type=onnx.TensorProto.FLOAT, dims=[24])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    model.graph.initializer.append(tensor)
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(
        UserError, match=r"net\.onnx: the weights 'lost' lie in a file beside it, and no file is named"
    ):
        run(ImportConfig(path=tmp_path / "net.onnx", game="pong"), tmp_path / "run")


@pytest.mark.parametrize("where", ["attribute", "subgraph", "sparse"])
def test_weights_outside_the_folder_are_refused_wherever_a_tensor_lies(tmp_path, where):
    folder = tmp_path / "net"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(4 * 24))
    (folder / "mine").write_bytes(bytes(4 * 24))
    onnx, model = onnx_model(lambda helper: [helper.make_node("Flatten", ["x"], ["y"])])
    helper = onnx.helper

    def outside(place: str):
        tensor = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[24])
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=place)
        return tensor

    # One that lies where it should: then all of them are read.
    model.graph.initializer.append(outside("mine"))
    if where == "attribute":
        model.graph.node.append(helper.make_node("Constant", [], ["c"], value=outside("../secret")))
    elif where == "subgraph":
        inner = helper.make_graph([], "inner", [], [], [outside("../secret")])
        model.graph.node.append(helper.make_node("If", ["w"], ["c"], then_branch=inner, else_branch=inner))
    else:
        model.graph.sparse_initializer.append(onnx.SparseTensorProto(values=outside("../secret"), dims=[24]))
    (folder / "net.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match=r"its weights lie in '\.\./secret', outside its folder"):
        run(ImportConfig(path=folder / "net.onnx", game="pong"), tmp_path / "run")


def test_one_file_of_weights_that_many_tensors_name_counts_for_each(tmp_path):
    onnx, model = onnx_model(lambda helper: [helper.make_node("Flatten", ["x"], ["y"])])
    with open(tmp_path / "data", "wb") as file:
        file.truncate(100 << 20)
    for index in range(3000):
        tensor = onnx.TensorProto(name=f"w{index}", data_type=onnx.TensorProto.FLOAT, dims=[24])
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="data")
        model.graph.initializer.append(tensor)
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match=r"net\.onnx.*bytes"):
        run(ImportConfig(path=tmp_path / "net.onnx", game="pong"), tmp_path / "run")


def test_an_onnx_loop_without_end_ends(tmp_path):
    onnx, _ = onnx_model(lambda helper: [helper.make_node("Identity", ["x"], ["y"])])
    helper, kinds = onnx.helper, onnx.TensorProto
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["c_in"], ["c_out"]),
            helper.make_node("Sin", ["v_in"], ["v_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", kinds.INT64, []),
            helper.make_tensor_value_info("c_in", kinds.BOOL, []),
            helper.make_tensor_value_info("v_in", kinds.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("c_out", kinds.BOOL, []),
            helper.make_tensor_value_info("v_out", kinds.FLOAT, None),
        ],
    )
    _, model = onnx_model(
        lambda helper: [
            helper.make_node("Loop", ["", "true", "x"], ["v"], body=body),
            helper.make_node("Flatten", ["v"], ["y"]),
        ],
        [helper.make_tensor("true", kinds.BOOL, [], [True])],
    )
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match=r"no answer after [0-9.]+ s of the processor's time"):
        run(ImportConfig(path=tmp_path / "net.onnx", game="pong"), tmp_path / "run")
