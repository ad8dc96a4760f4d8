"""How an agent spreads its work over two threads: always cut the same way, whether there are two threads or one.

What is cut depends on the agent alone, never on the machine, so a result is the same bit for bit on any number of
cores.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.common.compiling import njit
from spikestill.common.precision.rounding import Rounding
from spikestill.teacher.control import program_kernel
from spikestill.teacher.control.program_kernel import give_way

Both = Callable[[Callable[[int], Any], int], list[Any]]
"""``both(work, n)`` returns [work(0), ..., work(n - 1)], together where there are threads."""
LOOKS = 500
"""How often a thread looks for work before it sleeps: 0.1 ms."""

TURN_S = 1e-4
"""How long a thread waits for the interpreter's lock before it asks for it."""


@njit(cache=True, nogil=True)
def _await(count_1: npt.NDArray[np.int64], wanted: int) -> None:
    """Return when the count is there, or after so many looks; between two the core is another's who asks for it."""
    for _ in range(LOOKS):
        if count_1[0] >= wanted:
            return
        give_way()


@contextlib.contextmanager
def quick_turns() -> Iterator[None]:
    """Let threads ask for the interpreter's lock after ``TURN_S`` within; Python has them wait for 5 ms.

    An agent's products release the lock for some 0.1 ms each, and between them hold it for a tenth of that.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(TURN_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def in_turn(work: Callable[[int], Any], number: int) -> list[Any]:
    """Do one piece of work after the other."""
    return [work(index) for index in range(number)]


def side_by_side(both: Both, *work: Callable[[], Any]) -> list[Any]:
    """Do different pieces of work, none of which reads what another writes; return what each returns."""
    return both(lambda index: work[index](), len(work))


class OtherThread:
    """A thread that does every second piece of work: a ``Both``, which the work itself must not call.

    To wake a thread takes 30 us, and an update of 1.5 ms has four places where one waits for the other. So each stays
    awake for a moment; the queues alone say what is done. From its first program on it waits in compiled code, where no
    other thread's hold of the interpreter keeps it from its part.
    """

    def __init__(self) -> None:
        self._mail, self._programs_done = np.zeros(program_kernel.LINE, np.int64), 0
        self._turns = np.zeros(2 * program_kernel.LINE, np.int64)
        self._form: tuple[npt.NDArray[Any], Rounding] | None = None
        self._asked: SimpleQueue[Callable[[], list[Any]] | None] = SimpleQueue()
        self._answered: SimpleQueue[list[Any] | BaseException] = SimpleQueue()
        self._asked_1, self._answered_1 = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __call__(self, work: Callable[[int], Any], number: int) -> list[Any]:
        """Return [work(0), ..., work(number - 1)], or raise what a piece of it raised."""
        if number < 2:
            return in_turn(work, number)
        # The count first: who sees it waits for the work, and who does not would never look.
        self._asked_1 += 1
        self._asked.put(lambda: [work(index) for index in range(1, number, 2)])
        try:
            ours = [work(index) for index in range(0, number, 2)]
        finally:
            _await(self._answered_1, self._asked_1[0])
            theirs = self._answered.get()
        if isinstance(theirs, BaseException):
            raise theirs
        return [(theirs if index % 2 else ours)[index // 2] for index in range(number)]

    def run(self, commands: npt.NDArray[np.int64], scalars: npt.NDArray[Any], q: Rounding) -> None:
        """Do a program's commands with this thread; see :func:`program_kernel.run_both`. All are of one format."""
        if self._form is None:
            form = np.empty(0, scalars.dtype), q
            # Compiled here, where an error is told and a key is heard: the other thread would be waited for.
            program_kernel.serve(np.zeros_like(self._mail), np.zeros(1, np.int64), 0, 0, *form)
            self._form = form
            self(lambda _: None, 2)
        assert (self._form[0].dtype, self._form[1]) == (scalars.dtype, q)
        program_kernel.run_both(self._mail, commands, scalars, q, self._turns)

    def _serve(self) -> None:
        np.seterr(all="ignore")  # what overflows in a format is told by the agents
        while True:
            wanted = self._answered_1[0] + 1
            if self._form is None:
                _await(self._asked_1, wanted)
            else:
                self._programs_done = program_kernel.serve(
                    self._mail, self._asked_1, wanted, self._programs_done, *self._form
                )
            work = self._asked.get()
            if work is None:
                return
            found: list[Any] | BaseException
            try:
                found = work()
            except BaseException as error:
                found = error
            self._answered.put(found)
            self._answered_1 += 1

    def close(self) -> None:
        """End the thread."""
        self._asked_1 += 1
        self._asked.put(None)
        self._thread.join()
