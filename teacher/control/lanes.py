"""How an agent spreads its work over two threads: always cut the same way, whether there are two threads or one.

What is cut depends on the agent alone, never on the machine, so a result is the same bit for bit on any number of
cores.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.common.awake import AwakeThread
from spikestill.common.precision.rounding import Rounding
from spikestill.teacher.control import program_kernel

Both = Callable[[Callable[[int], Any], int], list[Any]]
"""``both(work, n)`` returns [work(0), ..., work(n - 1)], together where there are threads."""
LOOKS = 500
"""How often a thread looks for work before it sleeps: 0.1 ms."""

TURN_S = 1e-4
"""How long a thread waits for the interpreter's lock before it asks for it."""


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


def by_turns(pool: ThreadPoolExecutor, each: Sequence[Any], turn: Callable[[Any], bool]) -> None:
    """Call ``turn`` of each on the threads, again and again while it returns True, and of one in one thread at a time.

    Where there are more than threads, all threads have work until the last few turns.
    """
    under_way = {pool.submit(turn, one): one for one in each}
    while under_way:
        for done in wait(under_way, return_when=FIRST_COMPLETED).done:
            one = under_way.pop(done)
            if done.result():
                under_way[pool.submit(turn, one)] = one


class OtherThread(AwakeThread):
    """A thread that does every second piece of work: a ``Both``, which the work itself must not call.

    An update of 1.5 ms has four places where one thread waits for the other. From its first program on it waits in
    compiled code, where no other thread's hold of the interpreter keeps it from its part.
    """

    def __init__(self) -> None:
        self._mail, self._programs_done = np.zeros(3 * program_kernel.LINE, np.int64), 0
        self._form: tuple[npt.NDArray[Any], Rounding] | None = None
        super().__init__(LOOKS)

    def __call__(self, work: Callable[[int], Any], number: int) -> list[Any]:
        """Return [work(0), ..., work(number - 1)], or raise what a piece of it raised."""
        if number < 2:
            return in_turn(work, number)
        self.ask(lambda: [work(index) for index in range(1, number, 2)])
        try:
            ours = [work(index) for index in range(0, number, 2)]
        except BaseException:
            with contextlib.suppress(BaseException):
                self.answer()
            raise
        theirs = self.answer()
        return [(theirs if index % 2 else ours)[index // 2] for index in range(number)]

    def run(self, commands: npt.NDArray[np.int64], scalars: npt.NDArray[Any], q: Rounding) -> None:
        """Do a program's commands with this thread; see :func:`program_kernel.both`. All are of one format."""
        if self._form is None:
            form = np.empty(0, scalars.dtype), q
            # Compiled here, where an error is told and a key is heard: the other thread would be waited for.
            program_kernel.serve(np.zeros_like(self._mail), np.zeros(1, np.int64), 0, 0, *form)
            self._form = form
            self(lambda _: None, 2)
        assert (self._form[0].dtype, self._form[1]) == (scalars.dtype, q)
        program_kernel.both(self._mail, commands, scalars, q)

    def _wait(self, wanted: int) -> None:
        if self._form is None:
            super()._wait(wanted)
        else:
            self._programs_done = program_kernel.serve(
                self._mail, self._asked_1, wanted, self._programs_done, *self._form
            )
