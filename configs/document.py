"""What a stage found, as a JSON file: schema, version, the figures, and where they come from."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from configs.atomic import write_text
from configs.provenance import Provenance


def write_document(
    path: Path,
    stage: str,
    version: int,
    found: Mapping[str, Any],
    config: Any,
    parents: Mapping[str, Path | None],
) -> None:
    """Write ``found`` to ``path``, atomically, with schema ``spikestill.STAGE`` and the run's provenance.

    Args:
        stage: the stage's name.
        version: of the document's keys; a reader refuses a newer one.
        config: the stage's options, a dataclass with ``seed``.
        parents: role to the file that the stage read; None where it read none.

    Raises:
        UserError: the disk is full.
    """
    files = {role: file for role, file in parents.items() if file is not None}
    provenance = dataclasses.asdict(Provenance.of(config, config.seed, files))
    document = {"schema": f"spikestill.{stage}", "version": version, **found, "provenance": provenance}
    write_text(path, json.dumps(document, indent=1) + "\n")
