"""JSON files of ours, read with a limit on their size: every byte of them may be a value that takes sixty in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from spikestill.common.errors import MALFORMED, UserError
from spikestill.common.limits import DOCUMENT_BYTES, regular_file


def read_object(path: Path, what: str, remedy: str) -> dict[str, Any]:
    """Return the JSON object in a file.

    Args:
        path: the file.
        what: what it should be, for the errors, such as ``a pipeline's state``.
        remedy: what to give instead.

    Raises:
        UserError: it is no regular file, too large, or holds no object; the message says "not" and ``what``.
    """
    size = regular_file(path, "file", remedy)
    try:
        if size > DOCUMENT_BYTES:
            raise ValueError(f"it has {size:,} bytes, at most {DOCUMENT_BYTES:,} are read")
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it holds no object")
        return found
    except MALFORMED as error:
        raise UserError(f"{path}: not {what} ({error})", remedy) from error
