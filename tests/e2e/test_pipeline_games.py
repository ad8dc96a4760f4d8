"""A whole pipeline of a student of two games: each game is recorded, played and scored in a folder of its own."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from spikestill import cli
from spikestill.common.artefacts import BUFFER, CORE_MAP, GAME, REPORT, STUDENT, TEACHER
from spikestill.common.provenance import Provenance, file_sha256
from spikestill.common.stage import StageResult
from spikestill.configs.record import RecordConfig
from spikestill.dataset.reader import BufferReader
from spikestill.student.integer_net import load
from spikestill.teacher.atari.environment import action_meanings
from spikestill.teacher.atari.q_network import initial_weights
from spikestill.teacher.checkpoint import save_teacher
from tests.recipes import SHORT_RUN

GAMES = ("pong", "freeway")
STEPS = [f"{game}/record" for game in GAMES] + ["distill", "map", "verify"]
STEPS += [f"{game}/{stage}" for stage in ("play", "evaluate") for game in GAMES] + ["report"]


def write_teacher(path: Path, game: str, seed: int) -> None:
    actions = len(action_meanings(game))
    weights = initial_weights(actions, torch.Generator().manual_seed(seed))
    path.parent.mkdir(parents=True, exist_ok=True)
    save_teacher(path, weights, game, actions, Provenance.of({}, seed=0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, whose teachers lay in the games' folders."""
    folder = tmp_path_factory.mktemp("games")
    (folder / "recipe.yaml").write_text(SHORT_RUN)
    for seed, game in enumerate(GAMES):
        write_teacher(folder / "run" / game / TEACHER, game, seed)
    assert cli.main(words(folder)) == 0
    return folder


def words(folder: Path, *more: str, games: str = "pong+freeway") -> list[str]:
    return ["run", games, "--config", str(folder / "recipe.yaml"), "--run_dir", str(folder / "run"), *more]


def made(text: str) -> list[str]:
    """Return the steps that a run did not skip, by what it printed."""
    steps = re.findall(r"^\[\d+/10\] ([\w/]+)(.*)$", text, re.MULTILINE)
    assert [name for name, _ in steps] == STEPS
    return [name for name, rest in steps if "up to date" not in rest]


def test_every_game_goes_through_every_stage(folder: Path) -> None:
    run_dir = folder / "run"
    net, provenance = load(run_dir / STUDENT)
    assert (net.game, net.actions) == ("pong+freeway", 18)
    for number, game in zip(("", "2"), GAMES, strict=True):
        own = run_dir / game
        assert {BUFFER, GAME, "play.json", "evaluate.json", REPORT} <= {path.name for path in own.iterdir()}
        assert provenance.parents[f"buffer{number}"] == file_sha256(own / BUFFER)
        assert provenance.parents[f"teacher{number}"] == file_sha256(own / TEACHER)
        with BufferReader(own / BUFFER, memory=0) as reader:
            assert reader.game == game
        for stage, read in (("play", CORE_MAP), ("evaluate", STUDENT)):
            found = json.loads((own / f"{stage}.json").read_text())
            assert found["game"] == game
            assert file_sha256(run_dir / read) in found["provenance"]["parents"].values()
    verified = json.loads((run_dir / "verify.json").read_text())
    assert verified["ok"]
    assert verified["games"] == [{"game": game, "frames": 2} for game in GAMES]


def test_the_whole_page_leads_to_the_games(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = folder / "run"
    assert cli.main(["report", str(run_dir), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["game"] == "pong+freeway"
    page = (run_dir / REPORT).read_text()
    for game in GAMES:
        mean = json.loads((run_dir / game / "evaluate.json").read_text())["mean"]
        assert f'<a href="{game}/{REPORT}">{game.title()}</a></td><td>{mean:,.4g}</td>' in page
        own = (run_dir / game / REPORT).read_text()
        assert f"<h1>{game.title()}</h1>" in own
        assert "data:video/mp4;base64," in own
    assert "recorded frames (2 of pong, 2 of freeway)" in page


def test_only_what_changed_is_made_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words(folder, "--json")) == 0
    told = capsys.readouterr()
    assert made(told.err) == ["report"]
    rows = json.loads(told.out)["games"]
    assert [row["game"] for row in rows] == list(GAMES)
    assert all(row["episodes"] == 1 for row in rows)
    assert cli.main(words(folder, "--verify.frames", "6")) == 0
    assert made(capsys.readouterr().err) == ["verify", "report"]
    evaluation = folder / "run" / "freeway" / "evaluate.json"
    evaluation.write_text(evaluation.read_text() + " ")
    assert cli.main(words(folder, "--verify.frames", "6")) == 0
    assert made(capsys.readouterr().err) == ["freeway/evaluate", "report"]


def test_a_stopped_recording_of_one_game_goes_on_and_the_other_stays(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, seen = tmp_path / "run", []
    shutil.copytree(folder / "run", run_dir)
    shutil.copy(folder / "recipe.yaml", tmp_path)
    kept = (run_dir / "pong" / BUFFER).read_bytes()
    (run_dir / "freeway" / BUFFER).unlink()

    def stopped(config: RecordConfig, run_dir: Path, *, resume: bool) -> StageResult:
        seen.append((config.environment.game, resume))
        (run_dir / BUFFER).write_bytes(b"some")
        return StageResult(run_dir / BUFFER, {}, finished=False)

    monkeypatch.setattr("spikestill.student.rollout.run", stopped)
    for _ in range(2):
        assert cli.main(words(tmp_path)) == cli.INTERRUPTED
    assert seen == [("freeway", False), ("freeway", True)]
    assert (run_dir / "pong" / BUFFER).read_bytes() == kept
    assert (run_dir / STUDENT).read_bytes() == (folder / "run" / STUDENT).read_bytes()


def test_another_games_run_is_not_replaced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (folder / "run" / STUDENT).read_bytes()
    assert cli.main(words(folder, games="pong")) == cli.FAILED
    assert "holds a run of pong+freeway, which one of pong would replace" in capsys.readouterr().err
    assert (folder / "run" / STUDENT).read_bytes() == before


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (("pong+freewa",), "unknown game 'freewa'"),
        (("pong+cartpole_swingup",), "unknown game 'cartpole_swingup'"),
        (("pong+pong",), "game is 'pong+pong', which names one twice"),
        (("pong+freeway", "--teacher", "t.safetensors"), "teacher is t.safetensors, and pong+freeway are several"),
        (("pong+freeway", "--from", "import", "--agent", "a.zip"), "from import makes one teacher"),
        (("pong+freeway", "--distill.stream", "true"), "a stream is of one game"),
        (("pong+freeway", "--distill.also", "b.h5"), "distill.also is b.h5, but the pipeline sets it for several"),
    ],
)  # fmt: skip
def test_what_goes_with_one_game_only_is_refused(
    options: tuple[str, ...], wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", *options]) == cli.BAD_ARGUMENTS
    assert wrong in capsys.readouterr().err
