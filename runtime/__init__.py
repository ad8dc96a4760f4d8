"""Sessions in real time: emulator, agents, telemetry, display, recording, evaluation."""

from typing import Any

from spikestill.common.lazy import exported

EXPORTS = {
    "Agent": "agents",
    "agent_files": "agents",
    "open_agent": "agents",
}
"""Name to the module that it comes from."""
__all__ = [*EXPORTS]


def __getattr__(name: str) -> Any:
    return exported(__name__, EXPORTS, name)
