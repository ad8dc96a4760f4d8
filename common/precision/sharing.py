"""Rows of integer work shared out to threads: a part for each core, or :func:`at_most` so many; the integers stay."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from spikestill.common.awake import AwakeThread
from spikestill.common.processor import cores

Found = TypeVar("Found")
WORTH_SHARING = 1_000_000
"""Multiply-adds from which handing half to another thread (some 20 us) pays."""
LOOKS = 5000
"""How often a thread looks for work before it sleeps, 1 ms or more: longer than an update goes without any."""
_limit = 0
"""Threads that compute; 0: one a core."""


@contextlib.contextmanager
def at_most(threads: int) -> Iterator[None]:
    """Compute on ``threads`` threads within, 0: one a core. It holds for the whole process, and changes no integer."""
    global _limit
    before, _limit = _limit, threads
    try:
        yield
    finally:
        _limit = before


_beginning = threading.Lock()
_free: list[AwakeThread] | None = None


def free_threads() -> list[AwakeThread]:
    """Return the threads that have no work: at first one for each core but the caller's."""
    global _free
    with _beginning:
        if _free is None:
            _free = [AwakeThread(LOOKS) for _ in range(cores() - 1)]
        return _free


def share(rows: int, step: int, cost: int, work: Callable[[int, int], Found]) -> list[Found]:
    """Return what ``work(first, last)`` gives for the rows, in a part for each thread where ``cost`` is worth it.

    What a part shares out itself it does alone where the threads have their parts already.

    Args:
        rows: how many.
        step: parts are multiples of it.
        cost: multiply-adds, or as much work.
        work: of a part.
    """
    others: list[AwakeThread] = []
    if cost >= WORTH_SHARING:
        with contextlib.suppress(IndexError):  # another caller has the rest
            while len(others) < min(_limit or cores(), -(-rows // step)) - 1:
                others.append(free_threads().pop())
    threads = len(others) + 1
    size = max(step, -(-rows // threads // step) * step)
    parts = [(first, min(first + size, rows)) for first in range(0, rows, size)]
    asked = others[: len(parts) - 1]
    for other, part in zip(asked, parts[1:], strict=True):
        other.ask(functools.partial(work, *part))
    try:
        found = [work(*part) for part in parts[:1]] + [other.answer() for other in asked]
    except BaseException:
        for other in asked:  # with an answer that nobody fetches
            other.leave()
        others = [*others[len(asked) :], *(AwakeThread(LOOKS) for _ in asked)]
        raise
    finally:
        free_threads().extend(others)
    return found
