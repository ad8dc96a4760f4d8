"""What trainings of every stage share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spikestill.common.errors import UserError


def check_same_config(
    saved: dict[str, Any], given: dict[str, Any], path: Path, free: tuple[str, ...]
) -> None:
    """Raise UserError unless both configurations agree in all that changes the result, all but ``free``."""
    for name, value in given.items():
        if isinstance(value, dict) and isinstance(saved.get(name), dict):
            theirs, ours = (
                {f"{name}.{key}": each for key, each in group.items()} for group in (saved[name], value)
            )
            check_same_config(theirs, ours, path, free)
        elif name not in free and saved.get(name) != value:
            raise UserError(
                f"{path}: was written with {name} {saved.get(name)!r}, now it is {value!r}",
                f"resume with the same --{name}, or start in another --run_dir",
            )


def check_same_format(saved: str | None, now: str, precision: str, path: Path) -> None:
    """Raise UserError where a checkpoint was trained in another number format; those before 2026-11-22 do not say."""
    if saved is not None and saved != now:
        raise UserError(
            f"{path}: was trained in {saved}; --precision {precision} is {now} on this machine",
            f"give --precision {saved}, or start in another --run_dir",
        )
