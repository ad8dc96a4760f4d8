"""Options of ``spikestill verify``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from spikestill.configs.options import Range, Seed
from spikestill.configs.recordings import Recordings


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifyConfig(Recordings):
    """The parity ladder: every way to play a student gives the same spikes, bit for bit."""

    student: Path = Path("student.safetensors")
    """The student that ``distill`` wrote."""
    core_map: Path | None = None
    """The core map that ``map`` wrote; None: the student is mapped to ``truenorth`` for the check."""
    buffer: Path | None = None
    """The buffer that ``record`` wrote, for real frames; None: random frames."""
    also: tuple[Path, ...] = ()
    """Further buffers, of a student's other games: each game that is recorded has its share of the frames."""
    frames: Annotated[int, Range(1, 1e7)] = 1000
    """Frames to compare on, drawn without repetition from the buffers, all of them if they have fewer."""
    naive_frames: Annotated[int, Range(0, 1e7)] = 20
    """Frames for the naive NumPy loop, the first of ``frames``, where games take turns; the 1-chip student takes 0.02 s
    each; 0 skips it."""
    lava_frames: Annotated[int, Range(0, 1e7)] = 100
    """Frames for the fused Lava backend, the first of ``frames``; 0 skips it."""
    stock_frames: Annotated[int, Range(0, 1e7)] = 2
    """Frames for Lava's stock Processes, the first of ``frames``; 0 skips them."""
    stock_synapses: Annotated[int, Range(1, 1e12)] = 2_000_000
    """Largest net for Lava's stock Processes, synapses: for 11 million (the 1-chip student) they take 2 s to
    start and 30 ms a frame."""
    stock_target: Literal["simulation", "loihi2"] = "simulation"
    """Where Lava's stock Processes run: simulated here, or on Loihi 2, which takes Intel's compiler."""
    seed: Seed = 0
    """Seed of the choice of frames."""
