"""Whether a file may be written where the user said: asked before the work that fills it, not after."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from spikestill.common.errors import UserError

HEAD_BYTES = 4096


def check_target(path: Path, noun: str, is_one: Callable[[Path, bytes], bool]) -> None:
    """Check that ``path`` can be written, and that nothing but an earlier file of the same kind is replaced.

    Args:
        path: where to write. What is no regular file, such as ``/dev/stdout``, is let through.
        noun: what will be written, for the errors.
        is_one: tells of a file that is there, and of its first :data:`HEAD_BYTES`, whether it is such a one.

    Raises:
        UserError: another file or a folder is there, or its folder cannot be written to.
    """
    if path.is_dir():
        raise UserError(
            f"{path}: is a folder, and a {noun} is to be written there", "give the name of a file"
        )
    if path.exists() and not path.is_file():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
        head = b""
        if path.exists():
            with open(path, "rb") as file:
                head = file.read(HEAD_BYTES)
    except OSError as error:
        raise UserError(
            f"{path}: no {noun} can be written there ({error.strerror or error})", "choose another place"
        ) from error
    if head and not is_one(path, head):
        raise UserError(
            f"{path}: is there already, is no {noun}, and would be replaced",
            "choose another name, or move it away",
        )
