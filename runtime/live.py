"""One environment in real time, a frame at a time: Atari by its own emulator, anything else by its spec."""

from __future__ import annotations

import sys
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from spikestill.common.environment import Discrete, EnvironmentSpec, Observations, environment
from spikestill.common.errors import UserError
from spikestill.configs.environment import EnvironmentConfig

UNSEEN = np.zeros((90, 160, 3), np.uint8)
"""What stands for the picture of an environment that cannot be drawn here."""


class LiveGame(Protocol):
    """One environment, one frame at a time; made ready by :meth:`reset`.

    Attributes:
        spec: what it is.
        actions: names of the actions, or of the numbers of one.
        rate_hz: frames a second of wall clock.
        frames_per_decision: frames between two observations for the agent.
        score: raw score of the running episode.
        over: True once it has ended.
        decision_due: True where the last frame completed an observation that the agent has not seen.
        screen_shape: (H, W) of its picture.
        seen: it can be drawn; False: its picture is black, for want of OpenGL, say.
    """

    spec: EnvironmentSpec
    actions: list[str]
    rate_hz: float
    frames_per_decision: int
    score: float
    over: bool
    decision_due: bool
    screen_shape: tuple[int, int]
    seen: bool

    def reset(self) -> None:
        """Start the next episode."""
        ...

    def step(self, action: Any) -> float:
        """Play one frame with an action of the spec's space; return its raw reward."""
        ...

    def observations(self) -> Observations:
        """Return a copy of the last complete observation, each field (1, *shape)."""
        ...

    def screen(self, out_HW3: npt.NDArray[np.uint8]) -> None:
        """Write the picture as it is now to ``out_HW3``, uint8 (*screen_shape, 3), C-contiguous."""
        ...

    def close(self) -> None:
        """Release it."""
        ...


class LiveEnvironment:
    """Any environment at its own decisions a second: a frame is a decision; see :class:`LiveGame`.

    Args:
        spec: which one.
        options: of the command line, for ``spec.make``.
        seed: of the first episode; the next ones go on with its random numbers.
        drawn: it can be asked for its picture; False saves what drawing needs.
        paced: it plays in real time, where a picture that takes long may be an older one.
        recorded: its pictures go into a video, so that it must be seen.

    Raises:
        UserError: it cannot be drawn, and is to be recorded.
    """

    frames_per_decision = 1

    def __init__(
        self, spec: EnvironmentSpec, options: EnvironmentConfig, seed: int, *, drawn: bool, paced: bool,
        recorded: bool = False,
    ) -> None:  # fmt: skip
        self.spec, self.rate_hz = spec, spec.decisions_per_s
        self.actions = action_names(spec)
        self._envs = spec.make(options, 1, 1)
        self.seen, self._must_be_seen = drawn, recorded
        self._render = getattr(self._envs, "render_soon", self._envs.render) if paced else self._envs.render
        self.score, self.over, self.decision_due = 0.0, True, False
        self._observations = self._envs.reset(np.array([seed], np.int64))
        height, width, _ = self._picture().shape
        self._must_be_seen = False  # a display that is lost later ends no game
        self.screen_shape = (height, width)
        self._fresh = True

    def reset(self) -> None:
        """Start the next episode."""
        if not self._fresh:
            self._observations = self._envs.reset(None)
        self._fresh = False
        self.score, self.over, self.decision_due = 0.0, False, True

    def step(self, action: Any) -> float:
        """Do one step; return its reward.

        Raises:
            ValueError: the episode is over, or the action is not one of the spec's.
        """
        if self.over:
            raise ValueError("the episode is over; call reset() first")
        rows = np.asarray(action, self.spec.actions.dtype)[None]
        self.spec.actions.check(rows)
        self._envs.send(rows)
        step = self._envs.receive()
        self._observations = step.observations
        self.score += float(step.reward[0])
        self.over = bool(step.terminated[0] or step.truncated[0])
        self.decision_due = True
        return float(step.reward[0])

    def observations(self) -> Observations:
        """Return a copy of the last observation."""
        return {name: np.array(values) for name, values in self._observations.items()}

    def screen(self, out_HW3: npt.NDArray[np.uint8]) -> None:
        """Draw it as it is now."""
        picture = self._picture()
        out_HW3[:] = 0 if picture is UNSEEN else picture  # of another size, where a display was lost

    def _picture(self) -> npt.NDArray[np.uint8]:
        if not self.seen:
            return UNSEEN
        try:
            return self._render(0)
        except Exception as error:  # no display, no OpenGL: it plays on unseen
            if self._must_be_seen:
                self._envs.close()
                what, remedy = (
                    (error.what, error.remedy) if isinstance(error, UserError) else (str(error), None)
                )
                without = "without --record it plays on unseen"
                raise UserError(f"--record: {what}", f"{remedy}; {without}" if remedy else without) from error
            print(f"{self.spec.name} plays on unseen: {error}", file=sys.stderr, flush=True)
            self.seen = False
            return UNSEEN

    def close(self) -> None:
        """Release it."""
        self._envs.close()


def action_names(spec: EnvironmentSpec) -> list[str]:
    """Return the names of the actions, or ``action 0`` and so on for the numbers of one."""
    if isinstance(spec.actions, Discrete):
        return list(spec.actions.names)
    return [f"action {index}" for index in range(spec.actions.shape[0])]


def open_game(
    options: EnvironmentConfig, seed: int, *, drawn: bool = True, paced: bool = True, recorded: bool = False
) -> LiveGame:
    """Return the environment that ``options`` name, ready for its first :meth:`LiveGame.reset`.

    Raises:
        UserError: it cannot be drawn, and is to be recorded.
    """
    spec = environment(options.game)
    if spec.family == "atari":
        from spikestill.runtime.emulator import Emulator

        return Emulator(options, seed)
    return LiveEnvironment(spec, options, seed, drawn=drawn, paced=paced, recorded=recorded)
