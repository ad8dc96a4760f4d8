"""Files that are either whole or absent: written beside their place, flushed to disk, then renamed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import math
import os
from collections.abc import Iterator
from pathlib import Path

from spikestill.common.errors import UserError
from spikestill.common.file_lock import take_lock


def no_space(path: Path, error: OSError) -> UserError:
    """Return the error that a full disk gives, for ``path``."""
    return UserError(
        f"{path}: no space left on the disk ({error.strerror or error})",
        "free some space or choose another folder, then run the same command again, with --resume where it takes that",
    )


def is_no_space(error: OSError) -> bool:
    """Return True where ``error`` means a full disk, an exhausted quota or a file at its size limit."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def naming_full_disk(path: Path) -> Iterator[None]:
    """Turn the error of a full disk into one that names ``path`` and the remedy.

    Raises:
        UserError: the disk is full.
    """
    try:
        yield
    except OSError as error:
        if is_no_space(error):
            raise no_space(path, error) from error
        raise


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path in ``path``'s folder; on success flush it and rename it to ``path``.

    On any exception the temporary file is removed and ``path`` is left as it was. What a killed process left of an
    earlier attempt is removed first: a writer holds a lock on its temporary file, which ends with its process.

    Raises:
        UserError: the disk is full, or ``path`` is a folder.
    """
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{path}: is a folder, and a file is to be written there", "give another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    _remove_abandoned(path)
    with naming_full_disk(path), _locked(temporary):
        try:
            yield temporary
            # Some writers make private files; an artefact has the permissions that the user's umask gives.
            temporary.chmod(0o666 & ~_umask())
            with open(temporary, "rb") as written:
                os.fsync(written.fileno())
            os.replace(temporary, path)
            directory = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def _locked(temporary: Path) -> Iterator[None]:
    """Make the file, and hold its lock within.

    Another writer that begins just then may take a file without a lock for an abandoned one and remove it: so it is
    made again until what is locked is what the name stands for.
    """
    while True:
        with open(temporary, "wb") as held:
            take_lock(held.fileno(), "exclusive", math.inf)
            if temporary.exists() and os.path.samestat(os.fstat(held.fileno()), temporary.stat()):
                yield
                return


def _remove_abandoned(path: Path) -> None:
    """Remove the temporary files of ``path`` that nobody writes any more: none where the file system has no locks."""
    for found in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with contextlib.suppress(OSError), open(found, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found.unlink()


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def write_bytes(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path`` atomically.

    An HDF5 file goes through it too, made in memory: where the disk is full, HDF5 cannot close a file on it, and the
    process dies with a segmentation fault at its end.

    Raises:
        UserError: the disk is full.
    """
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically, as UTF-8.

    Raises:
        UserError: the disk is full.
    """
    write_bytes(path, text.encode("utf-8"))
