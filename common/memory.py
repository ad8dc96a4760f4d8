"""The memory that this process may still take."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from spikestill.common.errors import UserError


def free_memory() -> int:
    """Return the bytes of memory that this process could be given now, by the machine and by its control group."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return min(int(line.split()[1]) * 1024, group_memory())
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def group_memory(root: Path = Path("/sys/fs/cgroup"), process: Path = Path("/proc/self/cgroup")) -> int:
    """Return the bytes that the process's control group and those around it leave free; ``sys.maxsize`` without limits.

    A container, a Slurm job or a systemd slice that goes over its limit is killed without a word (Linux, cgroup v2:
    ``memory.max`` - ``memory.current``, where file pages that can be dropped are not counted).

    Args:
        root: where the hierarchy is mounted.
        process: the file that says in which group the process is.
    """
    free = sys.maxsize
    try:
        group = next(
            line.partition("::")[2] for line in process.read_text().splitlines() if line.startswith("0::")
        )
    except (OSError, StopIteration):
        return free
    folder = root / group.strip("/")
    for each in (folder, *folder.parents):
        if not each.is_relative_to(root):
            break
        try:
            limit, used = (
                (each / "memory.max").read_text().strip(),
                int((each / "memory.current").read_text()),
            )
            rows = (line.split() for line in (each / "memory.stat").read_text().splitlines())
            droppable = next((int(row[1]) for row in rows if row[0] == "inactive_file"), 0)
        except (OSError, ValueError):
            continue
        if limit != "max":
            free = min(free, max(0, int(limit) - used + droppable))
    return free


@contextlib.contextmanager
def room_for(
    option: str, frames: int, frame_bytes: int, filled: int, lower: str | None = None
) -> Iterator[None]:
    """Refuse a ring that outgrows the memory before it is filled; its arrays are to be made within.

    NumPy's zeros take memory only as they are written: a ring that is too large ends a training hours later.

    Args:
        option: that says how many frames the ring holds.
        frames: its value.
        frame_bytes: of each of them.
        filled: frames that a training puts into the ring: where it has room for more, that room takes no memory.
        lower: the option to lower, where ``option`` is more than one.

    Raises:
        UserError: what will be filled is larger than the free memory, or the system refuses the whole.
    """

    def refusal(needed: int, free: int) -> UserError:
        return UserError(
            f"{option} {frames} needs {needed / 1e9:,.2f} GB of memory, {free / 1e9:,.2f} GB are free",
            f"lower --{lower or option}",
        )

    needed, free = min(frames, filled) * frame_bytes, free_memory()
    if needed > free:
        raise refusal(needed, free)
    try:
        yield
    except MemoryError as error:
        raise refusal(frames * frame_bytes, free) from error
