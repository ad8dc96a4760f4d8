"""A teacher that is a program: any network as ONNX or TorchScript, kept whole in the teacher's file.

    q (B, A) = network(stacks (B, 4, 84, 84) / divide_by)[output]

The file is the teacher's safetensors with the program's bytes as one uint8 tensor. ONNX Runtime and TorchScript's own
interpreter run it, in a process that can compute and nothing else (``teacher/program_child.py``): TorchScript has
operators that read and write files. Python's pickle has no part in either.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from spikestill.common.atari import MAX_ACTIONS, STACK
from spikestill.common.errors import MALFORMED, UserError
from spikestill.common.guard import LENGTH, ONE_THREAD, WALL_EXTRA_S, WALL_FACTOR, Answer, Arrays
from spikestill.common.limits import (
    MIB,
    PROGRAM_BYTES_PER_S,
    PROGRAM_MEMORY,
    PROGRAM_SECONDS,
    PROGRAM_SECONDS_A_STACK,
    PROGRAM_START_S,
)
from spikestill.common.provenance import Provenance
from spikestill.common.tensors import write_tensors
from spikestill.teacher.checkpoint import TEACHER_SCHEMA, TeacherFile

Language = Literal["onnx", "torchscript"]
LANGUAGES = ("onnx", "torchscript")
Network = Callable[[npt.NDArray[Any]], npt.NDArray[np.float32]]
BYTES = "program"
START = "import sys; sys.path[:] = sys.argv[3:]; from spikestill.teacher.program_child import main; main()"


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

    It runs in a confined process of its own, which ends with the function.

    Raises:
        UserError: the content cannot be read, asks for other inputs, or the package that runs it is missing.
    """
    return ConfinedProgram(program, name)


class ConfinedProgram:
    """A program in a process without rights; calls of several threads wait for each other.

    Args:
        program: the network.
        name: the file that it came from, for error messages.

    Raises:
        UserError: the program cannot be started, or takes more time or memory than it may.
    """

    def __init__(self, program: Program, name: str) -> None:
        self._name, self._turn = name, threading.Lock()
        reading, its_end = os.pipe()
        its_start, writing = os.pipe()
        # Python's start and the engine's are not the program's: its time is counted from when it has read the content.
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, its_end)
            stack.callback(os.close, its_start)
            self._process = subprocess.Popen(
                [sys.executable, "-c", START, str(its_start), str(its_end), *sys.path],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=[its_start, its_end], start_new_session=True, env=os.environ | ONE_THREAD, cwd="/",
            )  # fmt: skip
        self._end = weakref.finalize(self, _end, self._process, reading, writing)
        self._reading, self._writing = reading, writing
        header = {
            "language": program.language, "divide_by": program.divide_by, "output": program.output,
            "bytes": len(program.content), "memory": PROGRAM_MEMORY + 4 * len(program.content),
        }  # fmt: skip
        text = json.dumps(header).encode()
        size_s = len(program.content) / PROGRAM_BYTES_PER_S
        found, _ = self._ask([LENGTH.pack(len(text)) + text, program.content], PROGRAM_START_S + size_s, 0)
        self._left_s = PROGRAM_SECONDS + size_s
        if found.get("value") == "started":
            before = _processor_s(self._process.pid)
            found, _ = self._ask([], self._left_s, 0)
            # Reading and the first answer have one limit together.
            self._left_s -= _processor_s(self._process.pid) - before
        if "error" in found:
            self.close()
            raise UserError(f"{name}: {found['error']}", found.get("remedy") or "export it again")

    def __call__(self, stacks: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Return the scores, float32, of uint8 stacks (B, 4, 84, 84).

        Raises:
            UserError: the program fails on them, or takes more time or memory than it may.
        """
        batch = len(stacks)
        content = np.ascontiguousarray(stacks, np.uint8)
        with self._turn:
            seconds = self._left_s + PROGRAM_SECONDS_A_STACK * batch
            found, arrays = self._ask(
                [LENGTH.pack(batch), content.reshape(-1).data], seconds, MIB + batch * 8 * MAX_ACTIONS
            )
            self._left_s = PROGRAM_SECONDS
        if "error" in found:
            raise UserError(f"{self._name}: {found['error']}", "export it again")
        scores = arrays.get("scores")
        if scores is None or scores.dtype.kind not in "iufb":
            raise self._failed("answered nonsense")
        return scores.astype(np.float32, copy=False)

    def close(self) -> None:
        """End the process."""
        self._end()

    def _ask(self, parts: list[bytes | memoryview], seconds: float, array_bytes: int) -> tuple[Any, Arrays]:
        deadline = time.monotonic() + WALL_FACTOR * seconds + WALL_EXTRA_S
        watch = _Watch(self._process.pid, seconds)
        try:
            for part in parts:
                _send(self._writing, part, deadline)
            return Answer(self._reading, deadline, watch).read(array_bytes)
        except (EOFError, BrokenPipeError) as error:
            raise self._failed(
                "ended: it crashed, or asked for more memory than a program may have"
            ) from error
        except TimeoutError as error:
            raise self._failed(f"had no answer after {seconds:.2g} s of the processor's time") from error
        except (ValueError, LookupError, TypeError) as error:
            raise self._failed(f"answered nonsense ({error})") from error

    def _failed(self, what: str) -> UserError:
        self.close()
        return UserError(f"{self._name}: the program {what}", "give a network that scores a stack of frames")


class _Watch:
    """Raises TimeoutError once a process has used more of the processor's time than it may."""

    def __init__(self, process: int, seconds: float) -> None:
        self._process = process
        self._limit = _processor_s(process) + seconds

    def __call__(self) -> None:
        if _processor_s(self._process) > self._limit:
            raise TimeoutError


def _processor_s(process: int) -> float:
    """Return the processor's time of a process, 0 where it is gone or the system has no /proc: then the clock holds."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
        fields = stat.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


def _send(descriptor: int, content: bytes | memoryview, deadline: float) -> None:
    view = memoryview(content).cast("B")
    os.set_blocking(descriptor, False)
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    while len(view):
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError
        view = view[os.write(descriptor, view[: 1 << 16]) :]


def _end(process: subprocess.Popen[bytes], *descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
    process.kill()
    process.wait()


def probe(network: Network, name: str) -> npt.NDArray[np.float32]:
    """Return the network's scores (2, A) of two random stacks.

    Raises:
        UserError: it fails on them, or gives no finite score for each action.
    """
    stacks = np.random.default_rng(0).integers(0, 256, (2, *STACK.shape), np.uint8)
    try:
        scores = np.asarray(network(stacks))
    except UserError as error:
        reason = error.what.removeprefix(f"{name}: ")
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
