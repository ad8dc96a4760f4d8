"""What every stage returns, and how it hears that the user wants to stop."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
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


class StopRequest:
    """True once the user asked to stop (Ctrl-C or SIGTERM); a loop checks it between two steps."""

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


@contextlib.contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """Turn the first SIGINT or SIGTERM into a :class:`StopRequest`; a second one interrupts at once.

    Outside the main thread signals cannot be caught, and the request then never comes.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if request:
            raise KeyboardInterrupt
        for each in (request, *_watching):
            each.set()
        print("stopping after this step and saving; press Ctrl-C again to stop at once", file=sys.stderr)

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
