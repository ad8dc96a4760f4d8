"""Options of ``spikestill estimate``."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from spikestill.common.ranges import check_range


@dataclasses.dataclass(frozen=True, kw_only=True)
class EstimateConfig:
    """What a decision of a student costs: operations, memory, energy on TrueNorth and Loihi."""

    student: Path = Path("student.safetensors")
    """The student that ``distill`` wrote."""
    core_map: Path = Path("core_map.h5")
    """The core map that ``map`` wrote of it."""
    buffer: Path | None = None
    """The buffer to take frames from; None: random pixels, whose activity says little about play."""
    frames: int = 200
    """Frames to average over, 1..100000."""
    period_ms: float = 66.7
    """Milliseconds between two decisions in real time, > 0."""
    seed: int = 0
    """Seed of the choice of frames, 0..2**31 - 1."""

    def __post_init__(self) -> None:
        check_range(self, "frames", 1, 1e5)
        check_range(self, "period_ms", 1e-3, 1e6)
        check_range(self, "seed", 0, 2**31 - 1)
