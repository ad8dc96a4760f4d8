"""How an agent spreads its work over two threads: always cut the same way, whether there are two threads or one.

What is cut depends on the agent alone, never on the machine, so a result is the same bit for bit on any number of
cores.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

Both = Callable[[Callable[[int], Any], int], list[Any]]
"""``both(work, n)`` returns [work(0), ..., work(n - 1)], together where there are threads."""


def in_turn(work: Callable[[int], Any], number: int) -> list[Any]:
    """Do one piece of work after the other."""
    return [work(index) for index in range(number)]


def beside(other: Executor) -> Both:
    """Return a ``Both`` that does every second piece of work on the other thread; such work must not call it again."""

    def both(work: Callable[[int], Any], number: int) -> list[Any]:
        if number < 2:
            return in_turn(work, number)
        begun = other.submit(lambda: [work(index) for index in range(1, number, 2)])
        try:
            ours = [work(index) for index in range(0, number, 2)]
        except BaseException:
            begun.cancel()
            raise
        theirs = begun.result()
        return [(theirs if index % 2 else ours)[index // 2] for index in range(number)]

    return both


def side_by_side(both: Both, *work: Callable[[], Any]) -> list[Any]:
    """Do different pieces of work, none of which reads what another writes; return what each returns."""
    return both(lambda index: work[index](), len(work))
