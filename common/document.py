"""What a stage found, as a JSON file: schema, version, the figures, and where they come from."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spikestill.common.atomic import write_text
from spikestill.common.provenance import Provenance


def write_document(
    path: Path, stage: str, version: int, found: Mapping[str, Any], provenance: Provenance
) -> None:
    """Write ``found`` to ``path``, atomically, with schema ``spikestill.STAGE`` and the provenance.

    Args:
        path: the file.
        stage: the stage's name.
        version: of the document's keys; a reader refuses a newer one.
        found: plain JSON values.
        provenance: of the run, taken when it read its files.

    Raises:
        UserError: the disk is full.
    """
    record = dataclasses.asdict(provenance)
    document = {"schema": f"spikestill.{stage}", "version": version, **found, "provenance": record}
    write_text(path, json.dumps(document, indent=1) + "\n")
