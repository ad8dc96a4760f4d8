"""Names of the formats that a host emulates, without what computes in them."""

from __future__ import annotations

import re

from spikestill.common.errors import UserError

NAMED = {"bf16": (8, 7), "fp16": (5, 10), "fp8-e5m2": (5, 2), "fp8-e4m3": (4, 3)}
"""Name to (exponent bits, mantissa bits); ``eXmY`` names any other."""
MOST_HEADROOM = 8
"""Binary places that fixed point's errors and gradients may have fewer: one of an error is left in 16 bits."""
NATIVE = ("fp64", "fp32", "bf16", "fp16")
"""What a GPU computes as it is."""
FIXED = ("fixed32", "fixar", "fixed16")
"""Variants of fixed point, which are integers (``fixed.py``)."""
LARGEST_BATCH = 4096
"""Of fixed point: a bias's gradient sums that many 32-bit errors, shifted by 20 bits, and 2^31 2^12 2^20 is 2^63."""
KNOWN = ("fp64", "fp32", *NAMED)


def check_emulated(name: str) -> None:
    """Raise UserError unless ``name`` is fp64, fp32 or a format that can be emulated."""
    if name not in ("fp64", "fp32"):
        emulated_bits(name)


def emulated_bits(name: str) -> tuple[int, int]:
    """Return (exponent bits, mantissa bits) of ``name``, a key of :data:`NAMED` or ``eXmY``.

    Raises:
        UserError: there is no such format, or its widths are out of reach.
    """
    matched = re.fullmatch(r"e(\d+)m(\d+)", name)
    if name not in NAMED and matched is None:
        raise UserError(
            f"unknown precision {name!r}; known: {', '.join(KNOWN)}, and eXmY for X exponent and Y mantissa bits, "
            f"and in fixed point {', '.join(FIXED)}",
            "give one of them, such as fp16 or e6m9",
        )
    exponent, mantissa = NAMED[name] if matched is None else (int(matched[1]), int(matched[2]))
    if not (2 <= exponent <= 8 and 1 <= mantissa <= 10):
        raise UserError(
            f"precision {name} has {exponent} exponent and {mantissa} mantissa bits, 2..8 and 1..10 can be emulated",
            "give e2m1 to e8m10, or fp32",
        )
    return exponent, mantissa


def smallest(name: str) -> float:
    """Return the smallest positive number of a format, 2^(1 - bias - mantissa bits); 0 for fp32 and fp64, whose own
    nothing here comes near."""
    if name in ("fp64", "fp32"):
        return 0.0
    exponent, mantissa = emulated_bits(name)
    bias = 2 ** (exponent - 1) - 1
    return 2.0 ** (1 - bias - mantissa)


def vanishes(value: float, name: str) -> bool:
    """Return whether a positive number is 0 when it is rounded to the format: at most half its smallest number."""
    return value <= 0.5 * smallest(name)
