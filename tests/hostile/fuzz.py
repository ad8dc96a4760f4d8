"""A seeded fuzzer of every format and of the verbs that read them: ``python -m tests.hostile.fuzz --seconds 600``.

It damages good files, or alters them and gives them a valid hash, and lets a warm process read them. A finding is: a
crash, a hang, an exception that is no ``UserError``, "unexpected" or a traceback on standard error, 2 s or 1 GB beyond
what the good file takes before it is refused, a refusal that does not name the file, or a damaged file that is accepted
though its content differs. Case N of a seed is the same file each time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.hostile.cases import Subject, subjects
from tests.hostile.corpus import make
from tests.hostile.damage import damaged
from tests.hostile.readers import Refused

SECONDS, BYTES = 2.0, 1 << 30
HANG_S = 150.0
ADDRESS_SPACE = 6 << 30
"""What the worker may ask for beside what it has after its start: more is an allocation beyond any bound."""
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PAGE = resource.getpagesize()


def family(process: int) -> list[int]:
    """Return the process and its descendants."""
    found = [process]
    for each in found:
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{each}/task"):
                found += map(int, Path(f"/proc/{each}/task/{task}/children").read_text().split())
    return found


def used_seconds() -> float:
    """Return the processor's time of this process, its descendants, and those that have ended."""
    total = 0.0
    for each in family(os.getpid()):
        with contextlib.suppress(OSError, ValueError):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15])) * TICK_S
    return total


class Peak(threading.Thread):
    """Watches the resident memory of this process and its descendants; :meth:`restart` begins anew."""

    PERIOD_S = 0.04

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.bytes = 0
        self._over = threading.Event()

    def stop(self) -> None:
        """Watch no longer."""
        self._over.set()

    def restart(self) -> int:
        self.bytes = self.shared_once()
        return self.bytes

    @staticmethod
    def now() -> int:
        """Return the pages of this process's own and its descendants'; what one that was forked shares counts twice."""
        total = 0
        for each in family(os.getpid()):
            with contextlib.suppress(OSError, ValueError):
                resident, shared = map(int, Path(f"/proc/{each}/statm").read_text().split()[1:3])
                total += (resident - shared) * PAGE
        return total

    @staticmethod
    def shared_once() -> int:
        """Return the same, what is shared counted once, which takes longer to find out."""
        total = 0
        for each in family(os.getpid()):
            with contextlib.suppress(OSError, ValueError):
                lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
                total += 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss_Anon:"))
        return total

    def run(self) -> None:
        while not self._over.wait(self.PERIOD_S):
            if self.now() > self.bytes:
                self.bytes = max(self.bytes, self.shared_once())


class Outcome(NamedTuple):
    """What came of a file: a fault or '', whether it was accepted, the hash of its content or '', what it took."""

    fault: str
    accepted: bool
    content: str
    seconds: float
    bytes: int

    @property
    def large(self) -> bool:
        """It took so much that it must be compared with what a good file takes."""
        return self.seconds > SECONDS or self.bytes > BYTES


class Worker:
    """Reads damaged files in this process.

    Args:
        root: where the good files lie, or are made.
        scratch: where a case's folder is put.
        seed: of the cases.
        chosen: the subjects that come up.
    """

    def __init__(self, root: Path, scratch: Path, seed: int, chosen: Sequence[Subject]) -> None:
        self._root, self._scratch, self._seed, self._subjects = root, scratch, seed, chosen
        weights = np.array([subject.weight for subject in chosen])
        self._weights = weights / weights.sum()
        self._good: dict[str, Outcome] = {}
        self._peak = Peak()
        self._peak.start()

    def case(self, number: int) -> dict[str, Any]:
        """Return what came of a case."""
        rng = np.random.default_rng([self._seed, number])
        subject = self._subjects[int(rng.choice(len(self._subjects), p=self._weights))]
        content = (make(subject.corpus, self._root) / subject.file).read_bytes()
        sealed = subject.seal is not None and rng.random() < 0.6
        changed = content
        if sealed and subject.seal is not None:
            with contextlib.suppress(Exception):  # what cannot be written cannot be tried
                changed = subject.seal(content, rng)
        if changed == content:
            sealed, changed = False, damaged(content, rng)
        outcome = self._read(subject, changed)
        if not outcome.fault and (outcome.large or (outcome.content and not sealed)):
            outcome = self._compared(subject, changed, outcome, sealed)
        return {
            "case": number, "subject": subject.name, "sealed": sealed, "fault": outcome.fault,
            "accepted": outcome.accepted, "seconds": round(outcome.seconds, 3),
        }  # fmt: skip

    def _compared(self, subject: Subject, changed: bytes, outcome: Outcome, sealed: bool) -> Outcome:
        """Return the outcome with what a comparison with the good file finds."""
        usual = self._usual(subject)
        if outcome.large:  # what is imported and compiled late is so by now
            outcome = self._read(subject, changed)
        fault = outcome.fault
        if outcome.content and not sealed and outcome.content != usual.content:
            fault = "accepted, with other content"
        # What is accepted may be work that takes its time, a longer training, say.
        elif not outcome.accepted and outcome.seconds - usual.seconds > SECONDS:
            fault = f"took {outcome.seconds:.1f} s, the good file {usual.seconds:.1f}"
        elif outcome.bytes - usual.bytes > BYTES:
            fault = f"took {outcome.bytes:,} bytes, the good file {usual.bytes:,}"
        return outcome._replace(fault=fault)

    def _usual(self, subject: Subject) -> Outcome:
        """Return what comes of the good file."""
        if subject.name not in self._good:
            content = (make(subject.corpus, self._root) / subject.file).read_bytes()
            found = self._read(subject, content)
            if found.large:
                found = self._read(subject, content)
            assert found.accepted, f"{subject.name}: {found.fault}"
            self._good[subject.name] = found
        return self._good[subject.name]

    @contextlib.contextmanager
    def _folder(self, subject: Subject, content: bytes) -> Iterator[Path]:
        shutil.rmtree(self._scratch, ignore_errors=True)
        # Large files are replaced, never written to: a link will do.
        shutil.copytree(make(subject.corpus, self._root), self._scratch, copy_function=_link_or_copy)
        (self._scratch / subject.file).unlink()
        (self._scratch / subject.file).write_bytes(content)
        yield self._scratch
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _read(self, subject: Subject, content: bytes) -> Outcome:
        from spikestill.common.errors import UserError

        fault, found, accepted = "", "", False
        with self._folder(subject, content) as folder:
            memory = self._peak.restart()
            before = used_seconds()
            try:
                found = subject.reader(folder)
                accepted = True
            except (UserError, Refused) as error:
                if subject.named not in str(error):
                    fault = f"the file is not named: {error}"
            except BaseException as error:
                fault = f"{type(error).__name__}: {error}"
            return Outcome(fault, accepted, found, used_seconds() - before, self._peak.bytes - memory)


def _link_or_copy(source: str, target: str) -> None:
    if source.endswith(".safetensors"):
        os.link(source, target)
    else:
        shutil.copyfile(source, target)


def serve(root: Path, seed: int, quick: bool, only: str) -> None:
    """Read case numbers from standard input, answer a line of JSON for each."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    space = int(Path("/proc/self/statm").read_text().split()[0]) * PAGE + ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (space, resource.getrlimit(resource.RLIMIT_AS)[1]))
    with tempfile.TemporaryDirectory() as scratch:
        worker = Worker(root, Path(scratch) / "case", seed, chosen(quick, only))
        for line in sys.stdin:
            print(json.dumps(worker.case(int(line))), file=answers, flush=True)


def chosen(quick: bool, only: str = "") -> list[Subject]:
    """Return what is read: all, or where there are seconds only, what takes milliseconds.

    Args:
        quick: only what takes milliseconds.
        only: a pattern that a subject's name has; a case of a pattern is that case with the same pattern alone.
    """
    return [
        subject for subject in subjects()
        if (not quick or subject.weight >= 20) and re.search(only, subject.name)
    ]  # fmt: skip


class Process:
    """A worker in a process of its own, which may crash or hang."""

    def __init__(self, root: Path, seed: int, quick: bool, only: str = "") -> None:
        words = [
            sys.executable,
            "-m",
            "tests.hostile.fuzz",
            "--worker",
            str(root),
            "--seed",
            str(seed),
            "--only",
            only,
        ]
        threads = {name: "1" for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")}
        self._process = subprocess.Popen(
            words + (["--quick"] if quick else []), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env=os.environ | threads, start_new_session=True,
        )  # fmt: skip

    def ask(self, case: int) -> dict[str, Any]:
        """Return the answer; where there is none, ``fault`` says why."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with contextlib.suppress(BrokenPipeError):
            stdin.write(f"{case}\n".encode())
            stdin.flush()
        if not select.select([stdout], [], [], HANG_S)[0]:
            self.close()
            return {"fault": f"hangs: nothing came for {HANG_S:.0f} s"}
        line = stdout.readline()
        if not line:
            return {"fault": f"the interpreter ended with status {self._process.wait()}"}
        return dict(json.loads(line))

    def close(self) -> None:
        """End it and what it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def fuzz(
    seed: int,
    seconds: float,
    most: int = 10**9,
    first: int = 0,
    *,
    quick: bool = False,
    workers: int = 1,
    root: Path | None = None,
    only: str = "",
) -> tuple[int, list[str], Counter[str]]:
    """Return (how many cases were read, findings, cases by subject) of cases from ``first`` on.

    Args:
        seed: of the cases.
        seconds: to go on for; the making of the good files is not counted.
        most: cases.
        first: number of the first case.
        quick: only what takes milliseconds.
        workers: processes that read, side by side.
        root: where good files are kept; None: they are made, and removed.
        only: a pattern of the subjects' names.
    """
    findings: list[str] = []
    counts: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        folder = root or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name in dict.fromkeys(subject.corpus for subject in chosen(quick, only)):
            make(name, folder)
        numbers, until = iter(range(first, first + most)), time.monotonic() + seconds

        def work(_: int) -> None:
            process: Process | None = None
            for case in numbers:
                process = process or Process(folder, seed, quick, only)
                answer = process.ask(case)
                counts[answer.get("subject", "?")] += 1
                if answer["fault"]:
                    sealed = " sealed" if answer.get("sealed") else ""
                    findings.append(
                        f"seed {seed} case {case} {answer.get('subject')}{sealed}: {answer['fault']}"
                    )
                    print(findings[-1], file=sys.stderr, flush=True)
                if "subject" not in answer:
                    process.close()
                    process = None
                if time.monotonic() > until:
                    break
            if process is not None:
                process.close()

        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(work, range(workers)))
    return counts.total(), findings, counts


def main() -> int:
    """Run from the command line; the status is 1 where there is a finding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--most", type=int, default=10**9, help="cases")
    parser.add_argument("--quick", action="store_true", help="only what takes milliseconds")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="processes that read, side by side"
    )
    parser.add_argument("--only", default="", metavar="PATTERN", help="only subjects with it in their name")
    parser.add_argument("--root", type=Path, help="where good files are kept from run to run")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        serve(given.worker, given.seed, given.quick, given.only)
        return 0
    cases, findings, counts = fuzz(
        given.seed,
        given.seconds,
        given.most,
        given.first,
        quick=given.quick,
        workers=given.workers,
        root=given.root,
        only=given.only,
    )
    for name, count in sorted(counts.items()):
        print(f"{count:6} {name}")
    print(f"{cases} cases, {len(findings)} findings")
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main())
