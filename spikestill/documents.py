"""What a stage measured, as ``inspect`` shows it: the JSON files of verify, estimate, evaluate and play."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spikestill.common.errors import MALFORMED, UserError
from spikestill.common.provenance import Provenance
from spikestill.console import flat
from spikestill.contents import Contents
from spikestill.report import latency_chart, score_chart
from spikestill.run_folder import document
from spikestill.verdicts import verdict

SHOWN = ("verify", "estimate", "evaluate", "play")
LEFT_OUT = ("schema", "version", "provenance", "agents")


def read_document(path: Path, stage: str) -> Contents:
    """Return what the JSON file of a stage says: its verdict in words, its figures, its chart.

    Args:
        path: the file.
        stage: one of :data:`SHOWN`.

    Raises:
        UserError: it is not what the stage wrote.
    """
    found = document(path)
    try:
        figures: dict[str, Any] = {}
        for name, value in flat({key: value for key, value in found.items() if key not in LEFT_OUT}):
            figures[name] = _rows(value)
        charts = _charts(stage, found)
        provenance = Provenance(**found["provenance"])
    except MALFORMED as error:
        raise UserError(
            f"{path}: not what {stage} wrote ({type(error).__name__}: {error})",
            f"make it again: `spikestill {stage}`",
        ) from error
    return Contents(stage, figures, provenance, lambda: [], words=tuple(verdict(stage, found)), charts=charts)


def _rows(value: Any) -> Any:
    """Return rows with the same columns, where ``value`` is a list of mappings; else ``value``."""
    if not (isinstance(value, list) and value and all(isinstance(row, Mapping) for row in value)):
        return value
    columns = dict.fromkeys(key for row in value for key in row)
    return [{key: row.get(key) for key in columns} for row in value]


def _charts(stage: str, found: Mapping[str, Any]) -> tuple[str, ...]:
    if stage == "evaluate":
        return (score_chart(found),)
    if stage == "play" and found["decisions"]:
        return (latency_chart(found),)
    return ()
