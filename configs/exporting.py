"""Options of ``spikestill export``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from spikestill.common.ranges import check_range


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """A student or its core map for other people's simulators and hardware, each with frames and their votes."""

    to: Literal["ranc", "nir", "netx", "c"]
    """ranc: the core map and the packets of some frames, for RANC's simulator; nir: a graph of the Neuromorphic
    Intermediate Representation; netx: lava-dl's network exchange format, for Loihi; c: a C99 program without
    allocation."""
    student: Path = Path("student.safetensors")
    """The student that ``distill`` wrote, for nir, netx and c."""
    core_map: Path = Path("core_map.h5")
    """The core map that ``map`` wrote, for ranc."""
    buffer: Path | None = None
    """The buffer to take frames from; None: random pixels."""
    frames: int = 4
    """Frames that the export carries with the votes that they must give, 1..100000."""
    seed: int = 0
    """Seed of the choice of frames, 0..2**31 - 1."""
    form: Literal["threshold", "lif"] = "threshold"
    """nir: neurons as Threshold nodes, or as LIF nodes without memory for simulators that read no Threshold."""
    dt: float = 1e-4
    """nir, form lif: time step of the simulator that will read it, seconds, > 0."""
    kernels: Literal["full", "grouped"] = "full"
    """nir: full kernels, zero where groups do not meet, which every reader takes; grouped ones are smaller, but
    ``nir.read`` 1.0.8 wants ``type_check=False`` for them."""

    def __post_init__(self) -> None:
        check_range(self, "frames", 1, 1e5)
        check_range(self, "seed", 0, 2**31 - 1)
        check_range(self, "dt", 1e-12, 1e3)
