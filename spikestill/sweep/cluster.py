"""The Ray cluster of a sweep, as the sweep sees it: nodes with cores, and calls that run there.

Ray itself is in a process of its own (:mod:`spikestill.sweep.ray_driver`): where the head or the node of a cluster is
gone, Ray waits a minute, ends the process or crashes it, and the sweep has to write its table nevertheless.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from spikestill.common.errors import BackendError, UserError
from spikestill.common.extras import EXTRAS

INSTALL = EXTRAS["sweep"].install
RETRY_S = 0.5
"""Between two looks for an answer that is late."""
SILENT_S = 60.0
"""Given to a head whose port is open before it counts as gone."""
END_S = 30.0
"""Given to Ray to end."""


@dataclasses.dataclass(frozen=True)
class Lost:
    """The process or the node of a call is gone; ``why`` says how Ray knows."""

    why: str


class HeadGoneError(UserError):
    """The head of the cluster does not answer any more."""


class Cluster:
    """A Ray cluster, joined by a process that is asked over a connection.

    Every method raises :class:`HeadGoneError` where the head is gone, or that process.

    Args:
        link: this end of the connection.
        head: ``HOST:PORT`` of the cluster's head.
        answer_s: how long it may take to answer.
    """

    def __init__(self, link: Connection, head: str, answer_s: float) -> None:
        self._link = link
        self._head = head
        self._answer_s = answer_s

    def submit(self, function: Callable[[Any], Any], argument: Any, cpus: int, gpus: float) -> int:
        """Call ``function(argument)`` on a node with ``cpus`` and ``gpus`` free, each call in a process of its own.

        Returns:
            the number of the call.
        """
        return int(self._ask(0.0, "submit", function, argument, cpus, gpus))

    def ended(self, numbers: Sequence[int], timeout_s: float) -> list[tuple[int, Any]]:
        """Wait for at least one of the calls; return each that has ended with its result, or :class:`Lost`."""
        found: list[tuple[int, Any]] = self._ask(timeout_s, "ended", numbers, timeout_s)
        return found

    def cores(self) -> int:
        """Return the cores of all nodes that are alive."""
        return int(self._ask(0.0, "cores"))

    def gpus(self) -> float:
        """Return the GPUs of all nodes that are alive."""
        return float(self._ask(0.0, "gpus"))

    def most_cores(self) -> int:
        """Return the cores of the largest node that is alive."""
        return int(self._ask(0.0, "most_cores"))

    def nodes(self) -> int:
        """Return how many nodes are alive."""
        return int(self._ask(0.0, "nodes"))

    def _ask(self, takes_s: float, method: str, *arguments: Any) -> Any:
        """Return what a method of the other process returns, which may take ``takes_s`` by itself.

        Raises:
            HeadGoneError: it did not answer in time, or it is gone.
            UserError, BackendError: what the method raised.
        """
        asked = time.monotonic() + takes_s
        try:
            self._link.send((method, arguments))
            while not self._link.poll(RETRY_S):
                silent_s = time.monotonic() - asked
                if silent_s > self._answer_s:
                    connect(self._head, self._answer_s)
                if silent_s > max(SILENT_S, self._answer_s):
                    raise TimeoutError(f"no answer in {silent_s:.0f} s")
            error, answer = self._link.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            error = self._why_gone()
        except OSError as reason:
            error = str(reason)
        if isinstance(error, str):
            raise HeadGoneError(
                f"the head of the Ray cluster, {self._head}, does not answer any more ({error})",
                "the same command goes on, with the --address of a new one where there was one",
            )
        if error is not None:
            raise error
        return answer

    def _why_gone(self) -> str:
        """Return why Ray's process here ended: its head is gone, as a rule, which may close its port a little later."""
        deadline = time.monotonic() + self._answer_s
        while time.monotonic() < deadline:
            try:
                connect(self._head, self._answer_s)
            except OSError as error:
                return str(error)
            time.sleep(RETRY_S)
        return "the process that spoke with it has ended"


@contextlib.contextmanager
def joined(address: str | None, answer_s: float) -> Iterator[Cluster]:
    """Yield the cluster at ``address``; None: one of this machine alone, ended at the end.

    Raises:
        UserError: Ray cannot be imported, or nothing answers at ``address``.
        BackendError: Ray does not start here.
    """
    link, other = Pipe()
    # In a session of its own, with all that Ray begins: a signal to the group of this process, as from a closed
    # terminal or `timeout`, ends none of them before their stages were asked to save.
    process = subprocess.Popen(
        [sys.executable, "-m", "spikestill.sweep.ray_driver", str(other.fileno()), address or "", str(answer_s)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=(other.fileno(),), start_new_session=True,
    )  # fmt: skip
    other.close()
    waits_s = 0.0
    try:
        with link:
            try:
                error, head = link.recv()
            except (EOFError, ConnectionResetError):
                status = process.wait()
                raise BackendError(f"Ray does not start: its process ended with status {status}") from None
            if error is not None:
                raise error
            waits_s = END_S
            yield Cluster(link, head, answer_s)
    except HeadGoneError:
        waits_s = 0.0  # it would wait for the head
        raise
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(waits_s)
        with contextlib.suppress(ProcessLookupError):  # and with it what it began
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def check_ray() -> None:
    """Look whether Ray is installed, without importing it: it reads the environment then, which is not ready yet.

    Raises:
        UserError: it is not.
    """
    try:
        if importlib.util.find_spec("ray") is None:
            raise ModuleNotFoundError("No module named 'ray'")
    except ImportError as error:
        raise no_ray(error) from error


def no_ray(error: ImportError) -> UserError:
    """Return what a machine without Ray is told."""
    return UserError(f"sweeps need Ray, which cannot be imported ({error})", f"run `{INSTALL}`")


def connect(address: str, timeout_s: float) -> None:
    """Connect to ``HOST:PORT`` and hang up; OSError where nothing answers."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), timeout=timeout_s).close()
