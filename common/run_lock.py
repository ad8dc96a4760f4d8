"""One command at a time in a run folder: the second one says who is there."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from spikestill.common.errors import UserError
from spikestill.common.file_lock import take_lock

NAME = ".lock"
NOTE_BYTES = 4096


@contextlib.contextmanager
def run_lock(run_dir: Path, verb: str, name: str = NAME) -> Iterator[None]:
    """Hold the lock of a run folder, which is made if absent, and removed where it is empty in the end.

    The kernel lets go of it when the process ends, however it ends. Where the file system has no locks, there is none.

    Args:
        run_dir: the folder.
        verb: who holds it, for the message that others get.
        name: the lock's file; commands that only read a run's files have locks of their own.

    Raises:
        UserError: another process holds it, or ``run_dir`` is not a folder that can be written.
    """
    if run_dir.exists() and not run_dir.is_dir():
        raise UserError(f"--run_dir {run_dir} is a file, a folder is wanted", "give the name of a folder")
    made = not run_dir.exists()
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        descriptor = _open(run_dir / name, run_dir, verb)
    except OSError as error:
        if made:
            with contextlib.suppress(OSError):
                run_dir.rmdir()
        raise UserError(
            f"--run_dir {run_dir}: cannot be written ({error.strerror})", "give a folder that you may write"
        ) from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            (run_dir / name).unlink()
        os.close(descriptor)
        if made:
            with contextlib.suppress(OSError):
                run_dir.rmdir()


def _open(path: Path, run_dir: Path, verb: str) -> int:
    """Return the lock's descriptor, held.

    Raises:
        UserError: another process holds it.
    """
    while True:
        descriptor = os.open(
            path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666
        )
        try:
            try:
                take_lock(descriptor, "exclusive")
            except BlockingIOError as error:
                raise UserError(
                    f"{run_dir}: {_holder(descriptor)} is at work there",
                    "wait for it, or give another --run_dir",
                ) from error
            # The one before may have removed the file between our opening and locking it.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    note = {
                        "command": verb,
                        "process": os.getpid(),
                        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
                    }
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, json.dumps(note).encode(), 0)
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _holder(descriptor: int) -> str:
    """Return who says that it holds the lock."""
    try:
        note = json.loads(os.pread(descriptor, NOTE_BYTES, 0))
        return f"`spikestill {note['command']}` (process {note['process']}, since {note['since']})"
    except (OSError, ValueError, LookupError, TypeError):
        return "another command"
