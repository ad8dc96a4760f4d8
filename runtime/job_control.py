"""Ctrl-Z and ``fg``: the shell gets its terminal while the program is stopped, and the time away does not count."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
import time
from types import FrameType, TracebackType

from spikestill.common.stage import StopRequest
from spikestill.runtime.clock import MonotonicClock
from spikestill.runtime.display import Display
from spikestill.runtime.keyboard import Keyboard, in_foreground
from spikestill.runtime.view import ENTER, LEAVE

SETTLE_S = 2.0
"""How long a program that goes on in the background waits for a signal to end, before it asks for the terminal."""
LOOK_S = 0.01
"""Between two looks for it."""


class JobControl:
    """Handles SIGTSTP within its context; outside the main thread, and where the signal is ignored, it does nothing.

    Python runs the handler between two steps of the main thread, the game's. So the clock stops there, the terminal is
    given back, and only then the program stops.

    Args:
        clock: of the game.
        stop: is set where the program is to end: it then does not ask for the terminal again.

    Attributes:
        returned: the program was stopped and goes on; whoever reads it sets it back.
    """

    def __init__(self, clock: MonotonicClock, stop: StopRequest) -> None:
        self.returned = False
        self._clock, self._stop = clock, stop
        self._display: Display | None = None
        self._keyboard: Keyboard | None = None
        self._handled = self._attends = self._asked = False

    def __enter__(self) -> JobControl:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
            signal.signal(signal.SIGTSTP, self._hear)
            self._handled = True
        return self

    def attend(self, display: Display | None, keyboard: Keyboard | None) -> None:
        """Give back what has now been taken; a Ctrl-Z from before is obeyed now.

        Args:
            display: draws on the terminal, None where none does.
            keyboard: reads from it, None where none does.
        """
        self._display, self._keyboard, self._attends = display, keyboard, True
        if self._asked:
            self._leave()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._attends:
            self._leave()
        else:
            self._asked = True

    def _leave(self) -> None:
        """Stop, and go on when the shell says so."""
        signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        self._clock.stop()
        drawn = self._display is not None and self._display.halt()
        if drawn:
            write(LEAVE)
        heard = self._keyboard is not None and self._keyboard.there
        if self._keyboard is not None:
            self._keyboard.give_back()
        # The system stops the program here, unless no shell is there to let it go on.
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        if heard:
            self._take()
        if drawn and self._display is not None:
            write(ENTER)
            self._display.go_on()
        self._clock.go_on()
        self.returned = True
        signal.signal(signal.SIGTSTP, self._hear)

    def _take(self) -> None:
        """Take the keyboard again; the system stops a program that does so in the background until it is in front.

        `kill %1` lets a stopped program go on in the background by the same two signals that end it, and another thread
        may take the one that ends it. Who asks for the terminal before that one is heard is stopped again, for good.
        """
        assert self._keyboard is not None
        settled = time.monotonic() + SETTLE_S
        with contextlib.suppress(OSError, ValueError):
            while not (self._stop or in_foreground() or time.monotonic() > settled):
                time.sleep(LOOK_S)
        while not self._stop:
            try:
                self._keyboard.take()
            except OSError as error:
                if error.errno == errno.EINTR:  # a signal, perhaps the one to end
                    continue
            return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handled:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)


def write(text: str) -> None:
    """Write to the terminal past Python's buffers: the signal may have come in the midst of another writing."""
    with contextlib.suppress(OSError, ValueError):
        os.write(sys.stderr.fileno(), text.encode())
