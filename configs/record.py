"""Options of ``spikestill record``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import ClassVar

from spikestill.common.errors import UserError
from spikestill.common.ranges import check_range
from spikestill.configs.environment import EnvironmentConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordConfig:
    """A teacher plays epsilon-greedily; frames and Q-values are stored (McKinstry 2018: 1M frames, 0.05)."""

    environment: EnvironmentConfig = dataclasses.field(default_factory=EnvironmentConfig)
    """The game; it must be the teacher's."""
    teacher: Path | None = None
    """Teacher file; None: the zoo's for the game."""
    student: Path | None = None
    """Student that plays every second stream, while the Q-values stay the teacher's: what it learns next is what to do
    where its own play leads (DAgger, Ross 2011); None: the teacher plays all."""
    frames: int = 1_000_000
    """Agent steps of all streams to record, 1..1e9, rounded up to whole steps of all streams."""
    epsilon: float = 0.05
    """Probability of a uniformly random action in place of the teacher's, 0..1."""
    epsilon_high: float | None = None
    """The same for the last stream; the streams between lie evenly on a log scale (as in Horgan 2018), which shows a
    student the states that its own mistakes will lead to. 1e-4..1, with ``epsilon`` >= 1e-4; None: all are alike."""
    num_envs: int = 32
    """Streams: games played at a time, 1..1024; two or more are played in two overlapping halves."""
    flush_every: int = 16_384
    """Agent steps between two flushes, >= 1; ``kill -9`` loses at most this many and those being packed."""
    compression: int = 1
    """Deflate level of the frames, 1 (fast) .. 9 (small); lossless."""
    seed: int = 0
    """Seed of games and exploration, 0..2**31 - 1."""

    WITHOUT_EFFECT: ClassVar[tuple[str, ...]] = ("flush_every",)
    """Options that change nothing of what is made."""

    def __post_init__(self) -> None:
        for field, low, high in (
            ("frames", 1, 1e9),
            ("epsilon", 0 if self.epsilon_high is None else 1e-4, 1),
            ("num_envs", 1, 1024),
            ("flush_every", 1, 1e9),
            ("compression", 1, 9),
            ("seed", 0, 2**31 - 1),
        ):
            check_range(self, field, low, high)
        if self.epsilon_high is not None:
            check_range(self, "epsilon_high", 1e-4, 1)
        if self.teacher is not None and Path(self.teacher).suffix != ".safetensors":
            raise UserError(
                f"RecordConfig.teacher is {str(self.teacher)!r}, a teacher is a .safetensors file",
                "give a teacher that `spikestill teach` wrote",
            )
