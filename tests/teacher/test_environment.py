import pytest

from spikestill.common.atari import PAPER_GAMES
from spikestill.common.errors import UserError
from spikestill.configs.environment import EnvironmentConfig
from spikestill.teacher.atari.environment import action_meanings, make_vector_env


@pytest.mark.parametrize("game", PAPER_GAMES)
def test_every_game_of_the_paper_plays(game):
    envs = make_vector_env(EnvironmentConfig(game=game), 2)
    observation, _ = envs.reset(seed=0)
    assert observation.shape == (2, 4, 84, 84)
    assert not observation[:, :3].any()
    assert len(action_meanings(game)) == envs.single_action_space.n
    envs.close()


def test_unknown_game_names_the_nearest():
    with pytest.raises(UserError, match=r"unknown environment 'pomg'.*[Dd]id you mean 'pong'"):
        EnvironmentConfig(game="pomg")


def test_out_of_range_option_names_value_and_range():
    with pytest.raises(UserError, match=r"sticky is 1.5, its range is 0..1"):
        EnvironmentConfig(sticky=1.5)
