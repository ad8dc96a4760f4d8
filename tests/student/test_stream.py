"""A teacher that plays while a student learns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spikestill.common.errors import UserError
from spikestill.common.provenance import Provenance
from spikestill.configs.distill import DistillConfig
from spikestill.student import distill, stream
from spikestill.student.integer_net import load
from spikestill.student.stream import TeacherStream
from spikestill.teacher.atari.q_network import initial_weights
from spikestill.teacher.checkpoint import save_teacher


def q_values(stacks_BCHW):
    """Return Q-values that depend on the whole stack."""
    sums = stacks_BCHW.reshape(len(stacks_BCHW), 4, -1).sum(axis=2, dtype=np.int64)
    return ((sums @ np.array([1, 3, 5, 7]))[:, None] * np.arange(1, 7) % 97).astype(np.float32)


def playing(seen=None, **changes):
    def q(stacks):
        if seen is not None:
            seen.append(stacks.copy())
        return q_values(stacks)

    options = {"ring": 120, "start": 12, "period": 2, "envs": 4, "epsilon": 0.3, "seed": 5}
    return TeacherStream(q, "pong", 6, **options | changes)


@pytest.fixture(autouse=True)
def short_segments(monkeypatch):
    monkeypatch.setattr(stream, "SEGMENT_ROWS", 22)


def test_frames_are_played_as_the_batches_ask_for_them():
    made = playing()
    rows = []
    for _ in range(6):
        made.advance()
        rows.append(made.rows)
    made.close()
    assert rows == [3, 3, 4, 4, 5, 5]  # 12 frames of 4 games; then 2 a batch


def test_what_is_drawn_is_what_the_teacher_saw():
    seen: list = []
    made = playing(seen, period=80)
    for _ in range(4):
        made.advance()
    assert made.rows == 63  # the ring, of 30 rows, is full twice, and the games restarted twice
    stacks, q, _ = made.draw(np.random.default_rng(0), 200)
    recent = np.concatenate(seen[-27:])
    known = {stack.tobytes() for stack in recent}
    assert len(known) > 20
    assert all(stack.tobytes() in known for stack in stacks)
    np.testing.assert_array_equal(q, q_values(stacks))
    stacks, q, _ = made.validation()
    np.testing.assert_array_equal(q, q_values(stacks))
    made.close()


def test_a_restored_stream_goes_on_bit_for_bit():
    whole, first, second = playing(period=40), playing(period=40), playing(period=40)
    for _ in range(7):
        whole.advance()
    for _ in range(5):
        first.advance()
    second.set_state(first.state())
    for _ in range(2):
        second.advance()
    assert second.rows == whole.rows == 63
    drawn = [each.draw(np.random.default_rng(1), 64) for each in (whole, second)]
    np.testing.assert_array_equal(drawn[0].stacks, drawn[1].stacks)
    np.testing.assert_array_equal(drawn[0].q_values, drawn[1].q_values)
    for name, tensor in whole.state().items():
        assert torch.equal(tensor, second.state()[name]), name
    for each in (whole, first, second):
        each.close()


def test_a_stream_that_has_played_nothing_is_restored_too():
    first, second = playing(period=40), playing(period=40)
    second.set_state(first.state())
    for each in (first, second):
        each.advance()
    drawn = [each.draw(np.random.default_rng(1), 16) for each in (first, second)]
    np.testing.assert_array_equal(drawn[0].stacks, drawn[1].stacks)
    np.testing.assert_array_equal(drawn[0].q_values, drawn[1].q_values)
    for each in (first, second):
        each.close()


def test_q_values_that_are_not_finite_are_refused():
    made = TeacherStream(lambda stacks: np.full((len(stacks), 6), np.nan, np.float32), "pong", 6, ring=64, start=4,
                         period=4, envs=4, epsilon=0.0, seed=0)  # fmt: skip
    with pytest.raises(
        UserError, match="in row 0 of the stream its Q-value of action 0 in game 0 of 4 is nan"
    ):
        made.advance()
    made.close()


@pytest.mark.parametrize(
    ("q_A", "because"),
    [
        (np.ones(6), "are the same for all 6 actions in all of 12 steps"),
        (np.arange(6), "are the same in all of 12"),
    ],
)
def test_a_teacher_that_says_nothing_of_what_to_do_is_refused(q_A, because):
    made = TeacherStream(
        lambda stacks: np.tile(q_A.astype(np.float32), (len(stacks), 1)), "pong", 6, ring=64, start=12,
        period=4, envs=4, epsilon=0.0, seed=0,
    )  # fmt: skip
    with pytest.raises(UserError, match=f"the stream of pong: the teacher's Q-values {because}"):
        made.advance()
    made.close()


def test_a_stream_of_another_game_than_its_teachers_names_the_options_that_there_are(tmp_path):
    weights = initial_weights(3, torch.Generator().manual_seed(0))
    save_teacher(tmp_path / "teacher.safetensors", weights, "freeway", 3, Provenance.of({}, seed=0))
    remedy = "give --teacher a teacher of pong, or --stream_game the game of this one"
    for name in ("teacher", "none"):
        given = DistillConfig(stream=True, hint_weight=0.0, teacher=tmp_path / f"{name}.safetensors")
        with pytest.raises(UserError) as refused:
            distill.run(given, tmp_path / "run")
        assert refused.value.remedy == remedy


def test_a_ring_that_outgrows_the_memory_is_refused_before_anything_is_played(tmp_path):
    weights = initial_weights(6, torch.Generator().manual_seed(0))
    save_teacher(tmp_path / "teacher.safetensors", weights, "pong", 6, Provenance.of({}, seed=0))
    given = DistillConfig(
        stream=True, hint_weight=0.0, teacher=tmp_path / "teacher.safetensors", stream_ring=100_000_000,
        stream_start=100_000_000,
    )  # fmt: skip
    with pytest.raises(UserError, match=r"stream_ring 100000000 needs 705\.60 GB of memory, .* GB are free"):
        distill.run(given, tmp_path / "run")


def test_a_training_on_a_stream_is_resumed_exactly(tmp_path):
    for seed, name in enumerate(("teacher", "other")):
        weights = initial_weights(6, torch.Generator().manual_seed(seed))
        save_teacher(tmp_path / f"{name}.safetensors", weights, "pong", 6, Provenance.of({}, seed=seed))
    options = {
        "stream": True, "stream_ring": 64, "stream_start": 40, "stream_envs": 4, "steps": 4,
        "batch_size": 4, "hint_weight": 0.0, "recalibration_batches": 2, "log_steps": 9, "learning_rate_final": 3e-2,
        "teacher": tmp_path / "teacher.safetensors",
    }  # fmt: skip
    distill.run(DistillConfig(**options | {"steps": 2}), tmp_path / "stopped")
    changed = DistillConfig(**options | {"teacher": tmp_path / "other.safetensors"})
    with pytest.raises(UserError, match="was trained on another teacher"):
        distill.run(changed, tmp_path / "stopped", resume=True)
    results = [
        distill.run(DistillConfig(**options), tmp_path / name, resume=name == "stopped")
        for name in ("whole", "stopped")
    ]
    nets = [load(result.artefact) for result in results]
    assert set(nets[0][1].parents) == {"teacher"}
    for left, right in zip(nets[0][0].layers, nets[1][0].layers, strict=True):
        np.testing.assert_array_equal(left.weight_OIHW, right.weight_OIHW)
        np.testing.assert_array_equal(left.theta_O, right.theta_O)


def test_a_ring_that_is_too_small_names_its_limit():
    with pytest.raises(
        UserError, match="stream_ring 64 leaves 4 frames for each of 16 games, at least 8 wanted"
    ):
        DistillConfig(stream=True, stream_ring=64)
