"""What a Lava session can leave on the machine: processes of its group, and shared memory nobody maps."""

from __future__ import annotations

import time
from pathlib import Path


def _retrying(find, seconds: float = 3.0) -> list:
    """Return what ``find`` finds once it finds nothing, or after ``seconds``."""
    deadline = time.monotonic() + seconds
    while (found := find()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def group_members(group: int) -> list[int]:
    """Return the living processes (no zombies) of a process group."""
    members = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, found = path.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(found) == group and state not in "ZX":
            members.append(int(path.parent.name))
    return members


def surviving_processes(group: int) -> list[int]:
    return _retrying(lambda: group_members(group))


def _unmapped() -> list[str]:
    mapped = ""
    for path in Path("/proc").glob("[0-9]*/maps"):
        try:
            mapped += path.read_text()
        except OSError:
            continue
    return [file.name for file in Path("/dev/shm").glob("psm_*") if file.name not in mapped]


def leaked_shared_memory(before: set[str]) -> list[str]:
    return _retrying(lambda: [name for name in _unmapped() if name not in before])
