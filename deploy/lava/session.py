"""A Lava runtime in an interpreter of its own: started, asked, and ended whatever happens to either side."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from types import TracebackType
from typing import IO, Any

from spikestill.common.errors import BackendError
from spikestill.deploy.lava.loader import require
from spikestill.deploy.lava.wire import ANSWER, FAILED, READY

START_TIMEOUT_S = 180.0
EXIT_GRACE_S = 5.0
FAILED_GRACE_S = 0.5
KILL_GRACE_S = 1.0
LOG_TAIL_CHARACTERS = 2000
BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[3]); "
    "from spikestill.deploy.lava.host import main; main(int(sys.argv[1]), sys.argv[2])"
)
# Threads started before Lava forks do not live on in its Processes: keep every library serial.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


class LavaError(BackendError):
    """Lava failed while it ran: a model raised, a Process died, or no answer came in time."""


@dataclasses.dataclass
class _Remains:
    """What a session leaves to be cleared away; holds no reference to the session itself."""

    process: subprocess.Popen[bytes]
    connection: Connection
    log: IO[bytes]
    owner_pid: int
    shared_memory: list[str]
    grace_s: float = EXIT_GRACE_S

    def clear(self) -> None:
        """End the host and everything it started, and unlink what it left; at most a few seconds."""
        if os.getpid() != self.owner_pid:
            return
        self.connection.close()
        if not self.ended_within(self.grace_s):
            self._signal_group(signal.SIGTERM)
            self.ended_within(KILL_GRACE_S)
        orderly = self.process.poll() is not None and self.process.returncode >= 0
        self._signal_group(signal.SIGTERM)
        if not orderly:
            # Python's resource tracker ignores SIGTERM: it ends by itself, after unlinking what is left.
            deadline = time.monotonic() + KILL_GRACE_S
            while self._signal_group(0) and time.monotonic() < deadline:
                time.sleep(0.005)
            self._signal_group(signal.SIGKILL)
            self.process.wait()
        for name in self.shared_memory:
            with contextlib.suppress(FileNotFoundError):
                left = SharedMemory(name)
                left.close()
                left.unlink()
        self.log.close()

    def _signal_group(self, number: int) -> bool:
        """Send a signal to the host's process group; return False where none of it is left."""
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def ended_within(self, seconds: float) -> bool:
        """Return whether the host ends within ``seconds``."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True


class LavaSession:
    """A running engine. Usable from any thread, one request at a time; a context manager.

    It is closed at the interpreter's exit at the latest. Where this process dies without one (``kill -9``),
    the host notices and ends too.

    Args:
        engine: ``module:class`` of the :class:`Engine`, importable from ``sys.path``.
        argument: its argument, picklable.

    Raises:
        UserError: Lava is absent, or the engine refuses its argument.
        LavaError: the engine cannot start.
    """

    def __init__(self, engine: str, argument: Any) -> None:
        require()
        self._lock = threading.RLock()
        self._failure: str | None = None
        ours, theirs = multiprocessing.Pipe()
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the rest
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", BOOT, str(theirs.fileno()), engine, json.dumps(sys.path)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(theirs.fileno(),),
                start_new_session=True, env={**os.environ, **dict.fromkeys(THREADS, "1")},
            )  # fmt: skip
        self._remains = _Remains(process, ours, log, os.getpid(), [])
        self._clear = weakref.finalize(self, self._remains.clear)
        with self._failing_closed():
            self._send(pickle.dumps(argument), START_TIMEOUT_S)
            self._remains.shared_memory += json.loads(self._receive(READY, START_TIMEOUT_S))

    def exchange(self, request: bytes, timeout_s: float) -> bytes:
        """Return the engine's answer to ``request``, which must come within ``timeout_s`` seconds.

        Raises:
            LavaError: the session is closed, Lava failed, or no answer came in time; it is closed then.
        """
        with self._lock:
            if not self._clear.alive:
                raise LavaError(self._failure or "the Lava session is closed")
            with self._failing_closed():
                self._send(request, timeout_s)
                return self._receive(ANSWER, timeout_s)

    @contextlib.contextmanager
    def _failing_closed(self) -> Iterator[None]:
        """Close the session on any exception, KeyboardInterrupt too: the exchange may be half done."""
        try:
            yield
        except BaseException as error:
            self._failure = f"the Lava session ended with {error!r}"
            self._remains.grace_s = FAILED_GRACE_S
            self._clear()
            raise

    def _send(self, message: bytes, timeout_s: float) -> None:
        """Send ``message``, of which the host must take some at least every ``timeout_s`` seconds."""
        with socket.socket(fileno=os.dup(self._remains.connection.fileno())) as pipe:
            limit = struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1e6) + 1)
            pipe.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        try:
            self._remains.connection.send_bytes(message)
        except BlockingIOError as error:
            raise LavaError(f"Lava took no request within {timeout_s:g} s; it was ended") from error
        except OSError:
            pass  # the host is gone, and what it said last is still to be read

    def _receive(self, wanted: bytes, timeout_s: float) -> bytes:
        connection = self._remains.connection
        try:
            if not connection.poll(timeout_s):
                raise LavaError(f"Lava gave no answer within {timeout_s:g} s; it was ended")
            message = connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise LavaError(self._death()) from error
        tag, body = message[:1], message[1:]
        if tag == FAILED:
            raise LavaError(f"Lava failed: {self._with_log_tail(body.decode())}")
        if tag != wanted:
            raise LavaError(f"the Lava host sent {tag!r}, {wanted!r} was expected")
        return body

    def _death(self) -> str:
        """Return how the host died, with the end of what it printed."""
        if not self._clear.alive:
            return "the Lava session was closed while it was asked"
        status = "is still there"
        if self._remains.ended_within(1.0):
            code = self._remains.process.returncode
            status = f"ended with status {code}"
            if code < 0:
                status = f"was killed by {signal.Signals(-code).name}"
        return self._with_log_tail(f"the Lava host {status}")

    def _with_log_tail(self, told: str) -> str:
        """Return ``told`` with the end of what the host and its Processes printed, if that adds to it."""
        self._remains.log.seek(0)
        tail = self._remains.log.read().decode(errors="replace")[-LOG_TAIL_CHARACTERS:].strip()
        return told if not tail or tail.splitlines()[-1] in told else f"{told}\n{tail}"

    @property
    def host_pid(self) -> int:
        """The process id of the host, which is also that of its process group."""
        return self._remains.process.pid

    def close(self) -> None:
        """Stop Lava and free what it holds, after the request that runs; calling it again does nothing."""
        with self._lock:
            self._clear()

    def __enter__(self) -> LavaSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
