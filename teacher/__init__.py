"""Full-precision teachers: double DQN and PQN on Atari games, imported agents, their policies and scores."""

from typing import Any

from spikestill.common.lazy import exported

EXPORTS = {
    "TeacherPolicy": "policy",
    "load_teacher": "policy",
    "evaluate": "evaluation",
}
"""Name to the module that it comes from."""
__all__ = [*EXPORTS]


def __getattr__(name: str) -> Any:
    return exported(__name__, EXPORTS, name)
