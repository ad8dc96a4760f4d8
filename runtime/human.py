"""The agent ``human``: a person at the keyboard, of the terminal or of the live page.

A terminal says when a key goes down, never when it comes up, and repeats one that is held. So a key counts as held for
:data:`HELD_S` after it was last heard. A browser says both, and plays through the page's "Take over".
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from spikestill.common.environment import Discrete, EnvironmentSpec, Observations
from spikestill.common.policy import Decision
from spikestill.runtime.agents import actions_of

HELD_S = 0.2
PLAYED = ("ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", " ")


def action_of(keys: Collection[str], actions: Sequence[str]) -> int:
    """Return the action that some held keys mean: the nearest that the game has, in ALE's names; 0 where none is."""
    up = "UP" if "ArrowUp" in keys else "DOWN" if "ArrowDown" in keys else ""
    side = "LEFT" if "ArrowLeft" in keys else "RIGHT" if "ArrowRight" in keys else ""
    fire = "FIRE" if " " in keys else ""
    for name in (up + side + fire, up + side, side + fire, up + fire, side, up, fire, "NOOP"):
        if name in actions:
            return actions.index(name)
    return 0


class HumanPolicy:
    """Does what the held keys say, at once.

    Args:
        actions: names of the game's.
    """

    def __init__(self, actions: Sequence[str]) -> None:
        self._actions = actions
        self._until_s: dict[str, float] = {}

    def press(self, key: str, now_s: float | None = None) -> None:
        """Take in a key that went down, or was repeated, at ``now_s`` of the monotonic clock, None: now."""
        self._until_s[key] = (time.monotonic() if now_s is None else now_s) + HELD_S

    def held(self, now_s: float | None = None) -> set[str]:
        """Return the keys that count as held."""
        now_s = time.monotonic() if now_s is None else now_s
        return {key for key, until_s in self._until_s.copy().items() if until_s > now_s}

    def act(self, observations: Observations) -> Decision:
        """Take the action of the held keys; the scores are 1 for it and 0 for the others."""
        rows = len(next(iter(observations.values())))
        action = np.full(rows, action_of(self.held(), self._actions))
        return Decision(action, np.eye(len(self._actions), dtype=np.int64)[action])


def make_human(files: Mapping[str, Path], environment: EnvironmentSpec) -> HumanPolicy:
    """Return the person at the keyboard.

    Raises:
        UserError: the game's actions are numbers.
    """
    actions_of(environment)
    assert isinstance(environment.actions, Discrete)
    return HumanPolicy(environment.actions.names)
