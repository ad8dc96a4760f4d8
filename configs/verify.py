"""Options of ``spikestill verify``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from spikestill.common.ranges import check_range


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifyConfig:
    """The parity ladder: every way to play a student gives the same spikes, bit for bit."""

    student: Path = Path("student.safetensors")
    """The student that ``distill`` wrote."""
    core_map: Path | None = None
    """The core map that ``map`` wrote; None: the student is mapped to ``truenorth`` for the check."""
    buffer: Path | None = None
    """The buffer that ``record`` wrote, for real frames; None: random frames."""
    frames: int = 1000
    """Frames to compare on, 1..1e7; drawn without repetition from the buffer, all of it if it has fewer."""
    naive_frames: int = 20
    """Frames for the naive NumPy loop, the first of ``frames``, 0..1e7; the 1-chip student takes 0.02 s each; 0 skips
    it."""
    lava_frames: int = 100
    """Frames for the fused Lava backend, the first of ``frames``, 0..1e7; 0 skips it."""
    stock_frames: int = 2
    """Frames for Lava's stock Processes, the first of ``frames``, 0..1e7; 0 skips them."""
    stock_synapses: int = 2_000_000
    """Largest net for Lava's stock Processes, synapses, >= 1: for 11 million (the 1-chip student) they take 2 s to
    start and 30 ms a frame."""
    stock_target: Literal["simulation", "loihi2"] = "simulation"
    """Where Lava's stock Processes run: simulated here, or on Loihi 2, which takes Intel's compiler."""
    seed: int = 0
    """Seed of the choice of frames, 0..2**31 - 1."""

    def __post_init__(self) -> None:
        check_range(self, "frames", 1, 1e7)
        for field in ("naive_frames", "lava_frames", "stock_frames"):
            check_range(self, field, 0, 1e7)
        check_range(self, "stock_synapses", 1, 1e12)
        check_range(self, "seed", 0, 2**31 - 1)
