"""Options of ``spikestill play`` and ``spikestill evaluate``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from spikestill.common import agents
from spikestill.common.errors import UserError
from spikestill.configs.environment import UNREAD, EnvironmentConfig
from spikestill.configs.options import Choices, Options, Range, Seed, Share

MOST_AGENTS = 16
UNREAD_FILES = (*UNREAD, "student", "core_map", "buffer")
"""What control tasks have no use for; agents that want such a file say that they play Atari games."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlayConfig(Options):
    """The game keeps to the wall clock whatever the agent does. In a terminal space pauses (``p`` where ``human``
    plays), and ``q`` ends it."""

    environment: EnvironmentConfig = dataclasses.field(default_factory=EnvironmentConfig)
    """The game; ``frame_skip`` 4 gives 15 decisions a second, 2 the paper's 30, 1 gives 60."""
    agent: Annotated[str, Choices(agents.live_agents, several=True)] = "cores"
    """Who plays; several names with commas between play side by side, each its own game from the same seed."""
    lockstep: bool = False
    """The first agent plays, the others see the same game and say what they would do: agreement is told."""
    teacher: Path | None = None
    """Teacher file; None: the zoo's for the game."""
    student: Path | None = None
    """Student file, for ``lava``; None: the zoo's 1-chip student of the game."""
    core_map: Path | None = None
    """Core map file, for ``cores``; None: the zoo's 1-chip core map of the game."""
    buffer: Path | None = None
    """Buffer on whose frames ``fixed`` and ``fixed8`` are calibrated; None: frames that the teacher plays."""
    seconds: Annotated[float, Range(1e-3, 1e7)] | None = None
    """Wall-clock seconds to play; None: no limit."""
    episodes: Annotated[int, Range(1, 1e6)] | None = None
    """Full games to play; None: no limit, or 1 where ``seconds`` is None too."""
    epsilon: Share = 0.0
    """Probability of a random action in place of the agent's."""
    seed: Seed = 0
    """Seed of the game's start, of sticky actions and of exploration."""
    view: Literal["terminal", "none"] = "terminal"
    """``terminal`` shows the game where standard error is a terminal; ``none`` shows nothing."""
    record: Path | None = None
    """MP4 to write, every frame, or GIF, 12 pictures a second of the first minute; None: no recording."""
    trace: Path | None = None
    """HDF5 to write: seed, actions and spikes, for ``spikestill replay`` and ``compare``; None: none."""
    telemetry: Path | None = None
    """JSON lines to write, one a decision of each agent; None: none."""
    max_speed: bool = False
    """As fast as games and agents go: every decision is waited for, and nothing is missed."""
    serve: bool = False
    """Show the live page: the command prints its address (extra ``serve``)."""
    host: str = "127.0.0.1"
    """Address that the page is served on; any but this machine's own asks viewers for a token."""
    port: Annotated[int, Range(0, 65535)] = 8000
    """Port of the page; 0: any that is free."""
    restarts: Annotated[int, Range(0, 1000)] = 0
    """Times that an agent that raises, hangs or gives an impossible action is made anew."""

    WITHOUT_EFFECT: ClassVar[tuple[str, ...]] = (
        "view",
        "record",
        "trace",
        "telemetry",
        "serve",
        "host",
        "port",
    )
    """Options that change nothing of what is made."""

    def _check(self) -> None:
        if len(self.agents) > MOST_AGENTS:
            raise UserError(
                f"agent names {len(self.agents)} agents, {MOST_AGENTS} is the most",
                "leave some out",
            )
        if self.record is not None and Path(self.record).suffix.lower() not in (".mp4", ".gif"):
            raise UserError(
                f"record is {str(self.record)!r}, only .mp4 and .gif are written",
                "give a name.mp4",
            )

    @property
    def agents(self) -> tuple[str, ...]:
        """The names in ``agent``."""
        return tuple(name.strip() for name in self.agent.split(","))


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateConfig(Options):
    """Beside the agent, random play and the teacher, where there is one, play the same games, unless told otherwise."""

    environment: EnvironmentConfig = dataclasses.field(default_factory=EnvironmentConfig)
    """The game."""
    agent: Annotated[str, Choices(agents.scored_agents)] = "student"
    """Who plays."""
    teacher: Path | None = None
    """Teacher file; None: the zoo's for the game."""
    student: Path | None = None
    """Student file; None: the zoo's 1-chip student of the game."""
    core_map: Path | None = None
    """Core map file, for ``cores``; None: the zoo's 1-chip core map of the game."""
    buffer: Path | None = None
    """Buffer on whose frames ``fixed`` and ``fixed8`` are calibrated; None: frames that the teacher plays."""
    episodes: Annotated[int, Range(1, 1e6)] = 100
    """Full games."""
    epsilon: Share = 0.05
    """Probability of a random action in place of the agent's."""
    compare: bool = True
    """Measure the teacher and random play the same way, for the percentages."""
    scored: Path | None = None
    """File that ``evaluate --agent teacher`` left of the same games: the scores of the teacher and of random play are
    taken from it, and not played again."""
    also_sticky: bool = False
    """Measure once more with sticky actions of 0.25 (Machado 2018), reported beside the rest."""
    num_envs: Annotated[int, Range(1, 1024)] = 32
    """Games played at a time; the scores do not depend on it."""
    seed: Seed = 0
    """Seed of games and exploration."""

    WITHOUT_EFFECT: ClassVar[tuple[str, ...]] = ("num_envs",)
    """Options that change nothing of what is made."""
    NEWER: ClassVar[tuple[str, ...]] = ("scored",)

    def _check(self) -> None:
        if self.scored is None:
            return
        if self.agent in ("teacher", "random"):
            raise UserError(f"agent is {self.agent}, and {self.scored} has its scores", "omit --scored")
        if not self.compare:
            raise UserError(f"compare is false, and nothing is compared with {self.scored}", "omit --scored")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ControlPlayConfig(PlayConfig):
    """Real-time play of a control task at its own decisions a second, whatever the agent does."""

    agent: Annotated[str, Choices(agents.live_agents, several=True)] = "teacher"
    """Who plays: ``teacher``, the file that ``teach`` wrote, or ``random``; several with commas between."""

    UNREAD: ClassVar[tuple[str, ...]] = UNREAD_FILES


@dataclasses.dataclass(frozen=True, kw_only=True)
class ControlEvaluateConfig(EvaluateConfig):
    """The score of a control agent: games from random starts with the mean action."""

    agent: Annotated[str, Choices(agents.scored_agents)] = "teacher"
    """Who plays: ``teacher``, the file that ``teach`` wrote, or ``random``."""
    episodes: Annotated[int, Range(1, 1e6)] = 10
    """Games."""
    epsilon: Share = 0.0
    """Probability of a random action in place of the agent's."""

    UNREAD: ClassVar[tuple[str, ...]] = (*UNREAD_FILES, "scored", "also_sticky")

    def _check(self) -> None:
        if self.also_sticky:
            raise UserError(
                "also_sticky is true, and no control task has sticky actions", "omit --also_sticky"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayConfig(Options):
    """A trace played again: the same actions in the same game, the same or another agent asked at every decision."""

    trace: Path
    """File that ``spikestill play --trace`` wrote."""
    index: Annotated[int, Range(0, 15)] = 0
    """Which of its agents, counted from 0."""
    agent: Annotated[str, Choices(agents.live_agents)] | None = None
    """Who is asked; None: the agent that played."""
    teacher: Path | None = None
    """Teacher file; None: the zoo's for the game."""
    student: Path | None = None
    """Student file; None: the zoo's 1-chip student of the game."""
    core_map: Path | None = None
    """Core map file; None: the zoo's 1-chip core map of the game."""
    buffer: Path | None = None
    """Buffer on whose frames ``fixed`` and ``fixed8`` are calibrated; None: frames that the teacher plays."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompareConfig(Options):
    """Two traces side by side: where their games, decisions and spikes first differ."""

    trace: Path
    """File that ``spikestill play --trace`` wrote."""
    other: Path
    """Another one."""
    index: Annotated[int, Range(0, 15)] = 0
    """Which agent of the first, counted from 0."""
    other_index: Annotated[int, Range(0, 15)] = 0
    """Which agent of the other."""
