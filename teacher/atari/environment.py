"""Atari through ale-py's native vector environment, preprocessed as in Mnih 2015. The module is the family ``atari``.

210x160 RGB at 60 Hz -> luminance -> max over the last two frames of a skip -> 84x84 uint8
-> the last four stacked, oldest first; at the start of a game the three oldest are zero.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from spikestill.common.atari import FRAME_RATE_HZ, STACK, check_game, games
from spikestill.common.environment import Discrete, EnvironmentSpec, Observations, Step
from spikestill.configs.environment import EnvironmentConfig

if TYPE_CHECKING:
    from ale_py.vector_env import AtariVectorEnv

MAX_FRAMES = 108_000


def names() -> tuple[str, ...]:
    """Return the names of all games."""
    return games()


@functools.cache
def spec(name: str) -> EnvironmentSpec:
    """Return the game ``name`` as an environment; 15 decisions a second, as with its usual frame skip of 4."""
    return EnvironmentSpec(
        name=name,
        family="atari",
        fields=(STACK,),
        actions=Discrete(tuple(action_meanings(name))),
        decisions_per_s=FRAME_RATE_HZ / EnvironmentConfig().frame_skip,
        make=AtariGames,
        frames_per_decision=lambda options: int(options.frame_skip),
    )


class AtariGames:
    """N games as a :class:`VectorEnvironment`.

    Args:
        options: the game and how it is played.
        num_envs: N, >= 1.
        threads: emulator threads; 0: one per core.
    """

    def __init__(self, options: EnvironmentConfig, num_envs: int, threads: int = 0) -> None:
        self._envs = VectorGames(options, num_envs, threads=threads)

    def reset(
        self, seeds: npt.NDArray[np.int64] | None, mask: npt.NDArray[np.bool_] | None = None
    ) -> Observations:
        """See :meth:`VectorEnvironment.reset`."""
        return self._observe(self._envs.reset(seeds, mask)[0])

    def send(self, actions: npt.NDArray[Any]) -> None:
        """See :meth:`VectorEnvironment.send`."""
        self._envs.send(actions.astype(np.int64))

    def receive(self) -> Step:
        """See :meth:`VectorEnvironment.receive`."""
        stacks, reward, terminated, truncated, _ = self._envs.receive()
        return Step(self._observe(stacks), reward, terminated, truncated)

    def _observe(self, stacks: npt.NDArray[np.uint8]) -> Observations:
        self._stacks = stacks
        return {STACK.name: stacks}

    def render(self, index: int) -> npt.NDArray[np.uint8]:
        """Return the newest frame that the agent of game ``index`` sees, as grey, uint8 (84, 84, 3)."""
        return np.repeat(self._stacks[index, -1][:, :, None], 3, axis=2)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Raise NotImplementedError: the emulators' state cannot be saved; replay the actions."""
        raise NotImplementedError("the emulators' state cannot be saved; replay the actions")

    def set_state(self, arrays: Mapping[str, npt.NDArray[Any]]) -> Observations:
        """Raise NotImplementedError, as :meth:`state` does."""
        raise NotImplementedError("the emulators' state cannot be restored; replay the actions")

    def close(self) -> None:
        """Release the emulators."""
        self._envs.close()


class VectorGames:
    """``num_envs`` games that step together.

    Observations are uint8 (N, 4, 84, 84), rewards raw scores, no FIRE at reset. Autoreset is
    NEXT_STEP: the step after the end of a game ignores its action and returns the first
    observation of the next one, with reward 0.

    To make an emulator takes 0.15 to 0.3 s, for ALE works out its palette anew. So emulators that were closed are kept,
    up to ``KEPT_GAMES`` of them, and taken again by who wants the like. The first :meth:`reset` gives seeds: it
    loads the cartridges anew, and nothing is left of what was played before.

    Args:
        config: the game and its options.
        num_envs: N, >= 1.
        threads: emulator threads; 0: one per core.
        life_loss: report a lost life as a termination, playing on (tell by ``info["lives"] > 0``).

    Attributes:
        actions: the number of the game's minimal actions.
    """

    def __init__(
        self, config: EnvironmentConfig, num_envs: int, *, threads: int = 0, life_loss: bool = False
    ) -> None:
        self.num_envs = num_envs
        options = {
            "game": check_game(config.game), "num_envs": num_envs, "num_threads": threads,
            "max_num_frames_per_episode": MAX_FRAMES, "repeat_action_probability": config.sticky,
            "frameskip": config.frame_skip, "noop_max": config.noop_max, "life_loss_info": life_loss,
            "reward_clipping": False, "use_fire_reset": False,
        }  # fmt: skip
        # Emulator threads have the priority of who made them, and do not live on in a process that was forked.
        self._key = (os.getpid(), os.getpriority(os.PRIO_PROCESS, 0), *options.values())
        self._envs = _take(self._key)
        if self._envs is None:
            from ale_py.vector_env import AtariVectorEnv

            self._envs = AtariVectorEnv(**options)
        self.actions = int(self._envs.single_action_space.n)
        self._begun = False
        # What was begun has not ended: another thread is at it, or an exception came in between.
        self._busy = False

    def _open(self) -> AtariVectorEnv:
        if self._envs is None:
            raise ValueError("the games were closed")
        return self._envs

    def _begin(self, seeded: bool = False) -> AtariVectorEnv:
        envs = self._open()
        if not (seeded or self._begun):
            raise ValueError("the first reset gives seeds, from 0, for all games")
        if self._busy:
            raise ValueError("receive what the last actions gave")
        self._busy = True
        return envs

    def reset(
        self, seeds: npt.NDArray[np.int64] | int | None = None, mask: npt.NDArray[np.bool_] | None = None
    ) -> tuple[npt.NDArray[np.uint8], dict[str, npt.NDArray[Any]]]:
        """Begin games anew and return all stacks, and ALE's ``info``.

        Args:
            seeds: of those games, int64, >= 0; a number: it and those after it; None: their generators go on.
            mask: bool (N,), which games; None: all.

        Raises:
            ValueError: the first call gives no seeds for all games, or a negative one; the games were closed,
                or have not told of the last actions.
        """
        seeded = seeds is not None and mask is None and bool(np.all(np.asarray(seeds) >= 0))
        found: tuple[npt.NDArray[np.uint8], dict[str, npt.NDArray[Any]]] = self._begin(seeded).reset(
            seed=seeds, options=None if mask is None else {"reset_mask": mask.copy()}
        )
        self._busy, self._begun = False, True
        return found

    def send(self, actions: npt.NDArray[np.int64]) -> None:
        """Have the games take ``actions``, (N,); :meth:`receive` waits for them.

        Raises:
            ValueError: the games were never reset, or were closed, or have not told of the last actions.
        """
        self._begin().send(actions)

    def receive(self) -> tuple[npt.NDArray[Any], ...]:
        """Return stacks, rewards, terminated, truncated, and ALE's ``info``."""
        found: tuple[npt.NDArray[Any], ...] = self._open().recv()
        self._busy = False
        return found

    def step(self, actions: npt.NDArray[np.int64]) -> tuple[Any, ...]:
        """:meth:`send` and :meth:`receive`."""
        self.send(actions)
        return self.receive()

    def close(self) -> None:
        """Let go of the emulators; where nothing of theirs is awaited, they are kept for who wants the like."""
        envs, self._envs = self._envs, None
        if envs is not None and not self._busy:
            _keep(self._key, envs)


KEPT_GAMES = 32
_lock = threading.Lock()
_kept: list[tuple[tuple[Any, ...], AtariVectorEnv]] = []
"""Emulators that nobody plays, the first closed first."""


def _take(key: tuple[Any, ...]) -> AtariVectorEnv | None:
    with _lock:
        at = next((at for at, (other, _) in enumerate(_kept) if other == key), None)
        return None if at is None else _kept.pop(at)[1]


def _keep(key: tuple[Any, ...], envs: AtariVectorEnv) -> None:
    if envs.num_envs > KEPT_GAMES:
        return
    with _lock:
        own = [each for each in _kept if each[0][0] == os.getpid()]
        games = envs.num_envs + sum(each.num_envs for _, each in own)
        while own and games > KEPT_GAMES:
            _kept.remove(own[0])
            games -= own.pop(0)[1].num_envs
        _kept.append((key, envs))


def console_actions(game: str) -> tuple[int, ...]:
    """Return the console's numbers (0..17) of the game's minimal actions, in their order, which is ascending."""
    import ale_py

    return tuple(int(getattr(ale_py.Action, name).value) for name in action_meanings(game))


@functools.cache
def action_meanings(game: str) -> tuple[str, ...]:
    """Return the names of the game's minimal actions in their order, e.g. ``("NOOP", "FIRE", ...)``."""
    import ale_py
    from ale_py import roms

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    emulator = ale_py.ALEInterface()
    emulator.loadROM(roms.get_rom_path(check_game(game)))
    return tuple(str(action.name) for action in emulator.getMinimalActionSet())
