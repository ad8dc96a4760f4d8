"""What a program finds around it when it starts: open descriptors, what the environment says of threads."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping

from spikestill.common.errors import UserError

THREAD_COUNTS = (
    "NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS",
)  # fmt: skip
MOST_THREADS = 4096
SPINS = "3000"
"""How often a thread of PyTorch looks for work before it sleeps. GNU OpenMP's own number is a hundred times as much."""


def open_closed_streams() -> None:
    """Put /dev/null where standard input, output or error is closed.

    The next file that is opened would get its number, and what some library prints would go into it.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


def spin_briefly(environment: MutableMapping[str, str]) -> None:
    """Let PyTorch's threads wait for each other without keeping the cores from other programs; before it is loaded.

    Two trainings on two cores take turns in spinning otherwise, and each is four times slower than beside one that
    sleeps. What the environment says itself stands.
    """
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", SPINS)


def check_thread_counts(environment: Mapping[str, str]) -> None:
    """Raise UserError where the environment asks the libraries for a number of threads that is none."""
    for name in THREAD_COUNTS:
        given = environment.get(name)
        if not given:
            continue
        # OpenMP takes a list, a count for each level of nesting.
        counts = given.split(",") if name == "OMP_NUM_THREADS" else [given]
        if not all(
            count.strip().isdecimal() and len(count) < 9 and 1 <= int(count) <= MOST_THREADS
            for count in counts
        ):
            raise UserError(
                f"{name} is {given[:40]!r} in the environment, a number of threads is 1..{MOST_THREADS}",
                f"unset {name}",
            )
