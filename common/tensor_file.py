"""The header of a safetensors file of ours: schema, version, and what every reader refuses; needs NumPy alone."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from spikestill.common.errors import MALFORMED, UserError
from spikestill.common.limits import HEADER_BYTES, TENSORS, regular_file
from spikestill.common.provenance import check_schema


@contextlib.contextmanager
def open_tensor_file(
    path: Path,
    schema: str,
    newest: int,
    remedy: str,
    *,
    noun: str,
    framework: Literal["numpy", "pt"] = "numpy",
) -> Iterator[tuple[Any, dict[str, str]]]:
    """Open a safetensors file of ``schema``, version 1 to ``newest``: (open file, metadata).

    Whatever its content makes the body raise becomes an error that names the file.

    Args:
        path: the file.
        schema, newest: what its metadata must say.
        remedy: what to give instead.
        noun: what it should be, for the errors, such as ``student``.
        framework: whose tensors the open file returns, NumPy's or PyTorch's.

    Raises:
        UserError: the file is missing, truncated, foreign, newer, or its content does not fit.
    """
    from safetensors import SafetensorError, safe_open

    regular_file(path, "file", remedy)
    try:
        check_header(path)
        with safe_open(path, framework=framework) as file:
            metadata = file.metadata() or {}
            check_schema(path, metadata, schema, newest, remedy)
            if len(file.keys()) > TENSORS:
                raise ValueError(f"it names {len(file.keys()):,} tensors, at most {TENSORS:,} are read")
            yield file, metadata
    except UserError:
        raise
    except (SafetensorError, *MALFORMED) as error:
        raise UserError(f"{path}: not a readable {noun}: {error}", remedy) from error


def sort_metadata(content: bytes) -> bytes:
    """Return a safetensors file, or its part up to the end of the header, with the metadata in the order of its keys.

    The library writes them in an order that changes from call to call, so that equal content would hash to different
    files. The length stays: both write the shortest JSON, and what is over is filled with spaces, as the library does.
    """
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    return content[:8] + text.ljust(end - 8) + content[end:]


def sort_metadata_of(path: Path) -> None:
    """Do so in the file at ``path``, which the library has just written, without reading its tensors."""
    with open(path, "r+b") as file:
        size = file.read(8)
        head = size + file.read(int.from_bytes(size, "little"))
        file.seek(0)
        file.write(sort_metadata(head))


def read_metadata(path: Path) -> dict[str, Any]:
    """Return the metadata of a safetensors file from its header alone; no tensor is read.

    Raises:
        ValueError: it is none, or not as long as its header says.
        OSError: the file cannot be read.
    """
    size = check_header(path)
    with open(path, "rb") as file:
        file.seek(8)
        header = json.loads(file.read(size))
    metadata = dict(header.pop("__metadata__", {}))
    wanted = 8 + size + max((int(tensor["data_offsets"][1]) for tensor in header.values()), default=0)
    found = path.stat().st_size
    if found != wanted:
        raise ValueError(f"it has {found:,} bytes, its header speaks of {wanted:,}")
    return metadata


def check_header(path: Path) -> int:
    """Return how many bytes a safetensors file says that its header has; each of them costs time and memory.

    Raises:
        ValueError: fewer than any has, or more than are read.
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        head = file.read(8)
    size = int.from_bytes(head, "little")
    if len(head) < 8 or not 2 <= size <= HEADER_BYTES:
        raise ValueError(f"its header has {size:,} bytes, 2..{HEADER_BYTES:,} are read")
    return size
