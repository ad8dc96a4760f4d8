"""The other side of ``common/guard.py``: what runs in the guard's process and in its children."""

from __future__ import annotations

import importlib
import json
import os
import select
import socket
import struct
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.common.confinement import confine, limit
from spikestill.common.guard import IDLE_S, LENGTH, Arrays

MOST_DESCRIPTORS = 8


def main() -> None:
    """Serve calls until the parent is gone or has been silent for long: ``argv`` has the socket and the module."""
    control = socket.socket(fileno=int(sys.argv[1]))
    module = importlib.import_module(sys.argv[2])
    warm_up = getattr(module, "warm_up", None)
    if warm_up is not None:
        warm_up()
    while True:
        ready, _, _ = select.select([control], [], [], IDLE_S)
        if not ready:
            return
        head, descriptors, _, _ = socket.recv_fds(control, LENGTH.size, MOST_DESCRIPTORS)
        if not head:
            return
        request = json.loads(_exactly(control, LENGTH.unpack(head)[0]))
        child = os.fork()
        if child == 0:
            control.close()
            _work(module, request, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        _, status = os.waitpid(child, 0)
        control.sendall(LENGTH.pack(status))


def _exactly(control: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        part = control.recv(size - len(content))
        if not part:
            os._exit(0)
        content += part
    return content


def _work(module: ModuleType, request: Mapping[str, Any], descriptors: list[int]) -> None:
    """Do one call and end the process."""
    out, *given = descriptors
    arrays: Arrays = {}
    try:
        limit(int(request["memory"]), float(request["seconds"]))
        confine()
        value, arrays = getattr(module, request["function"])(*given, **request["arguments"])
        header: dict[str, Any] = {"value": value}
    except MemoryError:
        os._exit(1)
    except BaseException as error:
        header, arrays = {"error": str(error) or type(error).__name__}, {}
    try:
        answer(out, header, arrays)
    except BaseException:
        os._exit(1)
    os._exit(0)


def answer(descriptor: int, header: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write a header and its arrays to a pipe."""
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    listed = [[name, array.dtype.str, list(array.shape)] for name, array in whole.items()]
    text = json.dumps({**header, "arrays": listed}).encode()
    _write(descriptor, struct.pack("<I", len(text)) + text)
    for array in whole.values():
        _write(descriptor, array.reshape(-1).view(np.uint8).data)


def _write(descriptor: int, content: bytes | memoryview) -> None:
    view = memoryview(content)
    while len(view):
        view = view[os.write(descriptor, view) :]
