"""What the tables and the pictures of results share: the zoo's cards, the sweeps' cells, percentages, Markdown."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spikestill.charts import Bar
from spikestill.common.atari import PAPER_GAMES
from spikestill.common.errors import UserError
from spikestill.common.json_file import read_object
from spikestill.configs.distill import DistillConfig
from spikestill.configs.loading import find_recipe, read_recipe
from spikestill.configs.sweep import CHANGE, GAME, TOGETHER, changes_in
from spikestill.runtime.evaluate import percentage

TABLE_3 = {
    ("1chip", "nll"): 69.31, ("1chip", "kl"): 76.71, ("2chip", "nll"): 81.45,
    ("2chip", "kl"): 87.15, ("4chip", "nll"): 94.28, ("4chip", "kl"): 98.24,
}  # fmt: skip
"""Mean over ten games, percent of the teachers' scores."""
NETS = ("1chip", "2chip", "4chip", "8chip")
FIGURE_4 = (
    ("pong", "qbert"), ("pong", "space_invaders"), ("pong", "qbert", "space_invaders"), ("pong", "qbert", "freeway"),
    PAPER_GAMES,
)  # fmt: skip
"""The games that a student of several plays."""
LOSS_4 = "nll"
"""Figure 4's students learned the argmax of their teachers."""
SET = "set"
"""What a cell has beside the values of its axes: the options that ``--set`` gave one value for all."""
COUNTS = tuple(sorted({len(games) for games in FIGURE_4}))
Card = Mapping[str, Any]
Cell = Mapping[str, Any]


def cards(root: Path, name: str) -> dict[str, Card]:
    """Return game to the zoo's card of that name, of the paper's games that have one."""
    paths = {game: root / game / f"{name}.json" for game in PAPER_GAMES}
    return {
        game: json.loads(path.read_text(encoding="utf-8")) for game, path in paths.items() if path.is_file()
    }


def every_student(root: Path) -> list[tuple[str, Card]]:
    """Return (what distinguishes it, card) of the zoo's students that play one game; '' is a game's own student."""
    return [
        (path.stem.removeprefix("student-1chip").lstrip("-"), json.loads(path.read_text(encoding="utf-8")))
        for game in PAPER_GAMES
        for path in sorted((root / game).glob("student-1chip*.json"))
    ]


def several(root: Path) -> list[Card]:
    """Return the zoo's cards of students that play several games, by name."""
    paths = sorted(root.glob("*+*/student-1chip.json"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def cells(path: Path) -> list[Cell]:
    """Return the cells of a sweep's document; [] where there is no file.

    What no axis chose is taken from the sweep's recipe: the games of the trial, and the ``loss`` of its student.

    Raises:
        UserError: it is no sweep's, or the recipe of its distillations is not there any more.
    """
    if not path.is_file():
        return []
    document = _document(path)
    recipe = document.get("recipe", {})
    found: list[Cell] = []
    for cell in document["cells"]:
        values = {name: value for name, value in recipe.items() if name == GAME} | cell["values"]
        loss = cell.get("loss") or loss_of(values, recipe.get("options"))
        found.append({**cell, "values": values, SET: _set(document)} | ({"loss": loss} if loss else {}))
    return found


def parts(documents: Path, name: str) -> list[Path]:
    """Return the documents that a table is drawn from: ``NAME.json``, then every ``NAME+PART.json``.

    A part is another sweep of the table's recipe, of cells that the first left out.
    """
    return [
        path
        for path in (documents / f"{name}.json", *sorted(documents.glob(f"{name}+*.json")))
        if path.is_file()
    ]


def table_cells(documents: Path, name: str) -> list[Cell]:
    """Return the cells of all :func:`parts` of a table."""
    return [cell for path in parts(documents, name) for cell in cells(path)]


def chosen(cell: Cell) -> dict[str, Any]:
    """Return the options of a cell: what its axes chose, and what ``--set`` chose for the whole sweep."""
    return {**cell.get(SET, {}), **cell["values"]}


def _set(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the options that ``--set`` gave one value."""
    config = (document.get("provenance") or {}).get("config") or {}
    changes = [str(change).partition("=") for change in config.get("set", [])]
    return {name: value for name, _, value in changes if "|" not in value}


def loss_of(values: Mapping[str, Any], given: Mapping[str, Mapping[str, Any]] | None) -> str | None:
    """Return the loss that a cell's student learned by: what was tried, else the sweep's option, else its recipe's.

    Args:
        values: of the cell.
        given: options of the sweep's recipe by stage; None: not known.
    """
    tried = dict(values) | dict(changes_in(str(values.get(CHANGE, ""))))
    own = (given or {}).get("distill", {})
    if loss := tried.get("distill.loss", own.get("loss")):
        return str(loss)
    if given is None:
        return None
    config = tried.get("distill.config", own.get("config"))
    base = read_recipe(find_recipe(str(config))) if config else {}
    return str(base.get("loss", DistillConfig.loss))


def as_run(path: Path) -> list[str]:
    """Return, as a paragraph, by which command the sweep of this document ran, and where; [] where there is no file.

    Raises:
        UserError: it is no sweep's.
    """
    if not path.is_file():
        return []
    provenance = _document(path).get("provenance") or {}
    config = provenance.get("config") or {}
    if "recipe" not in config:
        return []
    changed = ["--set", ",".join(config["set"])] if config.get("set") else []
    command = shlex.join(["spikestill", "sweep", config["recipe"], *changed])
    return [f"As run: `{command}`, commit {provenance['commit']}, {provenance['machine']}.", ""]


def _document(path: Path) -> dict[str, Any]:
    try:
        document = read_object(path, "what `spikestill sweep` wrote", "give its sweep.json")
        found = list(document["cells"])
        if document["schema"] != "spikestill.sweep" or not all("game" in cell for cell in found):
            raise KeyError("cells")
        if not isinstance(document.get("recipe", {}), dict):
            raise KeyError("recipe")
    except UserError:
        raise
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(
            f"{path}: not what `spikestill sweep` wrote ({error})", "give its sweep.json"
        ) from error
    return document


def find(own: Sequence[Cell], game: str, **wanted: Any) -> Cell | None:
    """Return the cell of ``game`` whose options, by the last part of their names, or whose loss are those."""

    def same(cell: Cell) -> bool:
        values = {name.rpartition(".")[2]: value for name, value in chosen(cell).items()}
        values |= {"loss": cell["loss"]} if "loss" in cell else {}
        return cell["game"] == game and all(
            _close(values[name], value) if name in values else False for name, value in wanted.items()
        )

    return next((cell for cell in own if same(cell)), None)


def _close(left: Any, right: Any) -> bool:
    return float(left) == right if isinstance(right, float) else str(left) == right


def by_net(own: Sequence[Cell], net: str, loss: str) -> dict[str, Cell]:
    """Return game to its cell in Table 3 and Figure 3, of the games that were scored beside their teachers."""
    found = {game: find(own, game, architecture=net, loss=loss) for game in PAPER_GAMES}
    return {game: cell for game, cell in found.items() if cell and "evaluate.percent_of_teacher" in cell}


def bar_of_cell(cell: Cell) -> Bar:
    """Return percent of the teacher and its interval, as a sweep measured them."""
    ci = cell.get("evaluate.percent_of_teacher_ci95")
    return float(cell["evaluate.percent_of_teacher"]), (float(ci[0]), float(ci[1])) if ci else None


def bar_of_card(card: Card) -> Bar | None:
    """Return the same of a card: its score and both ends of its interval, divided by the teacher's mean score."""
    shares = [percentage(float(score), float(card["teacher"])) for score in (card["mean"], *card["ci95"])]
    value, low, high = shares
    return None if value is None or low is None or high is None else (value, (low, high))


def mean(shares: Sequence[float]) -> float | None:
    """Return the mean, None of none."""
    return sum(shares) / len(shares) if shares else None


def joint(own: Sequence[Cell], games: Sequence[str], game: str, net: str, loss: str) -> Cell | None:
    """Return the score in ``game`` of the student of ``games`` by that loss, None where it was not run."""
    trials = [cell for cell in own if _games(cell) == set(games)]
    cell = find(trials, game, architecture=net, loss=loss)
    return cell if cell and "evaluate.mean" in cell else None


def _games(cell: Cell) -> set[str]:
    """Return the games of a cell's trial."""
    return set(str(cell["values"].get(GAME, cell["game"])).split(TOGETHER))


def joint_losses(own: Sequence[Cell]) -> tuple[str, ...]:
    """Return the losses of the students of several games that were scored; Figure 4's own where none was."""
    found = {cell["loss"] for cell in own if len(_games(cell)) > 1 and {"loss", "evaluate.mean"} <= set(cell)}
    return tuple(sorted(found)) or (LOSS_4,)


def joint_share(own: Sequence[Cell], games: Sequence[str], game: str, net: str, loss: str) -> float | None:
    """Return the percentage of the score of the single game's student, None where either was not run."""
    both, single = joint(own, games, game, net, loss), joint(own, [game], game, net, loss)
    return percentage(both["evaluate.mean"], single["evaluate.mean"]) if both and single else None


def joint_shares(own: Sequence[Cell], count: int, net: str, loss: str) -> list[float]:
    """Return the percentages in each game of all students of ``count`` games, whose mean is what Figure 4 draws."""
    found = [
        joint_share(own, games, game, net, loss)
        for games in FIGURE_4
        if len(games) == count
        for game in games
    ]
    return [share for share in found if share is not None]


def of_scores(shares: Sequence[float], count: int) -> str:
    """Return of how many scores of the students of ``count`` games a mean is, '' where it is of all.

    A student has one score in each of its games.
    """
    every = count * sum(len(games) == count for games in FIGURE_4)
    return "" if len(shares) == every else f" (of {len(shares)} of {every} scores)"


def zoo_joint_shares(found: Sequence[Card], single: Mapping[str, Card], count: int) -> list[float]:
    """Return the same of the zoo's students of ``count`` games, beside its students of one."""
    shares = [
        percentage(own["mean"], single[game]["mean"])
        for card in found
        if len(card["games"]) == count
        for game, own in card["games"].items()
        if game in single
    ]
    return [share for share in shares if share is not None]


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows)]
    return [*lines, ""]


def number(value: Any, digits: int = 1) -> str:
    """Return a number as the tables show it, '' for None."""
    return "" if value is None else f"{float(value):,.{digits}f}"


def interval(low_high: Any, digits: int = 1) -> str:
    """Return a 95 % interval, '' for None."""
    return "" if not low_high else f"{number(low_high[0], digits)} to {number(low_high[1], digits)}"


def share(cell: Cell) -> str:
    """Return a cell's percent of the teacher, with its interval where it has one; '' where it was not scored."""
    if "evaluate.percent_of_teacher" not in cell:
        return ""
    ci = interval(cell.get("evaluate.percent_of_teacher_ci95"))
    return f"{number(cell['evaluate.percent_of_teacher'])}{f' ({ci})' if ci else ''}"
