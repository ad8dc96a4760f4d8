"""An ONNX network as one file, whatever files beside it its weights lie in.

``torch.onnx.export`` leaves weights in ``NAME.onnx.data`` unless it is told otherwise. Only files in the network's own
folder are opened, links resolved; the network itself is parsed in a confined process (``teacher/onnx_child.py``).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, NamedTuple

from spikestill.common.errors import UserError
from spikestill.common.extras import EXTRAS
from spikestill.common.guard import Guard, GuardedError
from spikestill.common.limits import MIB, PROGRAM_BYTES_PER_S, PROGRAM_MEMORY, regular_file

BESIDE = "put that file beside it, as it was exported"
SECONDS = 1.0
"""Processor seconds that a network may take to be parsed, beside what its bytes need."""
_guard = Guard("spikestill.teacher.onnx_child", "the reader of ONNX")


class Outside(NamedTuple):
    """A tensor whose weights lie in another file.

    Attributes:
        name: of the tensor.
        place: the file as the network names it, from the network's folder on.
        offset: where they begin.
        length: how many bytes, -1 for all from there on.
    """

    name: str
    place: str
    offset: int
    length: int


def with_its_weights(path: Path, content: bytes, check_size: Callable[[Path, int], None]) -> bytes:
    """Return an ONNX network as one file: weights that lie in files beside ``path`` are put into it.

    Args:
        path: where it was read from.
        content: the network.
        check_size: raises UserError where so many bytes are too many for the file.

    Raises:
        UserError: such a file is missing or unreadable, the whole is too large, or the package onnx is missing.
    """
    if find_spec("onnx") is None:
        raise UserError(
            f"{path}: the package that reads ONNX is not installed", f"run `{EXTRAS['onnx'].install}`"
        )
    with tempfile.TemporaryFile() as network, tempfile.TemporaryFile() as weights:
        network.write(content)
        tensors = [Outside(*each) for each in _asked(path, "outside", [network], {}) or []]
        if not tensors:
            return content
        places = {tensor.place: _place(path, tensor) for tensor in tensors}
        named = ", ".join(sorted(places))[:300]
        try:
            lengths = [_length(tensor, places[tensor.place]) for tensor in tensors]
            check_size(path, len(content) + sum(lengths))
            for tensor, length in zip(tensors, lengths, strict=True):
                with open(places[tensor.place], "rb") as file:
                    file.seek(tensor.offset)
                    _copy(file, weights, length)
        except UserError:
            raise
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise UserError(
                f"{path}: its weights lie in {named}, which cannot be read: {reason}", BESIDE
            ) from error
        arrays = _asked(path, "whole", [network, weights], {"lengths": lengths})
        return bytes(arrays["network"].data)


def _asked(path: Path, function: str, files: list[IO[bytes]], arguments: dict[str, Any]) -> Any:
    """Return what a function of the child gives for the files: its value, or where that is None its arrays."""
    sizes = []
    for file in files:
        file.flush()
        file.seek(0)
        sizes.append(os.fstat(file.fileno()).st_size)
    try:
        value, arrays = _guard.call(
            function, arguments, [file.fileno() for file in files],
            memory=PROGRAM_MEMORY + 4 * sum(sizes), seconds=SECONDS + sum(sizes) / PROGRAM_BYTES_PER_S,
            array_bytes=2 * sum(sizes) + MIB,
        )  # fmt: skip
    except GuardedError as error:
        raise UserError(f"{path}: not a readable ONNX network: {error}", "export it again") from error
    return arrays or value


def _place(path: Path, tensor: Outside) -> Path:
    """Return the file of a tensor's weights.

    Raises:
        UserError: none is named, it is outside the network's folder, or no regular file.
    """
    if not tensor.place:
        raise UserError(
            f"{path}: the weights {tensor.name!r} lie in a file beside it, and no file is named",
            "export the network again",
        )
    folder = path.resolve().parent
    try:
        found = (folder / tensor.place).resolve()
        inside = found.is_relative_to(folder)
    except (OSError, ValueError, RuntimeError):  # a zero byte in the name, links in a circle
        inside = False
    if not inside:
        raise UserError(
            f"{path}: its weights lie in {tensor.place[:200]!r}, outside its folder",
            "put that file beside the network",
        )
    if found.exists():
        regular_file(found, "network's weights", BESIDE)
    return found


def _length(tensor: Outside, file: Path) -> int:
    """Return how many bytes a tensor takes from its file; each tensor gets a copy of its own.

    Raises:
        ValueError: the file does not have them.
    """
    size = file.stat().st_size
    length = size - tensor.offset if tensor.length == -1 else tensor.length
    if tensor.offset < 0 or length < 0 or tensor.offset + length > size:
        raise ValueError(
            f"{tensor.name!r} has {length:,} bytes from {tensor.offset:,} on, the file has {size:,}"
        )
    return length


def _copy(source: IO[bytes], target: IO[bytes], size: int) -> None:
    while size:
        part = source.read(min(size, MIB))
        if not part:
            raise ValueError("it became shorter while it was read")
        target.write(part)
        size -= len(part)
