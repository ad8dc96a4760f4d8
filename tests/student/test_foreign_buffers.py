"""What `spikestill distill` says of buffers that no student can learn from, or not together."""

from __future__ import annotations

import dataclasses

import h5py
import numpy as np
import pytest

from spikestill.cli import main
from spikestill.common.environment import Field
from spikestill.common.provenance import Provenance
from spikestill.configs.distill import DistillConfig
from spikestill.dataset.format import BufferWriter, Header, Steps
from spikestill.student import distill
from spikestill.teacher.atari.environment import action_meanings

ROWS, STREAMS = 32, 2
PONG = Header("pong", tuple(action_meanings("pong")), STREAMS, Provenance.of({}, 0))


def buffer(path, header=PONG):
    """Write noise as if it had been recorded; return the path."""
    rng, steps = np.random.default_rng(0), Steps.empty(ROWS, header)
    for column in steps.columns().values():
        column[:] = rng.integers(0, 2, column.shape)
    steps.start[:] = np.arange(ROWS)[:, None] == 0
    steps.valid[:] = True
    frames = rng.integers(0, 256, (STREAMS, ROWS, 84 * 84), np.uint8) if header.version == 1 else None
    with BufferWriter.create(path, header) as writer:
        writer.write(frames, steps)
        writer.commit()
    return path


def showing(shape):
    return dataclasses.replace(PONG, game="of_others", fields=(Field("screen", shape, "uint8", 0, 255),))


def told(tmp_path, capsys, *buffers):
    """Return what `distill` says of the buffers when it refuses them, and that it wrote no student."""
    first, *others = map(str, buffers)
    words = ["distill", "--buffer", first, "--hint_weight", "0", "--steps", "1", "--batch_size", "8"]
    if others:
        words += ["--also", ",".join(others)]
    assert main([*words, "--run_dir", str(tmp_path / "run")]) == 1
    assert not (tmp_path / "run" / "student.safetensors").exists()
    return capsys.readouterr().err


def test_two_that_fit_are_drawn_from_as_one(tmp_path):
    files = [buffer(tmp_path / name) for name in ("one.h5", "two.h5")]
    with distill.opened(DistillConfig(buffer=files[0], also=(files[1],), hint_weight=0.0)) as (source, _):
        assert (source.game, source.actions) == ("pong", 6)
        drawn = source.draw(np.random.default_rng(0), 8)
        assert (drawn.stacks.shape, drawn.q_values.shape) == ((8, 4, 84, 84), (8, 6))


@pytest.mark.parametrize("shape", [(80, 80), (3, 84, 84)])
@pytest.mark.parametrize("second", [False, True])
def test_frames_of_another_shape_are_named_with_the_shape_that_is_wanted(tmp_path, capsys, shape, second):
    """In a file of another program, which says that it is a buffer of Pong."""
    good, foreign = buffer(tmp_path / "good.h5"), buffer(tmp_path / "foreign.h5")
    with h5py.File(foreign, "r+") as file:
        del file["frames"]
        frames = np.zeros((ROWS, STREAMS, *shape), np.uint8)
        file.create_dataset("frames", data=frames, chunks=(32, 1, *shape), compression="gzip")
    found = told(tmp_path, capsys, *((good, foreign) if second else (foreign, good)))
    shown = str((ROWS, STREAMS, *shape))
    assert f"foreign.h5: not a readable buffer: frames has shape {shown}, (32, 2, 84, 84) wanted" in found
    assert "Give a buffer that `spikestill record` wrote" in found


@pytest.mark.parametrize("shape", [(80, 80), (3, 84, 84), (4, 80, 80)])
@pytest.mark.parametrize("second", [False, True])
def test_an_environment_that_shows_no_stacks_is_named_with_what_it_shows(tmp_path, capsys, shape, second):
    good, other = buffer(tmp_path / "good.h5"), buffer(tmp_path / "other.h5", showing(shape))
    found = told(tmp_path, capsys, *((good, other) if second else (other, good)))
    assert f"other.h5: the buffer is of of_others, which shows screen {shape}; stacks (4, 84, 84)" in found
    assert "are wanted. Give a buffer of an Atari game" in found


def test_buffers_of_a_game_with_different_actions_are_named_with_both(tmp_path, capsys):
    few = dataclasses.replace(PONG, action_names=("NOOP", "RIGHT", "LEFT"))
    found = told(tmp_path, capsys, buffer(tmp_path / "all.h5"), buffer(tmp_path / "few.h5", few))
    assert "few.h5: a buffer of pong with the actions NOOP, RIGHT, LEFT; " in found
    assert "all.h5 has NOOP, FIRE, RIGHT, LEFT, RIGHTFIRE, LEFTFIRE" in found
    assert "Record both with the same teacher" in found


def test_buffers_of_two_games_must_have_the_games_own_actions(tmp_path, capsys):
    others = Header("breakout", ("NOOP", "FIRE", "UP", "DOWN"), STREAMS, PONG.provenance)
    found = told(tmp_path, capsys, buffer(tmp_path / "pong.h5"), buffer(tmp_path / "breakout.h5", others))
    assert (
        "breakout.h5: has the actions NOOP, FIRE, UP, DOWN; breakout's own are NOOP, FIRE, RIGHT, LEFT"
        in found
    )
    assert "Record it anew" in found
