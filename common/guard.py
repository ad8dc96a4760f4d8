"""Work on a stranger's bytes done in a process of its own, which may crash, hang or be taken over without harm.

A *guard* is a small Python process that has imported what it needs and waits. For each call it forks a child; the
child takes limits on memory and time, gives up every right (``common/confinement.py``), does the work on the open file
that it was handed, and writes its answer into a pipe. Forking takes a few milliseconds, so each call gets a fresh
process; the guard itself never sees the file's content. It ends with its parent, or after a while without a call.

Answer: uint32 length, JSON ``{"value": ..., "arrays": [[name, dtype, shape], ...]}`` or ``{"error": text}``, then the
arrays' bytes, each C-contiguous, in order. The parent checks it as it would check a file.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.common.limits import MIB

LENGTH = struct.Struct("<I")
HEADER_BYTES = 32 * MIB
IDLE_S = 60.0
"""Seconds without a call after which a guard ends."""
WALL_FACTOR, WALL_EXTRA_S = 10, 60
"""A call may take this many times its processor seconds, and this many more, on the clock: machines are shared."""
WATCH_S = 0.1
ONE_THREAD = {name: "1" for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}
START = "import sys; sys.path[:] = sys.argv[3:]; from spikestill.common.guarded import main; main()"
Arrays = dict[str, npt.NDArray[Any]]


class GuardedError(ValueError):
    """The work failed, crashed, or took more than it may; the message says which, as the end of a sentence."""


class Guard:
    """A process that forks a confined child for each call.

    Calls of several threads wait for each other. After a fork of the parent each process has a guard of its own.

    Args:
        module: the module whose functions it calls; imported once, at the start.
        name: what does the work, for error messages, e.g. ``HDF5``.
    """

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name
        self._turn = threading.Lock()
        self._owner = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def call(
        self,
        function: str,
        arguments: Mapping[str, Any],
        descriptors: Sequence[int],
        *,
        memory: int,
        seconds: float,
        array_bytes: int = 0,
    ) -> tuple[Any, Arrays]:
        """Return what ``function(*descriptors, **arguments)`` of the module gives: (JSON value, arrays).

        Args:
            function: its name.
            arguments: JSON values.
            descriptors: open files, given to the child.
            memory: bytes that it may take.
            seconds: processor seconds that it may take.
            array_bytes: most bytes of arrays that are taken back.

        Raises:
            GuardedError: it raised, crashed, ran out of time or memory, or answered nonsense.
        """
        request = {"function": function, "arguments": dict(arguments), "memory": memory, "seconds": seconds}
        deadline = time.monotonic() + WALL_FACTOR * seconds + WALL_EXTRA_S
        with self._turn:
            reading, writing = os.pipe()
            try:
                try:
                    self._send(request, [writing, *descriptors])
                finally:
                    os.close(writing)
                answer = Answer(reading, deadline)
                try:
                    found = answer.read(array_bytes)
                except EOFError:
                    found = None
                except TimeoutError as error:
                    self.close()
                    raise GuardedError(f"{self._name} had not done with it after {seconds:.3g} s") from error
                except BaseException:
                    self.close()
                    raise
            finally:
                os.close(reading)
            status = self._status(deadline)
        if status is None or status != 0 or found is None:
            raise GuardedError(self._fault(status, seconds))
        header, arrays = found
        if "error" in header:
            raise GuardedError(str(header["error"]))
        return header.get("value"), arrays

    def _fault(self, status: int | None, seconds: float) -> str:
        if status is not None and os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            if number in (signal.SIGPROF, signal.SIGXCPU, signal.SIGKILL):
                return f"{self._name} had not done with it after {seconds:.3g} s of the processor's time"
            return f"{self._name} crashes on it ({signal.Signals(number).name}): its structure is damaged"
        return f"{self._name} cannot go on with it: it asks for more memory than a file of its size may"

    def _send(self, request: dict[str, Any], descriptors: list[int]) -> None:
        message = json.dumps(request).encode()
        message = LENGTH.pack(len(message)) + message
        for attempt in range(2):
            control = self._started()
            try:
                socket.send_fds(control, [message[:4]], descriptors)
                control.sendall(message[4:])
                return
            except OSError:  # it had waited long enough, and ended
                self.close()
                if attempt:
                    raise

    def _started(self) -> socket.socket:
        if self._control is not None and self._owner == os.getpid():
            if self._process is not None and self._process.poll() is None:
                return self._control
            self.close()
        ours, its = socket.socketpair()
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-c", START, str(its.fileno()), self._module, *sys.path],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=[its.fileno()], start_new_session=True, env=os.environ | ONE_THREAD, cwd="/",
            )  # fmt: skip
        self._control, self._owner = ours, os.getpid()
        atexit.register(self.close)
        return ours

    def _status(self, deadline: float) -> int | None:
        """Return the child's wait status, None where the guard itself is gone."""
        if self._control is None:
            return None
        self._control.settimeout(max(0.1, deadline - time.monotonic()))
        content = b""
        try:
            while len(content) < LENGTH.size:
                part = self._control.recv(LENGTH.size - len(content))
                if not part:
                    break
                content += part
        except OSError:
            content = b""
        if len(content) < LENGTH.size:
            self.close()
            return None
        return int(LENGTH.unpack(content)[0])

    def close(self) -> None:
        """End the process; the next call starts another."""
        atexit.unregister(self.close)
        control, process, owner = self._control, self._process, self._owner
        self._control = self._process = None
        if control is not None:
            control.close()
        if process is not None and owner == os.getpid():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class Answer:
    """What comes out of a pipe, read with a deadline and an upper bound.

    Args:
        descriptor: the pipe's end.
        deadline: of the monotonic clock, s.
        watch: called every now and then; it raises TimeoutError to give up.
    """

    def __init__(self, descriptor: int, deadline: float, watch: Callable[[], None] = lambda: None) -> None:
        self._descriptor, self._deadline, self._watch = descriptor, deadline, watch
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def read(self, array_bytes: int) -> tuple[dict[str, Any], Arrays]:
        """Return the header and the arrays, which may have ``array_bytes`` together.

        Raises:
            TimeoutError: it took too long.
            EOFError: the other side is gone.
            GuardedError: it is no answer.
        """
        length = LENGTH.unpack(self._exactly(LENGTH.size))[0]
        if length > HEADER_BYTES:
            raise GuardedError(f"its description has {length:,} bytes, at most {HEADER_BYTES:,} are read")
        header = json.loads(bytes(self._exactly(length)))
        if not isinstance(header, dict):
            raise GuardedError("its description is no object")
        arrays: Arrays = {}
        for name, kind, shape in header.get("arrays", []):
            dtype = np.dtype(kind)
            if dtype.hasobject or any(type(side) is not int or side < 0 for side in shape):
                raise GuardedError(f"{name} is {kind} {shape}, numbers wanted")
            size = math.prod(shape) * dtype.itemsize
            array_bytes -= size
            if array_bytes < 0:
                raise GuardedError(f"{name} has {size:,} bytes, more than was declared")
            arrays[name] = np.frombuffer(self._exactly(size), dtype).reshape(shape)
        return header, arrays

    def _exactly(self, size: int) -> bytearray:
        content = bytearray(size)
        view, filled = memoryview(content), 0
        while filled < size:
            while not self._poll.poll(WATCH_S * 1000):
                self._watch()
                if time.monotonic() > self._deadline:
                    raise TimeoutError
            got = os.readv(self._descriptor, [view[filled:]])
            if not got:
                raise EOFError
            filled += got
        return content
