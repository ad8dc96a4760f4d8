"""Options of every command, hardware limits and recipes."""

from typing import Any

from spikestill.common.lazy import exported

EXPORTS = {
    "DistillConfig": "distill",
    "EnvironmentConfig": "environment",
    "EvaluateConfig": "play",
    "ExportConfig": "exporting",
    "HardwareSpec": "hardware",
    "MapConfig": "mapping",
    "PlayConfig": "play",
    "RecordConfig": "record",
    "RunConfig": "pipeline",
    "TeachConfig": "teach",
    "VerifyConfig": "verify",
    "hardware_preset": "hardware:hardware",
    "load_options": "loading:load",
}
"""Name to the module that it comes from."""
__all__ = [*EXPORTS]


def __getattr__(name: str) -> Any:
    return exported(__name__, EXPORTS, name)
