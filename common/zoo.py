"""Where the shipped teachers, students and core maps lie."""

from __future__ import annotations

from pathlib import Path

from spikestill.common.artefacts import TEACHER
from spikestill.common.environment import check_environment, family_of
from spikestill.common.errors import UserError
from spikestill.common.legal import TOGETHER

# The zoo travels beside the packages, in a checkout as in an installed wheel.
ROOT = Path(__file__).resolve().parent.parent / "zoo"
SUFFIXES = (".safetensors", ".h5")


def zoo_path(game: str, name: str, root: Path | None = None) -> Path:
    """Return the file of the zoo called ``name`` (e.g. ``core_map-1chip.h5``) for ``game``.

    Raises:
        UserError: the zoo has no such file; the games that have it are named.
    """
    check_environment(game)
    root = ROOT if root is None else root
    path = root / game / name
    if path.is_file():
        return path

    def atari(known: str) -> bool:
        return family_of(known) == "atari"

    files = zoo_files(root)
    having = [
        known for known, names in files.items()
        if name in names and TOGETHER not in known and atari(known) == atari(game)
    ]  # fmt: skip
    has = f"; it has that of {', '.join(having)}" if having else ""
    stages = {"teacher": "teach", "core_map": "map", "student": "distill"}
    role = next(role for role in stages if name.startswith(role))
    instead = ", take --agent teacher" if TEACHER in files.get(game, ()) else ""
    remedy = (
        f"make one with `spikestill {stages[role]}` and give it with --{role}{instead}, or play another game"
    )
    if role != "teacher" and not atari(game):
        remedy = f"students play Atari games; {game} is for --agent teacher, random or human"
    raise UserError(f"the zoo has no {name} for {game}{has}", remedy)


def zoo_files(root: Path = ROOT) -> dict[str, list[str]]:
    """Return the names of the zoo's artefacts by game."""
    found: dict[str, list[str]] = {}
    for folder in sorted(root.iterdir()) if root.is_dir() else []:
        names = sorted(path.name for path in folder.glob("*") if path.suffix in SUFFIXES)
        if names:
            found[folder.name] = names
    return found
