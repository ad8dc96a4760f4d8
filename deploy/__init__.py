"""From the integer net to neurosynaptic cores: mapper, core simulator, Lava, exports, verification."""

from typing import Any

from spikestill.common.lazy import exported

EXPORTS = {
    "CoreMap": "core_map",
    "CoreSimulator": "simulator",
    "PackedNet": "packed_kernel",
    "export_student": "export:run",
    "load_core_map": "core_map:load",
    "map_net": "mapping",
    "save_core_map": "core_map:save",
    "summarise": "inspection",
}
"""Name to the module that it comes from."""
__all__ = [*EXPORTS]


def __getattr__(name: str) -> Any:
    return exported(__name__, EXPORTS, name)
