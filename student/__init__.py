"""Binary-activation, ternary-weight students (McKinstry 2018): layers, losses, distillation, the integer net."""

from typing import Any

from spikestill.common.lazy import exported

EXPORTS = {
    "IntegerNet": "integer_net",
    "IntegerLayer": "integer_net",
    "choose": "integer_net",
    "load_student": "integer_net:load",
    "save_student": "integer_net:save",
    "naive_forward": "integer_net",
}
"""Name to the module that it comes from."""
__all__ = [*EXPORTS]


def __getattr__(name: str) -> Any:
    return exported(__name__, EXPORTS, name)
