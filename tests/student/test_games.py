"""Students of several games: one head of 18 actions, masked to each game's own."""

from __future__ import annotations

import dataclasses
import json

import h5py
import numpy as np
import pytest
import torch

from spikestill.common.atari import PAPER_GAMES
from spikestill.common.errors import UserError
from spikestill.common.legal import LegalActions, actions_in, own_scores
from spikestill.common.provenance import Provenance, file_sha256
from spikestill.configs.distill import DistillConfig
from spikestill.configs.environment import EnvironmentConfig
from spikestill.configs.record import RecordConfig
from spikestill.dataset import recorder
from spikestill.dataset.reader import BufferReader
from spikestill.student import distill, integer_net, rollout
from spikestill.student.architectures import ARCHITECTURES, architecture
from spikestill.student.game_check import check_file_game
from spikestill.student.integer_net import count_votes, naive_forward
from spikestill.student.losses import distillation_loss, legal_scores
from spikestill.student.network import StudentNetwork
from spikestill.student.sources import BufferSource
from spikestill.teacher.atari.environment import action_meanings, console_actions
from spikestill.teacher.atari.q_network import initial_weights
from spikestill.teacher.checkpoint import save_teacher
from tests.nets import SMALL_LAYERS, SMALL_SHAPE, random_net, random_stack, table1_net

GAMES = ("freeway", "pong")
LEGAL = tuple(LegalActions(game, console_actions(game)) for game in GAMES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("games")
    for seed, game in enumerate(GAMES):
        recorded(folder, game, seed, frames=128)
    return folder


def recorded(folder, game, seed, frames):
    """Record the play of an untrained teacher."""
    actions = len(action_meanings(game))
    teacher, weights = (
        folder / f"{game}.safetensors",
        initial_weights(actions, torch.Generator().manual_seed(seed)),
    )
    save_teacher(teacher, weights, game, actions, Provenance.of({}, 0))
    options = RecordConfig(
        environment=EnvironmentConfig(game=game), teacher=teacher, frames=frames, num_envs=4
    )
    return recorder.run(options, folder / game).artefact


def joint(seed=0):
    net = random_net(SMALL_LAYERS, seed, actions=18, input_shape=SMALL_SHAPE)
    return dataclasses.replace(net, game="freeway+pong", legal=LEGAL)


def test_the_consoles_actions_of_a_game_are_ascending():
    assert console_actions("freeway") == (0, 2, 5)
    assert console_actions("pong") == (0, 1, 3, 4, 11, 12)


def test_a_net_of_two_games_is_read_back_and_one_of_one_game_keeps_its_version(tmp_path):
    path = tmp_path / "student.safetensors"
    integer_net.save(joint(), path, Provenance.of({}, 0))
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        assert file.metadata()["version"] == "3"
    found, _ = integer_net.load(path)
    assert (found.game, found.legal, found.actions) == ("freeway+pong", LEGAL, 18)
    alone = random_net(SMALL_LAYERS, 0, actions=3, input_shape=SMALL_SHAPE)
    integer_net.save(alone, path, Provenance.of({}, 0))
    with safe_open(path, framework="numpy") as file:
        assert file.metadata()["version"] == "2"
    assert integer_net.load(path)[0].legal == ()


@pytest.mark.parametrize(
    "legal",
    [
        LEGAL[:1],
        (LEGAL[1], LEGAL[0]),
        (LEGAL[0], LegalActions("pong", (0, 18))),
        (LEGAL[0], LegalActions("pong", ())),
    ],
)
def test_legal_actions_that_do_not_fit_are_refused(legal):
    with pytest.raises(ValueError, match="legal actions of"):
        dataclasses.replace(joint(), legal=legal)


def test_a_file_of_two_games_plays_both_and_no_other(tmp_path):
    for game, actions in (("freeway", 3), ("pong", 6)):
        check_file_game(tmp_path, "freeway+pong", 18, game, actions, legal=LEGAL)
    with pytest.raises(UserError, match="plays freeway, pong, the game is qbert"):
        check_file_game(tmp_path, "freeway+pong", 18, "qbert", 6, legal=LEGAL)


def test_a_core_map_of_two_games_is_read_back_and_votes_as_its_student(tmp_path):
    from spikestill.configs.mapping import MapConfig
    from spikestill.deploy import core_map, mapping
    from spikestill.deploy.equivalence import first_deviation
    from spikestill.deploy.simulator import CoreSimulator

    student = tmp_path / "student.safetensors"
    integer_net.save(joint(), student, Provenance.of({}, 0))
    path = mapping.run(MapConfig(student=str(student)), tmp_path).artefact
    with h5py.File(path) as file:
        assert file.attrs["version"] == 2
    found = core_map.load(path)
    assert (found.game, found.legal) == ("freeway+pong", LEGAL)
    assert first_deviation(found, joint()) is None
    assert (
        first_deviation(found, dataclasses.replace(joint(), legal=(LEGAL[0], LegalActions("pong", (0, 1)))))
        is not None
    )
    stack = np.random.default_rng(1).integers(0, 256, SMALL_SHAPE, dtype=np.uint8)
    expected = count_votes(naive_forward(joint(), stack)[-1], 18)
    np.testing.assert_array_equal(CoreSimulator(found).votes(stack), expected)


def test_buffers_whose_actions_are_not_their_games_are_refused(folder):
    with (
        BufferReader(folder / "pong" / "buffer.h5") as pong,
        BufferReader(folder / "freeway" / "buffer.h5") as freeway,
    ):
        names = pong.header.action_names
        pong.header = dataclasses.replace(pong.header, action_names=names[::-1])
        with pytest.raises(
            UserError, match=r"buffer\.h5: has the actions LEFTFIRE, .*; pong's own are NOOP, FIRE"
        ):
            BufferSource((freeway, pong), 0.1)
        with BufferReader(folder / "pong" / "buffer.h5") as other:
            wanted = (
                rf"pong.buffer\.h5: a buffer of pong with the actions NOOP, .*; .*buffer\.h5 has {names[-1]}"
            )
            with pytest.raises(UserError, match=wanted):
                BufferSource((pong, other), 0.1)


def test_a_log_tells_of_each_game(folder, tmp_path):
    options = DistillConfig(
        buffer=folder / "freeway" / "buffer.h5", also=(folder / "pong" / "buffer.h5",), steps=1, batch_size=4,
        log_steps=1, hint_weight=0.0, own_play=8, teacher=folder / "freeway.safetensors",
        also_teachers=(folder / "pong.safetensors",),
    )  # fmt: skip
    distill.run(options, tmp_path)
    (line,) = map(json.loads, (tmp_path / "distill.jsonl").read_text().splitlines())
    by_game = [line[f"own_agreement_{game}"] for game in GAMES]
    assert line["own_agreement"] == pytest.approx(np.mean(by_game))
    assert all(0 <= share <= 1 for share in by_game)


def test_ties_go_to_the_games_lowest_action():
    votes = np.zeros((1, 18), np.int64)
    votes[0, [2, 5, 7]] = 4
    assert own_scores(votes, actions_in(LEGAL, "freeway")).tolist() == [[0, 4, 4]]
    assert own_scores(votes, None) is votes


def test_buffers_of_two_games_are_merged_and_shuffled(folder):
    with (
        BufferReader(folder / "freeway" / "buffer.h5") as one,
        BufferReader(folder / "pong" / "buffer.h5") as two,
    ):
        source = BufferSource([one, two], 0.25)
        assert (source.game, source.actions, source.legal) == ("freeway+pong", 18, LEGAL)
        stacks, q, game = source.draw(np.random.default_rng(0), 300)
        of_freeway = np.isfinite(q).sum(axis=1) == 3
        np.testing.assert_array_equal(game, np.where(of_freeway, 0, 1))
        assert 100 < of_freeway.sum() < 200
        # The same stack may have been seen in two games, in other rows of the teacher's batch.
        known = {
            (one.stacks([i])[0].tobytes(), one.q_values([i])[0].tobytes())
            for i in range(len(one) - len(one) // 4)
        }
        for stack, values in zip(stacks[of_freeway], q[of_freeway], strict=True):
            assert (stack.tobytes(), values[list(LEGAL[0].actions)].tobytes()) in known
        assert (~of_freeway == (np.isfinite(q).sum(axis=1) == 6)).all()
        held = source.validation()
        assert set(np.isfinite(held.q_values).sum(axis=1).tolist()) == {3, 6}


@pytest.mark.parametrize("order", [1, -1])
def test_a_buffer_too_short_to_hold_a_step_out_shows_none(folder, tmp_path, order):
    options = RecordConfig(
        environment=EnvironmentConfig(game="pong"), teacher=folder / "pong.safetensors", frames=8, num_envs=4
    )
    recorder.run(options, tmp_path)
    with (
        BufferReader(folder / "freeway" / "buffer.h5") as long,
        BufferReader(tmp_path / "buffer.h5") as short,
    ):
        source = BufferSource([long, short][::order], 0.05)
        assert source.held_out == 6, "5 % of 128 steps, and of 8 none"
        held = source.validation()
        last = np.arange(122, 128)
        np.testing.assert_array_equal(held.stacks, long.stacks(last))
        own = held.q_values[:, list(LEGAL[0].actions)]
        np.testing.assert_array_equal(own, long.q_values(last))


@pytest.mark.parametrize("temperature", [1.0, 1e-9])
def test_the_divergence_of_several_games_is_each_games_own_at_any_temperature(temperature):
    q = torch.tensor([[-20.0, -torch.inf, -19.0]])
    logits = torch.tensor([[0.5, 9.0, 0.1]])
    own = distillation_loss("kl", logits[:, ::2], q[:, ::2], temperature)
    torch.testing.assert_close(distillation_loss("kl", logits, q, temperature), own)
    assert own > 0.1


@pytest.mark.parametrize("name", ["kl", "nll", "mse"])
def test_losses_do_not_see_what_is_not_the_games(name):
    q = torch.tensor([[0.1, -torch.inf, 0.3], [0.2, 0.0, 0.1]])
    logits = torch.tensor([[0.5, 9.0, 0.1], [0.3, 0.2, 0.1]], requires_grad=True)
    loss = distillation_loss(name, logits, q, 0.05)
    own = distillation_loss(name, logits[:1, ::2], q[:1, ::2], 0.05)
    other = distillation_loss(name, logits[1:], q[1:], 0.05)
    wanted = (2 * own + 3 * other) / 5 if name == "mse" else (own + other) / 2
    torch.testing.assert_close(loss, wanted)
    assert torch.equal(
        torch.autograd.grad(distillation_loss(name, logits, q, 0.05), logits)[0][0, 1], torch.tensor(0.0)
    )
    assert legal_scores(logits, q).argmax(dim=1).tolist() == [0, 0]


def test_eval_of_a_student_of_two_games_is_its_integer_net():
    network = StudentNetwork(SMALL_LAYERS, 18, input_shape=SMALL_SHAPE, game="freeway+pong", legal=LEGAL)
    stacks = torch.randint(
        0, 256, (5, *SMALL_SHAPE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    network.train()
    network(stacks)
    network.eval()
    net = network.to_integer()
    expected = np.array([count_votes(naive_forward(net, stack.numpy())[-1], 18) for stack in stacks])
    np.testing.assert_array_equal(network(stacks).numpy(), expected.astype(np.float32) / network.voters())
    assert net.legal == LEGAL


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_eval_of_a_table_1_net_of_two_games_is_its_integer_net(name):
    """After a step that moved statistics, gains and ternary weights: every layer, the votes, and each game's action."""
    torch.manual_seed(0)
    network = StudentNetwork(architecture(name), 18, game="freeway+pong", legal=LEGAL)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
    stacks = torch.from_numpy(np.stack([random_stack(seed) for seed in range(2)]))
    (network(stacks) * torch.randn(2, 18)).sum().backward()
    optimizer.step()
    network.requantise()
    network.eval()
    net = network.to_integer()
    naive = [naive_forward(net, stack.numpy()) for stack in stacks]
    votes = np.array([count_votes(layers[-1], 18) for layers in naive])
    found = network(stacks).numpy()
    np.testing.assert_array_equal(found, votes.astype(np.float32) / network.voters())
    np.testing.assert_array_equal(network.integer().votes(stacks).numpy(), votes)
    for layer, spikes in enumerate(network.integer().spikes(stacks)):
        np.testing.assert_array_equal(spikes.numpy(), np.stack([layers[layer] for layers in naive]))
    for _, actions in LEGAL:
        best = [min(range(len(actions)), key=lambda own: -row[actions[own]]) for row in votes]
        np.testing.assert_array_equal(own_scores(found, actions).argmax(axis=1), best)


def test_a_student_of_two_games_plays_every_second_stream_of_a_recording(folder, tmp_path):
    """The buffer's actions are the game's own numbers, not those of the head of 18."""
    net = dataclasses.replace(table1_net("1chip"), actions=18, game="freeway+pong", legal=LEGAL)
    student = tmp_path / "student.safetensors"
    integer_net.save(net, student, Provenance.of({}, 0))
    for game, actions in LEGAL:
        options = RecordConfig(
            environment=EnvironmentConfig(game=game), teacher=folder / f"{game}.safetensors", student=student,
            frames=96, num_envs=4, epsilon=0.0,
        )  # fmt: skip
        result = rollout.run(options, tmp_path / game)
        with BufferReader(result.artefact) as reader:
            index = np.arange(len(reader))
            stream = reader.locate(index)[1]
            played, best = reader.played(index), reader.q_values(index).argmax(axis=1)
            np.testing.assert_array_equal(played[stream % 2 == 1], best[stream % 2 == 1])
            mine = index[stream % 2 == 0]
            votes = [count_votes(naive_forward(net, stack)[-1], 18) for stack in reader.stacks(mine[::8])]
            np.testing.assert_array_equal(played[mine[::8]], [np.argmax(row[list(actions)]) for row in votes])
            assert len(mine) == len(index) // 2
            assert (played[mine] != best[mine]).any()
            assert set(reader.header.provenance.parents) == {"teacher", "student"}
    other = dataclasses.replace(options, environment=EnvironmentConfig(game="qbert"))
    with pytest.raises(UserError, match="plays freeway, pong, the game is qbert"):
        rollout.run(other, tmp_path / "qbert")


@pytest.mark.parametrize(
    "games",
    [(*GAMES, "qbert"), pytest.param(tuple(sorted(PAPER_GAMES)), marks=pytest.mark.slow)],
    ids=["three", "ten"],
)
def test_a_student_of_several_games_is_distilled_and_plays_each(games, folder, tmp_path):
    from spikestill.common.environment import environment
    from spikestill.runtime.agents import make_student

    buffers = [
        folder / game / "buffer.h5" if game in GAMES else recorded(tmp_path, game, seed, frames=16)
        for seed, game in enumerate(games)
    ]
    config = DistillConfig(
        buffer=buffers[0], also=tuple(buffers[1:]), steps=2, batch_size=8,
        hint_weight=0.0, recalibration_batches=2, log_steps=9,
    )  # fmt: skip
    result = distill.run(config, tmp_path)
    net, provenance = integer_net.load(result.artefact)
    assert (net.game, net.actions) == ("+".join(games), 18)
    assert net.legal == tuple((game, console_actions(game)) for game in games)
    assert set(provenance.parents) == {"buffer", *(f"buffer{place}" for place in range(2, len(games) + 1))}
    stack = np.random.default_rng(0).integers(0, 256, (1, 4, 84, 84), dtype=np.uint8)
    votes = count_votes(naive_forward(net, stack[0])[-1], 18)
    for game in games:
        decision = make_student({"student": result.artefact}, environment(game)).act({"stack": stack})
        own = votes[list(console_actions(game))]
        np.testing.assert_array_equal(decision.scores[0], own)
        assert decision.action[0] == own.argmax()


def test_both_games_give_hints_each_by_its_own_teacher_and_resume_exactly(folder, tmp_path):
    freeway, pong = (folder / f"{game}.safetensors" for game in GAMES)
    config = DistillConfig(
        buffer=folder / "freeway" / "buffer.h5", also=(folder / "pong" / "buffer.h5",), steps=3, batch_size=8,
        teacher=freeway, also_teachers=(pong,), hint_components=3, recalibration_batches=2, log_steps=9,
        learning_rate_final=3e-2,
    )  # fmt: skip
    whole = distill.run(config, tmp_path / "whole")
    _, provenance = integer_net.load(whole.artefact)
    assert {"teacher", "teacher2"} <= set(provenance.parents)
    assert provenance.parents["teacher2"] == file_sha256(pong)
    distill.run(dataclasses.replace(config, steps=1), tmp_path / "part")
    parted = distill.run(config, tmp_path / "part", resume=True)
    one, other = (integer_net.load(result.artefact)[0] for result in (whole, parted))
    for mine, theirs in zip(one.layers, other.layers, strict=True):
        np.testing.assert_array_equal(mine.weight_OIHW, theirs.weight_OIHW)
        np.testing.assert_array_equal(mine.theta_O, theirs.theta_O)
    swapped = dataclasses.replace(config, teacher=pong, also_teachers=(freeway,))
    with pytest.raises(UserError, match=r"freeway.buffer\.h5 was recorded by the teacher with SHA-256"):
        distill.run(swapped, tmp_path / "swapped")
    more = dataclasses.replace(config, also_teachers=(pong, pong))
    with pytest.raises(UserError, match="also_teachers has 2 files, and the buffers are of freeway, pong"):
        distill.run(more, tmp_path / "more")


def test_a_training_that_is_resumed_with_other_buffers_names_the_one(folder, tmp_path):
    freeway, pong = (folder / game / "buffer.h5" for game in GAMES)
    config = DistillConfig(
        buffer=freeway, also=(pong,), steps=1, batch_size=4, hint_weight=0.0, recalibration_batches=2
    )
    distill.run(config, tmp_path / "run")
    more = dataclasses.replace(config, steps=2)
    alone = dataclasses.replace(more, also=())
    with pytest.raises(
        UserError, match=r"trained on 2 buffers, now there are 1\. Give the same --buffer and"
    ):
        distill.run(alone, tmp_path / "run", resume=True)
    options = RecordConfig(
        environment=EnvironmentConfig(game="pong"), teacher=folder / "pong.safetensors", frames=64, num_envs=4
    )
    other = recorder.run(options, tmp_path / "other").artefact
    with pytest.raises(
        UserError, match=r"another buffer than .*other.buffer\.h5\. Give that buffer by --also"
    ):
        distill.run(dataclasses.replace(more, also=(other,)), tmp_path / "run", resume=True)
