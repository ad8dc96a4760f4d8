"""A training's learning curve: one JSON object a line, appended while it trains, with ``step`` and ``seconds``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spikestill.common.atomic import naming_full_disk, write_text


def append(path: Path, values: Mapping[str, Any]) -> None:
    """Add a line.

    Raises:
        UserError: the disk is full.
    """
    with naming_full_disk(path), open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(values) + "\n")


def cut(path: Path, step: int) -> float:
    """Keep the lines up to ``step``, where a training goes on from; return the seconds that it had taken, 0 if unknown.

    What was logged after the last checkpoint is logged again, and a killed process may leave half a line.
    """
    if not path.is_file():
        return 0.0
    kept: list[str] = []
    seconds = 0.0
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            values = json.loads(line)
            if values["step"] > step:
                break
            seconds = float(values["seconds"])
        except (ValueError, TypeError, KeyError):
            break
        kept.append(line + "\n")
    write_text(path, "".join(kept))
    return seconds
