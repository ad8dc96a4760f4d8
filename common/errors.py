"""The one exception type that means: what the user asked for cannot be done, and here is what can."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

MALFORMED = (OSError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError)
"""What reading a foreign or damaged file can raise before every value in it is checked: JSON too deep to parse gives
RecursionError (a RuntimeError), an infinite size OverflowError (an ArithmeticError)."""


class UserError(ValueError):
    """A fault in what the user gave (a file, an option, a machine), not in the program.

    The command line prints it as one line, with exit status 1, or 2 while arguments are read. The message names the
    object, its actual value, the limit it broke and the remedy.

    Args:
        what: the object and what is wrong with it, with the actual value and the limit.
        remedy: what the user can do, an imperative sentence without a full stop, or a question, "did you mean ...",
            without its mark.
    """

    def __init__(self, what: str, remedy: str | None = None) -> None:
        self.what = what
        self.remedy = remedy
        mark = "?" if (remedy or "").startswith("did you mean") else "."
        super().__init__(
            f"{what.removesuffix('.')}. {remedy[0].upper()}{remedy[1:]}{mark}" if remedy else what
        )


@contextlib.contextmanager
def restoring(path: Path, remedy: str) -> Iterator[None]:
    """Turn what missing, misshapen or wicked content of a file raises into an error that names the file.

    Raises:
        UserError: the content does not fit.
    """
    try:
        yield
    except UserError as error:
        if str(path) in error.what:
            raise
        raise UserError(f"{path}: {error.what}", error.remedy or remedy) from error
    except MALFORMED as error:
        raise UserError(
            f"{path}: its content does not fit: {type(error).__name__}: {error}", remedy
        ) from error


def printable(text: str) -> str:
    r"""Return text as it may be shown on a terminal, line ends kept: what a file says must not steer the terminal.

    Control characters, which move the cursor, name the window or fill the clipboard, and marks that turn the direction
    of writing are written as in ``\x1b``; so are halves of surrogate pairs, which no stream takes.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


class BackendError(RuntimeError):
    """Another program that this one drives failed; the message says which, how, and the end of what it printed."""


def nearest(name: str, known: list[str] | tuple[str, ...]) -> str:
    """Return the entry of ``known`` that is closest to ``name``, for error messages."""
    import difflib

    folded = {entry.casefold(): entry for entry in reversed(known)}
    matches = difflib.get_close_matches(name.casefold(), list(folded), n=1, cutoff=0.0)
    return folded[matches[0]] if matches else ""
