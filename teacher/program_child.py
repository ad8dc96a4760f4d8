"""A foreign program at work: the confined process that ``teacher/program.py`` starts for each.

It imports the program's engine, gives up every right, and only then reads the program. Then it answers stacks with
scores until its pipe is closed. Its argument vector has two descriptors, to read from and to write to.
"""

from __future__ import annotations

import io
import json
import os
import sys
import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.common.confinement import confine, limit
from spikestill.common.extras import install_command
from spikestill.common.guard import LENGTH
from spikestill.common.guarded import answer
from spikestill.teacher.torchscript_code import Disallowed, allowed_archive

AS_ONNX = "export it as ONNX"
CHANNELS_FIRST, CHANNELS_LAST = (4, 84, 84), (84, 84, 4)
Network = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]


class Unfit(ValueError):  # noqa: N818
    """The program cannot be asked so; the arguments are (what, remedy)."""


def main() -> None:
    """Serve one program."""
    source, sink = int(sys.argv[1]), int(sys.argv[2])
    header = json.loads(_exactly(source, LENGTH.unpack(_exactly(source, LENGTH.size))[0]))
    content = _exactly(source, int(header["bytes"]))
    try:
        network = _start(header, content)
    except MemoryError:
        answer(sink, {"error": "asks for more memory than a program may have"}, {})
        return
    except Unfit as error:
        answer(sink, {"error": error.args[0], "remedy": error.args[1]}, {})
        return
    except BaseException as error:
        answer(sink, {"error": _line(error), "remedy": None}, {})
        return
    answer(sink, {"value": "ready"}, {})
    while True:
        head = os.read(source, LENGTH.size)
        if not head:
            return
        batch = LENGTH.unpack(head + _exactly(source, LENGTH.size - len(head)))[0]
        stacks = np.frombuffer(_exactly(source, batch * 4 * 84 * 84), np.uint8).reshape(
            batch, *CHANNELS_FIRST
        )
        try:
            scores = np.asarray(network(stacks))
            if scores.dtype.kind not in "iufb":
                raise ValueError(f"it gives {scores.dtype}, numbers wanted")
            answer(sink, {"value": None}, {"scores": scores})
        except BaseException as error:
            answer(sink, {"error": _line(error)}, {})


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[-1] if lines else type(error).__name__)[:500]


def _exactly(descriptor: int, size: int) -> bytearray:
    content = bytearray(size)
    view, filled = memoryview(content), 0
    while filled < size:
        got = os.readv(descriptor, [view[filled:]])
        if not got:
            os._exit(0)
        filled += got
    return content


def _start(header: Mapping[str, Any], content: bytearray) -> Network:
    load = _onnx if header["language"] == "onnx" else _torchscript
    return load(header, bytes(content))


def _confined(header: Mapping[str, Any]) -> tuple[str, ...]:
    limit(int(header["memory"]), None)
    fences = confine()
    # From now on the time is the program's.
    answer(int(sys.argv[2]), {"value": "started"}, {})
    return fences


def _onnx(header: Mapping[str, Any], content: bytes) -> Network:
    try:
        import onnxruntime
    except ImportError as error:
        raise Unfit("ONNX Runtime is not installed", f"run `{install_command('onnx')}`") from error
    onnxruntime.set_default_logger_severity(4)
    _confined(header)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors share no class but this one
        reason = str(error).splitlines()[0].rstrip(".")
        raise Unfit(f"not a network that ONNX Runtime can run: {reason}", "export it again") from error
    inputs, outputs = session.get_inputs(), session.get_outputs()
    shape = tuple(inputs[0].shape[1:]) if len(inputs) == 1 else ()
    kinds = {"tensor(uint8)": np.uint8, "tensor(float)": np.float32}
    if shape not in (CHANNELS_FIRST, CHANNELS_LAST) or inputs[0].type not in kinds:
        found = ", ".join(f"{each.name} {each.type} {each.shape}" for each in inputs)
        raise Unfit(
            f"takes {found[:300]}; one input (B, 4, 84, 84) or (B, 84, 84, 4), uint8 or float, wanted",
            "export the network that scores the actions of a stack of frames",
        )
    output, divide_by = int(header["output"]), float(header["divide_by"])
    if not 0 <= output < len(outputs):
        raise Unfit(f"has {len(outputs)} outputs, output {output} is asked for", "give --output")
    dtype, one_by_one = kinds[inputs[0].type], isinstance(inputs[0].shape[0], int)
    if dtype == np.uint8 and divide_by != 1.0:
        raise Unfit(
            f"takes uint8 pixels, which cannot be divided by {divide_by:g} before it sees them",
            "leave --divide_by out",
        )

    def ask(stacks: npt.NDArray[Any]) -> npt.NDArray[Any]:
        x = _prepared(stacks, divide_by, dtype)
        if shape == CHANNELS_LAST:
            x = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
        parts = x[:, None] if one_by_one else [x]
        wanted = [outputs[output].name]
        scores = np.concatenate([session.run(wanted, {inputs[0].name: part})[0] for part in parts])
        return scores.astype(np.float32, copy=False)

    return ask


def _torchscript(header: Mapping[str, Any], content: bytes) -> Network:
    import torch

    torch.set_num_threads(1)
    with torch.inference_mode():  # whatever is loaded late is loaded now
        example = torch.zeros(1, 4, 84, 84)
        torch.jit.trace(torch.nn.Sequential(torch.nn.Conv2d(4, 2, 8), torch.nn.ReLU()), example)(example)
    operators = {schema.name.partition("::")[2] for schema in torch._C._jit_get_all_schemas()}
    fences = _confined(header)
    if "seccomp" not in fences and "landlock" not in fences:
        raise Unfit(
            "is TorchScript, which can read and write files; this system has neither seccomp nor Landlock against it",
            AS_ONNX,
        )
    try:
        archive = allowed_archive(content, operators)
        del content
        module = torch.jit.load(io.BytesIO(archive), map_location="cpu").eval()
    except Disallowed as error:
        raise Unfit(
            f"is a TorchScript program that could do more than arithmetic: {error}", AS_ONNX
        ) from error
    except (RuntimeError, ValueError, zipfile.BadZipFile, zlib.error, LookupError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Unfit(f"not readable as TorchScript: {reason}", "export it again") from error
    output, divide_by = int(header["output"]), float(header["divide_by"])

    def ask(stacks: npt.NDArray[Any]) -> npt.NDArray[Any]:
        with torch.inference_mode():
            found = module(torch.from_numpy(_prepared(stacks, divide_by, np.float32)))
        scores = found[output] if isinstance(found, (tuple, list)) else found
        result: npt.NDArray[Any] = scores.float().numpy()
        return result

    return ask


def _prepared(stacks: npt.NDArray[Any], divide_by: float, dtype: type) -> npt.NDArray[Any]:
    return stacks if dtype == np.uint8 else stacks.astype(np.float32) / np.float32(divide_by)
