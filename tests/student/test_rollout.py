"""Teacher and student side by side on real Pong."""

import dataclasses

import numpy as np
import pytest
import torch

from spikestill.common.errors import UserError
from spikestill.common.provenance import Provenance
from spikestill.configs.record import RecordConfig
from spikestill.dataset.reader import BufferReader
from spikestill.student import rollout
from spikestill.student.architectures import LayerSpec
from spikestill.student.integer_net import IntegerNet, count_votes, naive_forward, save
from spikestill.teacher.atari.q_network import initial_weights
from spikestill.teacher.checkpoint import save_teacher
from tests.nets import random_net, table1_net


@pytest.fixture
def folder(tmp_path):
    weights = initial_weights(6, torch.Generator().manual_seed(0))
    save_teacher(tmp_path / "teacher.safetensors", weights, "pong", 6, Provenance.of({}, seed=0))
    return tmp_path


def test_every_second_stream_is_the_students_and_all_labels_are_the_teachers(folder):
    net = table1_net("1chip")
    save(net, folder / "student.safetensors", Provenance.of({}, seed=0))
    config = RecordConfig(
        teacher=folder / "teacher.safetensors", student=folder / "student.safetensors",
        frames=240, num_envs=6, epsilon=0.0, flush_every=64,
    )  # fmt: skip
    result = rollout.run(config, folder)
    with BufferReader(result.artefact) as reader:
        index = np.arange(len(reader))
        stream = reader.locate(index)[1]
        played, best = reader.played(index), reader.q_values(index).argmax(axis=1)
        np.testing.assert_array_equal(played[stream % 2 == 1], best[stream % 2 == 1])
        mine = index[stream % 2 == 0]
        assert len(mine) == len(index) // 2
        for step in mine[::20]:
            votes = count_votes(naive_forward(net, reader.stacks([step])[0])[-1], 6)
            assert reader.played([step])[0] == np.argmax(votes)
        assert (played[mine] != best[mine]).any()
        assert set(reader.header.provenance.parents) == {"teacher", "student"}


def test_a_student_of_another_game_is_refused(folder):
    net = table1_net("1chip")
    refuse(
        folder, IntegerNet(net.layers, net.actions, net.input_shape, "qbert"), "is for qbert with 6 actions"
    )


def test_a_student_that_cannot_play_the_game_is_refused(folder):
    """The emulator would wait for ever for an action that the game does not have."""
    net = table1_net("1chip")
    refuse(
        folder, dataclasses.replace(net, actions=18), "is for pong with 18 actions, the game is pong with 6"
    )
    small = random_net((LayerSpec(12, 8, 8, 0, 1),), 0, input_shape=(2, 40, 40))
    refuse(folder, small, r"reads input of shape \(2, 40, 40\), the games give \(4, 84, 84\)")


def refuse(folder, net, because):
    save(net, folder / "student.safetensors", Provenance.of({}, seed=0))
    config = RecordConfig(
        teacher=folder / "teacher.safetensors", student=folder / "student.safetensors", frames=8
    )
    with pytest.raises(UserError, match=because):
        rollout.run(config, folder)
    assert not (folder / "buffer.h5").exists()
