"""Where the shipped teachers, students and core maps lie."""

from __future__ import annotations

import shlex
from pathlib import Path

from spikestill.common.artefacts import TEACHER
from spikestill.common.environment import check_environment, family_of
from spikestill.common.errors import UserError
from spikestill.common.legal import TOGETHER

# The zoo travels beside the packages, in a checkout as in an installed wheel.
ROOT = Path(__file__).resolve().parent.parent / "zoo"
SUFFIXES = (".safetensors", ".h5")
PLAYED = ("student", "core_map")
"""What is given of a student to play it."""


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


def check_played(name: str, root: Path | None = None) -> str:
    """Return ``name``, which must be an environment's; several games are told how the zoo's student of them is played.

    Raises:
        UserError: there is none of that name, or it names several games.
    """
    root, games = ROOT if root is None else root, name.split(TOGETHER)
    for folder, names in zoo_files(root).items() if len(games) > 1 else ():
        files = {role: next((each for each in names if each.startswith(role)), None) for role in PLAYED}
        if sorted(folder.split(TOGETHER)) == sorted(games) and None not in files.values():
            given = " ".join(
                f"--{role} {shlex.quote(str(root / folder / str(file)))}" for role, file in files.items()
            )
            raise UserError(
                f"{name!r} names several games, and one is played at a time",
                f"give one of them, such as {games[0]}, with {given}",
            )
    return check_environment(name)


def zoo_files(root: Path = ROOT) -> dict[str, list[str]]:
    """Return the names of the zoo's artefacts by game."""
    found: dict[str, list[str]] = {}
    for folder in sorted(root.iterdir()) if root.is_dir() else []:
        names = sorted(path.name for path in folder.glob("*") if path.suffix in SUFFIXES)
        if names:
            found[folder.name] = names
    return found
