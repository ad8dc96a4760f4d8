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
"""Between two looks for a moment when an interrupt can be heard; what drops one takes microseconds."""
PATIENCE_S = 20.0
"""How long an interrupt waits for the end of an import, at most; PyTorch's takes 2 to 10 s."""
IMPORTER = "<frozen importlib._bootstrap>"
"""The file that frames of Python's importer name."""


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

    What is half made is then taken away again. An interrupt waits for the end of an import: there it may be swallowed,
    and PyTorch's would end the process. One that CPython drops, because it met code whose errors nobody hears (a
    ``__del__``), comes again. Outside the main thread, or within itself, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {
        number: handler
        for number in (signal.SIGINT, signal.SIGTERM, ONCE, signal.SIGHUP)
        if (handler := signal.getsignal(number)) in (signal.SIG_DFL, signal.default_int_handler)
    }
    if not previous:
        yield
        return
    usual = sys.unraisablehook
    interrupts = _Interrupts(next(iter(previous)), usual)
    try:
        sys.unraisablehook = interrupts.hear_dropped
        for number in previous:
            signal.signal(number, interrupts.handle)
        yield
    finally:
        interrupts.end()
        sys.unraisablehook = usual
        for number, handler in previous.items():
            signal.signal(number, handler)
        if interrupts.waits:
            raise KeyboardInterrupt


class _Interrupts:
    """Makes a KeyboardInterrupt in the main thread of a signal, at a time when it can be heard.

    Args:
        number: the signal by which an interrupt comes again that was dropped.
        usual: hears of the other errors that CPython drops.

    Attributes:
        waits: an interrupt was asked for and has not come yet.
    """

    def __init__(self, number: int, usual: Callable[[sys.UnraisableHookArgs], Any]) -> None:
        self.waits = False
        self._number = number
        self._usual = usual
        self._main = threading.get_ident()
        self._outside = _imports(sys._getframe())
        self._heard = self._late = self._over = False
        self._threads: list[threading.Thread] = []

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Hear a signal."""
        if number == signal.SIGHUP:
            leave_terminal()
        if self.waits or (number == ONCE and self._heard):
            return
        if self._over:
            self.waits = True
            return
        if not self._late and self._importing(frame):
            self._come_again(number)
            return
        self._heard, self._late = True, False
        raise KeyboardInterrupt

    def hear_dropped(self, dropped: sys.UnraisableHookArgs) -> None:
        """Hear of an error that nobody could."""
        if dropped.exc_type is not KeyboardInterrupt:
            self._usual(dropped)
        elif not self.waits:
            self._heard = False
            self._come_again(self._number)  # raised here it would be dropped as well

    def _come_again(self, number: int) -> None:
        self.waits = True
        thread = threading.Thread(target=self._send, args=(number,), daemon=True)
        thread.start()
        self._threads.append(thread)

    def _send(self, number: int) -> None:
        """Send the signal again once the main thread imports nothing, and has left the hook for what was dropped."""
        deadline = time.monotonic() + PATIENCE_S
        while not self._over:
            time.sleep(SOON_S)
            late = time.monotonic() > deadline
            frame = sys._current_frames().get(self._main)
            if late or not (self._importing(frame) or _is_hearing(frame)):
                self.waits, self._late = False, late
                signal.pthread_kill(self._main, number)
                return

    def end(self) -> None:
        """Raise nothing any more; what waits now is left in ``waits``."""
        self._over = True
        for thread in self._threads:
            thread.join()

    def _importing(self, frame: FrameType | None) -> bool:
        return _imports(frame) > self._outside


def _is_hearing(frame: FrameType | None) -> bool:
    """Return True in the hook for what was dropped: an interrupt that came there would be dropped for good."""
    return any(each.f_code is _Interrupts.hear_dropped.__code__ for each in _calls(frame))


def _imports(frame: FrameType | None) -> int:
    """Return how many of this frame and those that called it are the importer's."""
    return sum(each.f_code.co_filename == IMPORTER for each in _calls(frame))


def _calls(frame: FrameType | None) -> Iterator[FrameType]:
    """Give this frame, and those that called it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


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
