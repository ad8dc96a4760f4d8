"""Draw ``docs/results.md``: the paper's tables with ours beside them, from the zoo's cards and the sweeps' documents.

    python -m spikestill.results [--sweep table2=runs/sweep-table2/sweep.json ...] [--curve runs/cheetah ...]

A cell that was not run stays empty. ``--sweep`` names the table that a sweep's cells go into; they are kept, without
the single games' scores, in ``docs/results/``, so that the page can be drawn again without them. What explains the
tables is written by hand in ``docs/results/notes.md``, and ends the page. ``--curve`` names run
folders of control trainings, whose curves are kept in ``docs/results/control/``: ``docs/control-results.md`` has them.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from spikestill import (
    ablation_results,
    budgets,
    constraint_results,
    core_results,
    paper_figures,
    sparsity_results,
)
from spikestill.common.atari import PAPER_GAMES
from spikestill.common.atomic import write_text
from spikestill.common.errors import UserError
from spikestill.common.json_file import read_object
from spikestill.common.zoo import ROOT
from spikestill.result_cells import (
    COUNTS,
    FIGURE_4,
    NETS,
    SET,
    TABLE_3,
    Card,
    Cell,
    as_run,
    by_net,
    cards,
    cells,
    every_student,
    find,
    interval,
    joint,
    joint_losses,
    joint_share,
    joint_shares,
    mean,
    number,
    of_scores,
    parts,
    several,
    share,
    table,
    table_cells,
)

DOCS = Path(__file__).resolve().parent.parent / "docs"
MEASURED = DOCS.parent / "benchmarks" / "results"
TABLES = ("table2", "table3", "figure4", *ablation_results.SWEEPS, "penalty", "prune")
WIDE = "student-1chip-wide"
NOTES = "notes.md"
"""Beside the cells: what the tables do not say by themselves, at the end of the page."""
TEMPERATURES = (0.05, 0.01, 0.005, 0.001)
TABLE_2: dict[str, tuple[float, ...]] = {
    "breakout": (0.0, 95.80, 60.58, 31.57), "beam_rider": (26.46, 100.14, 94.16, 61.77),
    "qbert": (104.99, 96.42, 97.2, 89.75), "space_invaders": (80.87, 80.44, 73.76, 66.88),
}  # fmt: skip
SB3_DQN_10M = {
    "beam_rider": 4296.0, "breakout": 358.0, "enduro": 831.0, "ms_pacman": 2683.0, "pong": 20.6, "qbert": 9497.0,
    "seaquest": 2000.0, "space_invaders": 623.0,
}  # fmt: skip
DDQN = {"freeway": 31.8, "riverraid": 12015.3}
"""van Hasselt 2016, where Stable-Baselines3 gives nothing."""


def measured(cell: Cell | None) -> str:
    """Return percent of the teacher with its interval, then what trained it; '' where the cell was not run."""
    found = "" if cell is None else share(cell)
    if cell is None or not found:
        return ""
    return f"{found.removesuffix(')')}{'; ' if found.endswith(')') else ' ('}{budgets.told(cell)})"


def teachers(found: Mapping[str, Card]) -> list[str]:
    """Return the section on teachers: ours beside half of the published agents."""
    rows = []
    for game in PAPER_GAMES:
        card, published = found.get(game), SB3_DQN_10M.get(game, DDQN.get(game))
        source = "SB3 DQN 10M" if game in SB3_DQN_10M else "DDQN"
        own = (
            [
                number(card["mean"]),
                interval(card["ci95"]),
                budgets.seeds(card),
                f"{card['training_frames_in_all'] / 1e6:.1f} M",
                f"{budgets.hours(card):.1f}",
            ]
            if card
            else [""] * 5
        )
        half = "" if card is None or published is None else "yes" if card["mean"] >= published / 2 else "no"
        rows.append([game, *own, f"{number(published)} ({source})", half])
    heads = ["game", "ours", "95 % interval", budgets.SEED, "frames", "hours", "published", "at half of it"]
    about = "100 games, no-op starts, epsilon 0.05. A network a row, with the seeds of its trainings in their order."
    return ["## Teachers", "", about, "", *table(heads, rows)]


STUDENT = [
    "game", "score", "95 % interval", "teacher", "% of teacher", "% of margin", *budgets.OF_CARD, "cores",
]  # fmt: skip
"""Heads of a table of students."""


def student(card: Card, trained: Mapping[str, Card]) -> list[str]:
    """Return a student's row, by :data:`STUDENT`; ``trained`` has the teachers' cards."""
    game = card["game"]
    earlier = ", an earlier one" if game in trained and trained[game]["mean"] != card["teacher"] else ""
    return [
        game, number(card["mean"], 2), interval(card["ci95"], 2), number(card["teacher"], 2) + earlier,
        number(card["percent_of_teacher"]), number(card["percent_of_margin"]),
        *budgets.of_card(card), f"{card['cores']:,}",
    ]  # fmt: skip


def students(found: Mapping[str, Card], trained: Mapping[str, Card]) -> list[str]:
    """Return the section on the zoo's 1-chip students."""
    rows = [
        student(found[game], trained) if game in found else [game, *[""] * (len(STUDENT) - 1)]
        for game in PAPER_GAMES
    ]
    paper = (
        f"The paper's ten: {TABLE_3['1chip', 'kl']} % on one chip, {TABLE_3['4chip', 'kl']} % on four (KL)."
    )
    missing = [game for game in trained if game not in found]
    without = f" Teachers without a student: {', '.join(missing)}." if missing else ""
    counted = budgets.UNCOUNTED if any(budgets.recorded(card) == "" for card in found.values()) else ()
    return [
        "## The zoo's 1-chip students",
        "",
        *means(found),
        paper + without,
        "A further training took a student's place where it scored more, by the same 100 games that are shown:",
        "the intervals do not cover that choice.",
        "",
        *table(STUDENT, rows),
        *counted,
    ]


def side_by_side(
    found: Mapping[str, Card], narrow: Mapping[str, Card], trained: Mapping[str, Card]
) -> list[str]:
    """Return the section on the zoo's students of two nets, beside those of one; [] where there are none."""
    if not found:
        return []
    rows = [
        [*student(card, trained), number(narrow.get(game, {}).get("percent_of_margin"))]
        for game, card in found.items()
    ]
    better = {
        game: max(
            (kind[game] for kind in (narrow, found) if game in kind),
            key=lambda card: float(card["percent_of_margin"] or 0),
        )
        for game in PAPER_GAMES
        if game in narrow or game in found
    }
    return [
        "## Two nets on one chip",
        "",
        "The zoo's students of two 1-chip nets side by side, whose votes are added (`--architecture 1chip-wide`).",
        "A chip has 4,096 cores. They are in the repository and not in the installed package, for their size, and",
        "`play` takes the single net where no other is named. With the better of both kinds in every game:",
        "",
        *means(better),
        "",
        *table([*STUDENT, "% of margin of the one net"], rows),
    ]


def means(found: Mapping[str, Card]) -> list[str]:
    """Return the lines on the mean over the games: as it is, and with every student at 100 % at most."""
    kept = {
        name: [card[name] for card in found.values() if card[name] is not None]
        for name in ("percent_of_teacher", "percent_of_margin")
    }
    scores, margins = kept.values()
    if not scores or not margins:
        return []
    beyond = [game for game, card in found.items() if (card["percent_of_teacher"] or 0) > 100]
    capped = [mean([min(share, 100.0) for share in shares]) for shares in (scores, margins)]
    lines = [
        f"Mean over {len(scores)} of {len(PAPER_GAMES)} games: {number(mean(scores))} % of the teachers' scores, "
        f"{number(mean(margins))} % of their margin over random play."
    ]
    if beyond:
        lines.append(
            f"With every student counted as 100 % at most it would be {number(capped[0])} % and {number(capped[1])} %: "
            f"{', '.join(beyond)} scored more than the teacher."
        )
    return lines


def of_several_games(found: Sequence[Card], single: Mapping[str, Card]) -> list[str]:
    """Return the section on the zoo's students of several games, in each beside the student of that game alone."""
    rows = []
    for card in found:
        for game, own in card["games"].items():
            alone = single.get(game, {}).get("mean")
            rows.append([
                card["game"], game, number(own["mean"], 2), interval(own["ci95"], 2), number(own["teacher"], 2),
                number(own["percent_of_teacher"]), number(own["percent_of_margin"]), number(alone, 2),
                *budgets.of_card(card), f"{card['cores']:,}",
            ])  # fmt: skip
    heads = ["student", "game", "score", "95 % interval", "teacher", "% of teacher", "% of margin",
             "the single game's student", *budgets.OF_CARD, "cores"]  # fmt: skip
    return [
        "## The zoo's 1-chip students of several games",
        "",
        *table(heads, rows or [[""] * len(heads)]),
    ]


def table_2(own: Sequence[Cell]) -> list[str]:
    """Return Table 2: temperature against game."""
    rows = [
        [game, *(f"{published}: {measured(find(own, game, temperature=tau))}".removesuffix(": ")
                 for tau, published in zip(TEMPERATURES, TABLE_2[game], strict=True))]
        for game in TABLE_2
    ]  # fmt: skip
    return ["## Table 2", "", "Percent of the teacher's score by temperature, KL, 1-chip net. The paper's: ours (95 %",
            "interval; budget). `spikestill sweep table2`; `table2-paper` has the paper's own recipe.", "",
            *table(["game", *(f"{tau:g}" for tau in TEMPERATURES)], rows)]  # fmt: skip


def table_3(own: Sequence[Cell], made: Mapping[str, Card]) -> list[str]:
    """Return Table 3 and Figure 3: the mean over games, then each game."""
    nets = list(TABLE_3)
    heads = ["game", *(f"{net}, {loss}" for net, loss in nets)]
    found = {key: by_net(own, *key) for key in nets}
    means = []
    for key in nets:
        shares = [cell["evaluate.percent_of_teacher"] for cell in found[key].values()]
        means.append(f"{number(mean(shares))} of {len(shares)} games" if shares else "")
    rows = [
        ["the paper's mean of ten", *(number(TABLE_3[key], 2) for key in nets)],
        ["our mean", *means],
    ]
    rows += [[game, *(measured(found[key].get(game)) for key in nets)] for game in PAPER_GAMES]
    return ["## Table 3 and Figure 3", "",
            "Percent of the teacher's score. Figure 3 gives no numbers for single games.",
            "`spikestill sweep table3`; `table3-paper` has the paper's own recipe.", "",
            *paper_figures.caption_3(own, made), *table(heads, rows)]  # fmt: skip


def figure_4(own: Sequence[Cell], joined: Sequence[Card], made: Mapping[str, Card]) -> list[str]:
    """Return Figure 4: students of several games, each game beside the single-game student of the same net."""

    losses = joint_losses(own)
    columns = [(net, loss) for loss in losses for net in NETS]

    def beside(games: Sequence[str], game: str, net: str, loss: str) -> str:
        cell, share = joint(own, games, game, net, loss), joint_share(own, games, game, net, loss)
        if cell is None:
            return ""
        told = f"{number(share)} %: " if share is not None else ""
        ci = interval(cell.get("evaluate.ci95"))
        return f"{told}{number(cell['evaluate.mean'])} ({ci}; {budgets.told(cell)})"

    def average(count: int, net: str, loss: str) -> str:
        shares = joint_shares(own, count, net, loss)
        return f"{number(mean(shares))} %{of_scores(shares, count)}" if shares else ""

    rows = [
        *(
            ["mean", f"students of {count} games", *(average(count, *column) for column in columns)]
            for count in COUNTS
        ),
        *(
            [
                "all ten" if games == PAPER_GAMES else ", ".join(games),
                game,
                *(beside(games, game, *column) for column in columns),
            ]
            for games in FIGURE_4
            for game in games
        ),
    ]
    heads = NETS if len(losses) == 1 else [f"{net}, {loss}" for net, loss in columns]
    return [
        "## Figure 4",
        "",
        f"Students of several games, {' and '.join(loss.upper() for loss in losses)}. In percent: of the score of the "
        "single game's student of the same net;",
        "then the score (95 % interval; budget). The paper draws the means over the games of all students of two,",
        "three and ten games, and prints no numbers. `spikestill sweep figure4`; `figure4-paper` has the paper's own "
        "recipe.",
        "",
        *paper_figures.caption_4(own, joined, made),
        *table(["the student's games", "game", *heads], rows),
    ]


def page(zoo: Path, documents: Path, measured: Path) -> str:
    """Return the whole page.

    Args:
        zoo: folder of the cards.
        documents: folder of the sweeps' cells and the notes.
        measured: folder of what the benchmarks wrote.
    """
    trained, made, joined = cards(zoo, "teacher"), cards(zoo, "student-1chip"), several(zoo)
    drawn: dict[str, Callable[[Sequence[Cell]], list[str]]] = {
        "table2": table_2,
        "table3": lambda own: table_3(own, made),
        "figure4": lambda own: figure_4(own, joined, made),
        "penalty": lambda own: sparsity_results.section(own, every_student(zoo)),
        "prune": core_results.section,
    }
    lines = ["# Results", "",
             "Drawn by `python -m spikestill.results` from the zoo's cards and the sweeps in `docs/results/`.",
             "What was not run stays empty. [What of the paper's recipe is a reading](distillation.md).", "",
             *teachers(trained), *students(made, trained), *side_by_side(cards(zoo, WIDE), made, trained),
             *of_several_games(joined, made)]  # fmt: skip
    for name, draw in drawn.items():
        lines += draw(table_cells(documents, name))
        lines += [line for path in parts(documents, name) for line in as_run(path)]
        if name == "figure4":
            lines += ablation_results.section(documents)
    lines += constraint_results.section(measured, made)
    if (notes := documents / NOTES).is_file():
        lines.append(notes.read_text(encoding="utf-8"))
    return "\n".join(lines).rstrip("\n") + "\n"


def keep(name: str, path: Path, documents: Path) -> None:
    """Keep the cells of a sweep for the page.

    Args:
        name: a table, or ``TABLE+PART`` for a further sweep, whose cells stand beside those of the table's first.
        path: the sweep's document.
        documents: where it is kept.

    Raises:
        UserError: there is no table of that name, the part is no name, or the file is no sweep's.
    """
    known, plus, part = name.partition("+")
    if known not in TABLES:
        raise UserError(f"no table {name!r}; known: {', '.join(TABLES)}", "give --sweep TABLE=FILE")
    if plus and not re.fullmatch("[a-z0-9]+", part):
        raise UserError(
            f"the part {part!r} of table {known} is no name", "give small letters and digits: table3+nll"
        )
    document = read_object(path, "what `spikestill sweep` wrote", "give the sweep.json of a sweep's folder")
    kept = {
        "schema": "spikestill.sweep",
        "version": 1,
        "cells": [{name: value for name, value in cell.items() if name != SET} for cell in cells(path)],
        "provenance": document.get("provenance"),
    }
    write_text(documents / f"{name}.json", json.dumps(kept, indent=1) + "\n")


def main() -> None:
    """Keep what the command line names, and draw the pages."""
    from spikestill import control_curves, control_results

    parser = argparse.ArgumentParser(
        prog="python -m spikestill.results",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--sweep",
        nargs="*",
        default=[],
        metavar="TABLE[+PART]=FILE",
        help=f"one of {', '.join(TABLES)}; a further sweep of one is a part, table3+nll, say",
    )
    parser.add_argument("--curve", nargs="*", default=[], metavar="RUN_FOLDER", help="of a control training")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of results.md and results/")
    options = parser.parse_args()
    try:
        for given in options.sweep:
            name, _, path = given.partition("=")
            keep(name, Path(path), options.docs / "results")
        control = options.docs / "results" / "control"
        # All are read before the first is kept.
        for each in [control_curves.of_run(Path(given)) for given in options.curve]:
            print(control_curves.write(control, each))
        write_text(options.docs / "results.md", page(ROOT, options.docs / "results", MEASURED))
        for name, text in paper_figures.pictures(ROOT, options.docs / "results").items():
            write_text(options.docs / "images" / name, text)
        control_results.draw(control, options.docs)
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
