"""Options of ``spikestill export``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from spikestill.configs.accelerator import ArraySpec
from spikestill.configs.options import Range, Seed
from spikestill.configs.recordings import Recordings


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportConfig(Recordings):
    """A student or its core map for other people's simulators and hardware, each with frames and their votes."""

    to: Literal["ranc", "nir", "netx", "c", "rtl"]
    """ranc: the core map and the packets of some frames, for RANC's simulator; nir: a graph of the Neuromorphic
    Intermediate Representation; netx: lava-dl's network exchange format, for Loihi; c: a C99 program without
    allocation; rtl: the core map as SystemVerilog, with memory images and a test bench, or, with ``--agent``, FIXAR's
    accelerator with that agent."""
    student: Path = Path("student.safetensors")
    """The student that ``distill`` wrote, for nir, netx and c."""
    core_map: Path = Path("core_map.h5")
    """The core map that ``map`` wrote, for ranc and rtl."""
    agent: Path | None = None
    """rtl and c: a fixed-point agent (``teach --precision fixar`` or ``fixed32``), instead of a core map or student."""
    accelerator: ArraySpec = dataclasses.field(default_factory=ArraySpec)
    """rtl of an agent: the size of the accelerator."""
    updates: Annotated[int, Range(0, 1000)] = 1
    """rtl of an agent: whole training updates that the test bench plays, after the actions for ``frames`` random
    observations."""
    batch_size: Annotated[int, Range(1, 4096)] = 64
    """rtl of an agent: transitions of such an update, a power of two."""
    buffer: Path | None = None
    """The buffer to take frames from; None: random pixels."""
    also: tuple[Path, ...] = ()
    """Further buffers, of a student's other games: each game that is recorded has its share of the frames."""
    frames: Annotated[int, Range(1, 1e5)] = 4
    """Frames that the export carries with the votes that they must give."""
    seed: Seed = 0
    """Seed of the choice of frames."""
    form: Literal["threshold", "lif"] = "threshold"
    """nir: neurons as Threshold nodes, or as LIF nodes without memory for simulators that read no Threshold."""
    dt: Annotated[float, Range(1e-12, 1e3)] = 1e-4
    """nir, form lif: time step of the simulator that will read it, seconds."""
    kernels: Literal["full", "grouped"] = "full"
    """nir: full kernels, zero where groups do not meet, which every reader takes; grouped ones are smaller, but
    ``nir.read`` 1.0.8 wants ``type_check=False`` for them."""
