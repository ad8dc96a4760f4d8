"""Options of ``spikestill map``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

from spikestill.configs.hardware import PRESETS
from spikestill.configs.options import Choices, Range, Seed
from spikestill.configs.recordings import Recordings


@dataclasses.dataclass(frozen=True, kw_only=True)
class MapConfig(Recordings):
    """A student onto the cores of one target."""

    student: Path = Path("student.safetensors")
    """The student that ``distill`` wrote."""
    hardware: Annotated[str, Choices(PRESETS)] = "truenorth"
    """Target, a preset of configs/hardware.py."""
    buffer: Path | None = None
    """Buffer whose frames tell how often each neuron fires, which the placement weighs; None: all alike."""
    also: tuple[Path, ...] = ()
    """Further buffers, of a student's other games: each game that is recorded has its share of the frames."""
    frames: Annotated[int, Range(1, 1e5)] = 200
    """Frames for that."""
    seed: Seed = 0
    """Seed of the choice of frames."""
    anneal_seconds: Annotated[float, Range(0, 86400)] = 60.0
    """Most seconds that moving cores nearer to each other may take, 0: they stay as first placed. A student of a few
    thousand cores takes less; where time cuts it short, the placement depends on the machine."""
