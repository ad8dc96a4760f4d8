"""What every stage shares and no option is: contracts, artefact files, errors, progress, processor, number formats."""

from typing import Any

from spikestill.common.lazy import exported

EXPORTS = {
    "Box": "environment",
    "Decision": "policy",
    "Discrete": "environment",
    "EnvironmentSpec": "environment",
    "Field": "environment",
    "Policy": "policy",
    "AgentEntry": "agents",
    "UserError": "errors",
    "register_agent": "agents:register",
    "register_environment": "environment:register",
    "zoo_path": "zoo",
}
"""Name to the module that it comes from."""
__all__ = [*EXPORTS]


def __getattr__(name: str) -> Any:
    return exported(__name__, EXPORTS, name)
