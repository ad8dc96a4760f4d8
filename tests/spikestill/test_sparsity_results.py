"""Score against spikes and joules, drawn from cards and cells."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET

import pytest

from spikestill.sparsity_results import pictures

SVG = "{http://www.w3.org/2000/svg}"


def student(silent=0.875, energy=7e-5):
    """Return the card of a student that has 75 % of its teacher's score."""
    decision = {
        "operations": {"activation_sparsity": silent},
        "truenorth": {"total_j_pipelined": energy, "static_j_pipelined": 6.5e-5},
    }
    return {
        "game": "ms_pacman",
        "mean": 15.0,
        "ci95": [14.0, 17.0],
        "teacher": 20.0,
        "decision": decision,
    }


def tried(percent, weight=0.1, **estimated):
    costs = {f"estimate.{name.replace('__', '.')}": value for name, value in estimated.items()}
    return {
        "game": "pong", "values": {"distill.sparsity": weight}, "set": {"distill.sparsity_form": "squares"},
        "evaluate.percent_of_teacher": percent, **costs,
    }  # fmt: skip


def titles(svg):
    """Return point to its value, interval and place on the x axis, as its title gives them."""
    found = [str(each.text).partition(": ") for each in ET.fromstring(svg).iter(f"{SVG}title")]
    return {name: value for name, _, value in found}


def places(svg):
    return {str(dot[0].text).partition(":")[0]: (float(dot.attrib["cx"]), float(dot.attrib["cy"]))
            for dot in ET.fromstring(svg).iter(f"{SVG}circle")}  # fmt: skip


def test_score_stands_against_spikes_and_against_joules_where_they_are_known():
    both = tried(80.0, operations__activation_sparsity=0.75, truenorth__total_j_pipelined=1.4e-4)
    spikes_alone = tried(85.0, 0.2, operations__activation_sparsity=0.5)
    neither = tried(90.0, 0.3)
    drawn = pictures([both, spikes_alone, neither], [("sparse", student())])
    own = "75 (70 to 85)"
    assert titles(drawn["fewer-spikes.svg"]) == {
        "ms pacman sparse": f"{own} at 12.5", "pong squares 0.1": "80 at 25", "pong squares 0.2": "85 at 50"
    }  # fmt: skip
    assert titles(drawn["fewer-joules.svg"]) == {
        "ms pacman sparse": f"{own} at 0.07",
        "pong squares 0.1": "80 at 0.14",
    }
    origin = 60.0  # where the x axis begins
    for name in drawn:
        found = places(drawn[name])
        left, right = found["ms pacman sparse"], found["pong squares 0.1"]
        assert right[0] - origin == pytest.approx(2 * (left[0] - origin), abs=0.2), "each axis begins at 0"
        assert right[1] < left[1], "80 lies above 75"
    assert pictures([], []) == {}
    assert list(pictures([spikes_alone], [])) == ["fewer-spikes.svg"]


def test_joules_stand_beside_what_the_static_power_costs():
    svg = pictures([], [("", student(energy=13e-5))])["fewer-joules.svg"]
    texts = [str(each.text) for each in ET.fromstring(svg).iter(f"{SVG}text")]
    assert "static 0.065" in texts
    upright = [
        line for line in ET.fromstring(svg).iter(f"{SVG}line") if line.attrib["x1"] == line.attrib["x2"]
    ]
    (rule,) = [float(line.attrib["x1"]) for line in upright if line.attrib["class"] == "axis"]
    assert rule - 60.0 == pytest.approx((places(svg)["ms pacman"][0] - 60.0) / 2, abs=0.2)


@pytest.mark.parametrize("count", [9, 40])
def test_names_beside_points_that_lie_close_do_not_touch_and_stay_in_the_picture(count):
    cells = [
        tried(90.0 - 0.01 * i, i, operations__activation_sparsity=0.5, truenorth__total_j_pipelined=7e-5)
        for i in range(count)
    ]
    for svg in pictures(cells, []).values():
        found = ET.fromstring(svg)
        names = [float(text.attrib["y"]) for text in found.iter(f"{SVG}text") if "pong" in str(text.text)]
        assert len(names) == count
        assert all(below - above >= 13 for above, below in itertools.pairwise(sorted(names)))
        assert 0 < min(names) < max(names) < float(found.attrib["viewBox"].split()[3]) - 30
