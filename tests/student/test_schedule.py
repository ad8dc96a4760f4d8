"""How long a training takes, and a schedule fitted to the time there is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from spikestill.common.errors import UserError
from spikestill.common.provenance import Provenance
from spikestill.configs.distill import DistillConfig
from spikestill.configs.record import RecordConfig
from spikestill.dataset import recorder
from spikestill.dataset.reader import BufferReader
from spikestill.student import distill, distillation, schedule
from spikestill.student.distillation import Fitted
from spikestill.student.integer_net import load
from spikestill.student.schedule import Pace, measured_pace, scheduled
from spikestill.student.sources import BufferSource
from spikestill.teacher.atari.q_network import initial_weights
from spikestill.teacher.checkpoint import save_teacher


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("schedule")
    weights = initial_weights(6, torch.Generator().manual_seed(0))
    save_teacher(folder / "teacher.safetensors", weights, "pong", 6, Provenance.of({}, seed=0))
    recorder.run(RecordConfig(teacher=folder / "teacher.safetensors", frames=128, num_envs=4), folder)
    return folder


def config(folder, **changes):
    options = {
        "buffer": folder / "buffer.h5", "steps": 3, "batch_size": 4, "hint_weight": 0, "validation": 0.1,
        "recalibration_batches": 1, "log_steps": 100,
    }  # fmt: skip
    return DistillConfig(**options | changes)


def same_student(one: Path, other: Path) -> None:
    for ours, theirs in zip(load(one)[0].layers, load(other)[0].layers, strict=True):
        assert np.array_equal(ours.weight_OIHW, theirs.weight_OIHW)
        assert np.array_equal(ours.theta_O, theirs.theta_O)


@pytest.fixture
def training(folder):
    made = config(folder, steps=1000, minutes=10.0)
    with BufferReader(made.buffer) as reader:
        found = distillation.Distillation(made, BufferSource([reader], made.validation))
        yield found
        found.close()


def test_as_many_batches_fit_as_the_time_holds() -> None:
    pace = Pace(step_s=0.1, line_s=2.0, end_s=5.0)
    assert pace.seconds(1000, log_steps=250) == pytest.approx(113.0)
    steps = pace.steps_within(60.0, log_steps=250)
    assert pace.seconds(steps, 250) <= 0.97 * 60.0 < pace.seconds(steps + 1, 250)
    assert pace.steps_within(5.0, log_steps=250) == 0


@pytest.mark.parametrize(("hinted", "expected_s"), [(1.0, 4.0), (0.25, 1.75), (0.0, 1.0)])
def test_a_pace_is_the_mean_of_batches_with_hints_and_without(
    folder, monkeypatch, hinted, expected_s
) -> None:
    made = config(folder, hint_weight=1.0, steps=1000, teacher=folder / "teacher.safetensors")
    monkeypatch.setattr(schedule, "_step_s", lambda training, most_s: 4.0 if training.step == 0 else 1.0)
    with BufferReader(made.buffer) as reader:
        teacher = initial_weights(6, torch.Generator().manual_seed(0))
        found = distillation.Distillation(made, BufferSource([reader], made.validation), [teacher])
        assert measured_pace(found, hinted).step_s == pytest.approx(expected_s)
        assert found.step == (0 if hinted == 1.0 else found.hinted_steps)
        found.close()


def test_says_how_long_it_takes_and_fits_what_would_take_longer(training, capsys) -> None:
    assert scheduled(training, Pace(0.1, 0.0, 0.0), spent_s=0.0) == 1000
    assert "all 1,000 batches fit into 10 minutes here; they take about 2 minutes" in capsys.readouterr().err
    assert scheduled(training, Pace(1.0, 0.0, 0.0), spent_s=100.0) == 485
    said = capsys.readouterr().err
    assert "1,000 batches would take about 17 minutes here; 485 fit into what is left of 10 minutes" in said
    with pytest.raises(
        UserError, match=r"minutes 10: no batch fits; a training of one takes about 15 minutes"
    ):
        scheduled(training, Pace(900.0, 0.0, 0.0), spent_s=0.0)


def test_measuring_changes_nothing_of_the_training(folder, tmp_path, capsys) -> None:
    plain = distill.run(config(folder), tmp_path / "plain").artefact
    timed = distill.run(config(folder, minutes=100.0), tmp_path / "timed")
    assert "all 3 batches fit into 100 minutes here" in capsys.readouterr().err
    assert timed.summary["fitted"] == {"minutes": 100.0, "asked": 3, "steps": 3}
    same_student(plain, timed.artefact)


def test_a_resumed_training_keeps_the_steps_that_were_fitted(folder, tmp_path) -> None:
    whole = distill.run(config(folder, steps=4), tmp_path / "whole").artefact
    asked = config(folder, steps=9, minutes=100.0)
    with BufferReader(asked.buffer) as reader:
        begun = distillation.Distillation(asked, BufferSource([reader], asked.validation))
        begun.keep(Fitted(100.0, 9, 4))
        begun.train_step()
        (tmp_path / "stopped").mkdir()
        begun.save(tmp_path / "stopped" / distill.CHECKPOINT, begun.provenance())
        begun.close()
    result = distill.run(asked, tmp_path / "stopped", resume=True)
    assert (result.finished, result.summary["steps"]) == (True, 4)
    same_student(whole, result.artefact)


def test_what_is_asked_for_anew_is_not_what_was_fitted(training) -> None:
    training.keep(Fitted(5.0, 1000, 10))
    assert training.config.steps == 1000
    training.keep(Fitted(10.0, 1000, 10))
    assert training.config.steps == 10
