"""The page of results: drawn from cards and sweeps alone, empty where nothing was run."""

from __future__ import annotations

import json
import re

import pytest

from spikestill import ablation_results, constraint_results, result_cells, results, sparsity_results
from spikestill.common.errors import UserError
from spikestill.common.zoo import ROOT

CARD = {
    "mean": 310.0, "ci95": [300.0, 320.5], "training_seconds": 7200, "recorded_frames": 599_854,
    "teacher": 320.0, "percent_of_teacher": 96.9,
    "percent_of_margin": 96.8, "cores": 1900, "game": "breakout",
    "recipe": {"steps": 8000, "batch_size": 128, "loss": "kl", "sparsity": 1e-4, "seed": 2},
    "decision": {"operations": {"activation_sparsity": 0.5}, "truenorth": {"total_j_pipelined": 8e-5}},
    "curve": [{"step": 8000}], "training_frames_in_all": 4_000_000,
    "went_on_from": [
        {"training_seconds": 1800, "recipe": {"steps": 7000, "batch_size": 128, "seed": 1}, "curve": [{"step": 6500}]}
    ],
}  # fmt: skip
CELL = {
    "values": {"game": "breakout", "distill.temperature": "0.01"}, "game": "breakout", "done": 2, "hours": 1.5,
    "evaluate.percent_of_teacher": 97.25, "evaluate.percent_of_teacher_ci95": [95.0, 99.0],
    "record.frames": 200_000, "distill.steps": 8000,
}  # fmt: skip


def sweep(path, *cells):
    return document(path, cells)


def document(path, cells, recipe=None):
    written = {"schema": "spikestill.sweep", "version": 1, "cells": list(cells)}
    path.write_text(json.dumps(written | ({"recipe": recipe} if recipe else {})))
    return path


def row(page, section, first):
    lines = page[page.index(f"## {section}") :].splitlines()
    return next(line for line in lines if line.startswith(f"| {first} "))


def tried(change, mean=None, ci=None, **more):
    """Return a cell of an ablation of Pong by two seeds, not scored where there is no ``mean``."""
    cell = {"game": "pong", "done": 2, "hours": 0.5, "values": {"game": "pong", "change": change}} | more
    return cell if mean is None else cell | {"evaluate.mean": mean, "evaluate.ci95": ci}


def test_a_change_by_itself_is_told_beside_none():
    cell = tried(
        "distill.hint_weight=0", 10.0, [9.0, 11.0], **{"distill.regret": 0.25, "record.frames": 300_000,
        "distill.steps": 1000, "evaluate.percent_of_teacher": 50.0}
    )  # fmt: skip
    found = ablation_results.ablation([cell, tried("none")])
    assert (
        "| pong | `distill.hint_weight=0` | 0.250 | 10.00 | 9.00 to 11.00 |  | 50.0 | 2 | 300 k | 1,000 | 0.50 |"
        in found
    )
    assert "| pong | `none` |  |  |  | baseline |  | 2 |  |  | 0.50 |" in found
    assert found[0] == "Baseline: `none`."
    assert ablation_results.ablation([cell])[0] == "No row of this table is a baseline."


def test_a_change_is_better_or_worse_where_it_lies_beyond_the_interval_of_none():
    none = tried("none", 10.0, [9.0, 11.0])
    verdicts = {
        change: ablation_results.verdict([none, cell], cell)
        for change, cell in {
            "none": none,
            "inside": tried("a=1", 11.0, [10.0, 14.0]),
            "above": tried("distill.hint_share=1", 12.0, [11.5, 12.5]),
            "above, its interval reaches back": tried("a=1", 12.0, [10.5, 13.0]),
            "below": tried("a=1", 8.0, [7.0, 8.9]),
            "below, its interval reaches back": tried("a=1", 8.0, [7.0, 9.0]),
            "not scored": tried("a=1"),
            "another game": tried("a=1", 12.0, [11.5, 12.5], game="qbert"),
        }.items()
    }
    assert verdicts == {
        "none": "baseline",
        "inside": "no",
        "above": "better",
        "above, its interval reaches back": "better, intervals overlap",
        "below": "worse",
        "below, its interval reaches back": "worse, intervals overlap",
        "not scored": "",
        "another game": "",
    }


def test_a_baseline_is_of_the_same_choice_of_the_grid():
    """``--set distill.temperature=0.01|0.05`` gives each temperature a ``none`` of its own."""
    cells = [
        tried(change, mean, [mean - 1, mean + 1],
              values={"game": "pong", "distill.temperature": tau, "change": change})
        for tau, change, mean in (("0.01", "none", 10.0), ("0.05", "none", 20.0), ("0.05", "a=1", 20.5))
    ]  # fmt: skip
    assert ablation_results.verdict(cells, cells[2]) == "no"
    assert any("| `a=1 distill.temperature=0.05` |" in line for line in ablation_results.ablation(cells))


@pytest.mark.parametrize("unset", ["", "null", None])
def test_the_baseline_of_a_file_is_the_cell_that_was_given_none(unset):
    alone, given = (
        tried("", mean, [mean - 1, mean + 1], values={"game": "pong", "record.student": value})
        for value, mean in ((unset, 10.0), ("first.safetensors", 5.0))
    )
    assert ablation_results.verdict([given, alone], given) == "worse"
    assert ablation_results.verdict([given, alone], alone) == "baseline"
    assert any("`record.student=first.safetensors`" in line for line in ablation_results.ablation([given]))


def test_every_ablation_that_is_shipped_has_a_row_for_each_of_its_changes_and_its_baseline():
    """Hints in the first third are the default, so that all of them are a change."""
    from spikestill.configs.sweep import load_sweep

    recipe = load_sweep("ablation")
    assert "distill.hint_share=1" in recipe.ablate
    cells = [tried(change, 10.0, [9.0, 11.0]) for change in ("none", *recipe.ablate)]
    drawn = ablation_results.ablation(cells)
    for change in recipe.ablate:
        assert any(f"| `{change}` |" in line and "| no |" in line for line in drawn)


def test_cells_stand_beside_the_papers_and_stay_empty_where_nothing_ran(tmp_path):
    (tmp_path / "zoo" / "breakout").mkdir(parents=True)
    for name in ("teacher", "student-1chip"):
        (tmp_path / "zoo" / "breakout" / f"{name}.json").write_text(json.dumps(CARD))
    documents = tmp_path / "results"
    documents.mkdir()
    results.keep("table2", sweep(tmp_path / "sweep.json", CELL), documents)
    three = CELL | {"values": {"distill.architecture": "1chip", "distill.loss": "kl"}}
    results.keep("table3", sweep(tmp_path / "sweep.json", three), documents)
    page = results.page(tmp_path / "zoo", documents, tmp_path)
    assert (
        row(page, "Teachers", "breakout")
        == "| breakout | 310.0 | 300.0 to 320.5 | 1, 2 | 4.0 M | 2.5 | 358.0 (SB3 DQN 10M) | yes |"
    )
    assert row(page, "Teachers", "pong") == "| pong |  |  |  |  |  | 20.6 (SB3 DQN 10M) |  |"
    assert "| 96.9 | 96.8 | 1, 2 | 600 k | 14,500 x 128 | 2.50 | 1,900 |" in row(page, "The zoo", "breakout")
    assert "| 320.00, an earlier one | 96.9 |" in row(page, "The zoo", "breakout")
    same = results.students({"breakout": CARD}, {"breakout": CARD | {"mean": CARD["teacher"]}})
    assert any("| 320.00 | 96.9 |" in line for line in same)
    ours = "97.2 (95.0 to 99.0; 2 seeds, 200 k frames, 8,000 batches, 1.50 h)"
    assert row(page, "Table 2", "breakout") == f"| breakout | 0.0 | 95.8: {ours} | 60.58 | 31.57 |"
    assert row(page, "Table 3", "breakout") == f"| breakout |  | {ours} |  |  |  |  |"
    assert row(page, "Table 3", "our mean") == "| our mean |  | 97.2 of 1 games |  |  |  |  |"
    assert row(page, "Table 3", "the paper's mean of ten").endswith(
        "| 69.31 | 76.71 | 81.45 | 87.15 | 94.28 | 98.24 |"
    )


def joint_sweep(path, options, mean=4000.0):
    """Write what a sweep gave of Qbert alone, and of Pong and Qbert, whose options of stages are those."""
    single = {
        "game": "qbert",
        "done": 1,
        "hours": 2.0,
        "evaluate.mean": mean,
        "evaluate.ci95": [3900.0, 4100.0],
    }
    values = {"distill.architecture": "2chip"}
    joint = single | {"evaluate.mean": 3000.0, "values": values | {"game": "pong+qbert"}}
    cells = [single | {"values": values | {"game": "qbert"}}, joint]
    return document(
        path, cells, {"stages": ["record", "distill", "evaluate"], "game": "pong", "options": options}
    )


def figure_4_of(tmp_path, *paths):
    """Return the lines of Figure 4's section with what these sweeps gave, kept together."""
    found = [cell for path in paths for cell in result_cells.cells(path)]
    results.keep("figure4", sweep(tmp_path / "all.json", *found), tmp_path)
    page = results.page(tmp_path / "zoo", tmp_path, tmp_path)
    return page[page.index("## Figure 4") :].splitlines()


def test_a_game_of_a_joint_student_stands_beside_the_single_games_student(tmp_path):
    lines = figure_4_of(tmp_path, joint_sweep(tmp_path / "nll.json", {"distill": {"loss": "nll"}}))
    assert any(line.startswith("Students of several games, NLL. ") for line in lines)
    assert "| the student's games | game | 1chip | 2chip | 4chip | 8chip |" in lines
    assert "| mean | students of 2 games |  | 75.0 % (of 1 of 4 scores) |  |  |" in lines
    assert "| mean | students of 10 games |  |  |  |  |" in lines
    assert "| pong, qbert | pong |  |  |  |  |" in lines
    assert "| pong, qbert | qbert |  | 75.0 %: 3,000.0 (3,900.0 to 4,100.0; 1 seed, 2.00 h) |  |  |" in lines


@pytest.mark.parametrize(
    "options", [{}, {"distill": {"loss": "kl"}}, {"distill": {"config": "distill-paper"}}]
)
def test_students_of_several_games_by_another_loss_are_told_by_it_and_not_mixed_with_nll(tmp_path, options):
    kl = joint_sweep(tmp_path / "kl.json", options, mean=2000.0)
    lines = figure_4_of(tmp_path, kl)
    assert any(line.startswith("Students of several games, KL. ") for line in lines)
    assert "| mean | students of 2 games |  | 150.0 % (of 1 of 4 scores) |  |  |" in lines
    lines = figure_4_of(tmp_path, kl, joint_sweep(tmp_path / "nll.json", {"distill": {"loss": "nll"}}))
    assert any(line.startswith("Students of several games, KL and NLL. ") for line in lines)
    heads = next(line for line in lines if line.startswith("| the student's games "))
    assert heads.count(", kl |") == heads.count(", nll |") == 4
    means = next(line for line in lines if line.startswith("| mean | students of 2 games "))
    assert re.findall(r"[\d.]+ %", means) == ["150.0 %", "75.0 %"]


def test_what_a_trial_tried_comes_before_its_sweeps_options_and_their_recipe():
    given = {"distill": {"config": "distill-paper", "loss": "nll"}}
    assert result_cells.loss_of({}, given) == "nll"
    assert result_cells.loss_of({"distill.loss": "mse"}, given) == "mse"
    assert result_cells.loss_of({"change": "distill.loss=mse distill.steps=5"}, given) == "mse"
    assert result_cells.loss_of({"change": "none", "distill.config": "distill-paper"}, {}) == "kl"
    assert result_cells.loss_of({}, None) is None


def test_a_sweep_of_one_loss_or_of_one_choice_of_games_says_them_in_its_recipe_alone(tmp_path):
    cell = {**CELL, "values": {"distill.architecture": "1chip"}}
    path = document(
        tmp_path / "sweep.json", [cell], {"game": "breakout+pong", "options": {"distill": {"loss": "nll"}}}
    )
    (found,) = result_cells.cells(path)
    assert (found["values"]["game"], found["loss"]) == ("breakout+pong", "nll")
    assert result_cells.by_net([found], "1chip", "nll") == {"breakout": found}
    assert result_cells.by_net([found], "1chip", "kl") == {}
    assert result_cells.joint_losses([{**found, "evaluate.mean": 1.0}]) == ("nll",)


def test_a_penalty_stands_with_the_spikes_that_it_leaves(tmp_path):
    cell = {
        "game": "pong", "done": 1, "hours": 0.5, "evaluate.mean": 17.5, "evaluate.ci95": [17.0, 18.0],
        "values": {"distill.sparsity": 0.01, "distill.sparsity_form": "features"}, "map.cores": 1886,
        "estimate.operations.activation_sparsity": 0.84, "estimate.truenorth.total_j_pipelined": 7.5e-5,
    }  # fmt: skip
    student = {
        "game": "pong", "mean": 18.25, "ci95": [18.0, 18.5], "cores": 1890, "training_seconds": 1800,
        "teacher": 20.0, "recipe": {"sparsity": 0.5, "sparsity_form": "neurons", "batch_size": 128},
        "curve": [{"step": 7000}],
        "decision": {"operations": {"activation_sparsity": 0.875}, "truenorth": {"total_j_pipelined": 7e-5}},
    }  # fmt: skip
    found = sparsity_results.section([cell], [("sparse", student)])
    shipped = "| pong, the zoo's sparse | neurons | 0.5 | 18.25 | 18.00 to 18.50 | 12.5 | 1,890 | 0.07 | "
    assert f"{shipped}1 |  | 7,000 x 128 | 0.50 |" in found
    assert (
        "| pong | features | 0.01 | 17.50 | 17.00 to 18.00 | 16.0 | 1,886 | 0.075 | 1 |  |  | 0.50 |" in found
    )


def test_a_student_that_beats_its_teacher_lifts_the_mean_and_the_page_says_what_it_would_be_without():
    worse = CARD | {"percent_of_teacher": 80.0, "percent_of_margin": 70.0}
    better = CARD | {"percent_of_teacher": 130.0, "percent_of_margin": 140.0}
    lines = results.means({"pong": worse, "qbert": better})
    assert lines == [
        "Mean over 2 of 10 games: 105.0 % of the teachers' scores, 105.0 % of their margin over random play.",
        "With every student counted as 100 % at most it would be 90.0 % and 85.0 %: "
        "qbert scored more than the teacher.",
    ]
    assert len(results.means({"pong": worse})) == 1
    assert results.means({}) == []


def test_two_nets_on_one_chip_stand_beside_the_one_net_and_the_better_counts():
    narrow = {
        game: json.loads((ROOT / game / "student-1chip.json").read_text()) for game in ("pong", "enduro")
    }
    assert results.side_by_side({}, narrow, {}) == []
    better = narrow["enduro"] | {"percent_of_margin": 95.0, "percent_of_teacher": 95.0, "cores": 3772}
    worse = narrow["pong"] | {"percent_of_margin": 10.0, "percent_of_teacher": 10.0, "cores": 3772}
    page = "\n".join(results.side_by_side({"enduro": better, "pong": worse}, narrow, {}))
    alone = {game: f"{card['percent_of_margin']:.1f}" for game, card in narrow.items()}
    assert re.search(rf"\| enduro \|.*\| 95\.0 \| 95\.0 \|.*\| 3,772 \| {alone['enduro']} \|", page)
    assert re.search(rf"\| pong \|.*\| 10\.0 \| 10\.0 \|.*\| {alone['pong']} \|", page)
    margin = (95.0 + narrow["pong"]["percent_of_margin"]) / 2
    assert f"{margin:.1f} % of their margin" in page
    assert "| 3,772 |  |" in "\n".join(results.side_by_side({"enduro": better}, {}, {}))


def test_a_card_that_does_not_say_its_recordings_is_explained():
    silent = {name: value for name, value in CARD.items() if name != "recorded_frames"}
    told = "[How the zoo's networks were trained](trainings.md)."
    assert told in results.students({"breakout": silent}, {})
    assert told not in results.students({"breakout": CARD}, {})


def test_an_axis_that_was_set_to_one_value_is_known_all_the_same(tmp_path):
    """``--set distill.architecture=1chip`` takes the axis away, and no cell says it."""
    path = sweep(tmp_path / "sweep.json", CELL | {"values": {"distill.loss": "kl"}})
    changes = ["distill.architecture=1chip", "distill.sparsity_form=layers", "game=breakout|pong"]
    told = {
        "config": {"recipe": "table3", "set": changes},
        "commit": "0123456789ab",
        "machine": "a processor",
    }
    path.write_text(json.dumps(json.loads(path.read_text()) | {"provenance": told}))
    results.keep("table3", path, tmp_path)
    (cell,) = results.cells(tmp_path / "table3.json")
    assert results.find([cell], "breakout", architecture="1chip", loss="kl") == cell
    assert results.find([cell], "breakout", architecture="2chip", loss="kl") is None
    assert "| layers |" in next(
        line for line in sparsity_results.section([cell], []) if line.startswith("| breakout")
    )
    kept = json.loads((tmp_path / "table3.json").read_text())
    assert all("set" not in each for each in kept["cells"])


def test_a_sweep_is_told_by_its_command_and_machine(tmp_path):
    path = sweep(tmp_path / "penalty.json", CELL)
    assert results.as_run(path) == results.as_run(tmp_path / "none.json") == []
    config = {"recipe": "penalty", "set": ["game=pong", "distill.sparsity=0|0.1"]}
    told = {"provenance": {"config": config, "commit": "0123456789ab", "machine": "a processor, 2 cores"}}
    path.write_text(json.dumps(json.loads(path.read_text()) | told))
    line = "As run: `spikestill sweep penalty --set 'game=pong,distill.sparsity=0|0.1'`"
    assert f"{line}, commit 0123456789ab, a processor, 2 cores." in results.page(tmp_path, tmp_path, tmp_path)
    path.write_text(
        json.dumps(
            json.loads(path.read_text())
            | {"provenance": told["provenance"] | {"config": {"recipe": "penalty", "set": []}}}
        )
    )
    assert results.as_run(path)[0].startswith("As run: `spikestill sweep penalty`, commit ")


def test_what_explains_the_tables_ends_the_page(tmp_path):
    before = results.page(tmp_path, tmp_path, tmp_path)
    (tmp_path / "notes.md").write_text("## Why\n\nBecause.\n")
    assert results.page(tmp_path, tmp_path, tmp_path) == f"{before}\n## Why\n\nBecause.\n"


def test_the_kept_page_is_what_the_cards_draw():
    drawn = results.page(results.ROOT, results.DOCS / "results", results.MEASURED)
    assert (results.DOCS / "results.md").read_text() == drawn


def test_nets_with_branches_taken_out_stand_with_their_cores(tmp_path):
    cell = CELL | {
        "values": {"distill.architecture": "2chip", "distill.prune": 1},
        "map.cores": 4012,
        "done": 1,
    }
    results.keep("prune", sweep(tmp_path / "sweep.json", cell), tmp_path)
    page = results.page(tmp_path / "zoo", tmp_path, tmp_path)
    row = "| breakout | {} | 1 | 4,012 |  |  | 97.2 (95.0 to 99.0) | 1 | 200 k | 8,000 | 1.50 |"
    assert row.format("2chip") in page
    more = cell | {"values": {"distill.architecture": "4chip", "distill.prune": 1}}
    results.keep("prune+4chip", sweep(tmp_path / "more.json", more), tmp_path)
    both = results.page(tmp_path / "zoo", tmp_path, tmp_path)
    assert f"{row.format('2chip')}\n{row.format('4chip')}" in both
    assert both.replace(f"{row.format('4chip')}\n", "") == page


def test_a_student_of_two_games_stands_in_each_beside_the_student_of_that_game_alone(tmp_path):
    for name, card in (
        ("pong", CARD | {"mean": 12.0}),
        ("freeway+pong", CARD | {"game": "freeway+pong", "games": {"freeway": CARD, "pong": CARD}}),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "student-1chip.json").write_text(json.dumps(card))
    page = results.page(tmp_path, tmp_path, tmp_path)
    section = page[page.index("## The zoo's 1-chip students of several games") :].splitlines()
    of_pong = [line for line in section if line.startswith("| freeway+pong | pong |")]
    assert of_pong == [
        "| freeway+pong | pong | 310.00 | 300.00 to 320.50 | 320.00 | 96.9 | 96.8 | 12.00 "
        "| 1, 2 | 600 k | 14,500 x 128 | 2.50 | 1,900 |"
    ]
    assert any(line.startswith("| freeway+pong | freeway |") for line in section)


def test_constraints_stand_from_the_fewest_to_the_most(tmp_path):
    rung = {
        "rung": "binary", "batches": 3000, "learning_rate": 0.003, "training_loss": 1.5,
        "training_agreement": 0.5, "hours": 0.5,
        "held_out": {"agreement": 0.45, "regret": 0.25}, "played": {"score": 167.5, "ci95": [150.0, 190.0]},
    }  # fmt: skip
    teacher = {"rung": "teacher", "learning_rate": 5e-4, "training_loss": 1.25}
    figures = {"binary-3000": rung, "teacher-3000": rung | teacher}
    (tmp_path / "constraints-breakout.json").write_text(json.dumps({"figures": figures}))
    found = constraint_results.section(tmp_path, {"breakout": CARD | {"random": 15.0}})
    drawn = [line for line in found if line.startswith("| breakout")]
    assert drawn == [
        "| breakout | none: the teacher's own net, fp32 | 0.0005 | 3,000 | 1.25 | 50, 45 | 0.25 | 167.5 "
        "| 150.0 to 190.0 | 50 | 0.50 |",
        "| breakout | and binary activations | 0.003 | 3,000 | 1.50 | 50, 45 | 0.25 | 167.5 | 150.0 to 190.0 | 50 "
        "| 0.50 |",
    ]
    assert constraint_results.section(tmp_path, {}) == []


def test_what_is_no_sweep_or_no_table_is_named(tmp_path):
    foreign = tmp_path / "sweep.json"
    foreign.write_text("[]")
    with pytest.raises(UserError, match=r"sweep\.json: not what `spikestill sweep` wrote"):
        results.keep("table2", foreign, tmp_path)
    with pytest.raises(
        UserError,
        match="no table 'table9'; known: table2, table3, figure4, ablation, ablation-zoo, ablation-teachers",
    ):
        results.keep("table9", foreign, tmp_path)
    with pytest.raises(UserError, match="no such file"):
        results.keep("table2", tmp_path / "none.json", tmp_path)
    with pytest.raises(UserError, match=r"the part '\.\./x' of table prune is no name"):
        results.keep("prune+../x", foreign, tmp_path)


def test_every_table_has_its_sweep():
    from spikestill.configs.sweep import load_sweep

    for name in results.TABLES:
        assert "evaluate" in load_sweep(name).stages


@pytest.mark.parametrize("name", ["scores", "buffers"])
def test_a_sweep_of_the_zoo_has_all_of_its_games(name):
    from spikestill.configs.sweep import load_sweep

    assert list(load_sweep(name).grid["game"]) == sorted(results.cards(results.ROOT, "teacher"))
