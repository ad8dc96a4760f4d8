"""The header of a safetensors file of ours: schema, version, and what every reader refuses; needs NumPy alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from spikestill.common.errors import MALFORMED, UserError
from spikestill.common.limits import regular_file
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
        with safe_open(path, framework=framework) as file:
            metadata = file.metadata() or {}
            check_schema(path, metadata, schema, newest, remedy)
            yield file, metadata
    except UserError:
        raise
    except (SafetensorError, *MALFORMED) as error:
        raise UserError(f"{path}: not a readable {noun}: {error}", remedy) from error
