"""What an artefact holds, for the table on the terminal and for its page."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from spikestill.common.provenance import Provenance
from spikestill.configs.pipeline import InspectConfig


@dataclasses.dataclass(frozen=True)
class Contents:
    """What an artefact holds: figures for the table, pictures (title, data URI) for the page."""

    kind: str
    figures: dict[str, Any]
    provenance: Provenance | None
    pictures: Callable[[], list[tuple[str, str]]]
    cores: Callable[[InspectConfig], dict[str, Any]] | None = None
    """Of a core map: the data of its interactive page."""
    words: tuple[str, ...] = ()
    """A verdict in sentences."""
    charts: tuple[str, ...] = ()
    """SVG."""
