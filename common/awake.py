"""A thread that stays awake for a moment after its work, for the next piece of it: waking one takes 30 to 100 us."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from spikestill.common.compiling import njit

give_way = types.ExternalFunction("sched_yield", types.int32())
"""Give the core away, for a moment, to whoever asks for it; for compiled code."""


@njit(cache=True, nogil=True)
def _await(count_1: npt.NDArray[np.int64], wanted: int, looks: int) -> None:
    """Return when the count is there, or after so many looks; between two the core is another's who asks for it."""
    for _ in range(looks):
        if count_1[0] >= wanted:
            return
        give_way()


class AwakeThread:
    """A thread that does what it is asked, one thing after the other; the queues alone say what is done.

    Args:
        looks: how often each side looks for the other before it sleeps; 5,000 take 1 ms or more.
    """

    def __init__(self, looks: int) -> None:
        self._looks = looks
        self._asked: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._answered: SimpleQueue[tuple[BaseException | None, Any]] = SimpleQueue()
        self._asked_1, self._answered_1 = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def ask(self, work: Callable[[], Any]) -> None:
        """Have ``work()`` done."""
        # The count first: who sees it waits for the work, and who does not would never look.
        self._asked_1 += 1
        self._asked.put(work)

    def answer(self) -> Any:
        """Return what the work returned that was asked for first and not answered yet, or raise what it raised."""
        _await(self._answered_1, self._asked_1[0], self._looks)
        error, found = self._answered.get()
        if error is not None:
            raise error
        return found

    def _wait(self, wanted: int) -> None:
        """Return when so much was asked for, or earlier."""
        _await(self._asked_1, wanted, self._looks)

    def _serve(self) -> None:
        np.seterr(all="ignore")  # what overflows in a format is told by the agents
        while True:
            self._wait(self._answered_1[0] + 1)
            work = self._asked.get()
            if work is None:
                return
            try:
                found = work()
            except BaseException as error:
                self._answered.put((error, None))
            else:
                self._answered.put((None, found))
                del found
            del work  # and with it what it holds, while nothing is asked
            self._answered_1 += 1

    def leave(self) -> None:
        """Have the thread end after what it was asked."""
        self._asked_1 += 1
        self._asked.put(None)

    def close(self) -> None:
        """End the thread."""
        self.leave()
        self._thread.join()
