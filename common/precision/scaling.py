"""Dynamic loss scaling (Micikevicius 2018, section 3.2): gradients too small for fp16 are kept by a large loss."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class LossScale:
    """The factor on the loss, by which the gradients are divided again in fp32.

    It doubles after ``period`` good updates in a row and halves where a gradient overflows; that update is skipped.

    Attributes:
        value: the factor, a power of two.
        period: good updates before it doubles.
        good: good updates since it last changed.
    """

    value: float
    period: int
    good: int = 0

    def update(self, finite: bool) -> None:
        """Count an update whose gradients were finite or not, and change the factor where that is due."""
        self.good = self.good + 1 if finite else 0
        if not finite:
            self.value /= 2.0
        elif self.good >= self.period:
            self.value, self.good = self.value * 2.0, 0
