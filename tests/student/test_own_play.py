"""What a student does where its own play leads."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest

from spikestill.common.errors import UserError
from spikestill.common.legal import LegalActions
from spikestill.common.policy import Decision
from spikestill.common.zoo import zoo_path
from spikestill.student import distill
from spikestill.student.judging import judged
from spikestill.student.own_play import GAMES, OwnPlay
from spikestill.teacher.atari.environment import console_actions
from spikestill.teacher.policy import load_teacher
from tests.student.test_distill import config, folder  # noqa: F401


class Watched:
    """A teacher that keeps what it was asked."""

    def __init__(self, actions):
        self.actions, self.seen = actions, []

    def act(self, observations):
        stacks = observations["stack"]
        self.seen.append(stacks.copy())
        sums = stacks.reshape(len(stacks), -1).sum(axis=1, dtype=np.int64)
        return Decision.best((sums[:, None] * np.arange(1, self.actions + 1) % 97).astype(np.float32))


def test_regret_is_0_for_the_teachers_action_and_1_for_a_player_at_random():
    q = np.array([[0.0, 1.0], [3.0, 1.0]], np.float32)
    assert judged(np.array([1, 0]), q) == (1.0, 0.0)
    found = judged(np.array([1, 1]), q)
    assert found.agreement == 0.5
    assert found.regret == pytest.approx((0 + 2) / (0.5 + 1))


def test_the_student_plays_and_the_teacher_is_asked_about_the_same_states():
    teacher = Watched(6)
    seen = []

    def votes(stacks):
        seen.append(stacks.copy())
        return teacher.act({"stack": stacks}).scores.astype(np.int64)

    with contextlib.closing(OwnPlay({"pong": teacher}, (), 3)) as playing:
        first = playing(votes, 40)["pong"]
        assert len(seen) == 40 // GAMES
        playing(lambda stacks: -votes(stacks), 8)
    assert first == (1.0, 0.0)
    for mine, theirs in zip(seen, teacher.seen[1::2], strict=True):
        np.testing.assert_array_equal(mine, theirs)
    # The games go on, they do not begin again.
    assert not np.array_equal(seen[0], seen[5])


def test_a_head_of_several_games_plays_each_by_its_own_actions():
    legal = tuple(LegalActions(game, console_actions(game)) for game in ("pong", "freeway"))
    teachers = {game: load_teacher(zoo_path(game, "teacher.safetensors")) for game in ("pong", "freeway")}
    with contextlib.closing(OwnPlay(teachers, legal, 0)) as playing:
        # Freeway's own actions are 0, 1, 2: it goes up without end.
        found = playing(lambda stacks: np.eye(18, dtype=np.int64)[np.full(len(stacks), 1)], 64)
    assert set(found) == {"pong", "freeway"}
    assert all(0 <= each.agreement <= 1 and each.regret >= 0 for each in found.values())


def test_own_play_is_told_in_the_curve_and_changes_nothing_else(folder, tmp_path):  # noqa: F811
    made = []
    for own_play in (0, 16):
        run_dir = tmp_path / str(own_play)
        run_dir.mkdir()
        distill.run(config(folder, steps=4, log_steps=2, own_play=own_play), run_dir)
        lines = [json.loads(line) for line in (run_dir / "distill.jsonl").read_text().splitlines()]
        made.append([line for line in lines if "loss" in line])
    plain, played = made
    own = ("own_agreement", "own_regret")
    assert all(0 <= line[own[0]] <= 1 and line[own[1]] >= 0 for line in played)
    assert not any(name in line for line in plain for name in own)
    assert [line["loss"] for line in plain] == [line["loss"] for line in played]


def test_own_play_without_a_teacher_says_so(folder, tmp_path):  # noqa: F811
    given = config(folder, steps=2, own_play=8, teacher=tmp_path / "none.safetensors", hint_weight=0.0)
    with pytest.raises(UserError, match="no such teacher of"):
        distill.run(given, tmp_path)
