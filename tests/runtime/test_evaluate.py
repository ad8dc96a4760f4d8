"""Scores of agents over full games."""

from __future__ import annotations

import dataclasses
import json
import signal
from pathlib import Path

import pytest

from spikestill.common.errors import UserError
from spikestill.common.provenance import file_sha256
from spikestill.common.zoo import zoo_path
from spikestill.configs.environment import EnvironmentConfig
from spikestill.configs.play import EvaluateConfig
from spikestill.runtime.evaluate import percentage, run
from spikestill.summaries import check_stage
from tests.runtime.artefacts import Files

PONG_TEACHER = zoo_path("pong", "teacher.safetensors")


def config(breakout: Files, agent: str, **fields: object) -> EvaluateConfig:
    environment = EnvironmentConfig(game="breakout")
    student = None if agent == "cores" else breakout.student
    return EvaluateConfig(
        environment=environment, agent=agent, teacher=breakout.teacher, student=student,
        core_map=breakout.core_map, **fields,
    )  # fmt: skip


def test_the_batched_student_scores_what_the_cores_score(tmp_path: Path, breakout: Files) -> None:
    options = {"episodes": 2, "epsilon": 0.3, "num_envs": 2, "compare": False}
    batched = run(config(breakout, "student", **options), tmp_path).summary
    cores = run(config(breakout, "cores", **options, seed=0), tmp_path).summary
    assert batched["returns"] == cores["returns"]
    assert batched["frames"] == cores["frames"] > 200
    assert len(batched["returns"]) == batched["episodes"] == 2


def test_teacher_and_chance_are_measured_the_same_way(tmp_path: Path, breakout: Files) -> None:
    result = run(config(breakout, "teacher", episodes=3, epsilon=0.5, also_sticky=True), tmp_path)
    summary = json.loads(result.artefact.read_text())
    assert summary["teacher"]["returns"] == summary["returns"]
    assert summary["random"]["returns"] != summary["returns"]
    assert summary["mean"] == pytest.approx(sum(summary["returns"]) / 3)
    assert summary["ci95"][0] <= summary["mean"] <= summary["ci95"][1]
    assert "percent_of_teacher" not in summary  # of itself
    assert (summary["sticky_probability"], summary["sticky"]["sticky_probability"]) == (0.0, 0.25)
    assert summary["sticky"]["random"] != summary["random"]
    assert set(summary["provenance"]["parents"]) == {"teacher"}
    # The report knows this form.
    check_stage("evaluate", {"artefact": "evaluate.json", "sha256": "", "summary": summary})


def test_scores_of_the_teacher_and_of_random_play_are_taken_from_its_own_evaluation(
    tmp_path: Path, breakout: Files
) -> None:
    options = {"episodes": 1, "epsilon": 0.9, "also_sticky": True}
    scored = run(config(breakout, "teacher", **options), tmp_path / "teacher").artefact
    played, taken = (
        json.loads(run(config(breakout, "student", **options, scored=path), tmp_path).artefact.read_text())
        for path in (None, scored)
    )
    parents = taken.pop("provenance")["parents"]
    assert parents["scored"] == file_sha256(scored)
    assert played.pop("provenance")["parents"] == {
        name: parents[name] for name in parents if name != "scored"
    }
    for document in (played, taken, played["sticky"], taken["sticky"]):
        del document["seconds"]
    assert taken == played
    assert taken["percent_of_margin"] is not None or taken["teacher"]["mean"] <= taken["random"]["mean"]


def test_scores_of_other_games_or_of_another_teacher_are_refused(tmp_path: Path, breakout: Files) -> None:
    scored = run(config(breakout, "teacher", episodes=2), tmp_path / "teacher").artefact
    own = config(breakout, "student", episodes=2, scored=scored)
    for changed, told in (
        ({"seed": 1}, "seed is 0, 1 is wanted"),
        ({"episodes": 3}, "episodes is 2, 3 is wanted"),
        ({"epsilon": 0.1}, "epsilon is 0.05, 0.1 is wanted"),
        ({"also_sticky": True}, "also_sticky is False, True is wanted"),
        (
            {"environment": EnvironmentConfig(game="breakout", frame_skip=2)},
            "environment.frame_skip is 4, 2 is wanted",
        ),
        ({"teacher": zoo_path("breakout", "teacher.safetensors")}, "scores the teacher with SHA-256"),
    ):
        with pytest.raises(UserError, match=rf"teacher.evaluate\.json: {told}"):
            run(dataclasses.replace(own, **changed), tmp_path)
    with pytest.raises(UserError, match=r"agent is teacher, and .* has its scores"):
        dataclasses.replace(own, agent="teacher")
    with pytest.raises(UserError, match="nothing is compared with"):
        dataclasses.replace(own, compare=False)
    document = json.loads(scored.read_text())
    for changes, told in (
        ({"agent": "student"}, "scores agent student, the teacher's is wanted"),
        ({"schema": "spikestill.verify"}, "schema 'spikestill.verify', 'spikestill.evaluate' wanted"),
        ({"version": 9}, "format version 9"),
        ({"random": {}}, "its content does not fit: KeyError"),
        ({"teacher": {**document["teacher"], "returns": [1.0]}}, "its content does not fit"),
        ({"teacher": {**document["teacher"], "mean": float("nan")}}, "its content does not fit"),
        ({"provenance": 3}, "its content does not fit"),
    ):
        scored.write_text(json.dumps({**document, **changes}))
        with pytest.raises(UserError, match=rf"teacher.evaluate\.json: {told}"):
            run(own, tmp_path)
    scored.write_text(json.dumps(document)[:-9])
    with pytest.raises(UserError, match="not what `spikestill evaluate` wrote"):
        run(own, tmp_path)
    assert not (tmp_path / "evaluate.json").exists()


def test_random_play_needs_no_file(tmp_path: Path) -> None:
    chance = EvaluateConfig(
        environment=EnvironmentConfig(game="breakout"), agent="random", episodes=4, compare=False
    )
    summary = run(chance, tmp_path).summary
    assert summary["agent"] == "random"
    assert 0 <= summary["mean"] < 10
    assert "percent_of_teacher" not in summary


def test_an_evaluation_that_is_interrupted_keeps_nothing_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(EvaluateConfig(agent="random", compare=False, episodes=100), tmp_path)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert "evaluate: nothing is kept, for a score is of all its games" in capsys.readouterr().err
    assert not (tmp_path / "evaluate.json").exists()


def test_a_percentage_of_nothing_is_none() -> None:
    assert percentage(3.0, 4.0) == 75.0
    assert percentage(-1.0, 0.0) is None
    assert percentage(-21.0, -20.0) is None


def test_a_missing_file_is_named(tmp_path: Path, breakout: Files) -> None:
    with pytest.raises(UserError, match=r"nothing\.safetensors: no such file"):
        run(EvaluateConfig(student=tmp_path / "nothing.safetensors", compare=False), tmp_path)


def test_the_teacher_to_compare_with_is_opened_before_the_agent_plays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[str] = []
    monkeypatch.setattr("spikestill.runtime.evaluate.evaluate", lambda *_, **__: played.append("a game"))
    chance = EvaluateConfig(agent="random", teacher=tmp_path / "nothing.safetensors")
    with pytest.raises(UserError, match=r"nothing\.safetensors: no such file"):
        run(chance, tmp_path)
    pong = EvaluateConfig(environment=EnvironmentConfig(game="freeway"), agent="random", teacher=PONG_TEACHER)
    with pytest.raises(UserError, match=r"teacher\.safetensors is for pong"):
        run(pong, tmp_path)
    assert not played


def test_impossible_options_are_refused() -> None:
    with pytest.raises(UserError, match=r"^episodes is 0"):
        EvaluateConfig(episodes=0)
    with pytest.raises(UserError, match=r"^num_envs is 0"):
        EvaluateConfig(num_envs=0)
