"""Figures 3 and 4 of McKinstry 2018, drawn from cards and cells."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET

import pytest

from spikestill import paper_figures, results
from spikestill.paper_figures import (
    caption_3,
    caption_4,
    figure_3,
    figure_4,
    pictures,
    rows_3,
)
from spikestill.result_cells import FIGURE_4

SVG = "{http://www.w3.org/2000/svg}"


def cell(game, net, loss, percent, ci=None):
    values = {"game": game, "distill.architecture": net, "distill.loss": loss}
    measured = {"evaluate.percent_of_teacher": percent} | (
        {"evaluate.percent_of_teacher_ci95": ci} if ci else {}
    )
    return {"game": game, "values": values, "done": 1, "hours": 1.0} | measured


def card(mean, ci, teacher, loss="kl"):
    return {"mean": mean, "ci95": ci, "teacher": teacher, "recipe": {"loss": loss}}


def joint(games, game, mean, net="1chip", loss="nll"):
    values = {"game": games, "distill.architecture": net}
    return {"game": game, "values": values, "loss": loss, "done": 1, "hours": 1.0, "evaluate.mean": mean}


def titles(svg):
    """Return bar to its value and interval, as its title gives them."""
    found = [str(each.text).partition(": ") for each in ET.fromstring(svg).iter(f"{SVG}title")]
    return {name: value for name, _, value in found}


def heights(svg):
    return {str(rect[0].text).partition(":")[0]: float(rect.attrib["height"])
            for rect in ET.fromstring(svg).iter(f"{SVG}rect") if [*rect]}  # fmt: skip


def test_figure_3_has_a_bar_for_each_game_that_was_run_and_one_for_their_mean():
    found = [cell("pong", "2chip", "kl", 80.0, [70.0, 85.0]), cell("qbert", "2chip", "kl", 40.0),
             cell("pong", "2chip", "nll", 10.0), cell("pong", "1chip", "kl", 20.0)]  # fmt: skip
    svg = figure_3(rows_3(found, {}, "kl"), "kl")
    assert titles(svg) == {"pong, 1 chip": "20", "pong, 2 chips": "80 (70 to 85)", "qbert, 2 chips": "40",
                           "mean, 1 chip": "20", "mean, 2 chips": "60"}  # fmt: skip
    tall = heights(svg)
    assert tall["pong, 2 chips"] == pytest.approx(2 * tall["qbert, 2 chips"], abs=0.11)
    assert tall["mean, 2 chips"] == pytest.approx(3 * tall["pong, 1 chip"], abs=0.21)
    assert titles(figure_3(rows_3(found, {}, "nll"), "nll")) == {"pong, 2 chips": "10", "mean, 2 chips": "10"}


def test_the_zoo_s_students_are_a_series_of_the_loss_that_they_learned_by():
    made = {"pong": card(15.0, [14.0, 17.0], 20.0), "qbert": card(50.0, [40.0, 60.0], 50.0, loss="nll")}
    found = titles(figure_3(rows_3([], made, "kl"), "kl"))
    assert found == {"pong, the zoo's, 1 chip": "75 (70 to 85)", "mean, the zoo's, 1 chip": "75"}
    assert "qbert, the zoo's, 1 chip" in titles(figure_3(rows_3([], made, "nll"), "nll"))
    # A teacher that scores nothing measures nobody.
    assert paper_figures.ZOO not in rows_3([], {"pong": card(1.0, [0.0, 2.0], 0.0)}, "kl")


def test_figure_3_has_the_teacher_and_the_paper_s_means_of_that_loss():
    for loss, means in (("kl", ["98.24", "87.15", "76.71"]), ("nll", ["94.28", "81.45", "69.31"])):
        svg = figure_3(rows_3([], {}, loss), loss)
        texts = [str(each.text) for each in ET.fromstring(svg).iter(f"{SVG}text")]
        assert [text.split()[-1] for text in texts if re.search(r"chips? \d|teacher 100", text)] == [
            "100",
            *means,
        ]


def test_figure_4_has_a_bar_for_the_mean_over_games_of_each_count_and_net():
    found = [joint("pong", "pong", 20.0), joint("qbert", "qbert", 100.0),
             joint("pong+qbert", "pong", 10.0), joint("pong+qbert", "qbert", 100.0),
             joint("pong", "pong", 10.0, "8chip"), joint("pong+space_invaders", "pong", 9.0, "8chip")]  # fmt: skip
    assert titles(figure_4(found, [], {}, "nll")) == {
        "1 chip, 2 games, NLL": "75",
        "8 chips, 2 games, NLL": "90",
    }
    told = "2 games, NLL, on 1 chip (of 2 of 4 scores), 8 chips (of 1 of 4 scores)"
    assert f"Run by the sweep: {told}. Of the zoo: none." in caption_4(found, [], {})


def test_figure_4_s_mean_of_every_score_says_no_count():
    games = {game for students in FIGURE_4 for game in students}
    found = [joint(game, game, 100.0) for game in games]
    found += [joint("+".join(students), game, 50.0) for students in FIGURE_4 for game in students]
    assert set(titles(figure_4(found, [], {}, "nll")).values()) == {"50"}
    told = "2 games, NLL, on 1 chip; 3 games, NLL, on 1 chip; 10 games, NLL, on 1 chip"
    assert f"Run by the sweep: {told}. Of the zoo: none." in caption_4(found, [], {})


def test_figure_4_measures_a_student_by_the_single_games_student_of_its_own_loss():
    found = [joint("pong", "pong", 20.0), joint("pong", "pong", 40.0, loss="kl"),
             joint("pong+qbert", "pong", 10.0, loss="kl"), joint("pong+qbert", "qbert", 9.0)]  # fmt: skip
    assert titles(figure_4(found, [], {}, "kl")) == {"1 chip, 2 games, KL": "25"}
    assert titles(figure_4(found, [], {}, "nll")) == {}
    lines = caption_4(found, [], {})
    assert "Run by the sweep: 2 games, KL, on 1 chip (of 1 of 4 scores). Of the zoo: none." in lines
    assert [line for line in lines if line.startswith("!")] == [
        "![Figure 4](images/figure4-kl.svg)", "![Figure 4](images/figure4.svg)"
    ]  # fmt: skip


def test_the_zoo_s_student_of_two_games_is_a_bar_beside_the_zoo_s_students_of_one():
    single = {"freeway": {"mean": 30.0}, "pong": {"mean": 20.0}}
    both = {"game": "freeway+pong", "games": {"freeway": {"mean": 15.0}, "pong": {"mean": 20.0}}}
    three = {"game": "a+b+c", "games": {game: {"mean": 1.0} for game in ("freeway", "pong", "qbert")}}
    assert titles(figure_4([], [both, three], single, "nll")) == {"1 chip, the zoo's, 2 games": "75"}
    assert "Run by the sweep: none. Of the zoo: freeway+pong." in caption_4([], [both, three], single)
    assert titles(figure_4([], [both], {}, "nll")) == {}


def test_the_caption_counts_the_bars():
    lines = caption_3([cell("pong", "1chip", "nll", 20.0)], {"pong": card(15.0, [14.0, 17.0], 20.0)})
    assert (
        "KL, games that were run of 10: 0 (1 chip), 0 (2 chips), 0 (4 chips), 1 (the zoo's, 1 chip)." in lines
    )
    assert "NLL, games that were run of 10: 1 (1 chip), 0 (2 chips), 0 (4 chips)." in lines


def test_the_page_shows_every_picture_and_the_kept_ones_are_what_the_cards_draw(tmp_path):
    kept = results.DOCS / "images"
    drawn = pictures(results.ROOT, results.DOCS / "results")
    assert sorted(drawn) == [
        "fewer-cores.svg",
        "fewer-joules.svg",
        "fewer-spikes.svg",
        "figure3-kl.svg",
        "figure3-nll.svg",
        "figure4.svg",
    ]
    page = (results.DOCS / "results.md").read_text()
    for name, text in drawn.items():
        assert f"](images/{name})" in page
        assert (kept / name).read_text() == text


def test_the_command_draws_a_kept_sweep(tmp_path, monkeypatch):
    document = {"schema": "spikestill.sweep", "version": 1, "cells": [cell("pong", "4chip", "nll", 55.0)]}
    (tmp_path / "sweep.json").write_text(json.dumps(document))
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(
        "sys.argv", ["results", "--docs", str(tmp_path), "--sweep", f"table3={tmp_path / 'sweep.json'}"]
    )
    results.main()
    assert titles((tmp_path / "images" / "figure3-nll.svg").read_text())["pong, 4 chips"] == "55"
    assert "![Figure 3, NLL](images/figure3-nll.svg)" in (tmp_path / "results.md").read_text()
