"""Atari through ale-py's native vector environment, preprocessed as in Mnih 2015.

210x160 RGB at 60 Hz -> luminance -> max over the last two frames of a skip -> 84x84 uint8
-> the last four stacked, oldest first; at the start of a game the three oldest are zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spikestill.common.environment import check_game
from spikestill.configs.environment import EnvironmentConfig

if TYPE_CHECKING:
    from ale_py.vector_env import AtariVectorEnv

MAX_FRAMES = 108_000


def make_vector_env(
    config: EnvironmentConfig, num_envs: int, *, threads: int = 0, life_loss: bool = False
) -> AtariVectorEnv:
    """Return ``num_envs`` games that step together.

    Observations are uint8 (N, 4, 84, 84), rewards raw scores, no FIRE at reset. Autoreset is
    NEXT_STEP: the step after the end of a game ignores its action and returns the first
    observation of the next one, with reward 0.

    Args:
        config: the game and its options.
        num_envs: N, >= 1.
        threads: emulator threads; 0: one per core.
        life_loss: report a lost life as a termination, playing on (tell by ``info["lives"] > 0``).
    """
    from ale_py.vector_env import AtariVectorEnv

    return AtariVectorEnv(
        check_game(config.game),
        num_envs,
        num_threads=threads,
        max_num_frames_per_episode=MAX_FRAMES,
        repeat_action_probability=config.sticky,
        frameskip=config.frame_skip,
        noop_max=config.noop_max,
        life_loss_info=life_loss,
        reward_clipping=False,
        use_fire_reset=False,
    )


def action_meanings(game: str) -> list[str]:
    """Return the names of the game's minimal actions in their order, e.g. ``["NOOP", "FIRE", ...]``."""
    import ale_py
    from ale_py import roms

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    emulator = ale_py.ALEInterface()
    emulator.loadROM(roms.get_rom_path(check_game(game)))
    return [str(action.name) for action in emulator.getMinimalActionSet()]
