"""The best snapshot of a training is its teacher: real games, short ones."""

import contextlib
import dataclasses
import io
import json
import os
import re
import shutil
import signal

import pytest
import torch
from safetensors.torch import load_file

from spikestill.common.errors import UserError
from spikestill.common.tensors import read_tensors, write_tensors
from spikestill.configs.environment import EnvironmentConfig
from spikestill.configs.loading import plain
from spikestill.configs.play import EvaluateConfig
from spikestill.inspection import read
from spikestill.teacher.atari.selection import SEED, Selection
from spikestill.teacher.atari.teach import CHECKPOINT, Training, run
from spikestill.teacher.checkpoint import CHECKPOINT_SCHEMA, read_teacher, read_teacher_file, save_teacher
from spikestill.teacher.evaluation import evaluate, in_fixed_batches
from spikestill.teacher.policy import load_teacher
from tests.teacher.test_teach import TINY

# Space Invaders ends soon, whoever plays it.
CONFIG = dataclasses.replace(
    TINY,
    environment=EnvironmentConfig(game="space_invaders"),
    steps=192,
    selection_period=64,
    selection_games=2,
)


@pytest.fixture(scope="module")
def told():
    """Return what the training of ``whole`` says."""
    return io.StringIO()


@pytest.fixture(scope="module")
def whole(tmp_path_factory, told):
    """Return the result of a training never interrupted."""
    with contextlib.redirect_stderr(told):
        return run(CONFIG, tmp_path_factory.mktemp("whole"))


def played(weights, game="space_invaders", games=2):
    return evaluate(lambda obs: weights(obs), EnvironmentConfig(game=game), episodes=games, seed=SEED).mean


def test_the_best_snapshot_is_the_teacher(whole, told):
    said = re.findall(r"teach: step (\d+) scores ([\d.e+]+), ", told.getvalue())
    scores = {int(step): float(score) for step, score in said}
    assert list(scores) == [64, 128, 192]
    best = max(scores, key=scores.__getitem__)  # the first of equals
    assert (whole.summary["selected_step"], whole.summary["selected_score"]) == (best, scores[best])
    # Up to that step anew, for its weights.
    training = Training(CONFIG)
    while training.step < best:
        training.round()
    wanted = training.learner.deployable()
    training.close()
    found = load_file(whole.artefact)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    policy = load_teacher(whole.artefact)
    with in_fixed_batches(lambda observations: policy.act(observations).action) as ask:
        assert played(ask) == pytest.approx(scores[best])
    last = json.loads((whole.artefact.parent / "teach.jsonl").read_text().splitlines()[-1])
    assert (last["selected_step"], last["snapshot_score"]) == (best, scores[192])
    shown = read(whole.artefact).figures["selected"]
    assert shown == f"step {best}, which scored {scores[best]:.4g} in 2 games"


@pytest.mark.slow
def test_a_training_stopped_in_a_snapshots_games_goes_on_as_if_it_had_not(whole, tmp_path, monkeypatch):
    first = True

    def interrupted(scores_fn, *arguments, **options):
        def ask(obs):
            nonlocal first
            if first:
                os.kill(os.getpid(), signal.SIGINT)
            first = False
            return scores_fn(obs)

        return evaluate(ask, *arguments, **options)

    monkeypatch.setattr("spikestill.teacher.atari.selection.evaluate", interrupted)
    result = run(CONFIG, tmp_path)
    assert not result.finished
    assert (result.summary["steps"], result.summary["selected_step"]) == (64, None)
    result = run(CONFIG, tmp_path, resume=True)
    assert result.finished
    found, wanted = load_file(result.artefact), load_file(whole.artefact)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    for name in ("selected_step", "selected_score"):
        assert result.summary[name] == whole.summary[name]


@pytest.mark.slow
def test_a_training_stopped_in_its_last_games_is_not_finished_before_them(whole, tmp_path, monkeypatch):
    asked = Training.select

    def interrupted(self, provenance, stop):
        if self.step == CONFIG.steps:
            os.kill(os.getpid(), signal.SIGINT)
        return asked(self, provenance, stop)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "select", interrupted)
        result = run(CONFIG, tmp_path)
    assert not result.finished
    assert result.summary["steps"] == CONFIG.steps
    result = run(CONFIG, tmp_path, resume=True)
    assert result.finished
    assert result.summary["selected_score"] == whole.summary["selected_score"]


@pytest.mark.slow
def test_the_teacher_gone_on_from_is_the_first_snapshot(whole, tmp_path):
    """A training that can only make it worse returns it unchanged."""
    source = shutil.copy(whole.artefact, tmp_path / "source.safetensors")
    harmful = dataclasses.replace(
        CONFIG, initial=source, learning_rate=10.0, max_gradient_norm=0.0, selection_period=1_000, steps=160,
        center_pixels=False,
    )  # fmt: skip
    training = Training(harmful)
    assert training.selection_due()
    provenance = training.provenance()
    assert training.select(provenance, lambda: False)
    assert training.selection.selected() == {"step": 0, "score": whole.summary["selected_score"], "games": 2}
    assert not training.selection_due()
    while training.step < harmful.steps:
        training.round()
    assert training.selection_due()
    training.selection.best_score = float("inf")
    assert training.select(provenance, lambda: False)
    wanted = load_file(whole.artefact)
    assert all(torch.equal(weight, wanted[name]) for name, weight in training.teacher().items())
    training.close()


def test_when_a_snapshot_is_due():
    never = Selection(CONFIG.environment, 0, 2, began_with_a_teacher=True)
    assert not any(never.due(step, 100) for step in (0, 50, 100))
    fresh = Selection(CONFIG.environment, 40, 2, began_with_a_teacher=False)
    assert [fresh.due(step, 100) for step in (0, 39, 40, 100)] == [False, False, True, True]
    gone_on = Selection(CONFIG.environment, 40, 2, began_with_a_teacher=True)
    resumed = Selection(CONFIG.environment, 80, 2, began_with_a_teacher=True)
    resumed.set_state(*gone_on.state())  # stopped in the games of step 0
    assert resumed.due(0, 100)


@pytest.mark.slow
def test_choosing_leaves_the_training_as_it_is_and_a_resumption_without_it_keeps_the_best(whole, tmp_path):
    path = whole.artefact.parent / CHECKPOINT
    chosen = read_tensors(path, CHECKPOINT_SCHEMA, "")[0]
    plainly = dataclasses.replace(CONFIG, selection_period=0)
    run(plainly, tmp_path / "plainly")
    left = read_tensors(tmp_path / "plainly" / CHECKPOINT, CHECKPOINT_SCHEMA, "")[0]
    assert left.keys() == {name for name in chosen if not name.startswith("selection.")}
    assert all(torch.equal(weight, chosen[name]) for name, weight in left.items())
    shutil.copytree(whole.artefact.parent, tmp_path / "resumed")
    result = run(dataclasses.replace(plainly, steps=208), tmp_path / "resumed", resume=True)
    assert result.summary["steps"] == 208
    found, wanted = load_file(result.artefact), load_file(whole.artefact)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_a_strange_selection_in_a_file_is_named(whole, tmp_path):
    path = tmp_path / "teacher.safetensors"
    weights, game, actions, provenance = read_teacher(whole.artefact)
    save_teacher(path, weights, game, actions, provenance, selected={"step": "first"})
    with pytest.raises(UserError, match=r"teacher\.safetensors: its selected is \{'step': 'first'\}"):
        read(path)


def test_the_games_that_choose_are_not_those_of_evaluate():
    with pytest.raises(UserError, match="seed"):
        EvaluateConfig(seed=SEED)


@pytest.mark.slow
def test_a_checkpoint_from_before_snapshots_goes_on_and_may_choose_from_there_on(tmp_path):
    config = dataclasses.replace(CONFIG, selection_period=0, selection_games=50)
    run(dataclasses.replace(config, steps=144), tmp_path)
    path = tmp_path / CHECKPOINT
    tensors, metadata = read_tensors(path, CHECKPOINT_SCHEMA, "")
    counters, saved = json.loads(metadata["counters"]), json.loads(metadata["config"])
    del counters["selection"], saved["selection_period"], saved["selection_games"]
    assert saved.keys() < plain(config).keys()
    provenance = Training(config, path).provenance()
    write_tensors(
        path, tensors, CHECKPOINT_SCHEMA, provenance, counters=json.dumps(counters), config=json.dumps(saved)
    )
    with pytest.raises(UserError, match="was written with selection_games 50, now it is 2"):
        Training(dataclasses.replace(config, selection_games=2), path)
    training = Training(dataclasses.replace(config, selection_period=64), path)
    assert training.step == 144
    assert training.selection_due()
    training.close()
    result = run(config, tmp_path, resume=True)
    assert result.finished
    assert "selected" not in read_teacher_file(result.artefact).net
