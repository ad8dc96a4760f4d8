"""How kernels are compiled: once for a processor, kept for later runs, and not in silence.

Numba keeps what it compiled beside the module's file, or, where that may not be written, in the user's cache folder.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numba
from numba.core import event

OURS = "spikestill."


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return ``numba.njit`` with these options, which does without keeping where no folder may be written."""

    def compiled(function: Callable[..., Any]) -> Any:
        try:
            return numba.njit(**options)(function)
        except RuntimeError:  # no place for a cache
            if not options.get("cache"):
                raise
            return numba.njit(**{**options, "cache": False})(function)

    return compiled


class Announcer(event.Listener):
    """Says on standard error that a kernel of ours is compiled, once; those that were kept say nothing."""

    def __init__(self) -> None:
        self.said = False

    def on_start(self, event: Any) -> None:
        """Take in that a function is about to be compiled."""
        dispatcher = event.data["dispatcher"]
        if self.said or not str(dispatcher.py_func.__module__).startswith(OURS):
            return
        self.said = True
        folder = dispatcher.stats.cache_path
        kept = (
            f"; later runs find them in {folder}"
            if folder
            else ", in every run, for no folder can be written"
        )
        print(f"spikestill: compiles kernels for this processor{kept}", file=sys.stderr, flush=True)

    def on_end(self, event: Any) -> None:
        """Take in that it has been compiled."""


event.register("numba:compile", Announcer())
