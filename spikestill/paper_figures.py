"""Figures 3 and 4 of McKinstry 2018 as pictures, of our students.

What was not run has no bar.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from spikestill import core_results, sparsity_results
from spikestill.charts import Bar, bar_chart, standalone
from spikestill.common.atari import PAPER_GAMES
from spikestill.result_cells import (
    COUNTS,
    LOSS_4,
    NETS,
    TABLE_3,
    Card,
    Cell,
    bar_of_card,
    bar_of_cell,
    by_net,
    cards,
    every_student,
    joint_losses,
    joint_shares,
    mean,
    of_scores,
    several,
    table_cells,
    zoo_joint_shares,
)

LOSSES = ("kl", "nll")
NETS_3 = NETS[:3]
NAMES = {"1chip": "1 chip", "2chip": "2 chips", "4chip": "4 chips", "8chip": "8 chips"}
ZOO = "the zoo's, 1 chip"
Row = Mapping[str, Bar]
"""Game to its bar."""


def rows_3(found: Sequence[Cell], made: Mapping[str, Card], loss: str) -> dict[str, Row]:
    """Return the series of Figure 3 for one loss, by name: the sweep's nets, and the zoo's students of that loss."""
    rows: dict[str, Row] = {
        NAMES[net]: {game: bar_of_cell(cell) for game, cell in by_net(found, net, loss).items()}
        for net in NETS_3
    }
    own = {game: bar_of_card(card) for game, card in made.items() if card["recipe"]["loss"] == loss}
    if known := {game: bar for game, bar in own.items() if bar}:
        rows[ZOO] = known
    return rows


def figure_3(rows: Mapping[str, Row], loss: str) -> str:
    """Return Figure 3 for one loss as the text of an SVG file: each game, then the mean of those that were run."""
    series: list[tuple[str, list[Bar | None]]] = []
    for name, row in rows.items():
        average = mean([value for value, _ in row.values()])
        last: Bar | None = None if average is None else (average, None)
        series.append((name, [*(row.get(game) for game in PAPER_GAMES), last]))
    rules: list[tuple[str, float, int | None]] = [
        (f"{NAMES[net]} {TABLE_3[net, loss]:.2f}", TABLE_3[net, loss], i) for i, net in enumerate(NETS_3)
    ]
    groups = [*(game.replace("_", " ") for game in PAPER_GAMES), "mean"]
    label = f"% of the teacher's score, {loss.upper()}"
    rules.append(("teacher 100", 100.0, None))
    return standalone(bar_chart(groups, series, label, rules, "the paper's means of ten games"))


def figure_4(found: Sequence[Cell], students: Sequence[Card], single: Mapping[str, Card], loss: str) -> str:
    """Return Figure 4 as the text of an SVG file: means over games by net, of students of 2, 3 and 10 games.

    The sweep's students are those of ``loss``.
    """

    def bar(shares: Sequence[float]) -> Bar | None:
        average = mean(shares)
        return None if average is None else (average, None)

    series = [
        (f"{count} games, {loss.upper()}", [bar(joint_shares(found, count, net, loss)) for net in NETS])
        for count in COUNTS
    ]
    own = bar(zoo_joint_shares(students, single, 2))
    if own:
        series.append(("the zoo's, 2 games", [own, *[None] * (len(NETS) - 1)]))
    label = "% of the single game's student"
    rules = [("single game 100", 100.0, None)]
    return standalone(bar_chart([NAMES[net] for net in NETS], series, label, rules, height=260))


def file_4(loss: str) -> str:
    """Return the name of Figure 4's file for the students of one loss."""
    return "figure4.svg" if loss == LOSS_4 else f"figure4-{loss}.svg"


def caption_3(found: Sequence[Cell], made: Mapping[str, Card]) -> list[str]:
    """Return the lines that show Figure 3 and say which of its bars there are."""
    lines = []
    for loss in LOSSES:
        counts = ", ".join(f"{len(row)} ({name})" for name, row in rows_3(found, made, loss).items())
        lines += [f"![Figure 3, {loss.upper()}](images/figure3-{loss}.svg)", "",
                  f"{loss.upper()}, games that were run of {len(PAPER_GAMES)}: {counts}.", ""]  # fmt: skip
    return [*lines,
            "A bar is the student's score in percent of its teacher's, its whisker the 95 % interval of the score,",
            "divided by the teacher's mean. What was not run has no bar; the mean is over the games that were, without",
            "an interval. Dashed: the paper's means of ten games, in the colours of the nets. The zoo's students have",
            "the recipes of their cards, not the sweep's.", ""]  # fmt: skip


def caption_4(found: Sequence[Cell], students: Sequence[Card], single: Mapping[str, Card]) -> list[str]:
    """Return the lines that show Figure 4 and say which of its bars there are."""
    run = [f"{count} games, {loss.upper()}, on {', '.join(nets)}" for loss in joint_losses(found) for count in COUNTS
           if (nets := [f"{NAMES[net]}{of_scores(shares, count)}" for net in NETS
                        if (shares := joint_shares(found, count, net, loss))])]  # fmt: skip
    own = [card["game"] for card in students if zoo_joint_shares([card], single, 2)]
    shown = [line for loss in joint_losses(found) for line in (f"![Figure 4](images/{file_4(loss)})", "")]
    return [*shown,
            f"Run by the sweep: {'; '.join(run) or 'none'}. Of the zoo: {', '.join(own) or 'none'}.", "",
            "The sweep's bars are the means of the table, without intervals; what was not run has no bar. The zoo's",
            "student of two games is measured by the zoo's students of one, each by its recipe.", ""]  # fmt: skip


def pictures(zoo: Path, documents: Path) -> dict[str, str]:
    """Return file name to text of every picture, from the zoo's cards and the kept sweeps."""
    made, own = cards(zoo, "student-1chip"), table_cells(documents, "table3")
    drawn = {f"figure3-{loss}.svg": figure_3(rows_3(own, made, loss), loss) for loss in LOSSES}
    joint = table_cells(documents, "figure4")
    drawn |= {file_4(loss): figure_4(joint, several(zoo), made, loss) for loss in joint_losses(joint)}
    drawn |= sparsity_results.pictures(table_cells(documents, "penalty"), every_student(zoo))
    drawn |= core_results.pictures(table_cells(documents, "prune"))
    return {name: f"{text}\n" for name, text in drawn.items()}
