"""One Atari game for real time: native 60 Hz frames, the RGB screen, and the agent's stacks.

The stacks are array_equal to those of the training's ``AtariVectorEnv`` for the same seed and actions,
at every frame_skip: luminance, maximum over the last two frames of a skip (with frame_skip 1 there is
none), 84x84, the last four stacked with the oldest first, zeros before a game's first. Two of the vector
environment's habits are kept: a skip that ends early because the game ended pools what the buffers
still held, and the no-op starts come from its own generator.

Axis suffixes: C stack, H height, W width, 3 the colours red, green, blue.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import ale_py
import numpy as np
import numpy.typing as npt
from ale_py import roms

from spikestill.common.atari import FRAME_RATE_HZ, SIDE, STACK
from spikestill.common.environment import Observations, environment
from spikestill.common.stacking import push
from spikestill.configs.environment import EnvironmentConfig
from spikestill.runtime.area_resize import area_taps, column_taps, resize_area
from spikestill.teacher.atari.environment import MAX_FRAMES, VectorGames

SCREEN_SHAPE = (210, 160)


class Emulator:
    """The game, one emulator frame at a time.

    Args:
        config: game, frame_skip, sticky actions, no-op starts.
        seed: seed of the sticky actions and of the no-op starts, 0..2**31 - 1.

    Attributes:
        spec, rate_hz, frames_per_decision, screen_shape: see :class:`spikestill.runtime.live.LiveGame`.
        actions: names of the minimal actions, in the agent's order.
        score: raw score of the running game.
        over: True once the running game has ended (or reached 108,000 frames).
        frame: emulator frames of the running game, no-ops not counted.
        lives: lives left.
        decision_due: True where the last frame completed a stack that the agent has not seen.
    """

    seen = True

    def __init__(self, config: EnvironmentConfig, seed: int) -> None:
        self.config, self.spec = config, environment(config.game)
        self.rate_hz, self.frames_per_decision, self.screen_shape = (
            FRAME_RATE_HZ,
            config.frame_skip,
            SCREEN_SHAPE,
        )
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self._ale = ale_py.ALEInterface()
        self._ale.setInt("random_seed", seed)
        self._ale.setFloat("repeat_action_probability", config.sticky)
        self._ale.loadROM(roms.get_rom_path(config.game))
        self._legal = list(self._ale.getMinimalActionSet())
        self.actions = [action.name for action in self._legal]
        # The no-op starts are drawn inside the vector environment, by a generator that differs from
        # one C++ library to the next; one that is only ever reset tells how many it drew.
        # It answers slowly on a busy machine, so each start is drawn a game ahead.
        self._starts = VectorGames(config, 1, threads=1)
        self._drawing = ThreadPoolExecutor(1, "no-op starts")
        self._next_start = self._drawing.submit(self._draw_start, seed)
        self._gray = [np.zeros(SCREEN_SHAPE, np.uint8) for _ in range(2)]
        self._rows, self._columns = area_taps(SCREEN_SHAPE[0], SIDE), column_taps(SCREEN_SHAPE[1], SIDE)
        self._stack = np.zeros(STACK.shape, np.uint8)
        self.score, self.over, self.frame, self.lives, self.decision_due = 0.0, True, 0, 0, False
        # Compiles now, not during play.
        resize_area(self._gray[0], self._rows, self._columns, self._stack[-1])
        self._next_start.result()

    def reset(self) -> None:
        """Start the next game, play its no-op start, and make its first stack."""
        no_ops = self._next_start.result()
        self._next_start = self._drawing.submit(self._draw_start, None)
        self._ale.reset_game()
        for _ in range(no_ops):
            self._ale.act(ale_py.Action.NOOP)
            if self._ale.game_over():
                self._ale.reset_game()
        self._stack[:] = 0
        self._ale.getScreenGrayscale(self._gray[0])
        self._gray[1][:] = 0
        self._push()
        self.score, self.over, self.frame, self.lives = 0.0, False, 0, self._ale.lives()
        self.decision_due = True

    def step(self, action: int) -> float:
        """Emulate one frame (1/60 s) with the ``action``-th minimal action; return its raw reward.

        Raises:
            ValueError: the game is over, or there is no such action.
        """
        if self.over:
            raise ValueError("the game is over; call reset() first")
        if not 0 <= action < len(self._legal):
            raise ValueError(f"action {action}, the game has 0..{len(self._legal) - 1}")
        reward = float(self._ale.act(self._legal[action]))
        self.score += reward
        self.frame += 1
        self.lives = self._ale.lives()
        self.over = bool(self._ale.game_over()) or self.frame >= MAX_FRAMES
        left = -self.frame % self.config.frame_skip
        if left < 2 and not self.over:
            self._ale.getScreenGrayscale(self._gray[left])
        self.decision_due = left == 0 or self.over
        if self.decision_due:
            self._push()
        return reward

    def observations(self) -> Observations:
        """Return a copy of the last complete stack as the observation of one game."""
        return {STACK.name: self._stack.copy()[None]}

    def stack(self) -> npt.NDArray[np.uint8]:
        """Return a copy of the last complete stack, uint8 (4, 84, 84), oldest frame first."""
        return self._stack.copy()

    def screen(self, out_HW3: npt.NDArray[np.uint8]) -> None:
        """Write the screen as it is now to ``out_HW3``, uint8 (210, 160, 3), C-contiguous."""
        self._ale.getScreenRGB(out_HW3)

    def close(self) -> None:
        """Release the emulators."""
        self._drawing.shutdown()
        self._starts.close()

    def _draw_start(self, seed: int | None) -> int:
        """Return the number of no-ops that the vector environment starts its next game with."""
        _, info = self._starts.reset(seed)
        return int(info["episode_frame_number"][0])

    def _push(self) -> None:
        newest, other = self._gray
        np.maximum(newest, other, out=newest)
        resize_area(newest, self._rows, self._columns, push(self._stack))
