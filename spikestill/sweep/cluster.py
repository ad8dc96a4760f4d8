"""The one file that knows Ray: it starts or joins a cluster, and runs functions on its nodes."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from spikestill.common.errors import BackendError, UserError
from spikestill.common.extras import EXTRAS
from spikestill.common.processor import cores

INSTALL = EXTRAS["sweep"].install
START = "start one there with `ray start --head`, and join it from each machine with `ray start --address HOST:PORT`"
TOKEN = "copy its ~/.ray/auth_token here, or name the copy by RAY_AUTH_TOKEN_PATH; RAY_AUTH_MODE must not be disabled"
OBJECT_STORE_BYTES = 80 << 20
"""Only options and summaries travel through Ray; artefacts lie in the sweep's folder."""


@dataclasses.dataclass(frozen=True)
class Lost:
    """The process or the node of a call is gone; ``why`` says how Ray knows."""

    why: str


RETRY_S = 0.5
"""Between two tries to reach a head that does not answer."""


class HeadGoneError(UserError):
    """The head of the cluster does not answer any more."""


class Cluster:
    """A Ray cluster, joined.

    Args:
        ray: the module.
        answer_s: how long its head may take to answer.
    """

    def __init__(self, ray: Any, answer_s: float) -> None:
        self._ray = ray
        self._answer_s = answer_s
        self._head = str(ray.get_runtime_context().gcs_address)

    def submit(self, function: Callable[[Any], Any], argument: Any, cpus: int, gpus: float) -> Any:
        """Call ``function(argument)`` on a node with ``cpus`` and ``gpus`` free, each call in a process of its own."""
        # A lost call is begun again by the caller, who counts how often.
        remote = self._ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0, max_calls=1)(function)
        return remote.remote(argument)

    def ended(self, calls: Sequence[Any], timeout_s: float) -> list[tuple[Any, Any]]:
        """Wait for at least one of ``calls``; return each that has ended with its result, or :class:`Lost`."""
        ready, _ = self._ray.wait(list(calls), num_returns=1, timeout=timeout_s)
        if ready:
            ready, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=0)
        return [(call, self._result(call)) for call in ready]

    def _result(self, call: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(call)
        except errors.RayTaskError as error:
            raise BackendError(f"Ray could not run a stage: {error}") from error
        except errors.RayError as error:
            return Lost(" ".join(str(error).split())[:300] or type(error).__name__)

    def cores(self) -> int:
        """Return the cores of all nodes that are alive."""
        return int(self._answering().cluster_resources().get("CPU", 0))

    def gpus(self) -> float:
        """Return the GPUs of all nodes that are alive."""
        return float(self._answering().cluster_resources().get("GPU", 0))

    def most_cores(self) -> int:
        """Return the cores of the largest node that is alive."""
        nodes = self._answering().nodes()
        return max((int(node["Resources"].get("CPU", 0)) for node in nodes if node["Alive"]), default=0)

    def nodes(self) -> int:
        """Return how many nodes are alive."""
        return sum(bool(node["Alive"]) for node in self._answering().nodes())

    def _answering(self) -> Any:
        """Return Ray, whose head answers. Where it does not, Ray waits a minute for it and then ends this process.

        Raises:
            HeadGoneError: it has not answered for ``answer_s`` seconds.
        """
        deadline = time.monotonic() + self._answer_s
        while True:
            try:
                _connect(self._head, self._answer_s)
                return self._ray
            except OSError as error:
                if time.monotonic() < deadline:
                    time.sleep(RETRY_S)
                    continue
                raise HeadGoneError(
                    f"the head of the Ray cluster, {self._head}, does not answer any more ({error})",
                    "the same command goes on, with the --address of a new one where there was one",
                ) from error


@contextlib.contextmanager
def joined(address: str | None, answer_s: float) -> Iterator[Cluster]:
    """Yield the cluster at ``address``; None: one of this machine alone, ended at the end.

    Raises:
        UserError: Ray is not installed, or nothing answers at ``address``.
    """
    with (
        _token_shown() if address is not None else contextlib.nullcontext(),
        _joined(address, answer_s) as cluster,
    ):
        yield cluster


def check_ray() -> None:
    """Look whether Ray is installed, without importing it: it reads the environment then, which is not ready yet.

    Raises:
        UserError: it is not.
    """
    try:
        if importlib.util.find_spec("ray") is None:
            raise ModuleNotFoundError("No module named 'ray'")
    except ImportError as error:
        raise _no_ray(error) from error


def _no_ray(error: ImportError) -> UserError:
    return UserError(f"sweeps need Ray, which cannot be imported ({error})", f"run `{INSTALL}`")


@contextlib.contextmanager
def _joined(address: str | None, answer_s: float) -> Iterator[Cluster]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise _no_ray(error) from error
    common: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        common |= {
            "address": "local", "num_cpus": cores(), "include_dashboard": False,
            "object_store_memory": OBJECT_STORE_BYTES,
        }  # fmt: skip
    else:
        common["address"] = check_answers(address, answer_s)
    try:
        with _in_sessions_of_their_own() if address is None else contextlib.nullcontext():
            ray.init(**common)
    except Exception as error:  # Ray raises plain ones too
        if address is None:
            raise BackendError(f"Ray does not start: {error}") from error
        said = " ".join(str(error).split())[:200]
        raise UserError(
            f"Ray address {address}: cannot be joined from this machine ({said})", START
        ) from error
    node = str(ray._private.worker.global_worker.node.raylet_socket_name)
    try:
        yield Cluster(ray, answer_s)
    finally:
        if _listens(node):
            ray.shutdown()
        else:
            # Ray's own end would end this process here, before the sweep's table is written.
            atexit.unregister(ray.shutdown)


def _listens(path: str) -> bool:
    """Return whether a process listens at a socket of this machine."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        try:
            caller.connect(path)
        except OSError:
            return False
    return True


@contextlib.contextmanager
def _in_sessions_of_their_own() -> Iterator[None]:
    """Have Ray begin its processes in sessions of their own.

    A signal to the group of this process, as from a closed terminal or ``timeout``, then ends none of them before
    their stages were asked to save. On Linux alone, where the kernel ends them when this process dies; elsewhere Ray
    finds them by their group.
    """
    from ray._private import services

    usual = services.ConsolePopen
    if sys.platform == "linux":
        services.ConsolePopen = functools.partial(usual, start_new_session=True)
    try:
        yield
    finally:
        services.ConsolePopen = usual


@contextlib.contextmanager
def _token_shown() -> Iterator[None]:
    """Show a head the token that this machine has, if any, meanwhile.

    Ray shows it to what ``auto`` finds, and to no HOST:PORT. A head that wants none does not look at it.
    """
    places = os.environ.get("RAY_AUTH_TOKEN_PATH"), Path.home() / ".ray" / "auth_token"
    has = bool(os.environ.get("RAY_AUTH_TOKEN")) or any(place and Path(place).is_file() for place in places)
    if not has or "RAY_AUTH_MODE" in os.environ:
        yield
        return
    os.environ["RAY_AUTH_MODE"] = "token"
    try:
        yield
    finally:
        del os.environ["RAY_AUTH_MODE"]


def check_answers(address: str, answer_s: float) -> str:
    """Return the ``HOST:PORT`` of the Ray head at ``address``, ``HOST:PORT`` or ``auto``.

    Raises:
        UserError: ``auto`` finds none, none answers within ``answer_s`` seconds, or it wants another token.
    """
    found = _found_by_ray() if address == "auto" else address
    name = f"Ray address {address}" + (f" ({found})" if found != address else "")
    try:
        _connect(found, answer_s)
    except OSError as error:
        raise UserError(f"{name} does not answer ({error})", START) from error
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", found]
    try:
        health = subprocess.run(command, capture_output=True, timeout=answer_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise UserError(
            f"{name} does not answer (nothing but an open port in {answer_s:g} s)", START
        ) from error
    if b"InvalidAuthToken" in health.stderr:
        raise UserError(f"{name} wants its own token, and this machine has none or another", TOKEN)
    if health.returncode:
        raise UserError(f"{name} does not answer (there is an open port, and no Ray head behind it)", START)
    return found


def _connect(address: str, timeout_s: float) -> None:
    """Connect to ``HOST:PORT`` and hang up; OSError where nothing answers."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), timeout=timeout_s).close()


def _found_by_ray() -> str:
    """Return what ``auto`` means: ``RAY_ADDRESS``, a head that runs here, or the last one that `ray start` noted.

    Ray itself waits minutes for one that it noted and that has died.
    """
    from ray._private.services import canonicalize_bootstrap_address_or_die

    try:
        return str(canonicalize_bootstrap_address_or_die("auto"))
    except ConnectionError as error:
        raise UserError(
            "Ray address auto: no cluster is found from this machine",
            "start one with `ray start --head`, or join one with `ray start --address HOST:PORT`; without --address "
            "the sweep runs on this machine alone",
        ) from error
