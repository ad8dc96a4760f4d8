"""Where the shipped teachers, students and core maps lie."""

from __future__ import annotations

from pathlib import Path

from spikestill.common.artefacts import TEACHER
from spikestill.common.environment import check_environment
from spikestill.common.errors import UserError

# The zoo travels beside the packages, in a checkout as in an installed wheel.
ROOT = Path(__file__).resolve().parent.parent / "zoo"
SUFFIXES = (".safetensors", ".h5")


def zoo_path(game: str, name: str, root: Path | None = None) -> Path:
    """Return the file of the zoo called ``name`` (e.g. ``core_map-1chip.h5``) for ``game``.

    Raises:
        UserError: the zoo has no such file; what it has is named.
    """
    check_environment(game)
    root = ROOT if root is None else root
    path = root / game / name
    if path.is_file():
        return path
    files = zoo_files(root)
    has = "; ".join(f"{known}: {', '.join(names)}" for known, names in files.items()) or "nothing yet"
    stage = "teach" if name.startswith("teacher") else "map" if name.startswith("core_map") else "distill"
    instead = ", take --agent teacher" if TEACHER in files.get(game, ()) else ""
    raise UserError(
        f"the zoo has no {name} for {game}; it has {has}",
        f"make one with `spikestill {stage}` and give its path{instead}, or play another game",
    )


def zoo_files(root: Path = ROOT) -> dict[str, list[str]]:
    """Return the names of the zoo's artefacts by game."""
    found: dict[str, list[str]] = {}
    for folder in sorted(root.iterdir()) if root.is_dir() else []:
        names = sorted(path.name for path in folder.glob("*") if path.suffix in SUFFIXES)
        if names:
            found[folder.name] = names
    return found
