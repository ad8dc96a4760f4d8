"""The process of one stage run: ``spikestill VERB ...`` on a share of the cores, that ends when its parent does.

    python -m spikestill.sweep.child PARENT CORES VERB ...

CORES are the numbers of the cores to keep to, joined by commas; empty: all.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time

from spikestill.common.stage import ONCE

PERIOD_S = 0.3
"""Between two looks for what is waited for."""
STOP_S = 120.0
"""Seconds that a stage has to save and end once it is asked to stop, or its parent is gone."""


def end_with_parent(parent: int) -> None:
    """Ask the stage of this process to save and end when its parent is gone; end at once where it is gone already."""
    threading.Thread(target=_outlive, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def _outlive(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PERIOD_S)
    os.kill(os.getpid(), ONCE)
    time.sleep(STOP_S)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    """Run the verb; return its exit status."""
    parent, chosen, *words = sys.argv[1:]
    end_with_parent(int(parent))
    numbers = {int(number) for number in chosen.split(",") if number}
    if numbers and hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, numbers)
    from spikestill.cli import main as spikestill

    return spikestill(words)


if __name__ == "__main__":
    sys.exit(main())
