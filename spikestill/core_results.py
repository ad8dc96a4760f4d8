"""Score against cores, of the nets of ``spikestill sweep prune`` with and without branches taken out; one picture."""

from __future__ import annotations

from collections.abc import Sequence

from spikestill import budgets
from spikestill.charts import Point, point_chart, standalone
from spikestill.configs.hardware import hardware
from spikestill.result_cells import Cell, bar_of_cell, chosen, interval, number, share, table

SHARE, CORES = "evaluate.percent_of_teacher", "map.cores"
PICTURE = "fewer-cores.svg"
A_CHIP = hardware("truenorth").cores_per_chip


def net(cell: Cell) -> tuple[str, str]:
    """Return the net of a cell, and how many eighths of it were taken out; '' where the sweep did not choose."""
    options = chosen(cell)
    return str(options.get("distill.architecture", "")), str(options.get("distill.prune", ""))


def section(own: Sequence[Cell]) -> list[str]:
    """Return score and cores of the sweep's nets, as a table and a picture."""
    rows = [
        [cell["game"], *net(cell), number(cell.get(CORES), 0), number(cell.get("evaluate.mean"), 2),
         interval(cell.get("evaluate.ci95"), 2), share(cell), *budgets.columns(cell)]
        for cell in own
    ]  # fmt: skip
    heads = ["game", "net", "eighths taken out", "cores", "score", "95 % interval", "% of teacher",
             *budgets.COLUMNS]  # fmt: skip
    shown = [line for name in pictures(own) for line in (f"![Score against cores](images/{name})", "")]
    about = "A whisker is the 95 % interval of the score. The upright lines are what one chip has, and what two have."
    return [
        "## Fewer cores",
        "",
        f"`spikestill sweep prune`. A chip has {A_CHIP:,} cores.",
        "",
        *table(heads, rows or [[""] * len(heads)]),
        *shown,
        *((about, "") if shown else ()),
    ]


def pictures(own: Sequence[Cell]) -> dict[str, str]:
    """Return file name to the text of an SVG file, score against cores by net; {} where no cell has both."""
    series: dict[str, list[Point]] = {}
    for cell in own:
        if SHARE in cell and CORES in cell:
            name, taken = net(cell)
            words = f"{cell['game'].replace('_', ' ')} {name}"
            point = (
                f"{words}, {taken}/8 out" if taken not in ("", "0") else words,
                cell[CORES],
                bar_of_cell(cell),
            )
            series.setdefault(name, []).append(point)
    if not series:
        return {}
    most = max(x for found in series.values() for _, x, _ in found)
    rules = [
        (name, chips * A_CHIP)
        for chips, name in ((1, "one chip"), (2, "two chips"))
        if chips * A_CHIP <= most
    ]
    return {
        PICTURE: standalone(point_chart(list(series.items()), "cores", "% of the teacher's score", rules))
    }
