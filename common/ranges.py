"""Ranges of options."""

from __future__ import annotations

from spikestill.common.errors import UserError


def check_range(owner: object, field: str, low: float, high: float) -> None:
    """Raise UserError unless ``low <= owner.field <= high``."""
    value = getattr(owner, field)
    if not low <= value <= high:
        raise UserError(
            f"{type(owner).__name__}.{field} is {value}, its range is {low:g}..{high:g}",
            f"give --{field} a value in that range",
        )
