"""Charts and pictures: well-formed SVG, round ticks, pixels where they belong."""

from __future__ import annotations

import base64
import io
import itertools
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from spikestill.charts import bar_chart, histogram, interval_chart, line_chart, png_uri, short, ticks
from spikestill.configs.hardware import hardware
from spikestill.deploy.mapping import map_net
from spikestill.pictures import EMPTY, chip_pixels, filter_pixels, filters_caption, frame_sheet, layer_colours
from spikestill.student.architectures import LayerSpec
from tests.nets import random_net

NUMBERS = st.floats(-1e6, 1e6).map(lambda value: round(value, 3))


def elements(svg: str, tag: str) -> list[ET.Element]:
    return list(ET.fromstring(svg).iter(tag))


@settings(deadline=None, max_examples=100)
@given(low=NUMBERS, span=st.floats(1e-3, 1e6))
def test_ticks_are_few_and_rising_and_inside(low: float, span: float) -> None:
    found = ticks(low, low + span)
    assert 2 <= len(found) <= 6
    assert found == sorted(set(found))
    assert all(low - 1e-6 * span <= tick <= low + span * (1 + 1e-6) for tick in found)


@pytest.mark.parametrize(
    ("value", "text"), [(0.25, "0.25"), (-20.0, "-20"), (1500.0, "1,500"), (30_000, "30k"), (1.2e6, "1.2M")]
)
def test_axis_numbers_are_short(value: float, text: str) -> None:
    assert short(value) == text


def test_a_line_chart_has_a_line_for_each_series_and_a_legend_for_several() -> None:
    svg = line_chart(
        [("a<b", [1, 2, 3], [0.1, 0.2, 0.3]), ("c", [1, 2, 3], [0.3, float("nan"), 0.1])], "x", "y"
    )
    lines = elements(svg, "polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [3, 2]
    assert "a<b" in [text.text for text in elements(svg, "text")]


def test_a_line_chart_of_one_point_shows_it() -> None:
    svg = line_chart([("a", [25_600.0], [1.0])], "x", "y")
    assert len(elements(svg, "circle")) == 1
    assert {"0", "5,000", "25k"} <= {text.text for text in elements(svg, "text")}


def test_a_histogram_has_a_bar_for_each_bin_between_the_first_and_last_that_count() -> None:
    svg = histogram([1, 2, 4, 8, 16], [0, 3, 0, 1], "ms", [("deadline", 66.7)])
    heights = [float(bar.attrib["height"]) for bar in elements(svg, "rect")]
    assert len(heights) == 3
    assert heights[1] == 0
    assert heights[0] == pytest.approx(3 * heights[2], rel=0.01)
    assert "deadline 66.7 ms" in [text.text for text in elements(svg, "text")]


def test_an_empty_histogram_is_still_a_chart() -> None:
    assert elements(histogram([1, 2, 4], [0, 0], "ms"), "rect")


def test_an_interval_chart_places_means_in_order() -> None:
    svg = interval_chart([("a", 10.0, (9.0, 11.0)), ("b", -20.0, None), ("c", 0.0, (0.0, 0.0))], "score")
    x = [float(circle.attrib["cx"]) for circle in elements(svg, "circle")]
    assert x[1] < x[2] < x[0]


def bars(svg: str) -> dict[str, ET.Element]:
    """Return what a bar's title says before its value, to the bar."""
    return {
        str(bar[0].text).partition(":")[0]: bar for bar in elements(svg, "rect") if [*bar] and bar[0].text
    }


def lines(svg: str, kind: str) -> list[tuple[float, ...]]:
    """Return (x1, y1, x2, y2) of the lines of a class."""
    found = [line for line in elements(svg, "line") if line.attrib["class"] == kind]
    return [tuple(float(line.attrib[end]) for end in ("x1", "y1", "x2", "y2")) for line in found]


def test_a_bar_is_as_high_as_its_value_and_an_empty_one_is_not_there() -> None:
    svg = bar_chart(["a", "b"], [("x", [(100.0, None), None]), ("y", [(50.0, None), (-25.0, None)])], "%")
    found = bars(svg)
    assert sorted(found) == ["a, x", "a, y", "b, y"]
    top, height = ({name: float(bar.attrib[what]) for name, bar in found.items()} for what in ("y", "height"))
    assert height["a, x"] == pytest.approx(2 * height["a, y"], abs=0.11)
    assert height["a, x"] == pytest.approx(4 * height["b, y"], abs=0.21)
    # What is below 0 hangs from the line that the others stand on.
    assert top["a, x"] + height["a, x"] == pytest.approx(top["b, y"], abs=0.11)
    assert "fill s1" in found["b, y"].attrib["class"]
    assert [text.text for text in elements(svg, "text")][-2:] == ["x", "y"]


def test_a_whisker_runs_from_one_end_of_the_interval_to_the_other() -> None:
    svg = bar_chart(["a"], [("x", [(100.0, (50.0, 125.0))]), ("y", [(75.0, None)])], "%")
    (whisker,) = lines(svg, "interval")
    found = bars(svg)["a, x"].attrib
    unit = float(found["height"]) / 100
    base = float(found["y"]) + float(found["height"])
    assert whisker[1::2] == pytest.approx((base - 50 * unit, base - 125 * unit), abs=0.2)
    middle = float(found["x"]) + float(found["width"]) / 2
    assert whisker[::2] == pytest.approx((middle, middle), abs=0.2)


def test_lines_to_compare_with_lie_at_their_values_and_their_names_do_not_touch() -> None:
    rules = [("one 76", 76.0, 0), ("four 98", 98.0, 1), ("all 100", 100.0, None)]
    svg = bar_chart(["a"], [("x", [(98.0, None)]), ("y", [None])], "%", rules, "theirs")
    (four,) = lines(svg, "rule s1")
    assert four[1] == four[3] == float(bars(svg)["a, x"].attrib["y"])
    texts = [text for text in elements(svg, "text") if text.text in {name for name, _, _ in rules}]
    places = [float(text.attrib["y"]) for text in texts]
    assert [text.text for text in texts] == ["all 100", "four 98", "one 76"]
    assert min(below - above for above, below in itertools.pairwise(places)) >= 13
    assert "theirs" in [text.text for text in elements(svg, "text")]


def test_bars_and_names_stay_in_their_groups() -> None:
    games = ["space invaders", *(f"game{i}" for i in range(10))]
    svg = bar_chart(games, [(name, [(1.0, None)] * 11) for name in "abcd"], "%")
    borders = [60.0, *(line[0] for line in lines(svg, "grid") if line[0] == line[2]), 748.0]
    edges = [
        (float(bar.attrib["x"]), float(bar.attrib["x"]) + float(bar.attrib["width"]))
        for bar in bars(svg).values()
    ]
    assert len(edges) == 44
    assert edges == sorted(edges)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(edges))
    assert all(
        borders[i // 4] < left and right < borders[i // 4 + 1] for i, (left, right) in enumerate(edges)
    )
    assert {"space", "invaders", "game0"} <= {text.text for text in elements(svg, "text")}


def test_a_bar_chart_without_bars_is_still_a_chart() -> None:
    svg = bar_chart(["a"], [("x", [None])], "%")
    assert not bars(svg)
    assert "a" in [text.text for text in elements(svg, "text")]


def test_a_picture_survives_its_data_uri() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (7, 9), np.uint8)
    kind, _, data = png_uri(pixels).partition(",")
    assert kind == "data:image/png;base64"
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))), pixels)


def test_a_chip_shows_every_core_in_its_layers_colour() -> None:
    net = random_net((LayerSpec(8, 8, 8, 0, 1), LayerSpec(12, 3, 3, 0, 2)), seed=0)
    core_map = map_net(net, hardware("ns1e"))
    pixels = chip_pixels(core_map, 0)
    filled = (pixels != np.array(EMPTY, np.uint8)).any(axis=2)
    assert filled.sum() == core_map.cores
    plain = np.flatnonzero(~core_map.core_relay_C)
    colours = layer_colours(2)[core_map.core_layer_C[plain]]
    assert np.array_equal(pixels[core_map.y_C[plain], core_map.x_C[plain]], colours)


def test_filters_lie_in_tiles_with_zero_as_mid_grey() -> None:
    weight = np.zeros((3, 2, 4, 4), np.int8)
    weight[2, 1] = 1
    page = filter_pixels(weight, columns=2)
    assert page.shape == (2 * 2 * 5, 2 * 5)
    assert (page[:4, :4] == 128).all()
    assert (page[15:19, :4] == 255).all()


def test_frames_of_a_sheet_do_not_touch():
    sheet = frame_sheet(np.zeros((5, 2, 3), np.uint8), rows=2)
    assert sheet.shape == (2 * 2 + 4, 3 * 3 + 2 * 4)
    assert (sheet[:2, :3] == 0).all()
    assert (sheet[:, 3:7] == 200).all()
    assert (sheet[2:6] == 200).all()


def test_the_caption_counts_the_rows_that_there_are():
    assert "2 blocks of 4 rows" in filters_caption("filters", 32, 4)
    assert "a row for each of the 4 frames" in filters_caption("filters", 8, 4)
