"""Options of ``spikestill map``."""

from __future__ import annotations

import dataclasses

from configs.hardware import hardware


@dataclasses.dataclass(frozen=True, kw_only=True)
class MapConfig:
    """A student onto the cores of one target."""

    student: str = ""
    """Path of the student; empty: ``student.safetensors`` in the run's folder."""
    hardware: str = "truenorth"
    """Target: truenorth, ns1e, ns16e, ranc, loihi or loihi2."""

    def __post_init__(self) -> None:
        hardware(self.hardware)
