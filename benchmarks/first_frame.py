"""How long a player waits: `spikestill play pong` in a terminal, from its start to the first frame that is shown.

    python -m benchmarks.first_frame [--repeats 3] [--python build/base/bin/python]

``first`` is the first time, with an empty cache of kernels, ``warm`` every time after it. ``line_s`` is when the first
line says what is loading, ``frame_s`` when the first frame stands in the terminal (a pseudo terminal of 120 x 40),
``resident_mb`` the most that the playing process had resident, ``drawing_mb`` the most that the process which draws had
two seconds later. Writes ``benchmarks/results/first_frame.json``.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import math
import os
import pty
import re
import select
import statistics
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import Any

from benchmarks.measurement import finish

GAME = "pong"
SECONDS = 6.0
"""Of play."""
LATER_S = 2.0
"""From the first frame to the reading of the memory."""
MB = 1e6


def play(python: str, cache: Path, folder: Path) -> dict[str, float]:
    """Play for a few seconds with the kernels in ``cache``; return what was measured."""
    words = ["-m", "spikestill", "play", GAME, "--seconds", f"{SECONDS:g}", "--run_dir", str(folder)]
    began_s = time.perf_counter()
    process, terminal = pty.fork()
    if not process:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        os.environ["NUMBA_CACHE_DIR"] = str(cache)
        os.execv(python, [python, *words])
    found: dict[str, float] = {}
    shown = b""
    while True:
        readable = select.select([terminal], [], [], 0.1)[0]
        now_s = time.perf_counter() - began_s
        with contextlib.suppress(OSError):  # one of them has ended
            if "drawing_mb" not in found and now_s > found.get("frame_s", math.inf) + LATER_S:
                drawing = max(map(most_resident_bytes, children(process)), default=0)
                found |= {"drawing_mb": round(drawing / MB)} if drawing else {}
        if not readable:
            continue
        try:
            shown += os.read(terminal, 65_536)
        except OSError:  # it has ended
            break
        if b"\n" in shown:
            found.setdefault("line_s", round(now_s, 2))
        if "▀".encode() in shown:
            found.setdefault("frame_s", round(now_s, 2))
            shown = b""
    os.close(terminal)
    _, status, usage = os.wait4(process, 0)
    if status or "drawing_mb" not in found:
        sys.exit(f"{python} {' '.join(words)} ended with status {status} and said\n{shown.decode()}")
    return {**found, "resident_mb": round(usage.ru_maxrss * 1024 / MB)}


def children(process: int) -> list[int]:
    """Return the children of a process, whichever of its threads started them."""
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    return [int(number) for task in tasks for number in task.read_text(encoding="ascii").split()]


def most_resident_bytes(process: int) -> int:
    """Return the most that a process has had resident so far."""
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def summary(runs: list[dict[str, float]]) -> dict[str, Any]:
    """Return the medians of several runs, and the runs."""
    return {**{name: statistics.median(run[name] for run in runs) for name in runs[0]}, "runs": runs}


def main() -> None:
    """Play with an empty cache, then with a full one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--python", default=sys.executable, help="of the environment in which it plays")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        caches = [Path(name) / f"kernels-{index}" for index in range(options.repeats)]
        first = [play(options.python, cache, Path(name) / "play") for cache in caches]
        warm = [play(options.python, caches[-1], Path(name) / "play") for _ in caches]
    figures = {"game": GAME, "load_before": round(load, 2)}
    finish("first_frame", {**figures, "first": summary(first), "warm": summary(warm)})


if __name__ == "__main__":
    main()
