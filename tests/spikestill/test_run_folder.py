"""A run folder knows its game, however it was made, and can be inspected and reported."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import yaml

from spikestill import cli
from spikestill.common.errors import UserError
from spikestill.common.legal import LegalActions
from spikestill.common.provenance import Provenance
from spikestill.common.zoo import zoo_path
from spikestill.run_folder import game_of
from spikestill.student import integer_net
from spikestill.student.architectures import LayerSpec
from tests.nets import random_net


@pytest.fixture
def breakout(tmp_path: Path) -> Path:
    """A folder made by hand: a student of Breakout, no more."""
    net = random_net((LayerSpec(8, 8, 8, 0, 1), LayerSpec(12, 3, 3, 0, 2)), seed=0, actions=4)
    net = dataclasses.replace(net, game="breakout")
    integer_net.save(net, tmp_path / "student.safetensors", Provenance.of({"architecture": "small"}, seed=0))
    return tmp_path


def test_play_and_record_take_the_folders_game(breakout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("play", "record", "evaluate", "run"):
        assert cli.main([verb, "--run_dir", str(breakout), "--print_config"]) == 0
        assert yaml.safe_load(capsys.readouterr().out)["environment"]["game"] == "breakout"
    assert cli.main(["play", "qbert", "--run_dir", str(breakout), "--print_config"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["environment"]["game"] == "qbert"


def test_a_core_map_or_a_document_alone_says_the_game_too(tmp_path: Path) -> None:
    assert game_of(tmp_path) == ""
    shutil.copy(zoo_path("pong", "core_map-1chip.h5"), tmp_path / "core_map.h5")
    assert game_of(tmp_path) == "pong"
    (tmp_path / "play.json").write_text(json.dumps({"game": "freeway"}))
    assert game_of(tmp_path) == "freeway"  # the large files are not asked where a small one says
    (tmp_path / "play.json").write_text("no JSON")
    assert game_of(tmp_path) == "pong"


def test_files_of_two_games_are_named(breakout: Path) -> None:
    (breakout / "play.json").write_text(json.dumps({"game": "pong"}))
    with pytest.raises(
        UserError, match=r"student\.safetensors is of breakout; play\.json is of pong.*--game"
    ):
        game_of(breakout)


def test_a_student_of_several_games_and_a_score_in_one_of_them_are_of_one_folder(
    breakout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net, provenance = integer_net.load(breakout / "student.safetensors")
    legal = tuple(LegalActions(game, (0, 1)) for game in ("freeway", "pong"))
    joint = dataclasses.replace(net, game="freeway+pong", legal=legal)
    integer_net.save(joint, breakout / "student.safetensors", provenance)
    (breakout / "play.json").write_text(json.dumps({"game": "pong"}))
    assert game_of(breakout) == "freeway+pong"
    (breakout / "play.json").write_text(json.dumps({"game": "breakout"}))
    assert cli.main(["inspect", str(breakout), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["game"] == "freeway+pong, breakout"


def test_a_folder_is_inspected(breakout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (breakout / "play.json").write_text("no JSON")
    page = breakout / "folder.html"
    assert cli.main(["inspect", str(breakout), "--json", "--html", str(page)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["game"]) == ("run folder", "breakout")
    rows = {row["file"]: row for row in found["files"]}
    assert rows["student.safetensors"]["stage"] == "distill"
    assert "not what a stage wrote" in rows["play.json"]["fault"]
    assert "student.safetensors" in page.read_text()


def test_a_folder_made_by_hand_is_reported(breakout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["map", "--run_dir", str(breakout)]) == 0
    assert cli.main(["report", str(breakout), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["stages"] == ["distill", "map"]
    page = (breakout / "report.html").read_text()
    assert "Breakout on" in page
    assert "On the cores" in page
    assert "In real time" not in page


def test_a_folder_without_artefacts_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["inspect", str(tmp_path)], ["report", str(tmp_path)]):
        assert cli.main(words) == 1
        assert "holds no artefact" in capsys.readouterr().err
    assert cli.main(["report", str(tmp_path / "none")]) == 1
    assert "no such folder" in capsys.readouterr().err
