"""Options of ``spikestill play`` and ``spikestill evaluate``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Literal

from spikestill.common import agents
from spikestill.common.errors import UserError
from spikestill.common.ranges import check_range
from spikestill.configs.environment import EnvironmentConfig

Choices = Mapping[str, Callable[[], Mapping[str, str]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlayConfig:
    """Real-time play: 60 emulator frames a second of wall clock, whatever the agent does."""

    environment: EnvironmentConfig = dataclasses.field(default_factory=EnvironmentConfig)
    """The game; ``frame_skip`` 4 gives 15 decisions a second, 2 the paper's 30, 1 gives 60."""
    agent: str = "cores"
    """Who plays."""
    teacher: Path | None = None
    """Teacher file; None: the zoo's for the game."""
    student: Path | None = None
    """Student file, for ``lava``; None: the zoo's 1-chip student of the game."""
    core_map: Path | None = None
    """Core map file, for ``cores``; None: the zoo's 1-chip core map of the game."""
    seconds: float | None = None
    """Wall-clock seconds to play, > 0; None: no limit."""
    episodes: int | None = None
    """Full games to play, >= 1; None: no limit, or 1 where ``seconds`` is None too."""
    epsilon: float = 0.0
    """Probability of a random action in place of the agent's, 0..1."""
    seed: int = 0
    """Seed of the game's start, of sticky actions and of exploration, 0..2**31 - 1."""
    view: Literal["terminal", "none"] = "terminal"
    """``terminal`` shows the game where standard error is a terminal; ``none`` shows nothing."""
    record: Path | None = None
    """MP4 to write, every frame of the screen beside the agent's panel; None: no recording."""

    WITHOUT_EFFECT: ClassVar[tuple[str, ...]] = ("view", "record")
    """Options that change nothing of what is made."""
    CHOICES: ClassVar[Choices] = {"agent": agents.live_agents}
    """Option to what lists its values for ``--help``."""

    def __post_init__(self) -> None:
        agents.agent(self.agent)
        if self.seconds is not None:
            check_range(self, "seconds", 1e-3, 1e7)
        if self.episodes is not None:
            check_range(self, "episodes", 1, 1e6)
        check_range(self, "epsilon", 0, 1)
        check_range(self, "seed", 0, 2**31 - 1)
        if self.record is not None and Path(self.record).suffix.lower() != ".mp4":
            raise UserError(
                f"PlayConfig.record is {str(self.record)!r}, only .mp4 is written", "give a name.mp4"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """The score of an agent over full games, as fast as the machine goes."""

    environment: EnvironmentConfig = dataclasses.field(default_factory=EnvironmentConfig)
    """The game."""
    agent: str = "student"
    """Who plays."""
    teacher: Path | None = None
    """Teacher file; None: the zoo's for the game."""
    student: Path | None = None
    """Student file; None: the zoo's 1-chip student of the game."""
    core_map: Path | None = None
    """Core map file, for ``cores``; None: the zoo's 1-chip core map of the game."""
    episodes: int = 100
    """Full games, 1..1e6."""
    epsilon: float = 0.05
    """Probability of a random action in place of the agent's, 0..1."""
    compare: bool = True
    """Measure the teacher and random play the same way, for the percentages."""
    also_sticky: bool = False
    """Measure once more with sticky actions of 0.25 (Machado 2018), reported beside the rest."""
    num_envs: int = 32
    """Games played at a time, 1..1024; the scores do not depend on it."""
    seed: int = 0
    """Seed of games and exploration, 0..2**31 - 1."""

    WITHOUT_EFFECT: ClassVar[tuple[str, ...]] = ("num_envs",)
    """Options that change nothing of what is made."""
    CHOICES: ClassVar[Choices] = {"agent": agents.scored_agents}
    """Option to what lists its values for ``--help``."""

    def __post_init__(self) -> None:
        agents.agent(self.agent)
        check_range(self, "episodes", 1, 1e6)
        check_range(self, "epsilon", 0, 1)
        check_range(self, "num_envs", 1, 1024)
        check_range(self, "seed", 0, 2**31 - 1)
