"""Where a pipeline begins: with a teacher that is there, a training, or another library's agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from spikestill import cli
from spikestill.common.errors import UserError
from spikestill.configs.record import RecordConfig


def test_it_begins_with_the_teacher_that_it_trains_or_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stages before the buffer: a training, or an agent of Stable-Baselines3; the others follow as always."""
    seen: list[Path | None] = []

    def enough(config: RecordConfig, *_: object, **__: object) -> None:
        seen.append(config.teacher)
        raise UserError("enough")

    monkeypatch.setattr("spikestill.student.rollout.run", enough)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "teach: {steps: 32, num_envs: 4, replay_start: 16, update_period: 4, batch_size: 4, replay_capacity: 400}"
    )
    teach = ["run", "--from", "teach", "--config", str(recipe), "--run_dir", str(tmp_path / "t")]
    for _ in range(2):
        assert cli.main(teach) == cli.FAILED
        assert seen.pop() == tmp_path / "t" / "teacher.safetensors"
    said = capsys.readouterr().err
    assert "[1/8] teach: train a teacher" in said
    assert "[1/8] teach: up to date" in said
    missing = [
        "run",
        "pong",
        "--from",
        "import",
        "--agent",
        str(tmp_path / "no.zip"),
        "--run_dir",
        str(tmp_path / "i"),
    ]
    assert cli.main(missing) == cli.FAILED
    assert "no.zip: missing; import reads it. Check --agent" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (("--from", "import"), "from is import and agent is not given"),
        (("--agent", "a.zip"), "from is record and agent is a.zip"),
        (("--from", "teach", "--teacher", "t.st"), "from teach makes the teacher, and teacher is t.st"),
        (("--from", "teech"), "known: record, teach, import. Did you mean 'teach'?"),
    ],
)  # fmt: skip
def test_a_beginning_that_cannot_be_is_refused(
    options: tuple[str, ...], wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", "pong", *options]) == cli.BAD_ARGUMENTS
    assert wrong in capsys.readouterr().err
