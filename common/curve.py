"""A training's learning curve: one JSON object a line, appended while it trains, with ``step`` and ``seconds``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from spikestill.common.atomic import naming_full_disk, write_text
from spikestill.common.errors import MALFORMED
from spikestill.common.limits import CURVE_LINE, regular_file


def append(path: Path, values: Mapping[str, Any]) -> None:
    """Add a line.

    Raises:
        UserError: the disk is full.
    """
    with naming_full_disk(path), open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(values) + "\n")


def lines(path: Path) -> Iterator[str]:
    """Yield the lines of a curve that are not empty, without their ends.

    Raises:
        UserError: it is no regular file.
        ValueError: a line is longer than those that trainings write.
    """
    regular_file(path, "learning curve", "move it away")
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(iter(lambda: file.readline(CURVE_LINE + 1), ""), 1):
            if len(line) > CURVE_LINE:
                raise ValueError(f"its line {number} has more than {CURVE_LINE:,} characters")
            if line.strip():
                yield line.rstrip("\n")


def records(path: Path) -> list[Any]:
    """Return what the lines of a curve say. Half a last line, which a killed process may leave, is left out.

    Raises:
        UserError: it is no regular file.
        ValueError: a line is no JSON, or longer than those that trainings write.
    """
    texts = list(lines(path))
    found = []
    for number, text in enumerate(texts, 1):
        try:
            found.append(json.loads(text))
        except json.JSONDecodeError:
            if number < len(texts):
                raise
    return found


def cut(path: Path, step: int) -> float:
    """Keep the lines up to ``step``, where a training goes on from; return the seconds that it had taken, 0 if unknown.

    What was logged after the last checkpoint is logged again, and a killed process may leave half a line.
    """
    if not path.is_file():
        return 0.0
    kept: list[str] = []
    seconds = 0.0
    try:
        for line in lines(path):
            values = json.loads(line)
            taken = float(values["seconds"])
            if values["step"] > step or not 0.0 <= taken < math.inf:
                break
            seconds = taken
            kept.append(line + "\n")
    except MALFORMED:
        pass  # the rest is none of ours, or half a line
    write_text(path, "".join(kept))
    return seconds
