"""Options of ``spikestill record``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, ClassVar

from spikestill.common.errors import UserError
from spikestill.configs.environment import UNREAD, EnvironmentConfig
from spikestill.configs.options import Options, Range, Seed, Share


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordConfig(Options):
    """A teacher plays epsilon-greedily; frames and Q-values are stored (McKinstry 2018: 1M frames, 0.05)."""

    environment: EnvironmentConfig = dataclasses.field(default_factory=EnvironmentConfig)
    """The game; it must be the teacher's."""
    agent: str = "teacher"
    """Who plays: ``teacher``, or an agent that needs no file, such as ``random`` or one of a third party."""
    teacher: Path | None = None
    """Teacher file; None: the zoo's for the game."""
    ensemble: tuple[Path, ...] = ()
    """Further teachers of the game: what is played and written is the mean of all their Q-values, which are of one
    scale where the trainings had the same rewards and discount."""
    student: Path | None = None
    """Student that plays every second stream, while the Q-values stay the teacher's: what it learns next is what to do
    where its own play leads (DAgger, Ross 2011); None: the teacher plays all."""
    frames: Annotated[int, Range(1, 1e9)] = 1_000_000
    """Agent steps of all streams to record, rounded up to whole steps of all streams."""
    epsilon: Share = 0.05
    """Probability of a uniformly random action in place of the teacher's."""
    epsilon_high: Annotated[float, Range(1e-4, 1)] | None = None
    """The same for the last stream; the streams between lie evenly on a log scale (as in Horgan 2018), which shows a
    student the states that its own mistakes will lead to. It wants ``epsilon`` >= 1e-4. None: all are alike."""
    num_envs: Annotated[int, Range(1, 1024)] = 32
    """Streams: games played at a time; two or more are played in two overlapping halves."""
    flush_every: Annotated[int, Range(1, 1e9)] = 16_384
    """Agent steps between two flushes; ``kill -9`` loses at most this many and those being packed."""
    compression: Annotated[int, Range(1, 9)] = 1
    """Deflate level of the frames: 1 is fast, 9 small; lossless."""
    seed: Seed = 0
    """Seed of games and exploration."""

    WITHOUT_EFFECT: ClassVar[tuple[str, ...]] = ("flush_every",)
    """Options that change nothing of what is made."""
    NEWER: ClassVar[tuple[str, ...]] = ("ensemble",)

    def _check(self) -> None:
        if self.epsilon_high is not None and self.epsilon < 1e-4:
            raise UserError(
                f"epsilon is {self.epsilon}, its range is 0.0001..1 with epsilon_high",
                "give --epsilon 1e-4 or more",
            )
        if self.epsilon_high is not None and self.num_envs == 1:
            raise UserError(
                f"epsilon_high is {self.epsilon_high}, of the last of several streams, and num_envs is 1",
                "give --num_envs 2 or more, or leave --epsilon_high out",
            )
        given = [("teacher", self.teacher), *(("ensemble", path) for path in self.ensemble)]
        for option, path in given:
            if path is not None and Path(path).suffix != ".safetensors":
                raise UserError(
                    f"{option} is {str(path)!r}, a teacher is a .safetensors file",
                    "give a teacher that `spikestill teach` wrote",
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ControlRecordConfig(RecordConfig):
    """An agent of a control task plays; what it saw, its actions and the scores that it gave are stored."""

    UNREAD: ClassVar[tuple[str, ...]] = (*UNREAD, "ensemble", "student")
