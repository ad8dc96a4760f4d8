import os

import numpy as np
import pytest

from spikestill.common.atari import PAPER_GAMES
from spikestill.common.errors import UserError
from spikestill.configs.environment import EnvironmentConfig
from spikestill.teacher.atari import environment as module
from spikestill.teacher.atari.environment import VectorGames, action_meanings


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    """Emulators that other tests closed stay out of these."""
    monkeypatch.setattr(module, "_kept", [])


@pytest.mark.parametrize("game", PAPER_GAMES)
def test_every_game_of_the_paper_plays(game):
    envs = VectorGames(EnvironmentConfig(game=game), 2)
    observation, _ = envs.reset(0)
    assert observation.shape == (2, 4, 84, 84)
    assert not observation[:, :3].any()
    assert len(action_meanings(game)) == envs.actions
    envs.close()


def test_unknown_game_names_the_nearest():
    with pytest.raises(UserError, match=r"unknown environment 'pomg'.*[Dd]id you mean 'pong'"):
        EnvironmentConfig(game="pomg")


def test_out_of_range_option_names_value_and_range():
    with pytest.raises(UserError, match=r"sticky is 1.5, its range is 0..1"):
        EnvironmentConfig(sticky=1.5)


def played(games, seeds):
    """Return all that a game of 60 random steps shows."""
    rng = np.random.default_rng(0)
    observation, info = games.reset(seeds)
    seen = [observation, info["lives"]]
    for _ in range(60):
        *step, info = games.step(rng.integers(0, games.actions, games.num_envs))
        seen += [*step, info["lives"]]
    return seen


@pytest.mark.parametrize(("game", "life_loss"), [("breakout", True), ("seaquest", False)])
def test_emulators_that_were_closed_are_taken_again_and_play_as_new_ones(game, life_loss):
    config = EnvironmentConfig(game=game, sticky=0.25)
    first = VectorGames(config, 2, life_loss=life_loss)
    emulators = first._envs
    played(first, np.array([1, 2]))
    first.close()
    first.close()  # does not give them to two
    again, new = (VectorGames(config, 2, life_loss=life_loss) for _ in range(2))
    assert again._envs is emulators
    assert new._envs is not emulators
    for one, other in zip(played(again, np.array([8, 9])), played(new, np.array([8, 9])), strict=True):
        np.testing.assert_array_equal(one, other)
    again.close()
    new.close()
    with pytest.raises(ValueError, match="the games were closed"):
        new.reset(0)


def test_emulators_whose_step_is_awaited_are_not_taken_again():
    games = VectorGames(EnvironmentConfig(), 1)
    emulators = games._envs
    games.reset(0)
    games.send(np.zeros(1, np.int64))
    games.close()
    again = VectorGames(EnvironmentConfig(), 1)
    assert again._envs is not emulators
    again.close()


def test_the_first_reset_has_seeds_for_all_games():
    games = VectorGames(EnvironmentConfig(), 2)
    for seeds, mask in ((None, None), (np.array([1]), np.array([True, False])), (np.array([0, -1]), None)):
        with pytest.raises(ValueError, match="the first reset gives seeds, from 0, for all games"):
            games.reset(seeds, mask)
    with pytest.raises(ValueError, match="the first reset gives seeds"):
        games.step(np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="one entry per sub-environment"):
        games.reset(np.arange(3))
    with pytest.raises(ValueError, match="the first reset gives seeds"):
        games.reset()
    games.close()


def test_games_go_on_and_tell_of_every_step():
    games = VectorGames(EnvironmentConfig(), 2)
    games.reset(0)
    games.reset(None, np.array([True, False]))
    games.send(np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="receive what the last actions gave"):
        games.send(np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="receive what the last actions gave"):
        games.reset(0)
    games.receive()
    games.reset(0)
    games.close()


def test_no_more_emulators_are_kept_than_allowed(monkeypatch):
    monkeypatch.setattr(module, "KEPT_GAMES", 3)
    options = [EnvironmentConfig(game=game) for game in ("pong", "breakout")]
    games = [VectorGames(each, 2) for each in options]
    emulators = [each._envs for each in games]
    for each in games:
        each.close()
    again = [VectorGames(each, 2) for each in options]
    assert again[0]._envs is not emulators[0]
    assert again[1]._envs is emulators[1]
    for each in again:
        each.close()
    many = VectorGames(options[0], 4)
    left, kept = many._envs, list(module._kept)
    many.close()
    assert module._kept == kept != []
    assert VectorGames(options[0], 4)._envs is not left


def test_two_who_want_the_like_get_one_each():
    games = [VectorGames(EnvironmentConfig(), 1) for _ in range(2)]
    emulators = {id(each._envs) for each in games}
    for each in games:
        each.close()
    again = [VectorGames(EnvironmentConfig(), 1) for _ in range(2)]
    assert {id(each._envs) for each in again} == emulators
    for each in again:
        each.close()


def test_a_process_that_was_forked_makes_emulators_of_its_own():
    games = VectorGames(EnvironmentConfig(), 1)
    games.reset(3)
    seen, _ = games.reset(3)
    games.close()
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        own = VectorGames(EnvironmentConfig(), 1)
        stacks, _ = own.reset(3)
        own.close()
        os.write(theirs, b"same" if np.array_equal(stacks, seen) else b"differs")
        os._exit(0)
    os.close(theirs)
    assert os.read(ours, 9) == b"same"
    assert os.waitpid(child, 0)[1] == 0
    os.close(ours)
