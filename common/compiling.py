"""How kernels are compiled: once for a processor, kept for later runs, and not in silence.

Numba keeps what it compiled beside the module's file, or, where that may not be written, in the user's cache folder. It
compiles anew where that file was edited; here also where one was whose kernels the kernel calls.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numba
from numba.core import caching, event

OURS = "spikestill."


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return ``numba.njit`` with these options, which does without keeping where no folder may be written."""

    def compiled(function: Callable[..., Any]) -> Any:
        try:
            kernel = numba.njit(**options)(function)
            if options.get("cache"):
                _note_sources(kernel)
            return kernel
        except RuntimeError:  # no place for a cache
            if not options.get("cache"):
                raise
            return numba.njit(**{**options, "cache": False})(function)

    return compiled


def _note_sources(kernel: Any) -> None:
    """Have what is kept of a kernel hold for as long as all files do that it is compiled from."""
    kept = kernel._cache
    if not isinstance(kept, caching.FunctionCache):
        return
    found: dict[Any, str] = {}
    _sources(kernel.py_func, found)
    files = filter(os.path.exists, sorted(set(found.values())))
    stamps = [(stat.st_mtime, stat.st_size) for stat in map(os.stat, files)]
    kept._cache_file = caching.IndexDataCacheFile(
        cache_path=kept.cache_path, filename_base=kept._impl.filename_base,
        source_stamp=(kept._impl.locator.get_source_stamp(), *stamps),
    )  # fmt: skip


def _sources(function: Any, found: dict[Any, str]) -> None:
    """Note the file of a function and of what of ours it names, and so on through all that is called."""
    if function in found:
        return
    found[function] = function.__code__.co_filename
    names = function.__code__.co_names
    named = [function.__globals__.get(name) for name in names]
    ours = [each for each in named if isinstance(each, ModuleType) and each.__name__.startswith(OURS)]
    named += [getattr(module, name, None) for module in ours for name in names]
    for each in named:
        if not str(getattr(each, "__module__", "")).startswith(OURS):
            continue
        if hasattr(each, "py_func"):
            _sources(each.py_func, found)
        elif hasattr(each, "_defn"):  # an intrinsic
            _sources(each._defn, found)


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
