"""Charts as inline SVG, coloured by the page's CSS, so that one file reads well light and dark.

CSS classes: ``axis`` (lines), ``label`` (small text), ``mark`` (values), ``band`` (an interval along a line),
``interval`` (that of a bar), ``rule`` (a line to compare with), and ``s0``, ``s1`` ... (series). A file of its own
(:func:`standalone`) brings its colours along.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from html import escape

import numpy as np
import numpy.typing as npt

Series = tuple[str, Sequence[float], Sequence[float]]
Bar = tuple[float, tuple[float, float] | None]
"""A value, and its interval where there is one."""
Point = tuple[str, float, Bar]
"""A name, a place on the x axis and what was found there."""
Bounds = tuple[float, float, float, float]
COLOURS = 4
"""Colours that the page has."""
STYLE = """
svg { --card: #ffffff; --soft: #5c6270; --grid: #eceef1; --ink: #1b1d22; }
svg { --s0: #2a6fdb; --s1: #e07b1f; --s2: #2f9e6e; --s3: #9a4fc4; background: var(--card); }
@media (prefers-color-scheme: dark) {
  svg { --card: #1a1d24; --soft: #a2a9b8; --grid: #262a33; --ink: #e9ebef; }
  svg { --s0: #6ea4ff; --s1: #f5a455; --s2: #56c596; --s3: #c48ae6; }
}
.label { font: 11.5px system-ui, sans-serif; fill: var(--soft); } .strong { fill: var(--ink); }
.axis { stroke: var(--soft); } .grid { stroke: var(--grid); } .line { fill: none; stroke-width: 2; }
.whisker { stroke-width: 3; } .band { opacity: 0.18; }
.rule { stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 5 3; }
.interval { stroke: var(--ink); stroke-width: 1.5; }
""" + "".join(
    f".line.s{i}, .whisker.s{i}, .rule.s{i} {{ stroke: var(--s{i}); }} "
    f".fill.s{i}, .band.s{i} {{ fill: var(--s{i}); }}\n"
    for i in range(COLOURS)
)
"""Of a chart in a file of its own: the page's colours."""


def png_uri(pixels: npt.NDArray[np.uint8]) -> str:
    """Return an image, uint8 (H, W) or (H, W, 3), as a ``data:`` URI of a PNG."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about ``count`` round numbers inside [low, high]."""
    if not high > low:
        return [low]
    raw = (high - low) / count
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= raw)
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 12) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """Return a number for an axis: 1.2M, 30k, 0.25."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            scale = 1e3 if letter == "k" else size
            return f"{value / scale:g}{letter}"
    return f"{value:,.10g}"


def line_chart(
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    *,
    bands: Sequence[tuple[Sequence[float], Sequence[float]]] = (),
    percent: bool = False,
    width: int = 520,
    height: int = 260,
) -> str:
    """Return lines of (name, x, y); a legend names them where there are several.

    ``bands`` are the lower and upper ends of an interval at each x, one pair for each series, or none at all.
    """
    xs = [value for _, x, _ in series for value in x]
    ys = [value for _, _, y in series for value in y if math.isfinite(value)]
    ys += [value for band in bands for end in band for value in end]
    low, high = min(ys), max(ys)
    room = (high - low) * 0.06 or abs(high) * 0.06 or 1.0
    # The axis of a single point begins, or ends, at 0.
    left_x, right_x = (min(xs), max(xs)) if max(xs) > min(xs) else (min(0.0, xs[0]), max(0.0, xs[0]) or 1.0)
    bounds = (left_x, right_x, low - room, high + room)
    parts = [_frame(bounds, x_label, y_label, width, height, percent)]
    for index, ((_, x, _), (below, above)) in enumerate(zip(series, bands, strict=False)):
        ends = [*zip(x, above, strict=True), *reversed(list(zip(x, below, strict=True)))]
        outline = " ".join(f"{_x(a, bounds, width):.1f},{_y(b, bounds, height):.1f}" for a, b in ends)
        parts.append(f'<polygon class="band s{index}" points="{outline}"/>')
    for index, (_, x, y) in enumerate(series):
        places = [
            (_x(a, bounds, width), _y(b, bounds, height))
            for a, b in zip(x, y, strict=True)
            if math.isfinite(b)
        ]
        points = " ".join(f"{left:.1f},{top:.1f}" for left, top in places)
        parts.append(f'<polyline class="line s{index}" points="{points}"/>')
        if len(places) == 1:
            parts.append(
                f'<circle class="fill s{index}" cx="{places[0][0]:.1f}" cy="{places[0][1]:.1f}" r="4"/>'
            )
    if len(series) > 1:
        parts += _legend([name for name, _, _ in series])
    return _svg(parts, width, height, f"{y_label} against {x_label}")


def histogram(
    edges: Sequence[float],
    counts: Sequence[int],
    x_label: str,
    marks: Sequence[tuple[str, float]] = (),
    *,
    width: int = 520,
    height: int = 260,
) -> str:
    """Return bars of ``counts`` between ``edges`` on a logarithmic x axis, with named vertical lines."""
    filled = [index for index, count in enumerate(counts) if count]
    first, last = (filled[0], filled[-1]) if filled else (0, len(counts) - 1)
    low = min([edges[first], *(value for _, value in marks)])
    high = max([edges[last + 1], *(value for _, value in marks)])
    bounds = (math.log10(low) - 0.08, math.log10(high) + 0.12, 0.0, max(*counts, 1) * 1.3)
    parts = [_frame(bounds, x_label, "decisions", width, height, False, log_x=True)]
    base = _y(0.0, bounds, height)
    for index in range(first, last + 1):
        left, right = (_x(math.log10(edges[index + side]), bounds, width) for side in (0, 1))
        top = _y(counts[index], bounds, height)
        box = f'x="{left + 0.7:.1f}" y="{top:.1f}" width="{max(right - left - 1.4, 1):.1f}"'
        title = f"{edges[index]:.3g}-{edges[index + 1]:.3g} ms: {counts[index]:,}"
        parts.append(
            f'<rect class="fill s0" {box} height="{base - top:.1f}" rx="1.5"><title>{title}</title></rect>'
        )
    for index, (name, value) in enumerate(sorted(marks, key=lambda mark: mark[1])):
        x, y = _x(math.log10(value), bounds, width), TOP + 10 + 13 * (index % 3)
        parts.append(_line("rule", x, y - 2, x, base))
        in_right_half = x > width * 0.62
        parts.append(
            _text(
                x - 4 if in_right_half else x + 4,
                y + 4,
                f"{name} {value:.3g} ms",
                anchor="end" if in_right_half else "start",
                strong=True,
            )
        )
    return _svg(parts, width, height, f"histogram of {x_label}")


def interval_chart(
    rows: Sequence[tuple[str, float, tuple[float, float] | None]],
    x_label: str,
    *,
    width: int = 520,
    room: int = 110,
) -> str:
    """Return one line for each (name, mean, interval): a dot on its 95 % interval, and the value in words.

    ``room`` is the width of the names.
    """
    height = 34 * len(rows) + 46
    values = [value for _, mean, ci in rows for value in (mean, *(ci or ()))]
    margin = (max(values) - min(values)) * 0.08 or 1.0
    low, high = min(values) - margin, max(values) + margin
    left, right, base = room, width - 92, height - 40

    def place(value: float) -> float:
        return left + (value - low) / (high - low) * (right - left)

    parts = [_line("axis", left, base, right, base)]
    for tick in ticks(low, high, 6):
        parts.append(_line("grid", place(tick), 6, place(tick), base))
        parts.append(_text(place(tick), base + 15, short(tick)))
    for index, (name, mean, ci) in enumerate(rows):
        y = 22 + 34 * index
        parts.append(_text(left - 12, y + 4, name, anchor="end", strong=True))
        if ci:
            parts.append(_line(f"whisker s{index % COLOURS}", place(ci[0]), y, place(ci[1]), y))
        parts.append(f'<circle class="fill s{index % COLOURS}" cx="{place(mean):.1f}" cy="{y}" r="5.5"/>')
        parts.append(_text(right + 12, y + 4, f"{mean:,.5g}", anchor="start", strong=True))
    parts.append(_text((left + right) / 2, height - 6, x_label))
    return _svg(parts, width, height, x_label)


def bar_chart(
    groups: Sequence[str],
    series: Sequence[tuple[str, Sequence[Bar | None]]],
    y_label: str,
    rules: Sequence[tuple[str, float, int | None]] = (),
    rules_name: str = "",
    *,
    width: int = 760,
    height: int = 300,
) -> str:
    """Return bars side by side in named groups, with whiskers on their intervals.

    Args:
        groups: name of each group, in words that may stand on two lines.
        series: name, and a bar for each group; None leaves its place empty.
        y_label: what the values are.
        rules: lines to compare with: what stands at the right end, value, and the series whose colour the line has,
            dashed; None: a plain one.
        rules_name: what the dashed ones are, for the legend.
        width: of the picture, the rules' names included.
        height: of the picture.
    """
    bars = [bar for _, own in series for bar in own if bar]
    values = [value for bar in bars for value in (bar[0], *(bar[1] or ()))] + [value for _, value, _ in rules]
    low, high = min([0.0, *values]), max([0.0, *values])
    room = (high - low) * 0.06 or 1.0
    bounds = (0.0, float(len(groups)), low - room if low < 0 else 0.0, high + room)
    plot = width - max((round(6.2 * len(name)) + 6 for name, _, _ in rules), default=0)
    right, base, zero = plot - RIGHT, height - BOTTOM, _y(0.0, bounds, height)
    parts = _y_axis(bounds, y_label, right, height)
    parts += [_line("grid", x, TOP, x, base) for x in (_x(i, bounds, plot) for i in range(1, len(groups)))]
    slot = (right - LEFT) / len(groups)
    thick = 0.84 * slot / len(series)
    whiskers = []
    for g, group in enumerate(groups):
        middle = _x(g + 0.5, bounds, plot)
        lines = group.split(" ", 1) if 6.2 * len(group) > slot else [group]
        parts += [_text(middle, base + 15 + 13 * i, line, strong=True) for i, line in enumerate(lines)]
        for s, (name, own) in enumerate(series):
            if (bar := own[g]) is None:
                continue
            value, ci = bar
            x, y = middle + (s - len(series) / 2) * thick, _y(value, bounds, height)
            title = f"{group}, {name}: {value:,.4g}" + (f" ({ci[0]:,.4g} to {ci[1]:,.4g})" if ci else "")
            box = f'x="{x + 0.5:.1f}" y="{min(y, zero):.1f}" width="{thick - 1:.1f}" height="{abs(y - zero):.1f}"'
            parts.append(f'<rect class="fill s{s}" {box}><title>{escape(title)}</title></rect>')
            if ci:
                ends = [_y(end, bounds, height) for end in ci]
                whiskers.append(_line("interval", x + thick / 2, ends[0], x + thick / 2, ends[1]))
    parts.append(_line("axis", LEFT, zero, right, zero))
    parts += _rules(rules, bounds, right, height)
    parts += [*whiskers, *_legend([name for name, _ in series], rules_name)]
    return _svg(parts, width, height, y_label)


def point_chart(
    series: Sequence[tuple[str, Sequence[Point]]],
    x_label: str,
    y_label: str,
    rules: Sequence[tuple[str, float]] = (),
    *,
    width: int = 720,
    height: int = 320,
) -> str:
    """Return named points with whiskers on their intervals; the x axis begins at 0, and a legend names the series.

    The names stand in a column on the right, from top to bottom as the points do; a line leads to each.

    Args:
        series: name, and its points.
        x_label: what the places on the x axis are.
        y_label: what the values are.
        rules: upright lines to compare with: what stands at the top, and the place on the x axis.
        width: of the picture, the names included.
        height: of the picture; it is taller where the names would not fit.
    """
    points = [(index, point) for index, (_, own) in enumerate(series) for point in own]
    points.sort(key=lambda each: -each[1][2][0])
    ends = [end for _, (_, _, (value, ci)) in points for end in (value, *(ci or ()))]
    margin = 0.08 * (max(ends) - min(ends)) or 1.0
    room = max(150, round(6.6 * max(len(name) for _, (name, _, _) in points)) + 12)
    plot, height = width - room, max(height, TOP + BOTTOM + NAME * len(points))
    places = [x for _, (_, x, _) in points] + [x for _, x in rules]
    bounds = (0.0, 1.06 * max(places), min(ends) - margin, max(ends) + margin)
    parts = [_frame(bounds, x_label, y_label, plot, height, False)]
    for name, x in rules:
        left = _x(x, bounds, plot)
        parts.append(_line("axis", left, TOP, left, height - BOTTOM))
        parts.append(_text(left - 5, TOP + 8, name, anchor="end"))
    tops = [_y(value, bounds, height) for _, (_, _, (value, _)) in points]
    marks = []
    names_y = _apart(tops, TOP, height - BOTTOM)
    for (index, (name, x, (value, ci))), top, name_y in zip(points, tops, names_y, strict=True):
        left = _x(x, bounds, plot)
        parts.append(_line("grid", left, top, plot, name_y))
        parts.append(_text(plot + 5, name_y + 4, name, anchor="start", strong=True))
        told = f"{name}: {value:,.4g}" + (f" ({ci[0]:,.4g} to {ci[1]:,.4g})" if ci else "") + f" at {x:,.4g}"
        if ci:
            marks.append(_line("interval", left, _y(ci[0], bounds, height), left, _y(ci[1], bounds, height)))
        place = f'cx="{left:.1f}" cy="{top:.1f}" r="4.5"'
        marks.append(f'<circle class="fill s{index}" {place}><title>{escape(told)}</title></circle>')
    legend = _legend([name for name, _ in series])
    return _svg([*parts, *marks, *legend], width, height, f"{y_label} against {x_label}")


def _apart(wanted: Sequence[float], low: float, high: float) -> list[float]:
    """Return places near the ascending ``wanted`` ones, a name's height apart, inside [low, high] where they fit."""
    places, last = [], low - NAME
    for place in wanted:
        last = max(place, last + NAME)
        places.append(last)
    for index in reversed(range(len(places))):
        places[index] = min(places[index], high)
        high = places[index] - NAME
    return places


def standalone(svg: str) -> str:
    """Return a chart as the text of an SVG file."""
    return svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace(
        ">", f"><style>{STYLE}</style>", 1
    )


LEFT, RIGHT, TOP, BOTTOM = 60, 12, 20, 42
NAME = 14
"""Height of a name in a column of names."""


def _x(value: float, bounds: Bounds, width: int) -> float:
    return LEFT + (value - bounds[0]) / (bounds[1] - bounds[0]) * (width - LEFT - RIGHT)


def _y(value: float, bounds: Bounds, height: int) -> float:
    return height - BOTTOM - (value - bounds[2]) / (bounds[3] - bounds[2]) * (height - TOP - BOTTOM)


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(
    x: float, y: float, text: str, *, anchor: str = "middle", strong: bool = False, upright: bool = False
) -> str:
    kind = "label strong" if strong else "label"
    place = f'transform="translate({x:.0f} {y:.0f}) rotate(-90)"' if upright else f'x="{x:.1f}" y="{y:.1f}"'
    return f'<text class="{kind}" text-anchor="{anchor}" {place}>{escape(text)}</text>'


def _frame(
    bounds: Bounds, x_label: str, y_label: str, width: int, height: int, percent: bool, log_x: bool = False
) -> str:
    base, right = height - BOTTOM, width - RIGHT
    parts = _y_axis(bounds, y_label, right, height, percent)
    for tick in _log_ticks(bounds) if log_x else ticks(bounds[0], bounds[1], 6):
        text = short(round(10.0**tick, 6)) if log_x else short(tick)
        # A letter is some 8 wide: the last one ends within the picture.
        parts.append(_text(min(_x(tick, bounds, width), width - 4.0 * len(text)), base + 16, text))
    parts.append(_line("axis", LEFT, base, right, base))
    parts.append(_text((LEFT + right) / 2, height - 8, x_label))
    return "".join(parts)


def _y_axis(bounds: Bounds, y_label: str, right: float, height: int, percent: bool = False) -> list[str]:
    parts = []
    for tick in ticks(bounds[2], bounds[3]):
        y = _y(tick, bounds, height)
        parts.append(_line("grid", LEFT, y, right, y))
        parts.append(_text(LEFT - 7, y + 4, f"{100 * tick:g} %" if percent else short(tick), anchor="end"))
    return [*parts, _text(12, (TOP + height - BOTTOM) / 2, y_label, upright=True)]


def _rules(
    rules: Sequence[tuple[str, float, int | None]], bounds: Bounds, right: float, height: int
) -> list[str]:
    """Return the lines across, each with its name beside it or, where that is taken, below."""
    parts, label_y = [], -math.inf
    for name, value, colour in sorted(rules, key=lambda rule: -rule[1]):
        y = _y(value, bounds, height)
        label_y = max(y, label_y + 13)
        parts.append(_line("axis" if colour is None else f"rule s{colour}", LEFT, y, right, y))
        parts.append(_line("axis", right, y, right + 8, label_y))
        parts.append(_text(right + 11, label_y + 4, name, anchor="start", strong=True))
    return parts


def _legend(names: Sequence[str], rules_name: str = "") -> list[str]:
    parts, left = [], LEFT + 8.0
    for index, name in enumerate(names):
        parts.append(f'<rect class="fill s{index}" x="{left}" y="6" width="12" height="4" rx="2"/>')
        parts.append(_text(left + 17, 12, name, anchor="start"))
        left += 34 + 6.4 * len(name)
    if rules_name:
        parts += [_line("rule", left, 8, left + 21, 8), _text(left + 26, 12, rules_name, anchor="start")]
    return parts


def _log_ticks(bounds: Bounds) -> list[float]:
    """Return the logarithms of 1, 2, 5 of every decade, or of 1 alone where those would crowd."""
    decades = range(math.floor(bounds[0]), math.ceil(bounds[1]) + 1)
    values = [math.log10(step * 10.0**decade) for decade in decades for step in (1, 2, 5)]
    inside = [value for value in values if bounds[0] <= value <= bounds[1]]
    return inside if len(inside) <= 9 else [value for value in inside if abs(value - round(value)) < 1e-9]


def _svg(parts: Sequence[str], width: int, height: int, title: str) -> str:
    body = "".join(parts)
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">{body}</svg>'
