"""Draw ``docs/control-results.md``: the curves of Björck 2021 and Yang 2021 beside ours, from kept trainings.

What was not run stays empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from spikestill.charts import COLOURS, interval_chart, line_chart, standalone
from spikestill.common.atomic import write_text
from spikestill.configs.control import SIX, ControlConfig
from spikestill.configs.environment import EnvironmentConfig
from spikestill.control_cells import EPSILON, Cell, Variant, cells, described, low, setting_of
from spikestill.control_curves import read_all
from spikestill.control_distances import Distances
from spikestill.control_distances import read_all as read_distances
from spikestill.result_cells import interval, number, table

BJORCK_TASKS = (
    "cartpole_swingup", "reacher_easy", "cheetah_run", "finger_spin", "ball_in_cup_catch", "walker_walk",
)  # fmt: skip
PIXEL_TASKS = tuple(f"{task}_pixels" for task in BJORCK_TASKS)
MAIN = {"fp32": Variant("fp32"), "fp16, all six": low(*SIX), "fp16, none of the six": low()}
ABLATIONS = (
    MAIN
    | {"amp": low(amp=True), "eps": low(epsilon=10 * EPSILON)}
    | {f"fp16, the first {n}: with {SIX[n - 1]}": low(*SIX[:n]) for n in range(1, 5)}
    | {f"fp16, the first 5: with {SIX[4]}; all but {SIX[5]}": low(*SIX[:5])}
    | {f"fp16 without {name}": low(*(each for each in SIX if each != name)) for name in SIX[:5]}
)
"""Figures 7, 8 and 9."""
FIXAR = {name: Variant(name) for name in ("fp32", "fixed32", "fixar", "fixed16")}
RANDOM = {
    1: (0.921, 6.69e-4, -5.37, 0.00331, 0.0797, 512, "767±11", "778±27"),
    2: (0.983, 7.51e-5, -5.64, 0.00289, 0.0137, 2048, "877±14", "869±33"),
    3: (0.979, 7.51e-5, -6.99, 0.00577, 0.0122, 2048, "872±12", "862±29"),
    4: (0.982, 9.7e-4, -4.07, 0.00327, 0.0111, 2048, "887±60", "880±54"),
    5: (0.948, 2.63e-5, -6.92, 0.00933, 0.14, 1024, "732±50", "709±36"),
}
"""Tables 6 and 7: discount, rate, least log σ, τ, first temperature, batch; the paper's scores in fp32 and fp16."""
RANDOM_OPTIONS = (
    "discount", "learning_rate", "log_std_low", "target_rate", "initial_temperature", "batch_size",
)  # fmt: skip


def beside(
    found: Sequence[Cell], games: Iterable[str], columns: Mapping[str, Variant], algorithm: str
) -> list[str]:
    """Return a table: a row for each task and setting, a column for each variant."""
    rows = []
    for game in games:
        own = [cell for cell in found if (cell.game, cell.algorithm) == (game, algorithm)
               and cell.variant in columns.values()]  # fmt: skip
        settings = list(dict.fromkeys(cell.setting for cell in own))
        rows += [
            [game, described(setting), *("; ".join(cell.text() for cell in own
             if (cell.setting, cell.variant) == (setting, variant)) for variant in columns.values())]
            for setting in settings
        ] or [[game, "", *[""] * len(columns)]]  # fmt: skip
    return table(["task", "widths and options", *columns], rows)


def ablations(found: Sequence[Cell], game: str) -> list[str]:
    """Return a table with a row for each variant of Figures 7 to 9 on one task, a column for each setting.

    A training that is longer than the shortest of its column tells what it had then, too.
    """
    own = [cell for cell in found if (cell.game, cell.algorithm) == (game, "sac")
           and cell.variant in ABLATIONS.values()]  # fmt: skip
    settings = list(dict.fromkeys(cell.setting for cell in own)) or [()]
    columns = []
    for setting in settings:
        column = [cell for cell in own if cell.setting == setting]
        step = shared_step(column)
        told: dict[Variant, list[str]] = {}
        for cell in column:
            told.setdefault(cell.variant, []).append(cell.text())
            if step and cell.steps[-1:] > [step]:
                mean, ends = cell.at(step)
                told[cell.variant].append(f"at {step:,} steps {number(mean)} ({interval(ends)})")
        columns.append(told)
    rows = [
        [title, *("; ".join(told.get(variant, ())) for told in columns)]
        for title, variant in ABLATIONS.items()
    ]
    return table([game, *(described(setting) for setting in settings)], rows)


def shared_step(own: Sequence[Cell]) -> int:
    """Return the last step at which all that were evaluated were, 0 where there is none."""
    steps = [set(cell.steps) for cell in own if cell.steps]
    return max(set.intersection(*steps), default=0) if steps else 0


def random_settings(found: Sequence[Cell]) -> list[str]:
    """Return Tables 6 and 7: the mean over the tasks that were run, with random hyperparameters."""
    rows = []
    for index, (*values, paper_32, paper_16) in RANDOM.items():
        usual = ControlConfig(environment=EnvironmentConfig(game=BJORCK_TASKS[0]))
        wanted = dict(zip(RANDOM_OPTIONS, values, strict=True))
        row = [str(index), *(f"{value:g}" for value in values)]
        for paper, variant in ((paper_32, MAIN["fp32"]), (paper_16, MAIN["fp16, all six"])):
            own = [cell for cell in found if cell.game in BJORCK_TASKS and cell.variant == variant
                   and all(dict(cell.setting).get(name, getattr(usual, name)) == value
                           for name, value in wanted.items())]  # fmt: skip
            went_on = [cell for cell in own if cell.steps]
            told = []
            if went_on:
                mean = number(np.mean([cell.at(cell.steps[-1])[0] for cell in went_on]))
                told.append(f"{mean} of {len({cell.game for cell in went_on})} tasks, {len(went_on)} cells")
            told += [f"{cell.game}: {ended}" for cell in own for ended in cell.diverged]
            row.append(f"{paper}: {'; '.join(told)}" if told else str(paper))
        rows.append(row)
    heads = [
        "set",
        "discount",
        "rate",
        "least log σ",
        "τ",
        "T₀",
        "batch",
        "fp32, paper: ours",
        "fp16, paper: ours",
    ]
    return table(heads, rows)


def chart_of(own: Sequence[Cell], names: Mapping[str, Variant]) -> str:
    """Return the curves of one task and setting with their bands, as the text of an SVG file."""
    drawn = [
        (name, cell)
        for name, variant in names.items()
        for cell in own
        if cell.variant == variant and cell.steps
    ]
    series, bands = [], []
    for name, cell in drawn[:COLOURS]:
        points = [(step, *cell.at(step)) for step in cell.steps]
        series.append((name, [step for step, _, _ in points], [mean for _, mean, _ in points]))
        bands.append(([ends[0] for _, _, ends in points], [ends[1] for _, _, ends in points]))
    # A legend names several lines only.
    label = "mean return" if len(series) > 1 else f"mean return, {series[0][0]}"
    return standalone(line_chart(series, "agent steps", label, bands=bands, width=640, height=320))


def figures(found: Sequence[Cell], games: Iterable[str], columns: Mapping[str, Variant], algorithm: str,
            folder: Path) -> list[str]:  # fmt: skip
    """Write a figure for each task and setting that has curves; return the lines that show them."""
    lines = []
    for game in games:
        own = [cell for cell in found if (cell.game, cell.algorithm) == (game, algorithm)
               and cell.variant in columns.values() and cell.steps]  # fmt: skip
        for index, setting in enumerate(dict.fromkeys(cell.setting for cell in own)):
            path = folder / f"control-{algorithm}-{game}-{index}.svg"
            write_text(path, chart_of([cell for cell in own if cell.setting == setting], columns) + "\n")
            lines += [f"![{game}, {described(setting)}](images/{path.name})", ""]
    return lines


def ablation_figures(found: Sequence[Cell], game: str, folder: Path) -> list[str]:
    """Write a figure of the ablations' means at their last shared step for each setting; return what shows them.

    A setting in which a single variant has a mean has no figure.
    """
    titles = {variant: title for title, variant in ABLATIONS.items()}
    own = [cell for cell in found if (cell.game, cell.algorithm) == (game, "sac") and cell.variant in titles
           and cell.steps]  # fmt: skip
    order = list(titles)
    own.sort(key=lambda cell: order.index(cell.variant))
    lines: list[str] = []
    for index, setting in enumerate(sorted(dict.fromkeys(cell.setting for cell in own))):
        column = [cell for cell in own if cell.setting == setting]
        step = shared_step(column)
        if len(column) < 2 or not step:
            continue
        rows = []
        for cell in column:
            mean, (below, above) = cell.at(step)
            title = titles[cell.variant].removeprefix("fp16 ").removeprefix("fp16, ").rpartition("; ")[2]
            rows.append((title, mean, (below, above)))
        path = folder / f"control-ablations-{game}-{index}.svg"
        write_text(
            path,
            standalone(interval_chart(rows, f"mean return at {step:,} steps", width=760, room=230)) + "\n",
        )
        lines += [f"![{game}, {described(setting)}: the methods](images/{path.name})", ""]
    told = "Bars are of the last step that all reached which did not diverge. What diverged has none."
    return [told, "", *lines] if lines else []


def distances(found: Sequence[Distances], folder: Path) -> list[str]:
    """Write the figures of trainings that two formats took apart; return the lines that show them, with a table."""
    rows = []
    lines = []
    for each in found:
        config, points = each.config, each.means()
        first, last = points[0], points[-1]
        pairs = f"{len(each.pairs)} pairs" if len(each.pairs) > 1 else "a pair"
        told = [described(setting_of(config)), f"{config.precision}, {pairs}"]
        rows.append([config.environment.game, *told, f"{last.step:,}",
                     *(f"{begin:.3g} to {end:.3g}" for begin, end in zip(first[1:], last[1:], strict=True)),
                     f"{each.seconds / 3600:.2f} h"])  # fmt: skip
        steps = [point.step for point in points]
        stem = f"control-distance-{Path(each.name).stem}"
        weights = [(name, steps, [getattr(point, name) for point in points]) for name in ("actor", "critics")]
        charts = {"weights": (weights, "mean L1 distance"), "q": ([("q", steps, [point.q for point in points])],
                  "mean difference of Q")}  # fmt: skip
        for kind, (series, label) in charts.items():
            path = folder / f"{stem}-{kind}.svg"
            write_text(path, standalone(line_chart(series, "agent steps", label, width=640)) + "\n")
            lines += [f"![{config.environment.game}, {told[0]}: {label}](images/{path.name})", ""]
    heads = ["task", "widths and options", "beside fp32", "steps", "actor's weights, first to last", "critics' weights",
             "Q", "time"]  # fmt: skip
    return [*table(heads, rows or [[""] * len(heads)]), *lines]


def others(found: Sequence[Cell]) -> list[str]:
    """Return a table of what belongs to no other one."""
    sac = [*ABLATIONS.values()]
    rows = [
        [cell.game, cell.algorithm, _told(cell.variant), described(cell.setting), cell.text()]
        for cell in found
        if not (
            cell.algorithm == "sac" and cell.game in (*BJORCK_TASKS, *PIXEL_TASKS) and cell.variant in sac
        )
        and not (cell.algorithm == "ddpg" and cell.variant in FIXAR.values())
    ]
    return (
        ["## Others", "", *table(["task", "agent", "arithmetic", "widths and options", "found"], rows)]
        if rows
        else []
    )


def _told(variant: Variant) -> str:
    """Return a variant in words."""
    on = ["all six"] if set(SIX) == variant.on else sorted(variant.on)
    rest = (["amp"] if variant.amp else []) + (
        [f"epsilon {variant.epsilon:g}"] if variant.epsilon != EPSILON else []
    )
    return ", ".join([variant.precision, *on, *rest])


def draw(documents: Path, docs: Path) -> None:
    """Write the page and its figures.

    Args:
        documents: folder of the kept trainings.
        docs: where ``control-results.md`` and ``images/`` are.

    Raises:
        UserError: a kept training cannot be read, or two have the same seed.
    """
    found, images = cells(read_all(documents)), docs / "images"
    for stale in images.glob("control-*.svg"):
        stale.unlink()
    lines = ["# Control results", "",
             "Drawn by `python -m spikestill.results` from the trainings kept in `docs/results/control/`;",
             "`--curve RUN_FOLDER` keeps one. A cell is the mean return at the last step that all its seeds reached,",
             "with the 95 % interval over seeds and games (bootstrap), seeds x games, steps of a seed, hours of all",
             "seeds. Options are those that are not the default. A run of several seeds ends where the first",
             "diverges; where no hours are told, within a minute. \"N of M steps\" was ended by hand. What was not",
             "run stays empty. Cells were run on different machines, on one core or two, some beside other work: their",
             "hours are a budget and no comparison.", "",
             "Few seeds make such an interval too narrow: of two seeds it is about the range of their means. Where",
             "seeds differ and games do not, it holds the true mean in 50, 74 and 83 of 100 cases with two, three and",
             "five seeds; where games of a seed differ three times as much as seeds do, in 88, 91 and 96 (simulated,",
             "ten games a seed, all normal).", "",
             "## SAC in fp16: Figures 3 and 9 of Björck 2021", "",
             "The paper draws curves and prints no numbers: methods are added one by one; every task needs several of",
             "them to work well, and which ones differs between tasks. `spikestill sweep bjorck-figure3`.", "",
             *beside(found, BJORCK_TASKS, MAIN, "sac"), *figures(found, BJORCK_TASKS, MAIN, "sac", images),
             "## From pixels: Figure 10", "",
             "`spikestill sweep bjorck-figure10`; fp16 has the encoder's two methods besides, fp32 has not. The paper",
             "calls the two close, and prints no numbers.", "",
             *beside(found, PIXEL_TASKS, MAIN, "sac"), *figures(found, PIXEL_TASKS, MAIN, "sac", images),
             "## The methods: Figures 7, 8 and 9", "",
             "One added after the other, each taken out, and two baselines: amp scales the loss, eps has ten times",
             "Adam's ε. `spikestill sweep bjorck-figure7`; eps is in `bjorck-naive`, fp32 in `bjorck-figure3`.",
             "In the paper, whose bars are means over seeds and six tasks, taking out any of the six lowers the score,",
             "one to a crash, and neither amp nor eps improves a training substantially.", "",
             *ablations(found, "cartpole_swingup"), *ablation_figures(found, "cartpole_swingup", images),
             "## Random options: Tables 6 and 7", "",
             "`spikestill sweep bjorck-table6`; the paper's are over six tasks and three seeds.", "",
             *random_settings(found),
             "## Weights and Q-values apart: Figures 11 and 12", "",
             "Pairs of trainings from the same seed, fp32 and few bits: mean L1 distance of the weights, and of Q on",
             "2,000 states that the fp32 agent met, first and last time that it was measured. Kept by",
             "`python -m spikestill.control_distances`. The paper prints no numbers either: its weights drift apart as",
             "the training goes on, and its Q-values come apart at first and then stay as far as they are, above",
             "0.", "",
             *distances(read_distances(documents.with_name("control-distances")), images),
             "## DDPG in fixed point: Figure 7 of Yang 2021", "",
             "The paper's curves on HalfCheetah, 1 M steps: fp32, fixed32 and FIXAR go towards 2,000, and 16 bits from",
             "the start learn nothing. It prints no numbers. `spikestill sweep fixar-figure7`.", "",
             *beside(found, ("half_cheetah", "hopper", "swimmer"), FIXAR, "ddpg"),
             *figures(found, ("half_cheetah", "hopper", "swimmer"), FIXAR, "ddpg", images),
             *others(found)]  # fmt: skip
    write_text(docs / "control-results.md", "\n".join(lines).rstrip("\n") + "\n")
