"""The one file that knows Ray: a process that starts or joins a cluster, and runs functions on its nodes.

    python -m spikestill.sweep.ray_driver LINK ADDRESS ANSWER_S

It answers what :class:`spikestill.sweep.cluster.Cluster` asks over the connection with the number LINK, and ends with
it. An empty ADDRESS is a cluster of this machine alone. Ray ends, or crashes, a process whose node is gone, which is
why the sweep is in another one.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from spikestill.common.errors import BackendError, UserError
from spikestill.common.processor import cores
from spikestill.sweep.cluster import Lost, connect, no_ray

START = "start one there with `ray start --head`, and join it from each machine with `ray start --address HOST:PORT`"
TOKEN = "copy its ~/.ray/auth_token here, or name the copy by RAY_AUTH_TOKEN_PATH; RAY_AUTH_MODE must not be disabled"
OBJECT_STORE_BYTES = 80 << 20
"""Only options and summaries travel through Ray; artefacts lie in the sweep's folder."""


class RayCluster:
    """A Ray cluster, joined: what its nodes have, and the calls that run there.

    Args:
        ray: the module.

    Attributes:
        error: what Ray raises of its own.
    """

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self.error: type[Exception] = ray.exceptions.RayError
        self._calls: dict[int, Any] = {}
        self._submitted = 0

    def head(self) -> str:
        """Return ``HOST:PORT`` of its head."""
        return str(self._ray.get_runtime_context().gcs_address)

    def submit(self, function: Callable[[Any], Any], argument: Any, cpus: int, gpus: float) -> int:
        """Call ``function(argument)`` on a node with ``cpus`` and ``gpus`` free; return the number of the call."""
        # A lost call is begun again by the caller, who counts how often.
        remote = self._ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0, max_calls=1)(function)
        self._submitted += 1
        self._calls[self._submitted] = remote.remote(argument)
        return self._submitted

    def ended(self, numbers: Sequence[int], timeout_s: float) -> list[tuple[int, Any]]:
        """Wait for at least one of the calls; return each that has ended with its result, or :class:`Lost`."""
        calls = {self._calls[number]: number for number in numbers}
        ready, _ = self._ray.wait(list(calls), num_returns=1, timeout=timeout_s)
        if ready:
            ready, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=0)
        found = [(calls[call], self._result(call)) for call in ready]
        for number, _ in found:
            del self._calls[number]
        return found

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
        return int(self._ray.cluster_resources().get("CPU", 0))

    def gpus(self) -> float:
        """Return the GPUs of all nodes that are alive."""
        return float(self._ray.cluster_resources().get("GPU", 0))

    def most_cores(self) -> int:
        """Return the cores of the largest node that is alive."""
        nodes = self._ray.nodes()
        return max((int(node["Resources"].get("CPU", 0)) for node in nodes if node["Alive"]), default=0)

    def nodes(self) -> int:
        """Return how many nodes are alive."""
        return sum(bool(node["Alive"]) for node in self._ray.nodes())


@contextlib.contextmanager
def joined(address: str | None, answer_s: float) -> Iterator[RayCluster]:
    """Yield the cluster at ``address``; None: one of this machine alone, ended at the end.

    Raises:
        UserError: Ray cannot be imported, or nothing answers at ``address``.
        BackendError: Ray does not start here.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is not None:
        _show_token()
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise no_ray(error) from error
    common: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        common |= {
            "address": "local", "num_cpus": cores(), "include_dashboard": False,
            "object_store_memory": OBJECT_STORE_BYTES,
        }  # fmt: skip
    else:
        common["address"] = check_answers(address, answer_s)
    try:
        ray.init(**common)
    except Exception as error:  # Ray raises plain ones too
        if address is None:
            raise BackendError(f"Ray does not start: {error}") from error
        said = " ".join(str(error).split())[:200]
        raise UserError(
            f"Ray address {address}: cannot be joined from this machine ({said})", START
        ) from error
    yield RayCluster(ray)
    ray.shutdown()


def _show_token() -> None:
    """Show a head the token that this machine has, if any.

    Ray shows it to what ``auto`` finds, and to no HOST:PORT. A head that wants none does not look at it.
    """
    places = os.environ.get("RAY_AUTH_TOKEN_PATH"), Path.home() / ".ray" / "auth_token"
    if os.environ.get("RAY_AUTH_TOKEN") or any(place and Path(place).is_file() for place in places):
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def check_answers(address: str, answer_s: float) -> str:
    """Return the ``HOST:PORT`` of the Ray head at ``address``, ``HOST:PORT`` or ``auto``.

    Raises:
        UserError: ``auto`` finds none, none answers within ``answer_s`` seconds, or it wants another token.
    """
    found = _found_by_ray() if address == "auto" else address
    name = f"Ray address {address}" + (f" ({found})" if found != address else "")
    try:
        connect(found, answer_s)
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


def serve(link: Connection, cluster: RayCluster) -> None:
    """Answer what is asked over ``link``, (method, arguments), until nobody holds its other end."""
    link.send((None, cluster.head()))
    while True:
        try:
            method, arguments = link.recv()
        except EOFError:
            return
        try:
            answer = getattr(cluster, method)(*arguments)
        except (UserError, BackendError) as error:
            link.send((error, None))
        except (cluster.error, ConnectionError, TimeoutError) as error:  # its head is gone, as a rule
            link.send((" ".join(f"{type(error).__name__}: {error}".split())[:300], None))
        except Exception as error:
            link.send((BackendError(f"Ray: {type(error).__name__}: {error}"), None))
        else:
            link.send((None, answer))


def main() -> int:
    """Join, and answer to the end of the connection; return the exit status."""
    number, address, answer_s = sys.argv[1:]
    with Connection(int(number)) as link:
        try:
            with joined(address or None, float(answer_s)) as cluster:
                serve(link, cluster)
        except (UserError, BackendError) as error:
            with contextlib.suppress(ConnectionError):  # the sweep is gone
                link.send((error, None))
            return 1
        except ConnectionError:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
