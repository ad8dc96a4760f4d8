"""A teacher that is a program: any network as ONNX or TorchScript, kept whole in the teacher's file.

    q (B, A) = network(stacks (B, 4, 84, 84) / divide_by)[output]

The file is the teacher's safetensors with the program's bytes as one uint8 tensor. ONNX Runtime and TorchScript's
own interpreter run it; Python's pickle has no part in either.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from spikestill.common.atari import STACK
from spikestill.common.errors import MALFORMED, UserError
from spikestill.common.extras import EXTRAS
from spikestill.common.provenance import Provenance
from spikestill.common.tensors import write_tensors
from spikestill.teacher.checkpoint import TEACHER_SCHEMA, TeacherFile

Language = Literal["onnx", "torchscript"]
LANGUAGES = ("onnx", "torchscript")
Network = Callable[[npt.NDArray[Any]], npt.NDArray[np.float32]]
BYTES = "program"
CHANNELS_FIRST, CHANNELS_LAST = STACK.shape, (*STACK.shape[1:], STACK.shape[0])


class Program(NamedTuple):
    """A network and how to ask it.

    Attributes:
        content: the ONNX or TorchScript file.
        language: which of them.
        divide_by: what pixels are divided by: 1 where the network does that itself, 255 where it takes 0..1.
        output: which output has the scores of the actions.
    """

    content: bytes
    language: Language
    divide_by: float
    output: int


def save_program(path: Path, program: Program, game: str, actions: int, provenance: Provenance) -> None:
    """Write the teacher's file."""
    net = {
        "game": game, "actions": actions, "architecture": program.language,
        "divide_by": program.divide_by, "output": program.output,
    }  # fmt: skip
    content = torch.frombuffer(bytearray(program.content), dtype=torch.uint8)
    write_tensors(path, {BYTES: content}, TEACHER_SCHEMA, provenance, net=json.dumps(net))


def program_of(path: Path, file: TeacherFile) -> Program:
    """Return the program in the teacher's file at ``path``.

    Raises:
        UserError: the file is inconsistent.
    """
    try:
        content, net = file.tensors[BYTES].numpy().tobytes(), file.net
        return Program(content, net["architecture"], float(net["divide_by"]), int(net["output"]))
    except MALFORMED as error:
        raise UserError(f"{path}: its description is unreadable: {error}", "import it again") from error


def start(program: Program, name: str) -> Network:
    """Return the program as a function from uint8 stacks (B, 4, 84, 84) to float32 scores (B, A).

    Raises:
        UserError: the content cannot be read, asks for other inputs, or the package that runs it is missing.
    """
    return _onnx(program, name) if program.language == "onnx" else _torchscript(program, name)


def _onnx(program: Program, name: str) -> Network:
    try:
        import onnxruntime
    except ImportError as error:
        raise UserError(
            f"{name}: ONNX Runtime is not installed", f"run `{EXTRAS['onnx'].install}`"
        ) from error
    try:
        session = onnxruntime.InferenceSession(program.content, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors share no class but this one
        reason = str(error).splitlines()[0].rstrip(".")
        raise UserError(
            f"{name}: not a network that ONNX Runtime can run: {reason}", "export it again"
        ) from error
    inputs, outputs = session.get_inputs(), session.get_outputs()
    shape = tuple(inputs[0].shape[1:]) if len(inputs) == 1 else ()
    kinds = {"tensor(uint8)": np.uint8, "tensor(float)": np.float32}
    if shape not in (CHANNELS_FIRST, CHANNELS_LAST) or inputs[0].type not in kinds:
        found = ", ".join(f"{each.name} {each.type} {each.shape}" for each in inputs)
        raise UserError(
            f"{name}: takes {found}; one input (B, 4, 84, 84) or (B, 84, 84, 4), uint8 or float, wanted",
            "export the network that scores the actions of a stack of frames",
        )
    if program.output >= len(outputs):
        raise UserError(
            f"{name}: has {len(outputs)} outputs, output {program.output} is asked for", "give --output"
        )
    dtype, one_by_one = kinds[inputs[0].type], isinstance(inputs[0].shape[0], int)
    if dtype == np.uint8 and program.divide_by != 1.0:
        raise UserError(
            f"{name}: takes uint8 pixels, which cannot be divided by {program.divide_by:g} before it sees them",
            "leave --divide_by out",
        )

    def ask(stacks: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        x = _prepared(stacks, program.divide_by, dtype)
        if shape == CHANNELS_LAST:
            x = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
        parts = x[:, None] if one_by_one else [x]
        wanted = [outputs[program.output].name]
        scores = np.concatenate([session.run(wanted, {inputs[0].name: part})[0] for part in parts])
        return scores.astype(np.float32, copy=False)

    return ask


def _torchscript(program: Program, name: str) -> Network:
    try:
        module = torch.jit.load(io.BytesIO(program.content), map_location="cpu").eval()
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"{name}: not readable as TorchScript: {reason}", "export it again") from error

    def ask(stacks: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        with torch.inference_mode():
            found = module(torch.from_numpy(_prepared(stacks, program.divide_by, np.float32)))
        scores = found[program.output] if isinstance(found, (tuple, list)) else found
        return scores.float().numpy()

    return ask


def _prepared(stacks: npt.NDArray[Any], divide_by: float, dtype: type) -> npt.NDArray[Any]:
    return stacks if dtype == np.uint8 else stacks.astype(np.float32) / np.float32(divide_by)


def probe(network: Network, name: str) -> npt.NDArray[np.float32]:
    """Return the network's scores (2, A) of two random stacks.

    Raises:
        UserError: it fails on them, or gives no finite score for each action.
    """
    stacks = np.random.default_rng(0).integers(0, 256, (2, *CHANNELS_FIRST), np.uint8)
    try:
        scores = np.asarray(network(stacks))
    except Exception as error:
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        raise UserError(
            f"{name}: fails on a stack of frames (2, 4, 84, 84): {reason}",
            "export the network with a free batch size, taking float or uint8 pixels",
        ) from error
    if scores.ndim != 2 or len(scores) != 2 or not np.isfinite(scores).all():
        raise UserError(
            f"{name}: gives {scores.dtype} {scores.shape} for 2 stacks, finite scores (2, actions) wanted",
            "give --output the output that has the Q-values or logits",
        )
    return scores
