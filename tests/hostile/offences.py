"""What a stranger's bytes might try, as functions for a guard to call."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
import time
from typing import Any

import numpy as np


def crash() -> tuple[None, dict[str, Any]]:
    ctypes.string_at(8)
    return None, {}


def loop() -> tuple[None, dict[str, Any]]:
    while True:
        pass


def sleep() -> tuple[None, dict[str, Any]]:
    while True:
        time.sleep(1)


def allocate(size: int) -> tuple[int, dict[str, Any]]:
    return int(np.ones(size, np.uint8).sum()), {}


def read_file(path: str) -> tuple[str, dict[str, Any]]:
    with open(path) as file:
        return file.read(), {}


def write_file(path: str) -> tuple[None, dict[str, Any]]:
    with open(path, "w") as file:
        file.write("mine")
    return None, {}


def start_program() -> tuple[None, dict[str, Any]]:
    os.execv("/bin/true", ["/bin/true"])


def fork() -> tuple[None, dict[str, Any]]:
    if os.fork() == 0:
        os._exit(0)
    return None, {}


def connect() -> tuple[None, dict[str, Any]]:
    socket.socket()
    return None, {}


def kill(process: int) -> tuple[None, dict[str, Any]]:
    os.kill(process, 0)
    return None, {}


def thread() -> tuple[str, dict[str, Any]]:
    found = []
    worker = threading.Thread(target=lambda: found.append("done"))
    worker.start()
    worker.join()
    return found[0], {}


def flood(size: int) -> tuple[None, dict[str, Any]]:
    return None, {"big": np.zeros(size, np.uint8)}


def lie(descriptor: int) -> tuple[None, dict[str, Any]]:
    os.write(descriptor, b"\xff\xff\xff\xff")
    return None, {}


def echo(value: Any) -> tuple[Any, dict[str, Any]]:
    return value, {"numbers": np.arange(3), "none": np.zeros((0, 2), "<f4")}
