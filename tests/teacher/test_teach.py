import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from spikestill.common.artefacts import TEACHER
from spikestill.common.atari import PAPER_GAMES
from spikestill.common.errors import UserError
from spikestill.common.memory import free_memory
from spikestill.common.provenance import Provenance
from spikestill.common.stage import StageResult
from spikestill.common.tensors import read_tensors, write_tensors
from spikestill.configs import loading
from spikestill.configs.environment import EnvironmentConfig
from spikestill.configs.teach import TeachConfig
from spikestill.teacher.atari import q_network
from spikestill.teacher.atari.host_learner import HostLearner
from spikestill.teacher.atari.replay import Replay
from spikestill.teacher.atari.teach import CHECKPOINT, Training, exploration_rate, learning_rate, run
from spikestill.teacher.checkpoint import CHECKPOINT_SCHEMA, read_teacher
from spikestill.teacher.policy import load_teacher

TINY = TeachConfig(
    environment=EnvironmentConfig(game="breakout"), steps=264, num_envs=4, update_period=8, batch_size=16,
    replay_capacity=544, replay_start=128, target_period=100, epsilon_steps=150, segment_steps=50, threads=2,
    device="cpu",
)  # fmt: skip


SHORT = dataclasses.replace(TINY, steps=144)


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """Return the folder of a short training that has ended."""
    folder = tmp_path_factory.mktemp("short")
    run(SHORT, folder)
    return folder


@pytest.mark.slow
def test_a_finished_training_that_is_resumed_writes_the_same_bytes(short, tmp_path):
    shutil.copytree(short, tmp_path, dirs_exist_ok=True)
    before = [(tmp_path / name).read_bytes() for name in (TEACHER, CHECKPOINT)]
    time.sleep(1.1)  # a record of now would say another second
    assert run(SHORT, tmp_path, resume=True).finished
    assert [(tmp_path / name).read_bytes() for name in (TEACHER, CHECKPOINT)] == before


def state(training):
    learner = training.learner.state()
    return learner | {f"replay.{k}": torch.from_numpy(v.copy()) for k, v in training.replay.state().items()}


def assert_resumes_exactly(config, point, checkpoint):
    """Assert that a training which is stopped at step ``point`` and resumed ends as one that never was."""
    whole = Training(config)
    while whole.step < config.steps:
        whole.round()
    first = Training(config)
    while first.step < point:
        first.round()
    first.save(checkpoint, Provenance.of(config, 0))
    first.close()
    second = Training(config, checkpoint)
    assert second.step == point
    while second.step < config.steps:
        second.round()
    a, b = state(whole), state(second)
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == [], f"stopped at step {point}"
    assert list(whole.returns) == list(second.returns)
    whole.close()
    second.close()


# After a restart of the games, where the log replays a part of a segment; and anywhere, in half precision with all
# that a checkpoint may hold.
@pytest.mark.parametrize(
    ("point", "options"),
    [
        (232, {}),
        pytest.param(
            None,
            {"precision": "fp16-master", "flat_masters": True, "dueling": True, "averaging": 0.9},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_stopping_and_resuming_equals_never_having_stopped(tmp_path, point, options):
    point = 8 * random.randrange(5, 32) if point is None else point
    assert_resumes_exactly(dataclasses.replace(TINY, **options), point, tmp_path / "c")


def test_run_writes_teacher_checkpoint_and_metrics(tmp_path, monkeypatch):
    monkeypatch.setattr("spikestill.teacher.atari.teach.LOG_UPDATES", 5)
    result = run(TINY, tmp_path)
    assert isinstance(result, StageResult)
    assert result.finished
    assert result.summary["steps"] == TINY.steps
    assert (tmp_path / CHECKPOINT).exists()
    lines = [json.loads(line) for line in (tmp_path / "teach.jsonl").read_text().splitlines()]
    assert len(lines) == 4
    assert lines[-1]["step"] == TINY.steps
    assert 0.0 <= lines[-1]["dead_conv1"] <= 1.0
    assert load_file(tmp_path / TEACHER)["head.weight"].shape == (4, 512)
    with pytest.raises(UserError, match=r"was written with batch_size 16, now it is 32"):
        run(dataclasses.replace(TINY, batch_size=32), tmp_path, resume=True)


def test_kill_and_resume_from_the_last_checkpoint(tmp_path):
    script = (
        "import dataclasses, pathlib, sys\n"
        "from tests.teacher.test_teach import TINY\n"
        "from spikestill.teacher.atari.teach import run\n"
        "config = dataclasses.replace(TINY, steps=10**6, checkpoint_minutes=0.01)\n"
        "run(config, pathlib.Path(sys.argv[1]))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (tmp_path / CHECKPOINT).exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    training = Training(dataclasses.replace(TINY, steps=10**6), tmp_path / CHECKPOINT)
    training.round()
    whole = Training(dataclasses.replace(TINY, steps=10**6))
    while whole.step < training.step:
        whole.round()
    a, b = state(whole), state(training)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    whole.close()
    training.close()


@pytest.mark.slow
def test_ctrl_c_saves_and_the_resumed_training_is_the_uninterrupted_one(tmp_path, monkeypatch):
    rounds, config = Training.round, dataclasses.replace(TINY, steps=192)
    with monkeypatch.context() as patch:
        patch.setattr(Training, "round", lambda self: interrupted_at(self, rounds, 160))
        result = run(config, tmp_path / "stopped")
    assert not result.finished
    assert result.summary["steps"] == 160
    stopped = run(config, tmp_path / "stopped", resume=True)
    whole = run(config, tmp_path / "whole")
    assert stopped.finished
    found, wanted = load_file(stopped.artefact), load_file(whole.artefact)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def interrupted_at(training, rounds, step):
    reports = rounds(training)
    if training.step == step:
        os.kill(os.getpid(), signal.SIGINT)
    return reports


def test_a_training_begun_anew_replaces_no_other(short, tmp_path):
    shutil.copytree(short, tmp_path, dirs_exist_ok=True)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=rf"{CHECKPOINT}: is there from before, .*Go on with it by --resume"):
        run(TINY, tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    (tmp_path / CHECKPOINT).unlink()
    for resume in (False, True):
        with pytest.raises(UserError, match=r"teacher\.safetensors: is there from before.* Move it away"):
            run(TINY, tmp_path, resume=resume)


def test_a_training_killed_before_its_first_checkpoint_begins_anew(tmp_path, monkeypatch, capsys):
    def killed(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Training, "round", killed)
        with pytest.raises(KeyboardInterrupt):
            run(dataclasses.replace(TINY, batch_size=32), tmp_path)
    assert not (tmp_path / CHECKPOINT).exists()
    (tmp_path / "teach.jsonl").write_text('{"step": 7, "seconds": 1.0}\n')
    assert run(dataclasses.replace(TINY, batch_size=32, steps=144), tmp_path, resume=True).finished
    assert "nothing to resume" in capsys.readouterr().err
    assert '"step": 7,' not in (tmp_path / "teach.jsonl").read_text()


@pytest.mark.slow
def test_the_curve_of_a_resumed_training_has_every_line_once(tmp_path, monkeypatch):
    monkeypatch.setattr("spikestill.teacher.atari.teach.LOG_UPDATES", 5)
    run(dataclasses.replace(TINY, steps=200), tmp_path)
    with open(
        tmp_path / "teach.jsonl", "a"
    ) as file:  # logged after the checkpoint, then killed within a line
        file.write(json.dumps({"step": 400, "seconds": 99.0}) + '\n{"step": 6')
    run(TINY, tmp_path, resume=True)
    lines = [json.loads(line) for line in (tmp_path / "teach.jsonl").read_text().splitlines()]
    steps, seconds = [line["step"] for line in lines], [line["seconds"] for line in lines]
    assert len(steps) == 5
    assert steps[1] == 200
    assert steps[-1] == TINY.steps
    assert steps == sorted(set(steps))
    assert seconds == sorted(seconds)
    assert max(seconds) < 99.0


def test_a_resumed_training_keeps_shares_and_format(tmp_path, monkeypatch):
    run(dataclasses.replace(TINY, steps=144, precision="fp32"), tmp_path)
    other = Training(dataclasses.replace(TINY, threads=1, precision="fp32"), tmp_path / CHECKPOINT)
    assert isinstance(other.learner, HostLearner)
    assert other.learner.shares == 2
    other.close()
    monkeypatch.setattr("spikestill.common.precision.formats.fast_bf16", lambda: True)
    with pytest.raises(UserError, match=r"was trained in fp32; --precision auto is bf16 on this machine"):
        Training(TINY, tmp_path / CHECKPOINT)


def test_loss_that_is_not_finite_stops_with_the_update_named():
    training = Training(TINY)
    while training.step < 160:
        training.round()
    with torch.no_grad():
        training.learner.master["head.bias"].fill_(float("nan"))
    training.learner.refresh_working()
    with pytest.raises(
        UserError, match=r"update \d+: loss nan.*16 transitions 16 have no finite error, replay slots"
    ):
        training.round()
    training.close()


def test_a_run_that_diverges_names_step_and_checkpoint(short, tmp_path):
    config = dataclasses.replace(
        TINY, learning_rate=1e3, optimizer_epsilon=1e-30, max_gradient_norm=0.0, precision="fp32"
    )
    with pytest.raises(UserError, match=r"step \d+, update \d+: loss .* not finite.*; no checkpoint yet"):
        run(config, tmp_path)
    # With a checkpoint it is named, and the remedy, a lower step size, works on it.
    shutil.copytree(short, tmp_path, dirs_exist_ok=True)
    good = (tmp_path / CHECKPOINT).read_bytes()
    config = dataclasses.replace(TINY, learning_rate=1e3, learning_rate_final=1e3, max_gradient_norm=0.0)
    with pytest.raises(
        UserError, match=rf"step \d+, .* the last good checkpoint is .*{CHECKPOINT}"
    ) as caught:
        run(config, tmp_path, resume=True)
    assert "--learning_rate" in str(caught.value.remedy)
    assert (tmp_path / CHECKPOINT).read_bytes() == good
    config = dataclasses.replace(TINY, learning_rate=1e-5, learning_rate_final=1e-5)
    assert run(config, tmp_path, resume=True).finished


def test_weights_that_are_not_finite_are_neither_saved_nor_resumed(short, tmp_path, monkeypatch):
    shutil.copytree(short, tmp_path, dirs_exist_ok=True)
    tensors, metadata = read_tensors(tmp_path / CHECKPOINT, CHECKPOINT_SCHEMA, "")
    tensors["learner.master.head.bias"] = torch.full((4,), float("nan"))
    write_tensors(
        tmp_path / CHECKPOINT, tensors, CHECKPOINT_SCHEMA, Provenance.from_json(metadata["provenance"]),
        config=metadata["config"], counters=metadata["counters"],
    )  # fmt: skip
    with pytest.raises(
        UserError,
        match=rf"{CHECKPOINT}: its content does not fit: .*head.bias holds values that are not finite",
    ):
        run(TINY, tmp_path, resume=True)
    rounds = Training.round
    monkeypatch.setattr(Training, "round", lambda self: poisoned(self, rounds))
    with pytest.raises(
        UserError, match=r"step 144, .*head.bias holds weights that are not finite; no checkpoint yet"
    ):
        run(SHORT, tmp_path / "anew")
    assert not (tmp_path / "anew" / CHECKPOINT).exists()
    assert not (tmp_path / "anew" / TEACHER).exists()


def poisoned(training, rounds):
    reports = rounds(training)
    if training.step == training.config.steps:
        with torch.no_grad():
            training.learner.master["head.bias"][0] = float("inf")
    return reports


def test_gradient_shares_add_up_to_the_whole_batch():
    config = dataclasses.replace(TINY, precision="fp32")
    training = Training(config)
    while training.step < 128:
        training.round()
    assert isinstance(training.replay, Replay)
    batch = training.replay.sample(np.random.default_rng(0), 16, 0.4)
    grads: list[dict[str, torch.Tensor]] = []
    for threads in (1, 2):
        learner = HostLearner(config, 4, training.replay, threads)
        grads.append(learner.gradients(batch)[0])
        learner.close()
    training.close()
    assert len(grads[0]) == 10
    for name in grads[0]:
        torch.testing.assert_close(grads[0][name], grads[1][name], rtol=1e-4, atol=1e-7)


def test_the_recipe_of_the_paper_turns_all_of_ours_off():
    """van Hasselt 2016 on Mnih 2015, extended data table 1; segment_steps alone stays, and the file says so."""
    made = loading.load(TeachConfig, loading.find_recipe("teach-paper"), {})
    assert (made.steps * made.environment.frame_skip, made.num_envs) == (50_000_000, 1)
    assert (made.replay_capacity, made.replay_start, made.batch_size) == (1_000_000, 50_000, 32)
    assert (made.update_period, made.target_period, made.n_step, made.discount) == (4, 10_000, 1, 0.99)
    assert (made.optimizer, made.learning_rate, made.learning_rate_final) == ("rmsprop", 2.5e-4, 2.5e-4)
    assert (made.epsilon_final, made.epsilon_steps, made.life_loss_terminal) == (0.1, 1_000_000, True)
    ours = (made.priority_exponent, made.averaging, made.selection_period, made.max_gradient_norm)
    assert ours == (0.0, 0.0, 0, 0.0)
    assert (made.center_pixels, made.dueling, made.flat_masters, made.initial) == (False, False, False, None)
    assert (made.target, made.head_learning_rate_factor, made.precision) == ("double", 1.0, "fp32")


def test_schedules():
    config = TeachConfig()
    assert exploration_rate(config, 0) == 1.0
    assert exploration_rate(config, config.replay_start + config.epsilon_steps) == pytest.approx(
        config.epsilon_final
    )
    assert learning_rate(config, config.steps // 2) == config.learning_rate
    assert learning_rate(config, config.steps) == pytest.approx(config.learning_rate_final)


def test_options_out_of_range_are_named():
    with pytest.raises(UserError, match=r"^discount is 1.5, its range is 0..1"):
        TeachConfig(discount=1.5)
    with pytest.raises(UserError, match="update_period 12 neither divides num_envs 32"):
        TeachConfig(update_period=12)
    with pytest.raises(UserError, match="replay_capacity 100 leaves 3 frames"):
        TeachConfig(replay_capacity=100)


def test_a_dueling_teacher_is_saved_as_a_nature_network_and_resumes(tmp_path):
    config = dataclasses.replace(TINY, dueling=True, precision="fp32", steps=144)
    result = run(config, tmp_path)
    training = Training(config, tmp_path / CHECKPOINT)
    stacks = np.random.default_rng(0).integers(0, 256, (4, 4, 84, 84), np.uint8)
    learner = training.learner
    assert "value.weight" in learner.master
    with torch.no_grad():
        wanted = learner.q_values(learner.working, torch.from_numpy(stacks)).numpy()
    training.close()
    np.testing.assert_allclose(load_teacher(result.artefact).q_values(stacks), wanted, rtol=1e-3, atol=1e-4)
    with pytest.raises(UserError, match="no streams to go on from"):
        dataclasses.replace(config, initial=result.artefact)


@pytest.mark.slow
def test_goes_on_from_a_teacher_without_changing_what_it_says(short, tmp_path):
    source = Path(shutil.copy(short / TEACHER, tmp_path / "source.safetensors"))
    config = dataclasses.replace(
        TINY, initial=source, averaging=0.9, center_pixels=True, precision="fp32", seed=5
    )
    training = Training(config)
    stacks = np.random.default_rng(0).integers(0, 256, (4, 4, 84, 84), np.uint8)
    expected = load_teacher(source).q_values(stacks)
    training.learner.center(87.0)
    deployed = training.learner.deployable()
    training.close()
    found = q_network.q_values(deployed, torch.from_numpy(stacks)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    config = dataclasses.replace(config, steps=144)
    result = run(config, tmp_path / "second")
    assert result.finished
    parents = read_teacher(result.artefact)[3].parents
    assert set(parents) == {"initial"}
    source.unlink()
    result = run(dataclasses.replace(config, steps=152), tmp_path / "second", resume=True)
    assert read_teacher(result.artefact)[3].parents == parents


QUICK = ("freeway", "space_invaders")


@pytest.mark.parametrize(
    "game", [game if game in QUICK else pytest.param(game, marks=pytest.mark.slow) for game in PAPER_GAMES]
)
def test_every_game_of_the_paper_trains(game):
    training = Training(dataclasses.replace(TINY, environment=EnvironmentConfig(game=game), replay_start=64))
    while training.learner.updates < 2:
        training.round()
    assert training.learner.deployable()["head.bias"].shape == (training.actor.actions,)
    training.close()


def test_a_batch_smaller_than_the_threads_is_learnt_from():
    training = Training(dataclasses.replace(TINY, batch_size=1, threads=4))
    while training.step < 144:
        reports = training.round()
    assert len(reports) == 1
    assert np.isfinite(reports[0].loss)
    training.close()


def test_a_training_that_ends_before_its_first_update_is_refused():
    with pytest.raises(UserError, match="steps 5000 end before the first update: replay_start is 10000"):
        TeachConfig(steps=5000)


def test_nothing_to_learn_from_is_refused():
    with pytest.raises(UserError, match="replay_start 96 leaves nothing to learn from: the first 3 steps"):
        TeachConfig(replay_start=96)


@pytest.mark.skipif(free_memory() > 70e9, reason="the largest replay fits")
def test_a_replay_that_outgrows_the_memory_is_refused(tmp_path):
    large = dataclasses.replace(TINY, replay_capacity=10_000_000, steps=10_000_000)
    with pytest.raises(
        UserError, match=r"replay_capacity 10000000 needs 70\.56 GB of memory, .* GB are free"
    ):
        run(large, tmp_path)
