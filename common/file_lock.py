"""Locks of open files (flock): readers share one, a writer has it alone; a file system without them grants all."""

from __future__ import annotations

import errno
import fcntl
import time
from typing import Literal

LET_GO_S = 1.0
"""A process that was killed may have helpers with the file open, which end within this time."""
POLL_S = 0.01
KINDS = {"shared": fcntl.LOCK_SH, "exclusive": fcntl.LOCK_EX}


def take_lock(descriptor: int, kind: Literal["shared", "exclusive"], patience_s: float = 0.0) -> None:
    """Take the lock of an open file; it ends with the descriptor and every copy of it.

    Args:
        descriptor: of the file.
        kind: whether others may have it too.
        patience_s: for how long to try again while another process has it, seconds.

    Raises:
        BlockingIOError: another process has it.
    """
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(descriptor, KINDS[kind] | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN):
                return
            if time.monotonic() >= deadline_s:
                raise BlockingIOError(error.errno, "unable to lock file") from error
            time.sleep(POLL_S)
        else:
            return
