"""Population count for numba kernels: LLVM's ``llvm.ctpop.i64``, which vectorises to ``vpopcntq``."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic


@intrinsic
def popcount(typing_context: Any, word: Any) -> Any:
    """Return the number of ones of a uint64 as int64; callable from ``njit`` code only.

    Args:
        typing_context: numba's, not given by the caller.
        word: uint64.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate
