"""A run's summary for people: scalars as a list, lists of rows as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from spikestill.common.errors import printable

MAX_ROWS = 60
WIDTH = 160
"""Columns where standard output is no terminal."""
# Series that mean nothing as numbers on a terminal, and assumptions, which were printed line by line; --json has them.
SKIPPED = ("histogram", "returns", "curve", "assumptions")
HEADINGS = {"ci95": "95 % interval", "percent_of_teacher": "% of the teacher"}
"""Columns that are called otherwise than their keys; in all others an underscore is a space."""


def print_summary(title: str, summary: Mapping[str, Any]) -> None:
    """Print ``summary`` (plain JSON values) on standard output."""
    import sys

    from rich.console import Console
    from rich.table import Table

    console = Console(
        highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else WIDTH
    )
    scalars = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    for _ in range(2):
        scalars.add_column(overflow="fold")
    tables: list[tuple[str, list[Mapping[str, Any]]]] = []
    for name, value in flat(summary):
        if name == "finished" and value:
            continue
        if isinstance(value, list) and value and all(isinstance(row, Mapping) for row in value):
            tables.append((name, value))
        else:
            scalars.add_row(printable(name), shown(value), style="bold" if name == "artefact" else None)
    for name, rows in tables:
        table = Table(
            title=printable(name), title_justify="left", box=None, pad_edge=False, header_style="bold"
        )
        columns = [key for key in rows[0] if key not in SKIPPED]
        for column in columns:
            justify: Literal["left", "right"] = "left" if isinstance(rows[0][column], str) else "right"
            table.add_column(heading(column), justify=justify, overflow="fold")
        for row in rows[:MAX_ROWS]:
            table.add_row(*(shown(row.get(column)) for column in columns))
        console.print(table)
        if len(rows) > MAX_ROWS:
            console.print(f"... and {len(rows) - MAX_ROWS} more; --json has them all")
        console.print()
    console.print(scalars)


def heading(key: str) -> str:
    """Return a key as people read it: latency_ms.p99 is "latency ms, p99"."""
    return printable(", ".join(HEADINGS.get(part, part.replace("_", " ")) for part in key.split(".")))


def flat(summary: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return nested figures one by one, their names dotted."""
    found: list[tuple[str, Any]] = []
    for name, value in summary.items():
        if name in SKIPPED:
            continue
        if isinstance(value, Mapping):
            found += flat(value, f"{prefix}{name}.")
        else:
            found.append((prefix + name, value))
    return found


def shown(value: object) -> str:
    """Return a value as people read it: 12,345; 0.01234; 84 x 84."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    if isinstance(value, list | tuple):
        return ", ".join(shown(item) for item in value) or "-"
    return printable(str(value))
