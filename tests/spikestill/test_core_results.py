"""Score against cores, drawn from the cells of ``spikestill sweep prune``."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from spikestill.core_results import pictures, section

SVG = "{http://www.w3.org/2000/svg}"


def cell(net, taken, cores, percent=None):
    found = {"game": "ms_pacman", "values": {"distill.architecture": net, "distill.prune": taken}, "map.cores": cores,
             "done": 1, "hours": 1.0}  # fmt: skip
    return found if percent is None else found | {"evaluate.percent_of_teacher": percent}


def test_score_stands_against_cores_beside_what_chips_have():
    own = [
        cell("1chip", 0, 1886, 80.0),
        cell("2chip", 0, 4585, 90.0),
        cell("2chip", 2, 3772, 85.0),
        cell("4chip", 4, 7000),
    ]
    drawn = ET.fromstring(pictures(own)["fewer-cores.svg"])
    dots = {str(dot[0].text): float(dot.attrib["cx"]) for dot in drawn.iter(f"{SVG}circle")}
    assert set(dots) == {
        "ms pacman 1chip: 80 at 1,886", "ms pacman 2chip: 90 at 4,585", "ms pacman 2chip, 2/8 out: 85 at 3,772"
    }, "what was not scored has no point"  # fmt: skip
    origin = 60.0  # where the x axis begins
    one, twice = (
        dots[name] - origin
        for name in ("ms pacman 1chip: 80 at 1,886", "ms pacman 2chip, 2/8 out: 85 at 3,772")
    )
    assert twice == pytest.approx(2 * one, abs=0.2)
    texts = [str(each.text) for each in drawn.iter(f"{SVG}text")]
    assert "one chip" in texts
    assert "two chips" not in texts, "no net that was scored has as many cores"
    (chip,) = {float(line.attrib["x1"]) for line in drawn.iter(f"{SVG}line")
               if line.attrib["x1"] == line.attrib["x2"] and line.attrib["class"] == "axis"} - {origin}  # fmt: skip
    assert chip - origin == pytest.approx(one * 4096 / 1886, abs=0.2)


def test_the_table_has_what_was_not_scored_too():
    lines = section([cell("4chip", 4, 7000)])
    assert "| ms_pacman | 4chip | 4 | 7,000 |  |  |  | 1 |  |  | 1.00 |" in lines
    assert not any("fewer-cores.svg" in line for line in lines)
    assert pictures([]) == {}
    assert section([])[-2].startswith("|  |"), "an empty row where nothing was run"
