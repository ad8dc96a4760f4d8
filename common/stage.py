"""What every stage returns, and how it hears that the user wants to stop."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from spikestill.common.artefacts import RESUMED_FROM
from spikestill.common.errors import UserError

MOVE_AWAY = "move it away, or give another --run_dir"


@dataclasses.dataclass(frozen=True)
class StageResult:
    """The outcome of ``run(config, run_dir)``.

    Attributes:
        artefact: the file that the stage wrote.
        summary: plain JSON values; what ``--json`` prints.
        finished: False where the user interrupted it: the checkpoint is on disk, ``--resume`` goes on.
    """

    artefact: Path
    summary: Mapping[str, Any]
    finished: bool = True


def goes_on(stage: str, run_dir: Path, artefact: str, *, resume: bool) -> bool:
    """Return True where a stage goes on from what it left in ``run_dir``, False where it begins.

    Raises:
        UserError: it would begin, and so replace a checkpoint or an artefact from before.
    """
    checkpoint = run_dir / RESUMED_FROM[stage]
    if resume and checkpoint.exists():
        return True
    if checkpoint.exists():
        refuse_to_replace(checkpoint, stage, f"go on with it by --resume, {MOVE_AWAY}")
    refuse_to_replace(run_dir / artefact, stage)
    if resume:
        print(f"{stage}: nothing to resume in {run_dir}, so it begins", file=sys.stderr, flush=True)
    return False


def refuse_to_replace(path: Path, stage: str, remedy: str = MOVE_AWAY) -> None:
    """Raise UserError where ``path`` is there: the work of another run, which ``stage`` would replace."""
    if path.exists():
        raise UserError(f"{path}: is there from before, and {stage} would replace it", remedy)


ONCE = signal.SIGUSR1
"""Asks a stage to stop, and a second time asks nothing more; a scheduler's warning, and a sweep's request."""


SOON_S = 0.01
"""After that time an interrupt comes again that nobody could hear; a callback of the importer takes microseconds."""
PATIENCE_S = 20.0
"""An interrupt waits for the end of an import for that long; PyTorch's takes 2 to 10 s."""
IMPORTER = "<frozen importlib._bootstrap>"


class StopRequest:
    """True once the user asked to stop (Ctrl-C, SIGTERM, a closed terminal); a loop checks it between two steps."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def __bool__(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        """Ask for a stop."""
        self._event.set()


_watching: list[StopRequest] = []


@contextlib.contextmanager
def stops_heard() -> Iterator[StopRequest]:
    """Yield a request that is set once a stage within hears one, be it in its very last step."""
    request = StopRequest()
    _watching.append(request)
    try:
        yield request
    finally:
        _watching.remove(request)


def _heard() -> tuple[signal.Signals, ...]:
    """Return the signals that ask for an end; what was told to ignore SIGHUP goes on ignoring it."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    usual = signal.SIGINT, signal.SIGTERM, ONCE
    return usual if ignored else (*usual, signal.SIGHUP)


def leave_terminal() -> None:
    """Let what would go to a terminal that is gone go nowhere: each write to it would fail."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        with contextlib.suppress(OSError):
            # Of a terminal that has hung up, isatty knows nothing any more; it is a character device still.
            if stat.S_ISCHR(os.fstat(descriptor).st_mode):
                os.dup2(nowhere, descriptor)
    os.close(nowhere)


@contextlib.contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Let SIGTERM, SIGUSR1 and SIGHUP interrupt as Ctrl-C does, where no stage turns them into a :class:`StopRequest`.

    What is half made is then taken away again. An interrupt waits for the end of an import: within it, it may be
    swallowed, and PyTorch's own import would abort. One that CPython drops, because it met a callback whose errors
    nobody hears (a ``__del__``), comes again. Outside the main thread it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    usual = sys.unraisablehook
    previous = {
        number: handler
        for number in (signal.SIGINT, signal.SIGTERM, ONCE, signal.SIGHUP)
        if (handler := signal.getsignal(number)) in (signal.SIG_DFL, signal.default_int_handler)
    }
    interrupts = _Interrupts(next(iter(previous), ONCE), usual)
    try:
        sys.unraisablehook = interrupts.hear_dropped
        for number in previous:
            signal.signal(number, interrupts.handle)
        yield
        interrupts.raise_late()
    finally:
        interrupts.end()
        sys.unraisablehook = usual
        for number, handler in previous.items():
            signal.signal(number, handler)


class _Interrupts:
    """Makes a KeyboardInterrupt in the main thread of a signal, at a time when it can be heard.

    Args:
        number: the signal by which an interrupt comes again that was dropped.
        usual: hears of the other errors that CPython drops.
    """

    def __init__(self, number: int, usual: Callable[[sys.UnraisableHookArgs], Any]) -> None:
        self._number = number
        self._usual = usual
        self._heard = self._waits = self._over = False
        self._since = 0.0
        self._timers: list[threading.Timer] = []

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Hear a signal."""
        if number == signal.SIGHUP:
            leave_terminal()
        if self._over or (number == ONCE and self._heard):
            return
        if _imports(frame):
            self._since = self._since or time.monotonic()
            if time.monotonic() - self._since < PATIENCE_S:
                self._come_again(number)
                return
        self._heard, self._since = True, 0.0
        raise KeyboardInterrupt

    def hear_dropped(self, dropped: sys.UnraisableHookArgs) -> None:
        """Hear of an error that nobody could."""
        if dropped.exc_type is KeyboardInterrupt:
            self._come_again(self._number)  # raised here it would be dropped as well
        else:
            self._usual(dropped)

    def _come_again(self, number: int) -> None:
        if self._waits:
            return
        main = threading.get_ident()

        def send() -> None:
            self._waits = False
            signal.pthread_kill(main, number)

        self._waits = True
        self._timers = [timer for timer in self._timers if timer.is_alive()]
        self._timers.append(threading.Timer(SOON_S, send))
        self._timers[-1].start()

    def raise_late(self) -> None:
        """Raise the KeyboardInterrupt that still waits."""
        if any(timer.is_alive() for timer in self._timers):
            raise KeyboardInterrupt

    def end(self) -> None:
        """Let no signal come any more of those that waited."""
        self._over = bool(self._timers)
        for timer in self._timers:
            timer.cancel()
            timer.join()


def _imports(frame: FrameType | None) -> bool:
    """Return whether an import is under way there."""
    while frame is not None:
        if frame.f_code.co_filename == IMPORTER:
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """Turn the first SIGINT, SIGTERM or SIGHUP into a :class:`StopRequest`; a second one interrupts at once.

    SIGHUP comes from a terminal that was closed, or a connection that was dropped; ``nohup`` keeps it away. SIGUSR1
    asks as well, however often it comes. Outside the main thread signals cannot be caught, and the request then never
    comes.
    """
    request, heard = StopRequest(), StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            leave_terminal()
        if number != ONCE:
            if heard:
                raise KeyboardInterrupt
            heard.set()
        if request:
            return
        for each in (request, *_watching):
            each.set()
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # nobody may be there to read it
            print("stopping after this step and saving; press Ctrl-C again to stop at once", file=sys.stderr)

    previous = {number: signal.signal(number, handle) for number in _heard()}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
