"""The folder of an export that is several files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from spikestill.common.errors import UserError


def own(folder: Path, names: Iterable[str]) -> None:
    """Make ``folder``; what is in it must be an earlier export's, which is replaced file by file.

    Args:
        folder: the folder.
        names: what the export writes into it; a name that ends in ``/`` is a folder.

    Raises:
        UserError: it holds something else, or is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is a file, and a folder is to be written there", "give another --run_dir")
    known = {name.rstrip("/") for name in names}
    found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    foreign = [name for name in found if name not in known]
    if foreign:
        raise UserError(
            f"{folder}: holds {foreign[0]}, which this export does not write"
            + (f", and {len(foreign) - 1} more" if len(foreign) > 1 else ""),
            "move it away or give another --run_dir",
        )
    folder.mkdir(parents=True, exist_ok=True)
