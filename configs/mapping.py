"""Options of ``spikestill map``."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from spikestill.common.ranges import check_range
from spikestill.configs.hardware import hardware


@dataclasses.dataclass(frozen=True, kw_only=True)
class MapConfig:
    """A student onto the cores of one target."""

    student: str = ""
    """Path of the student; empty: ``student.safetensors`` in the run's folder."""
    hardware: str = "truenorth"
    """Target: truenorth, ns1e, ns16e, ranc, loihi or loihi2."""
    buffer: Path | None = None
    """Buffer whose frames tell how often each neuron fires, which the placement weighs; None: all alike."""
    frames: int = 200
    """Frames for that, 1..100000."""
    seed: int = 0
    """Seed of the choice of frames, 0..2**31 - 1."""

    def __post_init__(self) -> None:
        hardware(self.hardware)
        check_range(self, "frames", 1, 1e5)
        check_range(self, "seed", 0, 2**31 - 1)
