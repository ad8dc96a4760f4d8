import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from configs.environment import EnvironmentConfig
from configs.errors import UserError
from configs.provenance import Provenance
from configs.stage import StageResult
from configs.teach import TeachConfig
from teacher import q_network
from teacher.checkpoint import read_teacher
from teacher.host_learner import HostLearner
from teacher.policy import load_teacher
from teacher.teach import ARTEFACT, CHECKPOINT, METRICS, Training, exploration_rate, learning_rate, run

TINY = TeachConfig(
    environment=EnvironmentConfig(game="breakout"), steps=640, num_envs=8, update_period=8, batch_size=16,
    replay_capacity=2048, replay_start=256, target_period=200, epsilon_steps=300, segment_steps=400, threads=2,
    device="cpu",
)  # fmt: skip


def state(training):
    learner = training.learner.state()
    return learner | {f"replay.{k}": torch.from_numpy(v.copy()) for k, v in training.replay.state().items()}


# After a restart of the games, where the log replays a part of a segment; and anywhere, in half precision with all
# that a checkpoint may hold.
@pytest.mark.parametrize(
    ("point", "options"),
    [
        (456, {}),
        (
            8 * random.randrange(10, 80),
            {"precision": "fp16-master", "flat_masters": True, "dueling": True, "averaging": 0.9},
        ),
    ],
)
def test_stopping_and_resuming_equals_never_having_stopped(tmp_path, point, options):
    config = dataclasses.replace(TINY, **options)
    whole = Training(config)
    while whole.step < config.steps:
        whole.round()
    first = Training(config)
    while first.step < point:
        first.round()
    first.save(tmp_path / "c", Provenance.of(config, 0))
    first.close()
    second = Training(config)
    second.restore(tmp_path / "c")
    assert second.step == point
    while second.step < config.steps:
        second.round()
    a, b = state(whole), state(second)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert list(whole.returns) == list(second.returns)
    whole.close()
    second.close()


def test_run_writes_teacher_checkpoint_and_metrics(tmp_path, monkeypatch):
    monkeypatch.setattr("teacher.teach.LOG_UPDATES", 10)
    result = run(TINY, tmp_path)
    assert isinstance(result, StageResult)
    assert result.finished
    assert result.summary["steps"] == TINY.steps
    assert (tmp_path / CHECKPOINT).exists()
    lines = [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()]
    assert len(lines) == 4
    assert 0.0 <= lines[-1]["dead_conv1"] <= 1.0
    assert load_file(tmp_path / ARTEFACT)["head.weight"].shape == (4, 512)
    with pytest.raises(UserError, match=r"was written with batch_size 16, now it is 32"):
        run(dataclasses.replace(TINY, batch_size=32), tmp_path, resume=True)


def test_kill_and_resume_from_the_last_checkpoint(tmp_path):
    script = (
        "import dataclasses, pathlib, sys\n"
        "from tests.teacher.test_teach import TINY\n"
        "from teacher.teach import run\n"
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
    training = Training(dataclasses.replace(TINY, steps=10**6))
    training.restore(tmp_path / CHECKPOINT)
    step = training.step
    training.round()
    assert training.step == step + 8
    training.close()


def test_loss_that_is_not_finite_stops_with_the_update_named():
    training = Training(TINY)
    while training.step < 320:
        training.round()
    with torch.no_grad():
        training.learner.master["head.bias"].fill_(float("nan"))
    training.learner.refresh_working()
    with pytest.raises(
        UserError, match=r"update \d+: loss nan.*16 transitions 16 have no finite error, replay slots"
    ):
        training.round()
    training.close()


def test_a_run_that_diverges_names_step_and_checkpoint(tmp_path):
    config = dataclasses.replace(
        TINY, learning_rate=1e3, optimizer_epsilon=1e-30, max_gradient_norm=0.0, precision="fp32"
    )
    with pytest.raises(UserError, match=r"step \d+, update \d+: loss .* not finite.*; no checkpoint yet"):
        run(config, tmp_path)
    run(dataclasses.replace(TINY, steps=512), tmp_path)
    tensors = load_file(tmp_path / CHECKPOINT)
    tensors["learner.master.head.bias"][:] = float("nan")
    with safe_open(tmp_path / CHECKPOINT, "pt") as file:
        save_file(tensors, tmp_path / CHECKPOINT, file.metadata())
    with pytest.raises(UserError, match=rf"step 512, .* the last good checkpoint is .*{CHECKPOINT}"):
        run(TINY, tmp_path, resume=True)


def test_gradient_shares_add_up_to_the_whole_batch():
    config = dataclasses.replace(TINY, precision="fp32")
    training = Training(config)
    while training.step < 256:
        training.round()
    import numpy as np

    batch = training.replay.sample(np.random.default_rng(0), 16, 0.4)
    grads = []
    for threads in (1, 2):
        learner = HostLearner(config, 4, training.replay, threads)
        learner.update(batch, 0.0)
        grads.append({name: weight.grad.clone() for name, weight in learner.master.items()})
        learner.close()
    training.close()
    for name in grads[0]:
        torch.testing.assert_close(grads[0][name], grads[1][name], rtol=1e-4, atol=1e-7)


def test_schedules():
    config = TeachConfig()
    assert exploration_rate(config, 0) == 1.0
    assert exploration_rate(config, config.replay_start + config.epsilon_steps) == pytest.approx(
        config.epsilon_final
    )
    assert learning_rate(config, config.steps // 2) == config.learning_rate
    assert learning_rate(config, config.steps) == pytest.approx(config.learning_rate_final)


def test_options_out_of_range_are_named():
    with pytest.raises(UserError, match=r"TeachConfig.discount is 1.5, its range is 0..1"):
        TeachConfig(discount=1.5)
    with pytest.raises(UserError, match="update_period 12 neither divides num_envs 32"):
        TeachConfig(update_period=12)
    with pytest.raises(UserError, match="replay_capacity 100 leaves 3 frames"):
        TeachConfig(replay_capacity=100)


def test_a_dueling_teacher_is_saved_as_a_nature_network_and_resumes(tmp_path):
    config = dataclasses.replace(TINY, dueling=True, precision="fp32", steps=512)
    result = run(config, tmp_path)
    training = Training(config)
    training.restore(tmp_path / CHECKPOINT)
    stacks = np.random.default_rng(0).integers(0, 256, (4, 4, 84, 84), np.uint8)
    learner = training.learner
    assert "value.weight" in learner.master
    with torch.no_grad():
        wanted = learner.q_values(learner.working, torch.from_numpy(stacks)).numpy()
    training.close()
    np.testing.assert_allclose(load_teacher(result.artefact).q_values(stacks), wanted, rtol=1e-3, atol=1e-4)
    with pytest.raises(UserError, match="no streams to go on from"):
        dataclasses.replace(config, initial=result.artefact)


def test_goes_on_from_a_teacher_without_changing_what_it_says(tmp_path):
    source = run(TINY, tmp_path / "first").artefact
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
    result = run(config, tmp_path / "second")
    assert result.finished
    assert set(read_teacher(result.artefact)[3].parents) == {"initial"}
