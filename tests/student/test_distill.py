"""Distillation on a real buffer of Pong, played by an untrained teacher."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from spikestill import cli, inspection
from spikestill.common.errors import UserError
from spikestill.common.provenance import Provenance, file_sha256
from spikestill.common.tensors import read_tensors, write_tensors
from spikestill.configs import loading
from spikestill.configs.distill import DistillConfig
from spikestill.configs.record import RecordConfig
from spikestill.dataset import recorder
from spikestill.dataset.reader import BufferReader
from spikestill.dataset.recorder import record
from spikestill.student import distill, distillation
from spikestill.student.architectures import architecture
from spikestill.student.branches import branch_of_features
from spikestill.student.integer_net import load
from spikestill.student.sources import BufferSource
from spikestill.teacher.atari.q_network import initial_weights
from spikestill.teacher.checkpoint import save_teacher
from tests.dataset.players import DivergingPlayer, LinearPlayer, small_config


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distill")
    for seed, name in enumerate(("teacher", "other")):
        weights = initial_weights(6, torch.Generator().manual_seed(seed))
        save_teacher(folder / f"{name}.safetensors", weights, "pong", 6, Provenance.of({}, seed=seed))
    recorder.run(
        RecordConfig(teacher=folder / "teacher.safetensors", frames=256, num_envs=4, flush_every=128), folder
    )
    return folder


def config(folder, **changes):
    options = {
        "buffer": folder / "buffer.h5", "teacher": folder / "teacher.safetensors",
        "steps": 5, "batch_size": 8, "log_steps": 2, "hint_components": 4, "validation": 0.1,
        "recalibration_batches": 4,  # five steps of eight frames gain nothing from 64
    }  # fmt: skip
    return DistillConfig(**options | changes)


def training(folder, reader, checkpoint=None, **changes):
    made, teacher = config(folder, **changes), initial_weights(6, torch.Generator().manual_seed(0))
    return distillation.Distillation(made, BufferSource([reader], made.validation), [teacher], checkpoint)


def same_tensors(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


def state(made):
    tensors = {f"network.{name}": value.clone() for name, value in made.network.state_dict().items()}
    return tensors | {f"hints.{name}": value.clone() for name, value in made.hints.state().items()}


def test_leaves_a_student_a_curve_and_its_parents(folder, tmp_path):
    result = distill.run(config(folder), tmp_path)
    net, provenance = load(tmp_path / "student.safetensors")
    assert result.finished
    assert (net.game, net.actions, len(net.layers)) == ("pong", 6, 10)
    assert set(provenance.parents) == {"buffer", "teacher"}
    lines = [json.loads(line) for line in (tmp_path / "distill.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4]
    assert all(np.isfinite(line["loss"]) and 0 <= line["validation_agreement"] <= 1 for line in lines)


def test_a_restored_training_goes_on_bit_for_bit(folder, tmp_path):
    with BufferReader(folder / "buffer.h5") as reader:
        whole, first, second = (training(folder, reader) for _ in range(3))
        for _ in range(5):
            whole.train_step()
        for _ in range(2):
            first.train_step()
        provenance = Provenance.of(first.config, 0, {"buffer": folder / "buffer.h5"})
        first.save(tmp_path / "checkpoint", provenance)
        second.restore(tmp_path / "checkpoint")
        for _ in range(3):
            second.train_step()
        same_tensors(state(whole), state(second))
        for made in (whole, first, second):
            made.close()


def test_hints_end_with_their_share_of_the_training(folder):
    with BufferReader(folder / "buffer.h5") as reader:
        made = training(folder, reader, hint_share=0.4)
        assert (made.config.steps, made.hinted_steps) == (5, 2)
        states = [state(made)]
        for _ in range(4):
            made.train_step()
            states.append(state(made))
        for before, after, hinted in zip(states, states[1:], (True, True, False, False), strict=False):
            changed = {name for name in before if not torch.equal(before[name], after[name])}
            assert "network.layers.0.shadow" in changed
            assert any(name.startswith("hints.") for name in changed) == hinted
        made.close()
        without = training(folder, reader, hint_share=0.0)
        assert without.hinted_steps == 0
        without.close()


def test_hints_that_are_over_do_not_come_back_with_more_steps(folder, tmp_path):
    with BufferReader(folder / "buffer.h5") as reader:
        made = training(folder, reader, hint_share=0.4)
        checkpoints = []
        for step in (1, 2):
            made.train_step()
            checkpoints.append(tmp_path / f"{step}.safetensors")
            made.save(checkpoints[-1], Provenance.of(made.config, 0, {"buffer": folder / "buffer.h5"}))
        made.close()
        for checkpoint, hinted in zip(checkpoints, (20, 0), strict=True):
            longer = training(folder, reader, hint_share=0.4, steps=50)
            longer.restore(checkpoint)
            assert longer.hinted_steps == hinted
            longer.save(checkpoint, Provenance.of(longer.config, 0, {"buffer": folder / "buffer.h5"}))
            again = training(folder, reader, hint_share=0.4, steps=100)
            again.restore(checkpoint)
            assert again.hinted_steps == 2 * hinted
            longer.close()
            again.close()


def test_a_training_with_hints_throughout_keeps_them_with_more_steps(folder, tmp_path):
    with BufferReader(folder / "buffer.h5") as reader:
        made = training(folder, reader, hint_share=1.0, steps=1)
        made.train_step()
        made.save(tmp_path / "checkpoint", Provenance.of(made.config, 0, {"buffer": folder / "buffer.h5"}))
        longer = training(folder, reader, hint_share=1.0, steps=7)
        longer.restore(tmp_path / "checkpoint")
        assert longer.hinted_steps == 7
        made.close()
        longer.close()


def test_no_teacher_is_asked_for_where_no_batch_has_hints(folder, tmp_path):
    made = config(folder, hint_share=0.0, steps=2, teacher=tmp_path / "absent")
    assert distill.run(made, tmp_path).summary["steps"] == 2


def test_goes_on_from_another_trainings_network(folder, tmp_path):
    distill.run(config(folder), tmp_path)
    checkpoint = tmp_path / distill.CHECKPOINT
    saved, _ = read_tensors(checkpoint, distillation.SCHEMA, "")
    with BufferReader(folder / "buffer.h5") as reader:
        made = training(folder, reader, initial=checkpoint, seed=3)
        for name, tensor in made.network.state_dict().items():
            assert torch.equal(tensor, saved[f"network.{name}"]), name
        made.close()
    with pytest.raises(UserError, match="trains a student of architecture 1chip, not 2chip"):
        distill.run(config(folder, initial=checkpoint, architecture="2chip"), tmp_path / "other")
    result = distill.run(config(folder, initial=checkpoint, steps=3), tmp_path / "next")
    parents = load(result.artefact)[1].parents
    assert set(parents) == {"buffer", "teacher", "initial"}
    with pytest.raises(UserError, match="is there from before, and distill would replace it"):
        distill.run(config(folder, initial=checkpoint), tmp_path)
    checkpoint.unlink()
    result = distill.run(config(folder, initial=checkpoint), tmp_path / "next", resume=True)
    assert load(result.artefact)[1].parents == parents


@pytest.mark.parametrize("precision", ["fp16", "fp16-master"])
def test_fp16_normalises_in_fp32_and_goes_on_bit_for_bit(folder, tmp_path, precision):
    with BufferReader(folder / "buffer.h5") as reader:
        options = {"precision": precision, "loss_scale": 4.0, "loss_scale_period": 2}
        whole, first, second = (training(folder, reader, **options) for _ in range(3))
        for _ in range(4):
            whole.train_step()
        for _ in range(3):
            first.train_step()
        first.save(tmp_path / "checkpoint", first.provenance())
        second.restore(tmp_path / "checkpoint")
        second.train_step()
        assert (whole.scale.value, whole.skipped) != (4.0, 0)
        assert (second.scale, second.skipped) == (whole.scale, whole.skipped)
        same_tensors(state(whole), state(second))
        weights = whole.network.working_weights()
        assert [weight.dtype for weight in weights] == [torch.float32, *[torch.float16] * 9]
        for layer in whole.network.ternary_layers():
            assert {tensor.dtype for tensor in (layer.mu, layer.variance, layer.gamma, layer.beta)} == {
                torch.float32
            }
        for made in (whole, first, second):
            made.close()


def test_the_scale_of_the_loss_changes_no_gradient_and_an_overflow_no_weight(folder):
    with BufferReader(folder / "buffer.h5") as reader:
        plain, scaled, over = (
            training(folder, reader, precision="fp16", loss_scale=scale, temperature=1.0, batch_size=32)
            for scale in (1.0, 8.0, 2.0**40)
        )
        before = state(over)
        for made in (plain, scaled, over):
            made.train_step()
        for one, other in zip(plain.parameters, scaled.parameters, strict=True):
            # What one underflows the other keeps; the rest differs by rounding.
            difference = (one.grad - other.grad).norm() / other.grad.norm()
            assert difference < 0.15
        assert (over.scale.value, over.skipped, over.step) == (2.0**39, 1, 1)
        same_tensors(before, state(over))
        for made in (plain, scaled, over):
            made.close()


def test_a_finished_training_that_is_resumed_writes_the_same_bytes(folder, tmp_path):
    distill.run(config(folder), tmp_path)
    names = ("student.safetensors", distill.CHECKPOINT)
    before = [(tmp_path / name).read_bytes() for name in names]
    time.sleep(1.1)  # a record of now would say another second
    assert distill.run(config(folder), tmp_path, resume=True).finished
    assert [(tmp_path / name).read_bytes() for name in names] == before
    # Nothing is trained, so another rate is not what made the student.
    distill.run(config(folder, learning_rate=1.0), tmp_path, resume=True)
    assert (tmp_path / names[0]).read_bytes() == before[0]


@pytest.mark.slow
def test_ctrl_c_saves_and_the_resumed_training_is_the_uninterrupted_one(folder, tmp_path, monkeypatch):
    train_step = distillation.Distillation.train_step

    def interrupted(self):
        found = train_step(self)
        if self.step == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(distillation.Distillation, "train_step", interrupted)
        assert not distill.run(config(folder), tmp_path / "stopped").finished
    stopped = distill.run(config(folder), tmp_path / "stopped", resume=True)
    whole = distill.run(config(folder), tmp_path / "whole")
    assert stopped.finished
    for left, right in zip(load(stopped.artefact)[0].layers, load(whole.artefact)[0].layers, strict=True):
        np.testing.assert_array_equal(left.weight_OIHW, right.weight_OIHW)
        np.testing.assert_array_equal(left.theta_O, right.theta_O)


def test_a_recording_begun_anew_replaces_no_other(folder):
    before = (folder / "buffer.h5").read_bytes()
    with pytest.raises(
        UserError, match=r"buffer\.h5: is there from before, and record would replace it.*--resume"
    ):
        recorder.run(RecordConfig(teacher=folder / "teacher.safetensors", frames=8, num_envs=4), folder)
    assert (folder / "buffer.h5").read_bytes() == before


def test_a_training_begun_anew_replaces_no_other(folder, tmp_path):
    artefact = distill.run(config(folder, steps=1), tmp_path).artefact
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(UserError, match=rf"{distill.CHECKPOINT}: is there from before, .*--resume"):
        distill.run(config(folder, learning_rate=0.1), tmp_path)
    figures = inspection.read(tmp_path / distill.CHECKPOINT).figures
    assert (figures["step"], figures["steps_in_all"], figures["options"]["seed"]) == (1, 1, 0)
    (tmp_path / distill.CHECKPOINT).unlink()
    with pytest.raises(UserError, match=rf"{artefact.name}: is there from before.* Move it away"):
        distill.run(config(folder), tmp_path, resume=True)
    left = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert left == {path: found for path, found in before.items() if path.name != distill.CHECKPOINT}


def test_a_training_killed_before_its_first_checkpoint_begins_anew(folder, tmp_path, monkeypatch):
    def killed(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(distillation.Distillation, "train_step", killed)
        with pytest.raises(KeyboardInterrupt):
            distill.run(config(folder), tmp_path)
    assert not (tmp_path / distill.CHECKPOINT).exists()
    assert distill.run(config(folder, steps=1), tmp_path, resume=True).finished


def counted(train_step):
    """Return a training step whose loss is its number."""

    def step(self):
        train_step(self)
        return float(self.step), 0.5

    return step


def test_the_curve_of_a_resumed_training_is_of_the_steps_that_it_did(folder, tmp_path, monkeypatch):
    """Stopped after 3 of 5 steps, with a line every 2: what is logged next is of step 4 alone."""
    monkeypatch.setattr(
        distillation.Distillation, "train_step", counted(distillation.Distillation.train_step)
    )
    distill.run(config(folder, steps=3), tmp_path)
    with open(tmp_path / "distill.jsonl", "a") as file:
        file.write(json.dumps({"step": 4, "seconds": 99.0, "loss": 7.0}) + "\n")
    distill.run(config(folder), tmp_path, resume=True)
    lines = [json.loads(line) for line in (tmp_path / "distill.jsonl").read_text().splitlines()]
    assert [(line["step"], line["loss"]) for line in lines] == [(2, 1.5), (4, 4.0)]
    assert lines[0]["seconds"] < lines[1]["seconds"] < 99.0


def test_a_resumed_training_keeps_its_shares(folder, tmp_path, monkeypatch):
    with BufferReader(folder / "buffer.h5") as reader:
        first = training(folder, reader)
        first.save(tmp_path / "checkpoint", first.provenance())
        monkeypatch.setattr(distillation, "cores", lambda: 3)
        again, fresh = training(folder, reader, checkpoint=tmp_path / "checkpoint"), training(folder, reader)
        assert again.shares == first.shares
        assert fresh.shares == 2  # the most that divides a batch of 8
        for made in (first, again, fresh):
            made.close()


def test_the_sparsity_penalty_is_one_of_the_batch_however_it_is_shared(folder):
    """With the running statistics the shares fire as the whole batch does, and so must the penalty weigh."""
    gradients = []
    with BufferReader(folder / "buffer.h5") as reader:
        for shares in (1, 2, 4):
            made = training(folder, reader, sparsity=100.0, hint_weight=0.0)
            made.hints, made.shares, made.step = None, shares, made.config.steps
            drawn = [torch.from_numpy(array) for array in made._draw(np.random.default_rng(0))]
            weights = made.network.working_weights()
            parts = [made._share(index, weights, None, [], *drawn)[0] for index in range(shares)]
            # Of the last layer's beta: no statistics of a share stand between it and the loss.
            gradients.append(torch.stack([part[-1].float() for part in parts]).sum(dim=0))
            made.close()
    assert gradients[0].abs().max() > 1e-3
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], rtol=1e-4, atol=1e-7)


def test_learns_to_repeat_one_batch(folder):
    """The loss on frames seen over and over falls well below what no knowledge of the frame would give."""
    with BufferReader(folder / "buffer.h5") as reader:
        made = training(folder, reader, batch_size=32, steps=60, learning_rate=0.05, temperature=1e-4)
        drawn = made._draw(np.random.default_rng(0))
        made._draw = lambda rng: drawn
        losses = [made.train_step()[0] for _ in range(60)]
        made.close()
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])


def test_without_hints_no_teacher_is_wanted(folder, tmp_path):
    result = distill.run(config(folder, hint_weight=0.0, teacher=folder / "missing.safetensors"), tmp_path)
    assert set(load(result.artefact)[1].parents) == {"buffer"}


def test_hints_of_another_teacher_are_refused(folder, tmp_path):
    with pytest.raises(UserError, match="was recorded by the teacher with SHA-256"):
        distill.run(config(folder, teacher=folder / "other.safetensors"), tmp_path)
    with pytest.raises(UserError, match="no such teacher"):
        distill.run(config(folder, teacher=folder / "missing.safetensors"), tmp_path)


def test_resuming_with_another_temperature_names_both(folder, tmp_path):
    distill.run(config(folder), tmp_path)
    changed = dataclasses.replace(config(folder), temperature=0.5)
    with pytest.raises(UserError, match=r"temperature 0\.\d+, now it is 0\.5"):
        distill.run(changed, tmp_path, resume=True)


def test_the_remedy_of_a_divergence_works(folder, tmp_path):
    distill.run(config(folder), tmp_path)
    lower = config(folder, steps=6, learning_rate=1e-3, learning_rate_final=1e-4, hint_learning_rate=1e-4)
    assert distill.run(lower, tmp_path, resume=True).summary["steps"] == 6


def test_a_loss_that_is_not_finite_stops_before_the_weights_change(folder, tmp_path):
    with BufferReader(folder / "buffer.h5") as reader:
        made = training(folder, reader)
        before = state(made)
        made._draw = lambda rng, draw=made._draw: draw(rng)._replace(
            q_values=np.full((8, 6), np.nan, np.float32)
        )
        with pytest.raises(UserError, match="loss nan is not finite") as told:
            made.train_step()
        assert told.value.remedy == "lower --learning_rate"
        same_tensors(before, state(made))
        made.save(tmp_path / "checkpoint", made.provenance())
        with pytest.raises(UserError, match="go on from the last checkpoint with --resume"):
            made.train_step()
        made.close()


class LoudPlayer(LinearPlayer):
    """Q-values near the largest number of fp32."""

    def q_values(self, obs_BCHW):
        return super().q_values(obs_BCHW) * np.float32(1e37)


@pytest.mark.parametrize(
    ("loss", "done", "remedy"),
    [
        ("kl", "divided by temperature 0.01", "raise --temperature, or record with another --teacher"),
        ("mse", "squared", "give another --loss, or record with another --teacher"),
    ],
)
def test_q_values_that_are_too_large_for_the_loss_are_named(folder, tmp_path, loss, done, remedy):
    loud = tmp_path / "loud.h5"
    record(LoudPlayer("pong"), RecordConfig(frames=64, num_envs=4), loud)
    given = config(folder, loss=loss, also=(loud,), hint_weight=0.0, batch_size=64)
    message = rf"step 0: loss (nan|inf) is not finite: {loud} has the Q-value -?\d.*e\+3\d, which {done} is too large"
    with pytest.raises(UserError, match=message) as told:
        distill.run(given, tmp_path / "run")
    assert told.value.remedy == remedy
    if loss == "kl":
        warm = config(folder, also=(loud,), hint_weight=0.0, batch_size=64, steps=1, temperature=1e3)
        assert distill.run(warm, tmp_path / "run").finished


def test_hints_that_overflow_stop_before_the_weights_change(folder):
    with BufferReader(folder / "buffer.h5") as reader:
        made = training(folder, reader)
        with torch.no_grad():
            made.hints.parameters[0].fill_(1e30)
        before = state(made)
        with pytest.raises(UserError, match=r"loss \d\.\d+ \((inf|nan) with the hints\) is not finite"):
            made.train_step()
        same_tensors(before, state(made))
        made.close()


def test_weights_that_are_not_finite_are_not_saved(folder, tmp_path):
    with BufferReader(folder / "buffer.h5") as reader:
        made = training(folder, reader)
        with torch.no_grad():
            made.network.ternary_layers()[3].shadow[0] = torch.nan
        with pytest.raises(UserError, match=r"layers\.3\.shadow holds values that are not finite"):
            made.save(tmp_path / "checkpoint", made.provenance())
        assert not list(tmp_path.iterdir())
        made.close()


@pytest.mark.parametrize(
    ("what", "because"),
    [
        ("a tensor is missing", r"its content does not fit: RuntimeError: .*Missing key.*layers\.2\.gamma"),
        ("a tensor is misshapen", r"its content does not fit: RuntimeError: .*size mismatch"),
        ("no counters", r"its content does not fit: KeyError: 'counters'"),
        ("config is a list", "its content does not fit: "),
        ("NaN", r"layers\.2\.gamma holds values that are not finite"),
        ("a bit", "not a readable safetensors file: its content hashes to"),
    ],
)
def test_a_damaged_checkpoint_is_named(folder, tmp_path, what, because):
    distill.run(config(folder, steps=1, log_steps=9), tmp_path)
    path = tmp_path / distill.CHECKPOINT
    tensors, metadata = read_tensors(path, distillation.SCHEMA, "")
    name = "network.layers.2.gamma"
    if what == "a tensor is missing":
        del tensors[name]
    elif what == "a tensor is misshapen":
        tensors[name] = tensors[name][:-1].clone()
    elif what == "no counters":
        del metadata["counters"]
    elif what == "config is a list":
        metadata["config"] = "[]"
    elif what == "NaN":
        tensors[name][0] = torch.nan
    provenance = Provenance.from_json(metadata.pop("provenance"))
    kept = {key: value for key, value in metadata.items() if key not in ("schema", "version", "sha256")}
    write_tensors(path, tensors, distillation.SCHEMA, provenance, **kept)
    if what == "a bit":
        damaged = bytearray(path.read_bytes())
        damaged[-1000] ^= 4
        path.write_bytes(damaged)
    with pytest.raises(UserError, match=rf"(?s)distill-checkpoint\.safetensors: {because}"):
        distill.run(config(folder, steps=2), tmp_path, resume=True)


def test_kill_9_loses_nothing_that_was_saved(folder, tmp_path):
    command = [
        sys.executable, "-m", "spikestill", "distill", "--buffer", str(folder / "buffer.h5"),
        "--teacher", str(folder / "teacher.safetensors"), "--run_dir", str(tmp_path), "--steps", "6",
        "--batch_size", "8", "--hint_components", "4", "--checkpoint_minutes", "0.001",
        "--recalibration_batches", "4",
    ]  # fmt: skip
    checkpoint = tmp_path / "distill-checkpoint.safetensors"
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not checkpoint.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.wait()
    read_tensors(checkpoint, distillation.SCHEMA, "")
    same = config(folder, steps=6, log_steps=250, validation=DistillConfig().validation)
    resumed = load(distill.run(same, tmp_path, resume=True).artefact)[0]
    whole = load(distill.run(same, tmp_path / "whole").artefact)[0]
    for left, right in zip(resumed.layers, whole.layers, strict=True):
        np.testing.assert_array_equal(left.weight_OIHW, right.weight_OIHW)
        np.testing.assert_array_equal(left.theta_O, right.theta_O)


def test_gamma_and_beta_have_a_rate_of_their_own(folder):
    with BufferReader(folder / "buffer.h5") as reader:
        made = training(folder, reader, optimizer="sgd", norm_learning_rate=1e-12, hint_weight=0.0)
        before = state(made)
        made.train_step()
        after = state(made)
        made.close()
    moved = {name for name in before if "network" in name and not torch.equal(before[name], after[name])}
    assert any(name.endswith("shadow") for name in moved)
    for name in before:
        if name.endswith(("gamma", "beta")) and "network" in name:
            torch.testing.assert_close(before[name], after[name], rtol=0, atol=1e-9)


def test_a_whole_batch_is_normalised_as_one_where_it_is_asked_for(folder):
    with BufferReader(folder / "buffer.h5") as reader:
        made = training(folder, reader, ghost_batches=1, hint_weight=0.0, steps=10, renormalised_share=0.0)
        assert made.shares == 1
        made.train_step()
        layer = made.network.ternary_layers()[0]
        stacks = made.source.draw(np.random.default_rng([0, 6]), 8).stacks
        made.close()
        same = training(folder, reader, ghost_batches=1, hint_weight=0.0)
        with torch.no_grad():
            _, statistics, _ = same.network.propagate(
                torch.from_numpy(stacks), same.network.working_weights()
            )
        same.close()
    # The running mean began at 0 and moved by a tenth towards the one batch's.
    torch.testing.assert_close(layer.mu, 0.1 * statistics[0][0], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("ghosts", "size"), [(3, 8), (8, 8)])
def test_ghost_batches_that_do_not_divide_are_refused(folder, ghosts, size):
    with pytest.raises(UserError, match=rf"ghost_batches {ghosts} of batch_size {size}: equal shares"):
        config(folder, ghost_batches=ghosts, batch_size=size)


def test_a_batch_of_one_is_refused(folder):
    with pytest.raises(UserError, match=r"batch_size is 1, its range is 2\.\.65536"):
        config(folder, batch_size=1)


@pytest.mark.parametrize(
    ("q_A", "because"),
    [
        (np.ones(6), "for all 6 actions in all of 256 steps"),
        (np.arange(6), "in all of 256 steps: it does not look"),
    ],
)
def test_a_teacher_whose_q_values_are_constant_is_refused(folder, tmp_path, monkeypatch, q_A, because):
    monkeypatch.setattr(
        BufferReader, "q_values", lambda self, indices: np.tile(q_A.astype(np.float32), (len(indices), 1))
    )
    with pytest.raises(UserError, match=rf"buffer\.h5: the teacher's Q-values are the same {because}"):
        distill.run(config(folder), tmp_path)


def test_a_recording_that_was_interrupted_is_told(folder, tmp_path, capsys):
    distill.run(config(folder, steps=1), tmp_path / "whole")
    assert "interrupted" not in capsys.readouterr().err
    part = tmp_path / "part.h5"
    with pytest.raises(UserError, match="Q-values at step 98"):
        record(DivergingPlayer(196, np.nan), small_config(400), part)
    distill.run(config(folder, steps=1, buffer=part, hint_weight=0.0), tmp_path / "part")
    told = f"distill: {part}: 384 of the 400 frames asked for: interrupted; go on with `spikestill record ... --resume`"
    assert told in capsys.readouterr().err.splitlines()


def test_a_buffer_that_is_named_twice_and_a_streams_further_teachers_are_refused(folder, tmp_path):
    with pytest.raises(UserError, match=r"also names .*buffer\.h5 a second time"):
        distill.run(config(folder, also=(folder / ".." / folder.name / "buffer.h5",)), tmp_path)
    with pytest.raises(UserError, match="also_teachers with stream"):
        config(folder, stream=True, also_teachers=(folder / "teacher.safetensors",))


def test_a_teacher_that_mostly_prefers_nothing_is_survived(folder, tmp_path, monkeypatch):
    """No division by a zero gap makes a NaN of it."""

    def constant(self, indices):
        found = np.ones((len(indices), 6), np.float32)
        found[np.asarray(indices) == 0, 0] = 2.0
        return found

    monkeypatch.setattr(BufferReader, "q_values", constant)
    for loss in ("kl", "nll", "mse"):
        result = distill.run(config(folder, loss=loss, steps=2, hint_weight=0.0), tmp_path / loss)
        assert np.isfinite(result.summary["agreement"])
        assert result.summary["regret"] >= 0
        line = json.loads((tmp_path / loss / "distill.jsonl").read_text().splitlines()[-1])
        assert line["validation_regret"] == 0.0
        assert len(line["layers"]) == 10
        assert all(0 <= each["dead"] + each["constant"] <= 1 for each in line["layers"])


def test_the_recipe_of_the_paper_turns_all_of_ours_off():
    made = loading.load(DistillConfig, loading.find_recipe("distill-paper"), {})
    assert (made.stream, made.stream_envs, made.stream_period, made.stream_ring) == (True, 1, 4, 1_000_000)
    assert made.steps * made.stream_period == 6_000_000
    assert (made.ghost_batches, made.renormalised_share, made.recalibration_batches) == (1, 0.0, 0)
    assert (made.optimizer, made.learning_rate, made.learning_rate_final) == ("sgd", 20.0, 20.0)
    assert (made.hint_weight, made.window, made.precision, made.batch_size) == (0.0, "published", "fp32", 32)
    assert (made.sparsity, made.sparsity_form, made.hysteresis) == (1e-4, "squares", 0.1)
    assert (made.logit_scale, made.norm_learning_rate, made.initial_range) == (1.0, None, 1.0)
    assert (made.prune, made.shift_pixels, made.initial) == (0, 0, None)
    assert (made.loss, made.temperature, made.stream_start) == ("kl", 0.01, 50_000)
    assert made.validation == 0


@pytest.mark.parametrize("source", ["stream", "buffer"])
def test_the_recipe_of_the_paper_trains_a_2_chip_net_by_the_command(source, folder, tmp_path, capsys):
    words = ["distill", "--config", "distill-paper", "--architecture", "2chip", "--steps", "2",
             "--batch_size", "4"]  # fmt: skip
    words += {
        "stream": ["--stream_game", "pong", "--stream_ring", "64", "--stream_start", "40"],
        "buffer": ["--stream", "false", "--buffer", str(folder / "buffer.h5"), "--loss", "nll"],
    }[source]
    assert cli.main([*words, "--run_dir", str(tmp_path), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["finished"], summary["steps"]) == (True, 2)
    net, provenance = load(tmp_path / "student.safetensors")
    assert (net.game, len(net.layers)) == ("pong", len(architecture("2chip")))
    assert provenance.config["optimizer"] == "sgd"


def silent_exactly(made):
    """Return whether the branches taken out, and no others, have gamma 0 and beta -1, in every layer that has them."""
    layers = made.network.ternary_layers()[5:]
    own = [torch.isin(branch_of_features(len(layer.gamma)), torch.tensor(made.pruned)) for layer in layers]
    return all(
        torch.equal((layer.gamma == 0) & (layer.beta == -1), silent)
        for layer, silent in zip(layers, own, strict=True)
    )


@pytest.mark.parametrize("saved_at", [pytest.param(1, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("precision", ["fp32", pytest.param("fp16", marks=pytest.mark.slow)])
def test_a_pruned_training_takes_branches_out_and_goes_on_bit_for_bit(folder, tmp_path, saved_at, precision):
    # The first steps of fp16 overflow and are skipped; the last one normalises with the running statistics.
    options = {
        "prune": 2, "prune_at": 0.4, "renormalised_share": 0.3, "precision": precision, "loss_scale": 2.0**30
    }  # fmt: skip
    with BufferReader(folder / "buffer.h5") as reader:
        whole, first, second = (training(folder, reader, **options) for _ in range(3))
        for _ in range(2):
            whole.train_step()
        assert whole.pruned == []
        for _ in range(3):
            whole.train_step()
            assert silent_exactly(whole)
        assert len(whole.pruned) == 2
        assert (whole.skipped > 0) == (precision == "fp16")
        for _ in range(saved_at):
            first.train_step()
        first.save(tmp_path / "checkpoint", Provenance.of(first.config, 0, {"buffer": folder / "buffer.h5"}))
        second.restore(tmp_path / "checkpoint")
        for _ in range(5 - saved_at):
            second.train_step()
        assert second.pruned == whole.pruned
        same_tensors(state(whole), state(second))
        spikes = whole.network.eval().integer().spikes(torch.from_numpy(reader.stacks(np.arange(8))))
        for made in (whole, first, second):
            made.close()
    for found in spikes[5:]:
        silent = torch.isin(branch_of_features(found.shape[1]), torch.tensor(whole.pruned))
        assert found[:, silent].sum() == 0


def test_shifted_frames_are_drawn_again_alike_and_resume_bit_for_bit(folder, tmp_path):
    with BufferReader(folder / "buffer.h5") as reader:
        plainly, whole, first, second = (
            training(folder, reader, **given) for given in ({}, *[{"shift_pixels": 3}] * 3)
        )
        for made in (plainly, whole, whole, first):
            made.train_step()
        first.save(tmp_path / "checkpoint", Provenance.of(first.config, 0, {"buffer": folder / "buffer.h5"}))
        second.restore(tmp_path / "checkpoint")
        second.train_step()
        same_tensors(state(whole), state(second))
        weights = [made.network.ternary_layers()[0].shadow for made in (plainly, first)]
        assert not torch.equal(*weights)
        for made in (plainly, whole, first, second):
            made.close()


def test_branches_stay_out_in_a_training_that_goes_on_from_a_pruned_one(folder, tmp_path):
    distill.run(config(folder, prune=2), tmp_path)
    checkpoint = tmp_path / distill.CHECKPOINT
    with BufferReader(folder / "buffer.h5") as reader:
        made = training(folder, reader, initial=checkpoint, prune=2)
        assert len(made.pruned) == 2
        made.train_step()
        assert silent_exactly(made)
        made.close()
    with pytest.raises(UserError, match=r"its student lacks 2 branches, prune is 0. Give --prune 2"):
        distill.run(config(folder, initial=checkpoint), tmp_path / "other")


@pytest.mark.parametrize("pruned", [[3], [3, 3], [5, 1], [True, 2], [1.0, 2], [1, 8], "12", None])
def test_a_checkpoint_with_other_branches_than_there_are_is_refused(folder, tmp_path, pruned):
    with BufferReader(folder / "buffer.h5") as reader:
        made = training(folder, reader, prune=2, prune_at=0.0)
        made.train_step()
        made.pruned = pruned
        made.save(tmp_path / "checkpoint", Provenance.of(made.config, 0, {"buffer": folder / "buffer.h5"}))
        made.close()
        with pytest.raises(UserError, match="checkpoint"):
            training(folder, reader, tmp_path / "checkpoint", prune=2, prune_at=0.0)


def test_a_training_that_ends_before_its_branches_are_out_says_so(folder, tmp_path):
    options = config(folder, prune=1, prune_at=0.5)
    with BufferReader(folder / "buffer.h5") as reader:
        made = training(folder, reader, prune=1, prune_at=0.5)
        made.train_step()
        made.parents["teacher"] = file_sha256(folder / "teacher.safetensors")
        made.save(tmp_path / distill.CHECKPOINT, made.provenance())
        made.close()
    with pytest.raises(
        UserError, match=r"prune 1: the training ended at step 1 before branches were taken out"
    ):
        distill.run(dataclasses.replace(options, steps=1), tmp_path, resume=True)
