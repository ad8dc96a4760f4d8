"""Options of the environment, shared by every stage that plays."""

from __future__ import annotations

import dataclasses

from spikestill.common.environment import check_environment
from spikestill.common.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvironmentConfig:
    """The environment that an agent meets; what follows ``game`` is for Atari.

    Sources: Mnih 2015, Methods; Machado 2018 for sticky actions.
    """

    game: str = "pong"
    """Environment in snake case: a game of ale-py, such as ``pong``, or what else is installed."""
    frame_skip: int = 4
    """Emulator frames per decision, 1..16; the last two are max-pooled."""
    sticky: float = 0.0
    """Probability that the emulator repeats the last action, 0..1; 0 is the paper's."""
    noop_max: int = 30
    """No-op actions at the start of a game: 0 to ``noop_max`` - 1, none where it is 0; 0..100."""

    def __post_init__(self) -> None:
        check_environment(self.game)
        if not 1 <= self.frame_skip <= 16:
            raise UserError(f"frame_skip is {self.frame_skip}, its range is 1..16", "give 4, the paper's")
        if not 0.0 <= self.sticky <= 1.0:
            raise UserError(f"sticky is {self.sticky}, its range is 0..1", "give 0 or 0.25")
        if not 0 <= self.noop_max <= 100:
            raise UserError(f"noop_max is {self.noop_max}, its range is 0..100", "give 30, the paper's")
