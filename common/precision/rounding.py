"""Number formats by name, and rounding to them.

A format of e exponent and m mantissa bits is held in fp32 numbers that it can represent. What one operation gives in
fp32, rounded to the format, is what the format's own operation gives, for +, −, ×, ÷ and √ where m <= 10: fp32 has
the 2 m + 4 bits that make the second rounding harmless (Figueroa 1995).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import platform
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import config, types
from numba.extending import intrinsic, overload

from spikestill.common.compiling import njit
from spikestill.common.precision.names import check_emulated, emulated_bits

Rounding = tuple[Any, ...]
"""What :func:`rounded` takes: one float32 or float64 zero for that type itself; the largest number and what lies beyond
it for fp16 on a processor that converts to it; else bits to drop, the smallest normal number, the shifter of subnormal
ones, and these two."""


@dataclasses.dataclass(frozen=True)
class NumberFormat:
    """One format.

    Attributes:
        name: as ``--precision`` takes it.
        exponent, mantissa: bits, the mantissa's without the leading one.
        storage: NumPy's type that holds its numbers on the host.
        rounding: how to round to it.
        bytes: of one number, where it is stored as itself.
    """

    name: str
    exponent: int
    mantissa: int
    storage: str
    rounding: Rounding
    bytes: float

    @property
    def low(self) -> bool:
        """It has fewer bits than fp32, and training in it wants the methods of Björck 2021."""
        return self.mantissa < 23

    @property
    def largest(self) -> float:
        """Largest finite number."""
        return float(self.rounding[-2]) if self.low else float(np.finfo(self.storage).max)

    def round(self, values: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return ``values`` rounded to the nearest number of the format, ties to even, in its storage."""
        found = np.array(values, self.storage, ndmin=1)
        round_all(found.reshape(-1), self.rounding)
        return found.reshape(np.shape(values))


@functools.cache
def number_format(name: str) -> NumberFormat:
    """Return the format called ``name``: fp64, fp32, bf16, fp16, fp8-e5m2, fp8-e4m3, or ``eXmY``.

    IEEE's rules hold: the largest exponent means infinity. In ``fp8-e4m3`` (Micikevicius 2022) it does not: the
    largest number is 448, and NaN lies beyond it.

    Raises:
        UserError: there is no such format.
    """
    check_emulated(name)
    if name in ("fp64", "fp32"):
        storage = "float64" if name == "fp64" else "float32"
        bits = (11, 52) if name == "fp64" else (8, 23)
        return NumberFormat(name, *bits, storage, (np.dtype(storage).type(0),), np.dtype(storage).itemsize)
    exponent, mantissa = emulated_bits(name)
    bias = 2 ** (exponent - 1) - 1
    smallest = 2.0 ** (1 - bias)
    largest, beyond = (2.0 - 2.0**-mantissa) * 2.0**bias, np.inf
    if name == "fp8-e4m3":
        largest, beyond = 448.0, np.nan
    # Adding 1.5 times the power of two whose last bit is the format's smallest step rounds to that step.
    shifter = 1.5 * 2.0 ** (23 + 1 - bias - mantissa)
    real = np.float32
    rounding: Rounding = (
        np.int32(23 - mantissa), real(smallest), real(shifter), real(largest), real(beyond)
    )  # fmt: skip
    if (exponent, mantissa) == (5, 10) and converts_to_half():
        rounding = rounding[-2:]
    return NumberFormat(name, exponent, mantissa, "float32", rounding, (1 + exponent + mantissa) / 8)


@functools.cache
def converts_to_half() -> bool:
    """Return whether the processor for which kernels are compiled has instructions between fp32 and fp16."""
    if platform.machine() in ("aarch64", "arm64"):
        return True
    given = config.CPU_FEATURES
    return "+f16c" in (llvm.get_host_cpu_features().flatten() if given is None else given).split(",")


@intrinsic
def _through_half(typing_context: Any, x: Any) -> Any:
    """Return a float32 converted to fp16 and back: nearest, ties to even, infinite beyond the largest."""

    def convert(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.fptrunc(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.float32), convert


def rounded(x: Any, q: Rounding) -> Any:
    """Return x rounded to the format of ``q``; compiled code only, see :func:`_rounded`."""
    raise NotImplementedError


@overload(rounded, jit_options={"forceinline": True})
def _rounded(x: Any, q: Any) -> Any:
    def single(x: Any, q: Any) -> Any:
        return np.float32(x)

    def double(x: Any, q: Any) -> Any:
        return np.float64(x)

    def converted(x: Any, q: Any) -> Any:
        return _through_half(np.float32(x))

    def emulated(x: Any, q: Any) -> Any:
        drop, smallest, shifter, largest, beyond = q
        given = np.float32(x)
        bits = given.view(np.int32)
        half = np.int32((1 << (drop - 1)) - 1 + ((bits >> drop) & 1))
        near = np.int32((np.int32(bits + half) >> drop) << drop).view(np.float32)
        # NaN is never larger or equal, and goes through the sum as NaN.
        near = near if abs(given) >= smallest else np.float32(np.float32(given + shifter) - shifter)
        near = np.float32(math.copysign(near, given))
        far = beyond if given > np.float32(0) else np.float32(-beyond)
        return far if abs(near) > largest else near

    if len(q) == 1:
        return single if q[0] == types.float32 else double
    return converted if len(q) == 2 else emulated


@njit(cache=True, nogil=True, error_model="numpy")
def round_all(values: npt.NDArray[Any], q: Rounding) -> bool:
    """Round a flat array in place; return True where every number is finite then."""
    wrong = 0
    for i in range(values.size):
        each = rounded(values[i], q)
        values[i] = each
        wrong += 0 if abs(each) < np.inf else 1
    return wrong == 0
