"""Matrix products on one thread each: the agents spread their own work over threads, always cut the same way.

A result then does not depend on how many threads there are, nor on what trains beside it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

from spikestill.teacher.control.program_kernel import PRODUCT_NAME, VECTOR_NAME

_NAMES = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")


def _libraries() -> list[Any]:
    """Return the OpenBLAS libraries that this process has loaded; none elsewhere than on Linux."""
    import numpy as np

    # Load NumPy's, were it not yet.
    np.ones((2, 2)) @ np.ones((2, 2))
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = sorted({line.split()[-1] for line in lines if "openblas" in line.split()[-1]})
    found = []
    for path in paths:
        with contextlib.suppress(OSError):
            found.append(ctypes.CDLL(path))
    return found


def _function(library: Any, verb: str) -> Any:
    return next(
        (getattr(library, name.format(verb)) for name in _NAMES if hasattr(library, name.format(verb))), None
    )


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let every matrix product within run on the thread that calls it, where NumPy's library is OpenBLAS."""
    changed = []
    for library in _libraries():
        get, put = _function(library, "get_num_threads"), _function(library, "set_num_threads")
        if get is not None and put is not None:
            changed.append((put, int(get())))
            put(1)
    try:
        yield
    finally:
        for put, threads in changed:
            put(threads)


@functools.cache
def compiled_code_calls() -> bool:
    """Let compiled code call the products that NumPy calls, as :mod:`program_kernel` names them.

    Returns:
        False where NumPy has another library than OpenBLAS, or one whose integers have 32 bits.
    """
    found: dict[str, int | None] = {}
    for library in _libraries():
        for kind in "sd":
            for verb, name in (("gemm", PRODUCT_NAME), ("gemv", VECTOR_NAME)):
                symbol = f"scipy_cblas_{kind}{verb}64_"
                if hasattr(library, symbol):
                    function = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
                    found.setdefault(name.format(kind), function)
    for name, address in found.items():
        llvm.add_symbol(name, address)
    return len(found) == 4
