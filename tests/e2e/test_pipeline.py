"""A whole pipeline on real Pong with an untrained teacher: stages, up-to-date checks, report, inspection."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from spikestill import cli
from spikestill import report as reports
from spikestill.common.artefacts import BUFFER, CORE_MAP, GAME, REPORT, RESUMED_FROM, SMALL_GAME, STUDENT
from spikestill.common.errors import UserError
from spikestill.common.provenance import Provenance
from spikestill.common.stage import StageResult, stop_on_signal
from spikestill.configs.distill import DistillConfig
from spikestill.configs.mapping import MapConfig
from spikestill.configs.options import unused_newer
from spikestill.configs.pipeline import STAGES
from spikestill.configs.play import EvaluateConfig
from spikestill.configs.record import RecordConfig
from spikestill.deploy import mapping
from spikestill.pipeline import State, stage_key, up_to_date
from spikestill.report import write_report
from spikestill.runtime.recording import write_smaller
from spikestill.teacher.atari.q_network import initial_weights
from spikestill.teacher.checkpoint import save_teacher
from spikestill.verbs import VERBS, Verb
from tests.recipes import SHORT_RUN

STICKING_OUT = """() => [...document.querySelectorAll("body *")].filter(each => {
    for (let up = each; up !== document.body; up = up.parentElement)
      if (["auto", "scroll", "hidden"].includes(getComputedStyle(up).overflowX)) return false;
    return each.getBoundingClientRect().right > innerWidth + 1;
  }).map(each => each.tagName)"""
"""What ends to the right of the window in a page, in JavaScript."""
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a teacher, a recipe, and a finished run in ``run``, which Ctrl-C had stopped while it recorded."""
    folder = tmp_path_factory.mktemp("pipeline")
    weights = initial_weights(6, torch.Generator().manual_seed(0))
    save_teacher(folder / "teacher.safetensors", weights, "pong", 6, Provenance.of({}, seed=0))
    (folder / "recipe.yaml").write_text(SHORT_RUN)
    process = subprocess.Popen(
        [sys.executable, "-m", "spikestill", *words(folder)], stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while not (folder / "run" / BUFFER).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) in (cli.INTERRUPTED, -signal.SIGINT)
    assert not (folder / "run" / STUDENT).exists()
    assert cli.main(words(folder)) == 0
    return folder


def words(folder: Path, *more: str, run_dir: Path | None = None) -> list[str]:
    recipe, teacher = str(folder / "recipe.yaml"), str(folder / "teacher.safetensors")
    return [
        "run",
        "--config",
        recipe,
        "--teacher",
        teacher,
        "--run_dir",
        str(run_dir or folder / "run"),
        *more,
    ]


def made(text: str) -> list[str]:
    """Return the stages that a run did not skip, by what it printed."""
    return [
        name
        for name, rest in re.findall(r"^\[\d/7\] (\w+)(.*)$", text, re.MULTILINE)
        if "up to date" not in rest
    ]


def test_every_stage_left_its_artefact_and_the_config(folder: Path) -> None:
    names = {path.name for path in (folder / "run").iterdir()}
    assert {BUFFER, STUDENT, CORE_MAP, GAME, REPORT, "play.json", "evaluate.json", "verify.json"} <= names
    assert "run.config.yaml" in names
    verify = json.loads((folder / "run" / "verify.json").read_text())
    assert verify["ok"] is True


def test_nothing_is_made_again_until_something_changes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in (folder / "run").iterdir() if path.suffix != ".yaml"}
    assert cli.main(words(folder)) == 0
    assert made(capsys.readouterr().err) == ["report"]
    kept = [BUFFER, STUDENT, CORE_MAP, GAME, "play.json", "evaluate.json", "verify.json"]
    assert all((folder / "run" / name).stat().st_mtime_ns == before[folder / "run" / name] for name in kept)


def test_a_changed_option_makes_its_stage_again_and_no_other(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words(folder, "--verify.frames", "3")) == 0
    assert made(capsys.readouterr().err) == ["verify", "report"]


def test_a_damaged_artefact_is_made_again_and_its_readers_are_not(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--verify.frames", "3")
    assert cli.main(words(folder, *options)) == 0
    capsys.readouterr()
    evaluation = folder / "run" / "evaluate.json"
    evaluation.write_text(evaluation.read_text() + " ")
    assert cli.main(words(folder, *options)) == 0
    assert made(capsys.readouterr().err) == ["evaluate", "report"]


def test_a_video_that_is_gone_is_made_again(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "run", tmp_path / "run")
    state = State(tmp_path / "run")
    key = state.stages["play"]["key"]
    assert up_to_date("play", key, tmp_path / "run", state)
    (tmp_path / "run" / GAME).unlink()
    assert not up_to_date("play", key, tmp_path / "run", state)


def test_a_stage_begun_anew_and_killed_does_not_go_on_from_the_one_before(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before its first checkpoint, distilling with another rate must not find the checkpoint of the old one."""
    run_dir = tmp_path / "run"
    shutil.copytree(folder / "run", run_dir)
    command = words(folder, "--distill.learning_rate", "0.011", run_dir=run_dir)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("spikestill.student.distill.run", killed)
        assert cli.main(command) == 130
    assert json.loads((run_dir / "pipeline.json").read_text())["stages"]["distill"]["finished"] is False
    assert not (run_dir / RESUMED_FROM["distill"]).exists()


def test_a_stages_key_follows_the_content_of_every_file_that_it_reads(folder: Path, tmp_path: Path) -> None:
    player, state = tmp_path / "player.safetensors", State(tmp_path)
    config = RecordConfig(teacher=folder / "teacher.safetensors", student=player)
    keys = set()
    for content in ("one", "another"):
        player.write_text(content)
        keys.add(stage_key("record", config, state))
    assert len(keys) == 2
    player.unlink()
    with pytest.raises(
        UserError, match=r"player.safetensors: missing; record reads it. Check --record.student"
    ):
        stage_key("record", config, state)


def test_what_cannot_change_a_stages_result_is_not_in_its_key(folder: Path, tmp_path: Path) -> None:
    state, run_dir = State(tmp_path), folder / "run"
    record = RecordConfig(teacher=folder / "teacher.safetensors")
    assert stage_key("record", dataclasses.replace(record, flush_every=64), state) == stage_key(
        "record", record, state
    )
    distill = DistillConfig(buffer=run_dir / BUFFER, teacher=folder / "teacher.safetensors")
    newer = dataclasses.replace(distill, also_teachers=(folder / "teacher.safetensors",))
    assert stage_key("distill", distill, state) != stage_key("distill", newer, state)
    assert unused_newer(distill) == {"also_teachers", "initial_beside", "prune", "prune_at", "shift_pixels"}
    files = {"teacher": folder / "teacher.safetensors", "student": run_dir / STUDENT}
    student = EvaluateConfig(**files, core_map=run_dir / CORE_MAP)
    another = EvaluateConfig(**files, core_map=run_dir / REPORT, num_envs=3)
    assert stage_key("evaluate", student, state) == stage_key("evaluate", another, state)
    by_cores = [
        stage_key("evaluate", dataclasses.replace(config, agent="cores"), state)
        for config in (student, another)
    ]
    assert by_cores[0] != by_cores[1]


def test_what_the_pipeline_did_not_make_is_not_replaced(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    recorded = Path(shutil.copy(folder / "run" / BUFFER, run_dir))
    assert cli.main(words(folder, run_dir=run_dir)) == cli.FAILED
    assert re.search(
        rf"{BUFFER}: is there, and .* does not know it: record would replace it", capsys.readouterr().err
    )
    assert recorded.read_bytes() == (folder / "run" / BUFFER).read_bytes()


def test_a_stage_that_refuses_its_options_leaves_what_was_there(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(folder / "run", run_dir)
    before = (run_dir / BUFFER).read_bytes()
    saved = json.loads((run_dir / "pipeline.json").read_text())
    saved["game"] = None  # as those before 2026-11-23 were
    (run_dir / "pipeline.json").write_text(json.dumps(saved))
    command = words(folder, run_dir=run_dir)
    assert cli.main([*command, "--environment.game", "breakout"]) == cli.FAILED
    assert "teacher.safetensors: plays pong, the environment is breakout" in capsys.readouterr().err
    assert (run_dir / BUFFER).read_bytes() == before
    state = State(run_dir)
    assert up_to_date("record", state.stages["record"]["key"], run_dir, state)
    assert state.game is None


def test_what_a_user_went_on_with_by_hand_is_not_replaced(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(folder / "run", run_dir)
    # The pipeline's own options, but for the length.
    config = run_dir / "distill.config.yaml"
    longer = ["distill", "--run_dir", str(run_dir), "--steps", "6", "--batch_size", "8", "--log_steps", "2"]
    assert not config.exists()
    assert cli.main([*longer, "--teacher", str(folder / "teacher.safetensors"), "--resume"]) == 0
    student = (run_dir / STUDENT).read_bytes()
    assert student != (folder / "run" / STUDENT).read_bytes()
    capsys.readouterr()
    assert cli.main(words(folder, run_dir=run_dir)) == cli.FAILED
    said = capsys.readouterr().err
    assert f"{STUDENT}: is not what distill left there, and the run would replace it" in said
    assert (run_dir / STUDENT).read_bytes() == student


def test_a_run_of_another_game_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(folder / "run", tmp_path / "run")
    assert cli.main(["run", "freeway", "--run_dir", str(tmp_path / "run")]) == cli.FAILED
    assert "run: holds a run of pong, which one of freeway would replace" in capsys.readouterr().err


@pytest.mark.slow
def test_nothing_goes_before_the_stage_that_replaces_it_is_done(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finished buffer and two begun ones lie aside until another is finished; a refusal puts the newest back."""
    run_dir = tmp_path / "run"
    shutil.copytree(folder / "run", run_dir)
    command = words(folder, run_dir=run_dir)
    buffer = run_dir / BUFFER
    finished, resumed = buffer.read_bytes(), []

    def stopped(config: RecordConfig, run_dir: Path, *, resume: bool) -> StageResult:
        resumed.append(resume)
        with open(run_dir / BUFFER, "ab") as file:
            file.write(b"%d " % config.frames)
        return StageResult(run_dir / BUFFER, {}, finished=False)

    def refused(*_: object, **__: object) -> None:
        raise UserError("no")

    with monkeypatch.context() as patch:
        patch.setattr("spikestill.student.rollout.run", stopped)
        for frames in ("352", "384", "384"):
            assert cli.main([*command, "--record.frames", frames]) == cli.INTERRUPTED
        patch.setattr("spikestill.student.rollout.run", refused)
        assert cli.main([*command, "--record.frames", "416"]) == cli.FAILED
        patch.setattr("spikestill.student.rollout.run", stopped)
        assert cli.main([*command, "--record.frames", "384"]) == cli.INTERRUPTED
    assert resumed == [False, False, True, True]
    assert buffer.read_bytes() == b"384 384 384 "
    assert (run_dir / f"{BUFFER}.before").read_bytes() == finished
    assert (run_dir / f"{BUFFER}.before2").read_bytes() == b"352 "
    assert cli.main(command) == 0
    assert not list(run_dir.glob("*.before*"))


def test_a_finished_artefact_that_is_gone_is_made_again_and_resumed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(folder / "run", run_dir)
    (run_dir / BUFFER).unlink()
    resumed = []

    def stopped(config: RecordConfig, run_dir: Path, *, resume: bool) -> StageResult:
        resumed.append(resume)
        (run_dir / BUFFER).write_bytes(b"some")
        return StageResult(run_dir / BUFFER, {}, finished=False)

    monkeypatch.setattr("spikestill.student.rollout.run", stopped)
    for _ in range(3):
        assert cli.main(words(folder, run_dir=run_dir)) == cli.INTERRUPTED
    assert resumed == [False, True, True]


@pytest.mark.slow
def test_a_stop_in_the_last_step_of_a_stage_stops_the_pipeline(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(folder / "run", run_dir)
    (run_dir / CORE_MAP).unlink()
    command = words(folder, "--verify.frames", "5", run_dir=run_dir)

    def run(config: MapConfig, run_dir: Path, *, resume: bool = False) -> StageResult:
        with stop_on_signal():
            os.kill(os.getpid(), signal.SIGINT)
            return mapping.run(config, run_dir, resume=resume)

    with monkeypatch.context() as patch:
        stage = Verb.stage
        patch.setattr(Verb, "stage", lambda verb: run if verb is VERBS["map"] else stage(verb))
        assert cli.main(command) == cli.INTERRUPTED
    assert made(capsys.readouterr().err) == ["map"]
    assert cli.main(command) == 0
    assert made(capsys.readouterr().err) == ["verify", "play", "report"]


def test_the_run_folders_teacher_comes_before_the_zoos(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []

    def refuse(config: RecordConfig, *_: object, **__: object) -> None:
        taken.append(config.teacher)
        raise UserError("enough")

    monkeypatch.setattr("spikestill.student.rollout.run", refuse)
    shutil.copy(folder / "teacher.safetensors", tmp_path)
    assert (
        cli.main(["run", "pong", "--config", str(folder / "recipe.yaml"), "--run_dir", str(tmp_path)])
        == cli.FAILED
    )
    assert taken == [tmp_path / "teacher.safetensors"]


def test_a_training_that_was_cut_to_its_minutes_is_told_in_the_report(folder: Path, tmp_path: Path) -> None:
    stages = State(folder / "run").stages
    assert "The training was cut" not in (folder / "run" / REPORT).read_text()
    stages["distill"]["summary"]["fitted"] = {"minutes": 6.0, "asked": 1800, "steps": 1100}
    teacher = folder / "teacher.safetensors"
    write_report(folder / "run", {name: stages[name] for name in STAGES}, teacher, tmp_path / REPORT)
    told = "The training was cut to 6 minutes of this machine: 1,100 of 1,800 batches."
    assert told in (tmp_path / REPORT).read_text()


def test_the_report_needs_nothing_outside_itself(folder: Path) -> None:
    page = (folder / "run" / REPORT).read_text()
    links = re.findall(r"(?:src|href)=\"([^\"]{0,40})", page)
    assert links
    assert all(link.startswith(("data:image/png;base64,", "data:video/mp4;base64,")) for link in links)
    assert page.count("<img") >= 7
    assert "url(" not in page


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
def test_the_report_shows_itself_in_a_browser(folder: Path, tmp_path: Path) -> None:
    assert CHROMIUM is not None
    quiet = (
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
    )
    run = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", *quiet, "--disable-sync",
         f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", (folder / "run" / REPORT).as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert run.stdout.count("<svg") == 4
    assert "neurosynaptic cores" in run.stdout


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
def test_every_page_fits_a_telephone_and_a_desk(folder: Path, tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    run_dir, pages = folder / "run", [folder / "run" / REPORT]
    estimate = ["estimate", "--run_dir", str(run_dir), "--frames", "4"]
    assert cli.main(estimate) == 0
    for name in (BUFFER, STUDENT, CORE_MAP, "verify.json", "evaluate.json", "play.json", "estimate.json", ""):
        pages.append(tmp_path / f"{name or 'folder'}.html")
        assert cli.main(["inspect", str(run_dir / name), "--html", str(pages[-1])]) == 0
    with playwright.sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for width in (400, 1400):
            page = browser.new_page(viewport={"width": width, "height": 900})
            wrong: list[str] = []
            page.on("pageerror", lambda error, wrong=wrong: wrong.append(str(error)))
            for path in pages:
                page.goto(path.as_uri())
                assert page.evaluate("document.documentElement.scrollWidth") <= width, path.name
                assert page.locator("h1").inner_text()
                # Nothing sticks out of the window but what scrolls by itself.
                assert page.evaluate(STICKING_OUT) == [], path.name
            assert not wrong
        browser.close()


def test_a_large_video_is_shown_smaller_beside_a_link_to_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder / "run", tmp_path / "run")
    small = tmp_path / "run" / SMALL_GAME
    write_smaller(tmp_path / "run" / GAME, small)
    content, whole = small.read_bytes(), (tmp_path / "run" / GAME).stat().st_size
    assert len(content) < whole
    small.unlink()
    for most, shown in ((whole, ""), (whole - 1, content), (len(content) - 1, small.name)):
        monkeypatch.setattr(reports, "MAX_VIDEO_BYTES", most)
        assert cli.main(["report", str(tmp_path / "run")]) == 0
        page = (tmp_path / "run" / REPORT).read_text()
        embedded = re.search(r"data:video/mp4;base64,([^\"]+)", page)
        assert (embedded is None) == (shown == small.name)
        if embedded and shown:
            assert base64.b64decode(embedded[1]) == small.read_bytes() == content
        assert (f'src="{small.name}"' in page) == (shown == small.name)
        assert (f'href="{GAME}"' in page) == bool(shown)


@pytest.mark.parametrize(
    ("name", "kind"),
    [(BUFFER, "buffer"), (STUDENT, "student"), (CORE_MAP, "core map"), ("../teacher", "teacher")],
)
def test_every_artefact_can_be_inspected(
    folder: Path, tmp_path: Path, name: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "run" / (name if "." in Path(name).name else f"{name}.safetensors")
    page = tmp_path / "page.html"
    assert cli.main(["inspect", str(path), "--html", str(page), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["kind"] == kind
    assert summary["game"] == "pong"
    assert summary["provenance"]["created"]
    assert ('<canvas id="cores"' if kind == "core map" else "data:image/png;base64,") in page.read_text()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_after_a_kill_the_same_command_goes_on_and_gives_the_same_student(folder: Path) -> None:
    def command(run: str, steps: int) -> list[str]:
        return [
            sys.executable, "-m", "spikestill", *words(folder, "--distill.steps", str(steps), run_dir=folder / run),
            "--distill.checkpoint_minutes", "0.001",
        ]  # fmt: skip

    killed, whole = folder / "killed", folder / "whole"
    process = subprocess.Popen(command("killed", 30), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        while not (killed / "distill-checkpoint.safetensors").exists() and process.poll() is None:
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.wait()
    assert (killed / "distill-checkpoint.safetensors").exists()
    assert json.loads((killed / "pipeline.json").read_text())["stages"]["distill"]["finished"] is False
    again = subprocess.run(command("killed", 30), capture_output=True, text=True, check=True)
    assert "record: up to date" in again.stderr
    subprocess.run(command("whole", 30), capture_output=True, check=True)
    from spikestill.student.integer_net import load

    resumed, uninterrupted = load(killed / STUDENT)[0], load(whole / STUDENT)[0]
    for left, right in zip(resumed.layers, uninterrupted.layers, strict=True):
        assert (left.weight_OIHW == right.weight_OIHW).all()
        assert (left.theta_O == right.theta_O).all()
