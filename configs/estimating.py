"""Options of ``spikestill estimate``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

from spikestill.configs.accelerator import ArraySpec
from spikestill.configs.options import Range, Seed
from spikestill.configs.recordings import Recordings


@dataclasses.dataclass(frozen=True, kw_only=True)
class EstimateConfig(Recordings):
    """What a decision of a student costs on TrueNorth and Loihi, or a fixed-point agent on FIXAR's accelerator."""

    student: Path = Path("student.safetensors")
    """The student that ``distill`` wrote."""
    core_map: Path = Path("core_map.h5")
    """The core map that ``map`` wrote of it."""
    buffer: Path | None = None
    """The buffer to take frames from; None: random pixels, whose activity says little about play."""
    also: tuple[Path, ...] = ()
    """Further buffers, of a student's other games: each game that is recorded has its share of the frames."""
    frames: Annotated[int, Range(1, 1e5)] = 200
    """Frames to average over."""
    period_ms: Annotated[float, Range(1e-3, 1e6)] = 66.7
    """Milliseconds between two decisions in real time."""
    agent: Path | None = None
    """A fixed-point agent (``teach --precision fixar``): what it costs on FIXAR's accelerator, and no student."""
    accelerator: ArraySpec = dataclasses.field(default_factory=ArraySpec)
    """The size and speed of that accelerator."""
    seed: Seed = 0
    """Seed of the choice of frames."""
