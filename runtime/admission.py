"""Who may look at the live page, and the socket that it listens on."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

from spikestill.common.errors import UserError


def allowed(host: str, token: str, headers: Mapping[str, str], query: Mapping[str, str]) -> bool:
    """Return whether a request may look on: its Origin is this page, its Host a name of ours, its token right.

    Args:
        host: where the server listens.
        token: what viewers must know; '' where only this machine reaches the server.
        headers: the request's, in lower case.
        query: of its address.
    """
    here = headers.get("host", "")
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != here:
        return False
    # A page elsewhere whose name was made to point here is not ours.
    if not token and not loopback(urlsplit(f"//{here}").hostname or ""):
        return False
    return not token or hmac.compare_digest(query.get("token", "").encode(), token.encode())


def loopback(host: str) -> bool:
    """Return whether a host is this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        UserError: the port is in use or not allowed, or there is no such address or no IPv6.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with contextlib.ExitStack() as stack:
            found = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind((host, port))
            found.listen(128)
            stack.pop_all()
    except OSError as error:
        raise UserError(
            f"{host}:{port}: cannot serve there ({error.strerror or error})",
            "give another --port, 0 for any, or another --host, such as 127.0.0.1",
        ) from error
    return found
