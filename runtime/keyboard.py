"""The keyboard of the terminal: keys by the names that browsers give them, without waiting for a line."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from types import TracebackType
from typing import Any

ESCAPES = {
    b"\x1b[A": "ArrowUp", b"\x1b[B": "ArrowDown", b"\x1b[C": "ArrowRight", b"\x1b[D": "ArrowLeft",
    b"\x1bOA": "ArrowUp", b"\x1bOB": "ArrowDown", b"\x1bOC": "ArrowRight", b"\x1bOD": "ArrowLeft",
}  # fmt: skip
LONGEST = 3
"""Bytes of an escape sequence."""


def split(typed: bytes) -> list[str]:
    """Return the keys that were typed; a sequence that is none of :data:`ESCAPES` is left out."""
    keys: list[str] = []
    while typed:
        found = ESCAPES.get(typed[:LONGEST])
        if found:
            keys.append(found)
            typed = typed[LONGEST:]
            continue
        if typed[:1] == b"\x1b":
            if len(typed) == 1:
                keys.append("Escape")
            # The rest of a sequence that is not known here.
            typed = typed[1:].lstrip(b"[O0123456789;")[1:]
            continue
        with contextlib.suppress(UnicodeDecodeError):
            keys.append(typed[:1].decode("ascii"))
        typed = typed[1:]
    return keys


def in_foreground() -> bool:
    """Return True where the terminal's keys are this program's."""
    return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()


class Keyboard:
    """Standard input as a keyboard, where it is a terminal; given back as it was. Ctrl-C goes on interrupting.

    Attributes:
        there: there is one to read from.
    """

    def __init__(self) -> None:
        self.there = False
        self._before: list[Any] = []

    def __enter__(self) -> Keyboard:
        with contextlib.suppress(ImportError, OSError, ValueError):
            # A job in the background is stopped by the system where it asks for the terminal.
            if os.isatty(sys.stdin.fileno()) and in_foreground():
                self.take()
        return self

    def take(self) -> None:
        """Have every key at once, without its echo.

        Raises:
            OSError: the terminal cannot be had.
        """
        import termios
        import tty

        descriptor = sys.stdin.fileno()
        try:
            self._before = termios.tcgetattr(descriptor)
            # What was typed before was meant for something else.
            tty.setcbreak(descriptor, termios.TCSAFLUSH)
        except termios.error as error:
            self._before = []
            raise OSError(*error.args) from error
        self.there = True

    def give_back(self) -> None:
        """Leave the terminal as it was found."""
        before, self._before, self.there = self._before, [], False
        if before:
            import termios

            with contextlib.suppress(termios.error, OSError, ValueError):
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, before)

    def pressed(self) -> list[str]:
        """Return the keys that were pressed since the last call, without waiting."""
        if not self.there:
            return []
        try:
            if not select.select([sys.stdin.fileno()], [], [], 0)[0] or not in_foreground():
                return []
            typed = os.read(sys.stdin.fileno(), 1024)
        except (OSError, ValueError):
            typed = b""
        # The end of it: the terminal was closed.
        self.there = bool(typed)
        return split(typed)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give_back()
