"""Options of FIXAR's accelerator."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from spikestill.common.errors import UserError
from spikestill.configs.options import Options, Range


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArraySpec(Options):
    """The size and speed of FIXAR's accelerator (Yang 2021); the paper's as it stands."""

    cores: Annotated[int, Range(1, 8)] = 2
    """N, adaptive array processing cores, a power of two."""
    side: Annotated[int, Range(2, 32)] = 16
    """Rows and columns of a core's array, and words of a memory line, a power of two."""
    batch: Annotated[int, Range(1, 4096)] = 512
    """Vectors that the activation memory holds, a power of two."""
    clock_hz: Annotated[float, Range(1, 1e12)] = 164e6
    """Cycles a second."""
    watts: Annotated[float, Range(1e-9, 1e6)] = 20.4
    """Power of the card while it computes, for energy."""

    def _check(self) -> None:
        for name in ("cores", "side", "batch"):
            value = getattr(self, name)
            if value & (value - 1):
                below = 1 << (value.bit_length() - 1)
                raise UserError(
                    f"the accelerator's {name} is {value}, a power of two is wanted",
                    f"give --accelerator.{name} {below} or {2 * below}",
                )

    @property
    def elements(self) -> int:
        """Processing elements of all cores."""
        return self.cores * self.side**2
