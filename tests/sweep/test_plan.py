"""What a sweep runs: trials, and the stage runs that they share."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from spikestill import result_cells
from spikestill.common import zoo
from spikestill.common.errors import UserError
from spikestill.common.zoo import ROOT
from spikestill.configs import sweep
from spikestill.configs.sweep import Range, SweepConfig, load_sweep
from spikestill.sweep import table
from spikestill.sweep.plan import in_vain, needs, plan, with_inputs
from spikestill.sweep.schedule import without_teachers

RECIPE = """
stages: [record, distill, evaluate]
game: pong
options:
  record: {frames: 4096}
  distill: {config: distill-paper, stream: false, steps: 100}
  evaluate: {episodes: 10, compare: false}
"""


def recipe(tmp_path, text=RECIPE, changes=()):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    return load_sweep(str(path), changes)


def test_trials_share_what_they_have_in_common(tmp_path):
    found = recipe(tmp_path, changes=("distill.temperature=0.01|0.05", "evaluate.seed=0|1", "seeds=3"))
    trials, runs = plan(found)
    assert len(trials) == 2 * 2 * 3
    stages = [run.stage for run in runs.values()]
    assert [stages.count(stage) for stage in ("record", "distill", "evaluate")] == [1, 6, 12]
    record, distill, evaluate = (trials[0].runs[stage][0] for stage in found.stages)
    assert distill.inputs == {"buffer": (record.key,)}
    assert evaluate.inputs == {"student": (distill.key,)}
    assert list(runs).index(record.key) < list(runs).index(distill.key)


def test_the_teacher_and_random_play_are_scored_once_for_all_students_of_the_same_games(tmp_path):
    changes = ("distill.temperature=0.01|0.05", "evaluate.seed=0|1", "evaluate.compare=true")
    trials, runs = plan(recipe(tmp_path, changes=changes))
    scores = [run for run in runs.values() if run.stage == "evaluate"]
    assert len(scores) == 2 + 4
    others = [run for run in scores if run.options.get("agent") == "teacher"]
    assert {run.options["seed"] for run in others} == {"0", "1"}
    for trial in trials:
        (own,) = trial.runs["evaluate"]
        (scored,) = own.inputs["scored"]
        assert runs[scored].options["seed"] == own.options["seed"]
        assert runs[scored].inputs == {}
        assert list(runs).index(scored) < list(runs).index(own.key)
    for alone in (("evaluate.agent=teacher",), ("evaluate.agent=random",), ("evaluate.compare=false",)):
        found = plan(recipe(tmp_path, "stages: [evaluate]\ngame: pong\n", alone))[1]
        assert [run.inputs for run in found.values()] == [{}]


def test_the_key_is_of_all_that_changes_the_result_and_nothing_else(tmp_path):
    keys = {
        change: plan(recipe(tmp_path, changes=(change,)))[0][0].runs["distill"][0].key
        for change in (
            "distill.steps=100",
            "distill.checkpoint_minutes=7",
            "distill.steps=101",
            "record.frames=4097",
        )
    }
    assert keys["distill.steps=100"] == keys["distill.checkpoint_minutes=7"]
    assert len(set(keys.values())) == 3


def test_a_score_of_the_zoos_student_is_of_the_file_that_it_has_now(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "pong", tmp_path / "pong")
    monkeypatch.setattr(zoo, "ROOT", tmp_path)

    def keys(agent, *changes):
        text = "stages: [evaluate]\ngame: pong\n"
        given = (f"evaluate.agent={agent}", *changes)
        return [run.key for run in plan(recipe(tmp_path, text, given))[1].values()]

    ways = [("student",), ("cores",), ("cores", "evaluate.compare=false"), ("teacher",), ("random",)]
    before = [keys(*way) for way in ways]
    assert before == [keys(*way) for way in ways]
    for published in ("student-1chip.safetensors", "core_map-1chip.h5"):
        with open(tmp_path / "pong" / published, "ab") as file:
            file.write(b"again")
    changed = [own != now for own, now in zip(before, [keys(*way) for way in ways], strict=True)]
    assert changed == [True, True, True, False, False]


def test_changes_are_tried_one_at_a_time_beside_none(tmp_path):
    text = (
        RECIPE
        + """
seeds: 2
grid: {game: [pong, freeway]}
ablate: ["distill.hint_weight=0.5", "record.epsilon_high=null distill.steps=7"]
"""
    )
    trials, runs = plan(recipe(tmp_path, text))
    assert len(trials) == 2 * 3 * 2
    stages = [run.stage for run in runs.values()]
    assert [stages.count(stage) for stage in ("record", "distill", "evaluate")] == [2, 12, 12]
    options = {trial.values["change"]: trial.runs["distill"][0].options for trial in trials}
    assert [(each["steps"], each.get("hint_weight")) for each in options.values()] == [
        (100, 0), (100, "0.5"), ("7", 0)
    ]  # fmt: skip
    whole = {trial.values["change"]: trial.runs["record"][0] for trial in trials if trial.games == ("pong",)}
    assert whole["none"].key == whole["distill.hint_weight=0.5"].key


def test_a_stages_recipe_comes_first_and_the_trials_values_last(tmp_path):
    trials, _ = plan(recipe(tmp_path, changes=("distill.learning_rate=1|2",)))
    options = [trial.runs["distill"][0].options for trial in trials]
    assert [each["learning_rate"] for each in options] == ["1", "2"]
    assert (options[0]["batch_size"], options[0]["steps"]) == (32, 100)


def test_stages_that_play_run_once_for_each_game(tmp_path):
    trials, runs = plan(recipe(tmp_path, changes=("game=pong|freeway",)))
    assert [trial.games for trial in trials] == [("pong",), ("freeway",)]
    assert len(runs) == 6
    assert trials[1].runs["record"][0].options["environment"] == {"game": "freeway"}


def test_a_distillation_that_streams_plays_the_trials_game_and_reads_no_buffer(tmp_path):
    text = RECIPE.replace("stream: false", "stream: true")
    trials, runs = plan(recipe(tmp_path, text, ("game=pong|freeway",)))
    assert {run.stage for run in runs.values()} == {"distill", "evaluate"}
    found = [trial.runs["distill"][0] for trial in trials]
    assert [(run.options["stream_game"], run.inputs) for run in found] == [("pong", {}), ("freeway", {})]
    assert len({run.key for run in found}) == 2
    assert trials[1].runs["evaluate"][0].inputs == {"student": (found[1].key,)}
    with pytest.raises(UserError, match=r"a trial plays pong\+freeway: a stream is of one game"):
        plan(recipe(tmp_path, "stages: [distill]\ngame: pong+freeway\noptions: {distill: {stream: true}}"))


def test_a_cells_share_of_its_teacher_is_of_each_seeds_own_teacher():
    rows = [
        {
            "values": {"seed": seed}, "game": "pong", "state": "finished", "runs": [], "teacher": teacher,
            "returns": [teacher * share for share in (0.8, 0.9, 1.0)],
            "figures": {"evaluate.mean": 0.9 * teacher, "evaluate.percent_of_teacher": 90.0},
        }
        for seed, teacher in enumerate((10.0, 20.0))
    ]  # fmt: skip
    (cell,) = table.cells(rows)
    assert (cell["seeds"], cell["done"], cell["evaluate.percent_of_teacher"]) == (2, 2, 90.0)
    low, high = cell["evaluate.percent_of_teacher_ci95"]
    assert 80 <= low < 90 < high <= 100
    assert cell["evaluate.ci95"][1] > 15


def test_a_list_is_one_change(tmp_path):
    text = "stages: [teach, evaluate]\ngame: hopper\noptions: {teach: {algorithm: ddpg}}\n"
    [trial], _ = plan(recipe(tmp_path, text, ("teach.hidden=16", "8", "seeds=1")))
    assert trial.runs["teach"][0].options["hidden"] == "16,8"


def test_a_teacher_is_charted_by_its_score_and_its_trainings_are_averaged(tmp_path):
    rows = [
        {
            "values": {"seed": seed}, "game": "hopper", "state": "finished", "teacher": 10.0, "returns": [9.0, 11.0],
            "runs": [], "figures": {"evaluate.mean": 10.0, "teach.mean_return": 4.0 + seed},
        }
        for seed in range(2)
    ]  # fmt: skip
    found = recipe(tmp_path, changes=("seeds=2",))
    diverged = rows[0] | {"values": {"teach.precision": "fp16"}, "state": "failed", "figures": {}}
    cell, failed = table.cells([*rows, diverged])
    assert (failed["done"], failed["failed"], "failed" in cell) == (0, 1, False)
    assert cell["teach.mean_return"] == 4.5
    assert "evaluate.percent_of_teacher_ci95" not in cell
    path, summary = tmp_path / "sweep.html", {"trials": 2, "done": 2, "stage_runs": 2, "began_again": 0}
    table.write_page(path, dataclasses.replace(found, about="teachers' scores"), [cell], [], summary)
    page = path.read_text()
    assert "<h2>Evaluate: mean</h2>" in page
    assert "u0027" not in page


def test_a_cell_of_several_seeds_has_their_cores_and_spikes_and_counts_what_they_share_once():
    shared = {"name": "record-pong", "seconds": 3600.0}
    rows = [
        {
            "values": {"seed": seed}, "game": "pong", "state": "finished", "teacher": None, "returns": [1.0, 2.0],
            "runs": [shared, {"name": f"distill-pong-{seed}", "seconds": 1800.0}],
            "figures": {
                "evaluate.mean": 1.5, "map.cores": 1885 + seed, "map.chips": 1, "distill.steps": 100 + seed,
                "estimate.operations.activation_sparsity": 0.5 + 0.25 * seed,
            },
        }
        for seed in range(2)
    ]  # fmt: skip
    (cell,) = table.cells(rows)
    assert (cell["hours"], cell["map.cores"], cell["map.chips"]) == (2.0, 1885.5, 1)
    assert cell["estimate.operations.activation_sparsity"] == 0.625
    assert "distill.steps" not in cell


def test_a_search_draws_the_same_values_however_many(tmp_path):
    text = (
        RECIPE
        + "search: {distill.learning_rate: {low: 0.001, high: 0.1, log: true}, distill.steps: {low: 5, high: 9}}"
    )
    few, many = (
        [trial.values for trial in plan(recipe(tmp_path, text, (f"samples={count}",)))[0]] for count in (2, 5)
    )
    assert few == many[:2]
    assert all(0.001 <= each["distill.learning_rate"] <= 0.1 for each in many)
    assert all(isinstance(each["distill.steps"], int) for each in many)
    assert len({each["distill.learning_rate"] for each in many}) == 5


def test_a_range_on_a_log_scale_has_the_geometric_mean_in_its_middle():
    assert Range(0.01, 100, log=True).at(0.5) == pytest.approx(1.0)
    assert Range(0, 10, whole=True).at(0.26) == 3


@pytest.mark.parametrize("name", [path.stem for path in sorted(sweep.SWEEPS.glob("*.yaml"))])
def test_every_shipped_sweep_is_planned(name):
    trials, runs = plan(load_sweep(name))
    assert trials
    assert all(parent in runs for run in runs.values() for parent in run.parents)


FIGURE_4 = [path.stem for path in sorted(sweep.SWEEPS.glob("figure4*.yaml"))]


@pytest.mark.parametrize("name", FIGURE_4)
def test_every_game_of_a_student_of_several_has_its_own_student_of_each_net(name):
    trials, _ = plan(load_sweep(name))
    made = {(trial.games, trial.values["distill.architecture"]) for trial in trials}
    wanted = {((game,), net) for games, net in made if len(games) > 1 for game in games}
    assert wanted <= made
    joint = {tuple(sorted(games)) for games, _ in made if len(games) > 1}
    assert joint == {tuple(sorted(games)) for games in result_cells.FIGURE_4}
    assert {net for _, net in made} == set(result_cells.NETS)


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("stages: [distil]", "unknown stage distil. Did you mean distill"),
        ("stages: [distill, record]", "in the order of"),
        ("options: {}", "stages are missing"),
        ("stages: [record]\nstep: 3", "unknown key step"),
        ("stages: [record]\ngrid: {distill.steps: [1]}", r"distill\.steps is no axis"),
        ("stages: [record]\ngrid: {record.frames: 5}", "a list of values wanted"),
        ("stages: [record]\ngame: pongo", "unknown environment 'pongo'"),
        ("stages: [record]\nseeds: 0", "its range is 1..10000"),
        ("stages: [record]\nseeds: 2", "is a training"),
        (
            "stages: [distill]\nseeds: 2\ngrid: {distill.seed: [5, 6]}",
            r"seeds is 2, and distill\.seed is given too",
        ),
        (
            "stages: [teach]\nseeds: 2\noptions: {teach: {seed: 5}}",
            r"seeds is 2, and teach\.seed is given too",
        ),
        ("stages: [distill]\nseeds: 2\nablate: [distill.seed=5]", r"and distill\.seed is given too"),
        (
            "stages: [distill]\nseeds: 2\nsearch: {distill.seed: {low: 5, high: 9}}",
            r"and distill\.seed is given too",
        ),
        ("stages: [record]\nsamples: 2", "without a search"),
        ("stages: [record]\nablate: {record.frames: 5}", "a list of STAGE.OPTION=VALUE"),
        ("stages: [record]\nablate: [record.frames=5 twice]", "a list of STAGE.OPTION=VALUE"),
        ("stages: [record]\nablate: [record.frames=5, record.frames=5]", "comes twice"),
        ("stages: [record]\nablate: [distill.steps=5]", r"distill\.steps is no axis"),
        ("stages: [record]\noptions: {distill: {steps: 1}}", "options of distill"),
        ("stages: [distill]\nsearch: {distill.steps: {low: 9, high: 2}}", "A < B"),
    ],
)
def test_a_recipe_that_asks_for_what_there_is_not_is_named(tmp_path, text, because):
    with pytest.raises(UserError, match=rf"(?s)recipe\.yaml: .*{because}"):
        recipe(tmp_path, text)


def test_seeds_and_a_seed_that_the_command_gives_are_refused_together(tmp_path):
    for change in ("distill.seed=5", "distill.seed=5|6"):
        with pytest.raises(UserError, match=r"seeds is 2, and distill\.seed is given too") as told:
            recipe(tmp_path, changes=(change, "seeds=2"))
        assert told.value.remedy == "leave distill.seed out, or give seeds 1"
    trials, _ = plan(recipe(tmp_path, RECIPE + "seeds: 2\n", ("distill.seed=5|6", "seeds=1")))
    assert len({trial.runs["distill"][0].key for trial in trials}) == len(trials) == 2
    # The seed of a stage that is no training is its own.
    assert len(plan(recipe(tmp_path, changes=("evaluate.seed=5|6", "seeds=2")))[0]) == 4


def test_an_option_that_a_stage_does_not_know_names_the_stage_and_the_nearest(tmp_path):
    because = r"distill: unknown option --temprature \(the trial distill\.temprature=1\)\. Did you mean --temperature"
    with pytest.raises(UserError, match=because):
        plan(recipe(tmp_path, changes=("distill.temprature=1|2",)))


def test_a_trial_whose_choices_do_not_go_together_is_named(tmp_path):
    text = "stages: [teach]\ngame: swimmer\noptions: {teach: {precision: fixar, target_period: 1}}"
    with pytest.raises(UserError, match=r"fixar with algorithm sac: .* \(the trial teach\.algorithm=sac\)"):
        plan(recipe(tmp_path, text, ("teach.algorithm=ddpg|sac",)))


def missing(recipe):
    """Return (stage, games) to the games whose teacher a stage run wants and the zoo has not."""
    _, runs = plan(recipe)
    return {(run.stage, "+".join(run.games)): run.missing for run in runs.values() if run.missing}


def test_a_game_whose_teacher_nobody_gives_and_the_zoo_has_not_is_known_beforehand(tmp_path):
    record, evaluate = ("record", "zaxxon"), ("evaluate", "zaxxon")
    zaxxon = ("game=pong+zaxxon", "evaluate.compare=true")
    both = {record: ("zaxxon",), evaluate: ("zaxxon",)}
    assert missing(recipe(tmp_path, changes=zaxxon)) == both
    hints = {("distill", "pong+zaxxon"): ("zaxxon",)}
    assert missing(recipe(tmp_path, changes=(*zaxxon, "distill.hint_weight=1"))) == both | hints
    assert missing(recipe(tmp_path, changes=("game=pong+zaxxon",))) == {record: ("zaxxon",)}
    assert missing(recipe(tmp_path, changes=("game=pong+freeway", "distill.hint_weight=1"))) == {}
    given = tuple(f"{stage}.teacher=mine.safetensors" for stage in ("record", "evaluate"))
    assert missing(recipe(tmp_path, changes=("game=zaxxon", "evaluate.compare=true", *given))) == {}
    streams = recipe(tmp_path, "stages: [distill]\ngame: zaxxon\noptions: {distill: {stream: true}}")
    assert missing(streams) == {("distill", "zaxxon"): ("zaxxon",)}
    # Each of these gets its teacher, or wants none.
    taught = "stages: [teach, record, distill, evaluate]\ngame: pong+zaxxon\n"
    assert missing(recipe(tmp_path, taught)) == {}
    played = "stages: [evaluate]\ngame: zaxxon\noptions: {evaluate: {agent: random, compare: false}}"
    assert missing(recipe(tmp_path, played)) == {}
    assert missing(recipe(tmp_path, played.replace("random", "teacher"))) == {evaluate: ("zaxxon",)}
    assert (
        missing(recipe(tmp_path, "stages: [record]\ngame: zaxxon\noptions: {record: {agent: random}}")) == {}
    )


def test_a_stage_run_is_in_vain_where_all_that_needs_it_needs_a_failed_one(tmp_path):
    trials, runs = plan(recipe(tmp_path, changes=("game=pong+zaxxon|freeway+zaxxon|freeway",)))
    zaxxon = next(run.key for run in runs.values() if run.stage == "record" and run.games == ("zaxxon",))
    needed = needs(trials, runs)
    assert [len(keys) for keys in needed] == [4, 4, 4, 4, 3]
    assert in_vain(needed, set()) == set()
    # Freeway's own student is the only one left, and so is its buffer.
    assert set(runs) - in_vain(needed, {zaxxon}) == {
        run.key for own in trials[2].runs.values() for run in own
    }
    assert trials[0].runs["record"][0].key in in_vain(needed, {zaxxon})
    # Scores of two games that share no student do not need each other.
    trials, runs = plan(recipe(tmp_path, "stages: [record]\ngame: pong+zaxxon\n"))
    zaxxon = trials[0].runs["record"][1].key
    assert in_vain(needs(trials, runs), {zaxxon}) == {zaxxon}


def test_which_trials_cannot_run_is_told_with_the_remedy():
    trials, runs = plan(load_sweep("table2", ("game=zaxxon|beam_rider|qbert|space_invaders",)))
    assert without_teachers(trials, [run for run in runs.values() if run.missing]) == (
        "the trials of zaxxon cannot run (4 of 16), as the zoo has no teacher of zaxxon, and what only they need "
        "is not begun: give record.teacher=FILE and distill.teacher=FILE and evaluate.teacher=FILE to a sweep of that "
        "game alone, or leave the game out"
    )


@pytest.mark.parametrize("address", ["head", "head:none", "ray://head:10001", ":6379", "head:99999"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(UserError, match="HOST:PORT or auto wanted"):
        SweepConfig(recipe="table2", address=address)


def test_a_student_of_two_games_reads_both_buffers_and_is_scored_on_each(tmp_path):
    trials, _ = plan(recipe(tmp_path, changes=("game=pong|pong+freeway", "distill.stream=false")))
    alone, both = trials
    assert both.runs["record"][0] is alone.runs["record"][0]
    (distill,) = both.runs["distill"]
    assert distill.inputs["buffer"] == tuple(run.key for run in both.runs["record"])
    assert [run.games for run in both.runs["evaluate"]] == [("pong",), ("freeway",)]
    assert all(run.inputs["student"] == (distill.key,) for run in both.runs["evaluate"])
    given = with_inputs("distill", {}, {"buffer": [Path("a"), Path("b")]})
    assert given == {"buffer": "a", "also": ["b"]}


def test_a_stage_has_its_own_game_s_teacher_and_every_game_s_buffer(tmp_path):
    text = "stages: [teach, evaluate]\ngame: pong+freeway\n"
    [trial], _ = plan(recipe(tmp_path, text, ("evaluate.agent=teacher",)))
    read = [run.inputs["teacher"] for run in trial.runs["evaluate"]]
    assert read == [(run.key,) for run in trial.runs["teach"]]
    text = "stages: [record, distill, map, estimate, verify, evaluate]\ngame: pong+freeway\n"
    [trial], _ = plan(recipe(tmp_path, text))
    (distill,), (mapped,) = trial.runs["distill"], trial.runs["map"]
    buffers = tuple(run.key for run in trial.runs["record"])
    assert mapped.inputs == {"student": (distill.key,), "buffer": buffers}
    for stage in ("estimate", "verify"):
        (found,) = trial.runs[stage]
        assert found.games == ("pong", "freeway")
        assert found.inputs == {**mapped.inputs, "core_map": (mapped.key,)}
        assert with_inputs(stage, {}, {"buffer": [Path("a"), Path("b")]}) == {"buffer": "a", "also": ["b"]}
    assert distill.inputs["buffer"] == buffers


def test_a_students_teachers_come_in_the_order_of_its_buffers(tmp_path):
    text = RECIPE.replace("stages: [record", "stages: [teach, record").replace(
        "game: pong", "game: pong+freeway"
    )
    [trial], runs = plan(recipe(tmp_path, text, ("distill.hint_weight=1", "distill.stream=false")))
    distill = trial.runs["distill"][0]
    assert distill.inputs["teacher"] == tuple(run.key for run in trial.runs["teach"])
    assert [runs[key].games for key in distill.inputs["teacher"]] == [("pong",), ("freeway",)]
    given = with_inputs("distill", {}, {"teacher": [Path("a"), Path("b")], "buffer": [Path("c"), Path("d")]})
    assert given == {"teacher": "a", "also_teachers": ["b"], "buffer": "c", "also": ["d"]}


def test_a_control_task_has_its_own_options_and_no_student(tmp_path):
    text = "stages: [teach, evaluate]\ngame: hopper\noptions: {teach: {algorithm: ddpg, precision: fixar}}\n"
    [trial], _ = plan(recipe(tmp_path, text, ("teach.batch_size=64", "teach.target_period=1")))
    assert trial.runs["evaluate"][0].inputs == {"teacher": (trial.runs["teach"][0].key,)}
    with pytest.raises(UserError, match=r"teach: .*fixed32 with batch_size 48"):
        plan(recipe(tmp_path, text, ("teach.precision=fixed32", "teach.batch_size=48")))
    with pytest.raises(UserError, match="distill with hopper: students are of Atari games"):
        recipe(tmp_path, text.replace("teach, evaluate", "teach, record, distill"))


def test_a_trial_that_trains_a_teacher_does_not_score_the_zoos_student(tmp_path):
    text = "stages: [teach, evaluate]\ngame: pong\noptions: {teach: {config: teach-fast}}\n"
    with pytest.raises(
        UserError, match="evaluate: agent student plays the zoo's student, and no stage before"
    ) as told:
        plan(recipe(tmp_path, text))
    assert told.value.remedy is not None
    assert "give evaluate.agent=teacher or evaluate.student" in told.value.remedy
    [trial], _ = plan(recipe(tmp_path, text, ("evaluate.agent=teacher",)))
    assert trial.runs["evaluate"][0].inputs == {"teacher": (trial.runs["teach"][0].key,)}
    plan(recipe(tmp_path, text, (f"evaluate.student={tmp_path / 'student.safetensors'}",)))
