"""Foreign programs that try to do more than arithmetic."""

from __future__ import annotations

import io
import itertools
import time
import warnings
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


def test_an_endless_loop_ends_with_an_error():
    began = time.monotonic()
    with pytest.raises(UserError, match="no answer after 2 s of the processor's time"):
        ask(scripted("while bool(x.sum() > -1):\n    x = x + 1"))
    assert time.monotonic() - began < 90


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
    with pytest.raises(UserError, match="no answer after 2 s of the processor's time"):
        run(ImportConfig(path=tmp_path / "net.onnx", game="pong"), tmp_path / "run")
