"""The process of one stage run: ``spikestill VERB ...`` on a share of the cores, that ends when its parent does.

    python -m spikestill.sweep.child PARENT CORES VERB ...

CORES are the numbers of the cores to keep to, joined by commas; empty: all.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def end_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies; end at once where it has died already."""
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


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
