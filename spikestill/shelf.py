"""The ``zoo`` verb: what is shipped, with the scores and cores that its cards give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spikestill.common.errors import UserError, nearest
from spikestill.common.stage import StageResult
from spikestill.common.zoo import ROOT, zoo_files
from spikestill.configs.pipeline import ZooConfig
from spikestill.run_folder import document


def run(config: ZooConfig, run_dir: Path, *, resume: bool = False) -> StageResult:
    """Return one row for each file of the zoo: game, kind, score with its interval, cores, megabytes, file.

    Raises:
        UserError: a card is damaged, or the zoo has nothing of the game.
    """
    files = zoo_files()
    if config.game not in ("", *files):
        raise UserError(
            f"the zoo has nothing of {config.game!r}; it has {', '.join(files)}",
            f"did you mean {nearest(config.game, list(files))!r}",
        )
    rows = [row(game, name) for game, names in files.items() if config.game in ("", game) for name in names]
    return StageResult(
        ROOT, {"zoo": rows, "folder": str(ROOT), "games": sorted({row["game"] for row in rows})}
    )


def row(game: str, name: str, root: Path = ROOT) -> dict[str, Any]:
    """Return what the card beside a file says of it; a core map has the card of the student that it maps.

    The percentage of a student of several games is the mean over them.
    """
    path = root / game / name
    card_path = path.with_name(path.name.replace("core_map", "student")).with_suffix(".json")
    card = document(card_path) if card_path.is_file() else {}
    kind = "core map" if path.suffix == ".h5" else str(card.get("kind", path.stem))
    scored = "mean" in card
    low, high = card.get("ci95", (None, None))
    shares = [
        each["percent_of_teacher"]
        for each in card.get("games", {"": card}).values()
        if "percent_of_teacher" in each
    ]
    known = [share for share in shares if share is not None]
    return {
        "game": game,
        "kind": kind,
        "score": card["mean"] if scored else None,
        "ci95": f"{low:,.4g} to {high:,.4g}" if scored and low is not None else "",
        "episodes": card.get("episodes"),
        "percent_of_teacher": sum(known) / len(known) if known else None,
        "cores": card.get("cores"),
        "megabytes": round(path.stat().st_size / 1e6, 1),
        "file": f"{game}/{name}",
    }
