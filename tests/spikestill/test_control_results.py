"""Kept curves of control trainings, and the page that is drawn from them."""

from __future__ import annotations

import dataclasses
import json
import xml.etree.ElementTree as ET
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from spikestill import control_curves, control_distances
from spikestill.common.artefacts import DIVERGED
from spikestill.common.errors import UserError
from spikestill.configs.control import ControlConfig, MethodsConfig
from spikestill.configs.environment import EnvironmentConfig
from spikestill.configs.loading import build, find_recipe, load
from spikestill.configs.sweep import load_sweep
from spikestill.control_cells import cells, setting_of, variant_of
from spikestill.control_curves import FREE, Kept, file_name, of_run, read, write
from spikestill.control_results import ABLATIONS, BJORCK_TASKS, MAIN, RANDOM, RANDOM_OPTIONS, draw
from spikestill.results import DOCS
from spikestill.sweep.plan import plan
from spikestill.sweep.table import seeds_and_games
from spikestill.teacher.control import teach
from tests.teacher.control.agents import OFF

simulated = pytest.mark.skipif(find_spec("mujoco") is None, reason="the MuJoCo simulators are not installed")


def config_of(game="swimmer", **options):
    small = {
        "algorithm": "ddpg", "steps": 240, "seed_steps": 100, "hidden": (8, 8), "batch_size": 8,
        "replay_capacity": 1000, "evaluation_period": 120, "evaluation_games": 2, "threads": 1,
    }  # fmt: skip
    return ControlConfig(environment=EnvironmentConfig(game=game), **(small | options))


def kept_of(config, curves, **values):
    fields = {"seconds": 360.0, "commit": "abc", "machine": "m", "created": "2026-01-01T00:00:00Z"}
    return Kept(config, curves, **(fields | values))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    teach.run(config_of(seeds=2), folder)
    return folder


@simulated
def test_a_run_s_curve_is_kept_and_read_back_whole(run, tmp_path):
    kept = of_run(run)
    assert sorted(kept.curves) == [0, 1]
    assert [sorted(curve) for curve in kept.curves.values()] == [[120, 240]] * 2
    assert all(len(returns) == 2 for curve in kept.curves.values() for returns in curve.values())
    assert kept.config == config_of(seeds=2)
    assert kept.seconds > 0
    path = write(tmp_path, kept)
    assert read(path) == kept
    assert path == write(tmp_path, dataclasses.replace(kept, config=config_of(seeds=2, steps=480)))
    write(tmp_path, kept)
    draw(tmp_path, tmp_path)
    page = (tmp_path / "control-results.md").read_text()
    assert "| swimmer | 8-8, batch 8, replay_capacity 1000, seed_steps 100 | " in page
    assert f"; 2 x 2 games, 240 steps), {kept.seconds / 3600:.4f} h |" in page


@simulated
def test_a_training_that_diverged_is_kept_with_why(tmp_path):
    config = config_of("cartpole_swingup", algorithm="sac", precision="fp16", methods=MethodsConfig(**OFF))
    with pytest.raises(UserError):
        teach.run(config, tmp_path / "run")
    kept = of_run(tmp_path / "run")
    assert "fp16 does not hold this training" in kept.diverged
    assert read(write(tmp_path / "kept", kept)) == kept
    draw(tmp_path / "kept", tmp_path)
    page = (tmp_path / "control-results.md").read_text()
    assert kept.seconds > 0
    assert f"| fp16, none of the six | a run diverged at update 1, {kept.seconds / 3600:.4f} h |" in page
    teach.run(config_of("cartpole_swingup", algorithm="sac"), tmp_path / "run")
    assert not (tmp_path / "run" / DIVERGED).exists()


@simulated
def test_a_run_of_several_seeds_tells_of_each_one_that_diverged(tmp_path):
    naive = {"algorithm": "sac", "precision": "fp16", "methods": MethodsConfig(**OFF), "seeds": 3, "seed": 4}
    with pytest.raises(
        UserError, match=r"seed 4, step \d+, update 1: .*; seed 5 at update 1; seed 6 at update 1; no"
    ):
        teach.run(config_of("cartpole_swingup", **naive), tmp_path / "run")
    kept = of_run(tmp_path / "run")
    assert sorted(kept.diverged_seeds) == [4, 5, 6]
    assert kept.diverged_seeds[4] == kept.diverged
    assert all("fp16 does not hold this training" in text for text in kept.diverged_seeds.values())
    assert read(write(tmp_path / "kept", kept)) == kept
    draw(tmp_path / "kept", tmp_path)
    told = f"| all 3 seeds diverged at update 1, {kept.seconds / 3600:.4f} h |"
    assert told in (tmp_path / "control-results.md").read_text()


def test_seeds_that_did_not_diverge_are_not_told_of_and_files_from_before_tell_of_the_run():
    config = config_of("cartpole_swingup", algorithm="sac", precision="fp16", seeds=3)
    why = "update 22768: fp16 does not hold this training"
    one = kept_of(config, {}, diverged=why, diverged_seeds={1: why})
    for kept, told in (
        (one, "1 of 3 seeds diverged: seed 1 at update 22768"),
        (dataclasses.replace(one, diverged_seeds={}), "a run of 3 seeds diverged at update 22768"),
    ):
        (cell,) = cells({Path("one.json"): kept})
        assert cell.diverged == (told,)
        # Files from before do not tell how long it took.
        assert dataclasses.replace(cell, seconds=0.0).text() == told


@simulated
def test_a_run_that_shows_nothing_is_named(run, tmp_path):
    with pytest.raises(UserError, match=r"teacher\.safetensors: no such file"):
        of_run(tmp_path)
    (tmp_path / "teacher.safetensors").write_bytes((run / "teacher.safetensors").read_bytes())
    with pytest.raises(UserError, match=r"teach\.jsonl: no such learning curve"):
        of_run(tmp_path)
    (tmp_path / "teach.jsonl").write_text("")
    with pytest.raises(
        UserError, match=r"no evaluation, the training needs at least one, every 120 steps.*--resume"
    ):
        of_run(tmp_path)
    (tmp_path / "teach.jsonl").write_text('{"step": 120, "seconds": 1.0, "seed": 0, "returns": [1e99]}\n')
    with pytest.raises(UserError, match=r"a return is 1e\+99, within \+-1,000,000,000 wanted"):
        of_run(tmp_path)
    (tmp_path / "teach.jsonl").write_text('{"step": 120, "seconds": 1.0, "seed": 0, "returns": [1.0')
    with pytest.raises(UserError, match=r"teach\.jsonl: its content does not fit"):
        of_run(tmp_path)
    (tmp_path / "teacher.safetensors").write_text('{"schema": "spikestill.sweep"}')
    with pytest.raises(UserError, match=r"schema 'spikestill.sweep', one of spikestill.control-agent"):
        of_run(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 2], "not a kept learning curve"),
        (lambda text: "[]", "holds no object"),
        (
            lambda text: '{"schema": "spikestill.sweep"}',
            r"schema 'spikestill.sweep', 'spikestill.control-curve' wanted",
        ),
        (
            lambda text: text.replace('"version": 1', '"version": 2'),
            "format version 2, this program reads up to 1",
        ),
        (lambda text: text.replace('"hidden"', '"hiden"'), "hiden.*hidden"),
        (lambda text: text.replace("360.0", "NaN"), "seconds are nan, a number from 0 wanted"),
        (lambda text: text.replace("[1.0, 2.0]", '"1"'), "returns are 1, a number for each game wanted"),
        (lambda text: text.replace("[1.0, 2.0]", "[]"), "returns are .., a number for each game wanted"),
        (lambda text: text.replace('"commit": "abc"', '"commit": 7'), "texts wanted"),
        (
            lambda text: text.replace('"diverged_seeds": {}', '"diverged_seeds": [1]'),
            "diverged seeds are .1., a text",
        ),
    ],
)
def test_a_damaged_or_foreign_curve_is_refused(tmp_path, change, message):
    path = write(tmp_path, kept_of(config_of(), {0: {120: (1.0, 2.0)}}))
    path.write_text(change(path.read_text()))
    with pytest.raises(UserError, match=message) as caught:
        read(path)
    assert path.name in str(caught.value)


def test_seeds_of_the_same_options_are_one_cell_wherever_they_were_trained(tmp_path):
    first, second = config_of(steps=240), config_of(steps=480, seed=3, threads=2, checkpoint_minutes=1)
    write(tmp_path, kept_of(first, {0: {120: (1.0, 3.0), 240: (10.0, 20.0)}}))
    write(tmp_path, kept_of(second, {3: {240: (30.0, 40.0), 480: (99.0, 99.0)}}))
    write(tmp_path, kept_of(config_of(learning_rate=0.5, precision="fixar"), {0: {120: (7.0, 7.0)}}))
    found = cells(control_curves.read_all(tmp_path))
    assert sorted((cell.variant.precision, sorted(cell.curves), cell.steps) for cell in found) == [
        ("fixar", [0], [120]), ("fp32", [0, 3], [240]),
    ]  # fmt: skip
    (cell,) = (cell for cell in found if len(cell.curves) == 2)
    mean, (below, above) = cell.at(240)
    assert mean == 25.0
    assert 10.0 <= below < 20.0 < 30.0 < above <= 40.0
    assert cell.text().endswith("; 2 x 2 games, 240 steps), 0.20 h")
    (short,) = (cell for cell in found if cell.variant.precision == "fixar")
    assert short.text() == "7.0 (7.0 to 7.0; 1 x 2 games, 120 of 240 steps), 0.10 h"
    write(tmp_path, kept_of(config_of(seeds=2, steps=999), {0: {120: (1.0,)}, 1: {120: (1.0,)}}))
    with pytest.raises(UserError, match=r"has seed 0, and so has .*json, a training of the same options"):
        cells(control_curves.read_all(tmp_path))


def test_a_loss_scale_that_is_not_amp_s_own_has_a_row_of_its_own():
    def row(**methods):
        return dict(
            setting_of(config_of(precision="fp16", methods=MethodsConfig(loss_scaling="amp", **methods)))
        )

    assert not any(name.startswith("methods") for name in row())
    assert row(loss_scale=65536, loss_scale_period=2000) == row()
    other = {"methods.loss_scale": 1e4, "methods.loss_scale_period": 10_000}
    assert row(loss_scale=1e4, loss_scale_period=10_000) == row() | other


def test_seeds_that_were_never_evaluated_together_are_named(tmp_path):
    write(tmp_path, kept_of(config_of(), {0: {120: (1.0,)}}))
    write(tmp_path, kept_of(config_of(seed=1, evaluation_period=100), {1: {100: (1.0,)}}))
    with pytest.raises(UserError, match=r"its seeds 0, 1 have no evaluation at the same step"):
        cells(control_curves.read_all(tmp_path))


def test_the_kept_page_is_what_the_kept_trainings_draw(tmp_path):
    draw(DOCS / "results" / "control", tmp_path)
    for path in (tmp_path / "control-results.md", *(tmp_path / "images").iterdir()):
        assert path.read_text() == (DOCS / path.relative_to(tmp_path)).read_text(), path.name


def test_the_page_is_drawn_without_any_run_and_its_figures_are_svg(tmp_path):
    draw(tmp_path / "none", tmp_path)
    page = (tmp_path / "control-results.md").read_text()
    assert "| cheetah_run |  |  |  |  |" in page
    assert "| 5 | 0.948 | 2.63e-05 | -6.92 | 0.00933 | 0.14 | 1024 | 732±50 | 709±36 |" in page
    assert "images/" not in page.split("## SAC")[1]
    curve = {0: {120: (1.0, 2.0), 240: (3.0, 5.0)}}
    for precision in ("fp32", "fp16"):
        config = config_of("walker_walk", algorithm="sac", precision=precision)
        write(tmp_path / "kept", kept_of(config, curve))
    draw(tmp_path / "kept", tmp_path)
    (image,) = (tmp_path / "images").iterdir()
    assert f"](images/{image.name})" in (tmp_path / "control-results.md").read_text()
    root = ET.fromstring(image.read_text())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(list(root.iter("{http://www.w3.org/2000/svg}polygon"))) == 2
    draw(tmp_path / "none", tmp_path)
    assert not list((tmp_path / "images").iterdir())


def test_the_methods_of_each_setting_have_a_figure_of_their_own(tmp_path):
    for batch_size, returns in ((8, 10.0), (16, 90.0)):
        for precision in ("fp32", "fp16"):
            options = {"algorithm": "sac", "precision": precision, "batch_size": batch_size}
            config = config_of("cartpole_swingup", **options)
            write(tmp_path / "kept", kept_of(config, {0: {240: (returns, returns + 1)}}))
    # A setting with one variant alone has none.
    alone = config_of("cartpole_swingup", algorithm="sac", precision="fp32", batch_size=32)
    write(tmp_path / "kept", kept_of(alone, {0: {240: (50.0, 51.0)}}))
    draw(tmp_path / "kept", tmp_path)
    page = (tmp_path / "control-results.md").read_text()
    drawn = sorted((tmp_path / "images").glob("control-ablations-*.svg"))
    assert len(drawn) == 2
    told = [" ".join(ET.parse(path).getroot().itertext()) for path in drawn]
    assert ["10.5" in each for each in told] != ["90.5" in each for each in told]
    assert all(("10.5" in each) != ("90.5" in each) for each in told)
    for batch_size in (8, 16):
        assert f"![cartpole_swingup, 8-8, batch {batch_size}" in page
    draw(tmp_path / "none", tmp_path)
    assert not list((tmp_path / "images").iterdir())


def test_methods_are_compared_at_the_last_step_that_all_reached(tmp_path):
    for precision, curve in (("fp32", {240: (70.0, 72.0), 480: (90.0, 92.0)}), ("fp16", {240: (30.0, 32.0)})):
        config = config_of("cartpole_swingup", algorithm="sac", precision=precision)
        write(tmp_path / "kept", kept_of(config, {0: curve}))
    draw(tmp_path / "kept", tmp_path)
    page = (tmp_path / "control-results.md").read_text().split("## The methods")[1]
    assert (
        "| fp32 | 91.0 (90.0 to 92.0; 1 x 2 games, 480 steps), 0.10 h; at 240 steps 71.0 (70.0 to 72.0) |"
        in page
    )
    assert "| fp16, all six | 31.0 (30.0 to 32.0; 1 x 2 games, 240 steps), 0.10 h |" in page
    (drawn,) = (tmp_path / "images").glob("control-ablations-*.svg")
    told = " ".join(ET.parse(drawn).getroot().itertext())
    assert "mean return at 240 steps" in told
    assert "71" in told
    assert "91" not in told


def test_every_trial_of_the_sweeps_has_its_cell():
    _, runs = plan(load_sweep("bjorck-figure7"))
    variants = {
        variant_of(build(ControlConfig, run.options)) for run in runs.values() if run.stage == "teach"
    }
    missing = {title for title, variant in ABLATIONS.items() if variant not in variants}
    assert missing == {"fp32", "eps"}
    assert variants <= set(ABLATIONS.values())
    _, runs = plan(load_sweep("bjorck-naive"))
    configs = [build(ControlConfig, run.options) for run in runs.values() if run.stage == "teach"]
    assert {(config.environment.game, variant_of(config)) for config in configs} == {
        (task, variant)
        for task in BJORCK_TASKS
        for variant in (MAIN["fp16, none of the six"], ABLATIONS["eps"])
    }
    _, runs = plan(load_sweep("bjorck-table6"))
    configs = [build(ControlConfig, run.options) for run in runs.values() if run.stage == "teach"]
    found = {tuple(getattr(config, name) for name in RANDOM_OPTIONS) for config in configs}
    assert found == {tuple(values[:6]) for values in RANDOM.values()}
    assert {variant_of(config) for config in configs} == {MAIN[name] for name in ("fp32", "fp16, all six")}


def test_random_settings_tell_the_mean_and_who_diverged(tmp_path):
    usual = load(ControlConfig, find_recipe("teach-sac-random-1"), {})
    for precision, task, returns, diverged in (
        ("fp32", "cartpole_swingup", 10.0, ""),
        ("fp32", "reacher_easy", 30.0, ""),
        ("fp16", "cartpole_swingup", 50.0, ""),
        ("fp16", "reacher_easy", None, "update 7: a critic overflowed"),
    ):
        config = dataclasses.replace(
            usual, precision=precision, environment=EnvironmentConfig(game=task), seeds=1
        )
        curves = {0: {240: (returns, returns)}} if returns is not None else {}
        write(tmp_path / "kept", kept_of(config, curves, diverged=diverged))
    draw(tmp_path / "kept", tmp_path)
    page = (tmp_path / "control-results.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith("| 1 | "))
    assert ": 20.0 of 2 tasks, 2 cells |" in row
    assert row.endswith(": 50.0 of 1 tasks, 1 cells; reacher_easy: a run diverged at update 7 |")


def test_the_interval_covers_seeds_and_games():
    one = np.random.default_rng(0).normal(100.0, 10.0, 100)
    below, above = seeds_and_games([one.tolist()])
    assert above - below == pytest.approx(2 * 1.96 * one.std() / 10, rel=0.1)
    # Of three seeds each draw is any one with the same chance: of 27 draws one has the first seed alone.
    assert seeds_and_games([[0.0] * 5, [10.0] * 3, [20.0]]) == [0.0, 20.0]


@pytest.fixture(scope="module")
def apart():
    """Two pairs of SAC on a pole, fp32 and fp16."""
    small = {"algorithm": "sac", "precision": "fp16", "evaluation_period": 60, "steps": 240}
    return control_distances.measure(config_of("cartpole_swingup", **small), 2, lambda *_: None)


@simulated
def test_a_pair_begins_alike_and_comes_apart(apart):
    assert sorted(apart.pairs) == [0, 1]
    for points in apart.pairs.values():
        assert [point.step for point in points] == [60, 120, 180, 240]
        # Before the first update: what rounding to fp16 changes.
        first, *_, last = points
        assert 0 < first.actor < 1e-4
        assert 0 < first.critics < 1e-4
        assert last.actor > 3 * first.actor
        assert last.critics > 3 * first.critics
        assert last.q > first.q > 0


@simulated
def test_distances_are_kept_read_back_and_drawn(apart, tmp_path):
    path = control_distances.write(tmp_path / "results" / "control-distances", apart)
    assert control_distances.read(path) == dataclasses.replace(apart, seconds=round(apart.seconds, 1))
    draw(tmp_path / "results" / "control", tmp_path)
    page = (tmp_path / "control-results.md").read_text()
    assert "8-8, batch 8" in page
    assert "fp16, 2 pairs" in page
    drawn = sorted(each.name for each in (tmp_path / "images").glob("control-distance-*.svg"))
    assert len(drawn) == 2
    for name in drawn:
        ET.parse(tmp_path / "images" / name)
        assert name in page


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"version": 9}, "version"),
        ({"pairs": {}}, "0 different"),
        ({"pairs": {"0": [[60, 1, 2, -3]]}}, "below 0"),
        ({"pairs": {"0": [[60, 1, 2]]}}, "Point"),
        ({"pairs": {"0": []}}, "never measured"),
        ({"options": {"no_such": 1}}, "no_such"),
    ],
)
def test_damaged_distances_are_refused(damage, message, tmp_path):
    path = tmp_path / "d.json"
    points = {"0": (control_distances.Point(60, 0.1, 0.2, 0.3),)}
    whole = control_distances.Distances(config_of(precision="fp16"), points, 1.0, "c", "m", "d")
    document = json.loads(control_distances.write(tmp_path, whole).read_text())
    path.write_text(json.dumps(document | damage))
    with pytest.raises(UserError, match=message):
        control_distances.read(path)


def test_a_pair_of_the_same_format_is_refused(monkeypatch):
    for options, message in (
        (["--precision", "fp32"], "precision is fp32, a floating-point format to compare with fp32"),
        (["--precison", "fp16"], "unknown option --precison. Did you mean --precision"),
        (["--pairs", "0"], "--pairs is 0, 1 or more wanted"),
        (["--precision"], "--precision needs a value. Give --precision VALUE"),
        (["--resume"], "--resume is none of the training's options"),
        (["--steps", "5000"], "steps is 5,000, less than the evaluation_period of 10,000"),
    ):
        monkeypatch.setattr("sys.argv", ["control_distances", "swimmer", *options])
        with pytest.raises(SystemExit, match=message):
            control_distances.main()


def test_a_recipes_own_format_is_compared_and_fp16_where_none_is_given(tmp_path):
    recipe, fp32, silent = (tmp_path / f"{name}.yaml" for name in ("mine", "fp32", "silent"))
    recipe.write_text("precision: bf16\n")
    fp32.write_text("precision: fp32\n")
    silent.write_text("seed: 1\n")
    for options, wanted in (
        ([], "fp16"),
        (["--config", "teach-sac"], "fp16"),
        (["--config", str(silent)], "fp16"),
        (["--config", str(fp32)], "fp32"),  # which measure() refuses
        (["--config", str(recipe)], "bf16"),
        (["--config", str(recipe), "--precision", "e5m3"], "e5m3"),
    ):
        assert control_distances.options_of(["cartpole_swingup", *options]).precision == wanted


@pytest.mark.parametrize(
    ("recipe", "game", "precision", "seeds", "kept"),
    [
        ("teach-sac-small", "cheetah_run", "fp16", 2, "cheetah_run-sac-fp16-24240aa3"),
        ("teach-sac-small", "walker_walk", "fp32", 2, "walker_walk-sac-fp32-78b0ba3c"),
        ("teach-sac-tiny", "cartpole_swingup", "fp16", 3, "cartpole_swingup-sac-fp16-9c12c5e8"),
        ("teach-sac-tiny", "cartpole_swingup", "fp32", 3, "cartpole_swingup-sac-fp32-053e9948"),
    ],
)
def test_the_kept_curves_of_two_cores_are_those_of_a_shipped_recipe(recipe, game, precision, seeds, kept):
    options = {"environment.game": game, "precision": precision, "seeds": str(seeds)}
    config = load(ControlConfig, find_recipe(recipe), options)
    assert file_name(config, FREE) == f"{kept}.json"
    assert (DOCS / "results" / "control" / f"{kept}.json").is_file()
