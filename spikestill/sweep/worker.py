"""One stage run on a node: it holds the folder's lock, runs the stage in a process of its own, and says what came out.

A folder that is done is never run again: ``done.json`` is written last. Two nodes that both think that a run is theirs
(one of them was given up for lost) meet at the lock, and the second finds it done.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from spikestill.common.atomic import write_text
from spikestill.common.errors import UserError
from spikestill.common.file_lock import take_lock
from spikestill.common.json_file import read_object
from spikestill.common.stage import ONCE
from spikestill.sweep.child import PERIOD_S, STOP_S

DONE, ATTEMPTS, LOG, LOCK, OPTIONS = "done.json", "attempts.jsonl", "log.txt", "lock", "options.yaml"
STOP = "stop"
INTERRUPTED = 130
FINISHED, STOPPED, FAILED, LOST = "finished", "stopped", "failed", "lost"
"""How a stage run ended: ``LOST``: a signal ended its process, and nobody had asked for a stop."""


@dataclasses.dataclass(frozen=True)
class Job:
    """What a node needs to know of a stage run.

    Attributes:
        root: the sweep's folder; a file ``stop`` in it asks all stage runs to end, one in ``folder`` this one.
        token: what ``root/token`` holds, so that a node that sees another folder says so.
        folder: of the stage run.
        words: the command after ``spikestill``.
        cores: how many to keep to.
    """

    root: str
    token: str
    folder: str
    words: tuple[str, ...]
    cores: int


def run_stage(job: Job) -> dict[str, Any]:
    """Run a stage to its end, its failure or a stop.

    Returns:
        ``state``, ``node``, ``seconds``, and ``summary`` where it finished or ``error`` where it failed or was lost.
    """
    root, folder = Path(job.root), Path(job.folder)
    node = socket.gethostname()
    if not (root / "token").is_file() or (root / "token").read_text(encoding="utf-8") != job.token:
        error = f"node {node} does not see {root}: give a --run_dir that lies on a disk that all nodes share"
        return not_run(FAILED, node, error)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / LOCK, "a", encoding="utf-8") as lock:
        while not _locked(lock):
            if _asked_to_stop(root, folder):
                return not_run(STOPPED, node)
            time.sleep(PERIOD_S)
        if (folder / DONE).is_file():
            try:
                return read_outcome(folder / DONE)
            except UserError as error:
                return not_run(FAILED, node, str(error))
        if _asked_to_stop(root, folder):
            return not_run(STOPPED, node)
        _note(folder, "begins", node)
        began = time.monotonic()
        # The child holds the lock too: were this process killed, nobody else begins before the child is gone.
        status, output, asked = _run(job, root, folder, lock.fileno())
        found = {
            "node": node,
            "seconds": round(time.monotonic() - began, 2),
            **_outcome(status, output, asked, folder),
        }
        _note(folder, found["state"], node, found["seconds"])
        if found["state"] == FINISHED:
            found["seconds"] = round(sum(line.get("seconds", 0.0) for line in attempts(folder)), 2)
            write_text(folder / DONE, json.dumps(found) + "\n")
        return found


def not_run(state: str, node: str, error: str = "") -> dict[str, Any]:
    """Return the outcome of a stage run that did not begin, or of which no more is known."""
    return {"state": state, "node": node, "seconds": 0.0, "error": error}


def read_outcome(path: Path) -> dict[str, Any]:
    """Return what :func:`run_stage` found, from the file that it left.

    Raises:
        UserError: it is not what it wrote.
    """
    remedy = "move its folder away: the stage run begins anew"
    found = read_object(path, "the outcome of a stage run", remedy)
    if found.get("state") != FINISHED or not isinstance(found.get("summary"), dict):
        raise UserError(
            f"{path}: not the outcome of a stage run: it says no summary of a finished one", remedy
        )
    return found


def attempts(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a stage run's attempts: when each began and ended, where, and how.

    What a lost node left of a line, and the line that was added to it, are left out.
    """
    path = folder / ATTEMPTS
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        with contextlib.suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return found


def _note(folder: Path, what: str, node: str, seconds: float | None = None) -> None:
    line = {"what": what, "node": node, "pid": os.getpid(), "time": round(time.time(), 2)}
    with open(folder / ATTEMPTS, "a", encoding="utf-8") as file:
        file.write(json.dumps(line | ({} if seconds is None else {"seconds": seconds})) + "\n")


def _locked(file: Any) -> bool:
    try:
        take_lock(file.fileno(), "exclusive")
    except BlockingIOError:
        return False
    return True


def _asked_to_stop(root: Path, folder: Path) -> bool:
    return any((each / STOP).exists() for each in (root, folder))


def _run(job: Job, root: Path, folder: Path, lock: int) -> tuple[int, str, bool]:
    """Return the exit status, what went to standard output, and whether the stage was asked to stop."""
    with contextlib.ExitStack() as stack:
        numbers = stack.enter_context(share_of_cores(job.cores))
        log = stack.enter_context(open(folder / LOG, "a", encoding="utf-8"))
        output = stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8"))
        threads = {
            name: str(job.cores) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "spikestill.sweep.child", str(os.getpid()), ",".join(map(str, numbers)), *job.words],
            stdin=subprocess.DEVNULL, stdout=output, stderr=log, env=os.environ | threads, pass_fds=(lock,),
            start_new_session=True,  # Ray's node, ending, kills the group of this process
        )  # fmt: skip
        asked = False
        try:
            while process.poll() is None:
                if not asked and _asked_to_stop(root, folder):
                    process.send_signal(ONCE)  # a stage saves and ends
                    asked = True
                time.sleep(PERIOD_S)
        finally:
            if process.poll() is None:
                # Ray ends this process. What signals all that runs has asked the stage already.
                process.send_signal(ONCE)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_S)
                process.kill()
            process.wait()
        output.seek(0)
        return process.returncode, output.read(), asked or _asked_to_stop(root, folder)


def _outcome(status: int, output: str, asked: bool, folder: Path) -> dict[str, Any]:
    if status == 0:
        try:
            summary = json.loads(output.strip().splitlines()[-1])
        except (ValueError, IndexError):
            return {"state": FAILED, "error": f"ended well, and printed no summary but {output[-80:]!r}"}
        return {"state": FINISHED, "summary": summary}
    if asked and status in (INTERRUPTED, -signal.SIGINT, -signal.SIGTERM, -ONCE):
        return {"state": STOPPED}
    if status < 0 or status == INTERRUPTED:
        name = "an interrupt" if status == INTERRUPTED else signal.Signals(-status).name
        return {"state": LOST, "error": f"{name} ended its process"}
    lines = (folder / LOG).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    said = [line for line in lines if line.startswith("spikestill: ")] or lines[-1:] or [""]
    return {"state": FAILED, "error": f"exit status {status}: {said[-1].removeprefix('spikestill: ')}"}


@contextlib.contextmanager
def share_of_cores(count: int) -> Iterator[list[int]]:
    """Hold ``count`` cores of this machine, all of them where it has fewer; yield their numbers, none where unknown.

    Those that fewest other stage runs of the user hold, so that none is shared before all are held. What runs beside
    it, another sweep or a cluster that was told of more cores than there are, changes nothing of their number: a
    student depends on how many cores it was trained on.
    """
    if not hasattr(os, "sched_getaffinity"):
        yield []
        return
    own = sorted(os.sched_getaffinity(0))
    user = hashlib.sha256(str(os.getuid()).encode()).hexdigest()[:8]
    folder = Path(tempfile.gettempdir()) / f"spikestill-cores-{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    with contextlib.ExitStack() as stack:
        held: list[int] = []
        places = ((holder, number) for holder in itertools.count() for number in own)
        while len(held) < min(count, len(own)):
            holder, number = next(places)
            if number in held:
                continue
            file = stack.enter_context(open(folder / f"{number}.{holder}", "w", encoding="utf-8"))
            if _locked(file):
                held.append(number)
        yield sorted(held)


def wait_for_ends(folders: Iterable[Path], seconds: float) -> None:
    """Wait until no stage run holds the lock of any of ``folders``, ``seconds`` at most."""
    deadline = time.monotonic() + seconds
    for folder in folders:
        if not (folder / LOCK).is_file():
            continue
        with open(folder / LOCK, "a", encoding="utf-8") as lock:
            while not _locked(lock) and time.monotonic() < deadline:
                time.sleep(PERIOD_S)
