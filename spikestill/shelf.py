"""The ``zoo`` verb: what is shipped, with the scores and cores that its cards give."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spikestill.common.errors import UserError, nearest
from spikestill.common.stage import StageResult
from spikestill.common.zoo import ROOT, zoo_files
from spikestill.configs.pipeline import ZooConfig
from spikestill.run_folder import document


def run(config: ZooConfig, run_dir: Path, *, resume: bool = False) -> StageResult:
    """Return a row for each file of the zoo and each game it plays: game, kind, score, interval, cores, size, file.

    Raises:
        UserError: a card is damaged, or the zoo has nothing of the game.
    """
    files = zoo_files()
    if config.game not in ("", *files):
        raise UserError(
            f"the zoo has nothing of {config.game!r}; it has {', '.join(files)}",
            f"did you mean {nearest(config.game, list(files))!r}",
        )
    found = [
        row
        for game, names in files.items()
        if config.game in ("", game)
        for name in names
        for row in rows(game, name)
    ]
    shown = [game for game in files if config.game in ("", game)]
    return StageResult(ROOT, {"zoo": found, "folder": str(ROOT), "games": shown})


def rows(folder: str, name: str, root: Path = ROOT) -> list[dict[str, Any]]:
    """Return what the card beside a file says of it; a core map has the card of the student that it maps.

    A student of several games has a row for each of them.
    """
    path = root / folder / name
    card_path = path.with_name(path.name.replace("core_map", "student")).with_suffix(".json")
    card = document(card_path) if card_path.is_file() else {}
    kind = "core map" if path.suffix == ".h5" else str(card.get("kind", path.stem))
    return [
        {"game": game, "kind": kind}
        | _scores(own)
        | {
            "cores": card.get("cores"),
            "megabytes": round(path.stat().st_size / 1e6, 1),
            "file": f"{folder}/{name}",
        }
        for game, own in card.get("games", {folder: card}).items()
    ]


def _scores(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a card, or its part of one game, says of the play in it."""
    scored = "mean" in card
    low, high = card.get("ci95", (None, None))
    return {
        "score": card["mean"] if scored else None,
        "ci95": f"{low:,.4g} to {high:,.4g}" if scored and low is not None else "",
        "episodes": card.get("episodes"),
        "percent_of_teacher": card.get("percent_of_teacher"),
    }
