"""The interpreter that Lava lives in: started by ``deploy/lava/session.py``, one for each session.

Lava forks its Processes from the interpreter that runs it. A process that has used multithreaded PyTorch
or parallel numba cannot be forked safely, importing Lava changes the start method of the whole interpreter,
and a model that raises leaves Lava's caller waiting for ever. So Lava gets an interpreter of its own, which
uses none of these, and in which a guard thread watches every Process.

What passes over their one socket is in ``wire.py``.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import threading
import time
import traceback
from multiprocessing.connection import Connection, wait
from typing import Any

from spikestill.common.errors import UserError
from spikestill.deploy.lava.wire import ANSWER, FAILED, READY, Engine

STOP_GRACE_S = 3.0
GUARD_PERIOD_S = 0.5
MODEL_GRACE_S = 1.0
START_PERIOD_S = 0.01


class _SessionGone(Exception):  # noqa: N818 - not an error: it means stop
    """The session closed its end of the socket."""


class Host:
    """An engine under Lava's runtime, with the guard that reports the death of a Process.

    Args:
        connection: the socket to the session.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._send_lock = threading.Lock()
        # Only one thread reads what a Process raised and ends the interpreter; another waits for that.
        self._end_lock = threading.RLock()
        self._runtime: Any = None
        self._names: list[str] = []
        self._stopping = False
        self._session_pid = os.getppid()

    def run(self, engine_path: str) -> None:
        """Serve requests until end of file; never returns."""
        try:
            engine = self._start(engine_path, self._connection.recv())
            self._send(READY, json.dumps([handle.name for handle in self._shared_memory()]).encode())
            while True:
                self._send(ANSWER, engine.exchange(self._receive()))
        except _SessionGone:
            self._stop()
        except UserError as error:
            self._fail(str(error))
        except Exception as error:
            told = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
            with self._end_lock:
                # Where a model failed too, its own exception says what happened.
                raised = (self._raised(index) for index in range(len(self._actors())))
                self._fail(next(filter(None, raised), told))

    def _start(self, engine_path: str, argument: Any) -> Engine:
        from spikestill.deploy.lava.loader import install_shim

        install_shim()
        from lava.magma.core.process.message_interface_enum import ActorType
        from lava.magma.runtime.runtime import Runtime

        module, _, name = engine_path.partition(":")
        engine: Engine = getattr(importlib.import_module(module), name)(argument)
        executable = engine.process.compile(engine.run_config)
        self._names = [type(process).__name__ for process in executable.proc_builders]
        self._runtime = Runtime(executable, ActorType.MultiProcessing)
        executable.assign_runtime_to_all_processes(self._runtime)
        threading.Thread(target=self._guard, name="lava-guard", daemon=True).start()
        self._runtime.initialize()
        engine.start(self._runtime)
        return engine

    def _infrastructure(self) -> Any:
        return None if self._runtime is None else self._runtime._messaging_infrastructure

    def _actors(self) -> list[Any]:
        infrastructure = self._infrastructure()
        return [] if infrastructure is None else list(infrastructure.actors)

    def _shared_memory(self) -> list[Any]:
        infrastructure = self._infrastructure()
        manager = None if infrastructure is None else infrastructure.smm
        return [] if manager is None else list(manager._shared_memory_handles)

    def _receive(self) -> bytes:
        try:
            return self._connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise _SessionGone from error

    def _send(self, tag: bytes, body: bytes) -> None:
        try:
            with self._send_lock:
                self._connection.send_bytes(tag + body)
        except OSError as error:
            raise _SessionGone from error

    def _guard(self) -> None:
        """Report the first Process that ends before it was told to, and follow the session into death."""
        while not self._stopping:
            ended = self._ended_within(GUARD_PERIOD_S)
            if ended and min(ended) >= len(self._names):
                # A runtime service leaves as soon as it hears of an error: the model that raised comes next.
                ended += self._ended_within(MODEL_GRACE_S, among=len(self._names))
            if self._stopping:
                return
            if os.getppid() != self._session_pid:
                self._exit(1)
            if ended:
                with self._end_lock:
                    self._fail(self._epitaph(min(ended)))

    def _ended_within(self, seconds: float, among: int | None = None) -> list[int]:
        """Return the Processes, of the first ``among``, that have ended; waits for one up to ``seconds``."""
        sentinels = [self._sentinel(actor) for actor in self._actors()[:among]]
        alive = [sentinel for sentinel in sentinels if sentinel is not None]
        if not alive:
            time.sleep(START_PERIOD_S)
        ready = wait(alive, timeout=0 if None in sentinels else seconds) if alive else []
        return [index for index, sentinel in enumerate(sentinels) if sentinel is None or sentinel in ready]

    @staticmethod
    def _sentinel(actor: Any) -> int | None:
        """Return what becomes ready when the Process ends, None where Lava has joined and closed it."""
        try:
            return int(actor.sentinel)
        except ValueError:
            return None

    def _name(self, index: int) -> str:
        return self._names[index] if index < len(self._names) else "the runtime service"

    def _raised(self, index: int) -> str | None:
        """Return what the Lava Process ``index`` raised, with its traceback, None if nothing (yet)."""
        try:
            found = self._actors()[index].exception
        except Exception as error:  # It did not survive pickling, and is still to be reported.
            return f"{self._name(index)} raised what cannot be read back ({type(error).__name__}: {error})"
        if found is None:
            return None
        raised, trace = found
        return f"{self._name(index)} raised {type(raised).__name__}: {raised}\n{trace}"

    def _epitaph(self, index: int) -> str:
        """Return how the Lava Process ``index`` ended."""
        raised = self._raised(index)
        if raised is not None:
            return raised
        actor = self._actors()[index]
        try:
            multiprocessing.Process.join(actor, timeout=1)
            code = actor.exitcode
        except ValueError:  # Lava has closed it already.
            code = None
        if code is None or code >= 0:
            return f"{self._name(index)} ended by itself with status {code}"
        hint = "; is /dev/shm full?" if -code == signal.SIGBUS else ""
        return f"{self._name(index)} was killed by {signal.Signals(-code).name}{hint}"

    def _stop(self) -> None:
        """Stop Lava as its documentation says, for at most STOP_GRACE_S seconds; never returns."""
        self._stopping = True
        threading.Thread(target=self._exit_late, daemon=True).start()
        try:
            if self._runtime is not None:
                self._runtime.stop()
        except Exception:
            traceback.print_exc()
        finally:
            self._exit(0)

    def _exit_late(self) -> None:
        time.sleep(STOP_GRACE_S)
        self._leave(1)

    def _fail(self, message: str) -> None:
        """Tell the session what happened and end; never returns."""
        self._stopping = True
        self._end_lock.acquire()
        try:
            self._send(FAILED, message.encode())
        except _SessionGone:
            pass
        finally:
            self._exit(1)

    def _exit(self, status: int) -> None:
        """Leave, unless another thread is about to; never returns."""
        self._end_lock.acquire()
        self._leave(status)

    def _leave(self, status: int) -> None:
        """End every child, unlink the shared memory and end this interpreter, without any exit handler."""
        try:
            for child in multiprocessing.active_children():
                child.kill()
            for handle in self._shared_memory():
                try:
                    handle.unlink()
                except FileNotFoundError:
                    continue
        finally:
            os._exit(status)


def main(descriptor: int, engine_path: str) -> None:
    """Serve the session at the other end of the socket ``descriptor``.

    Args:
        descriptor: file descriptor of a ``multiprocessing.Pipe`` end.
        engine_path: ``module:class`` of the :class:`Engine`.
    """
    connection = Connection(descriptor)
    # A forked Process that kept the socket open would hide this interpreter's death from the session.
    os.register_at_fork(after_in_child=connection.close)
    Host(connection).run(engine_path)
