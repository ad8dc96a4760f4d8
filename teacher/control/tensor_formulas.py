"""``formulas.py`` on tensors of a native format: each operation of the mathematics is one of PyTorch's.

PyTorch computes an elementwise operation of fp16 or bf16 numbers in fp32 and rounds its result, on a GPU as on a CPU.
So the functions need no rounding of their own there: they are the same code, in whose names ``exp`` is PyTorch's.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from spikestill.teacher.control import formulas


def _pick(condition: Any, yes: Any, no: Any) -> Any:
    return torch.where(condition, yes, no)


def _rounded(x: Any, q: Any) -> Any:
    return x


_REPLACED = {
    "exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt, "tanh": torch.tanh, "pick": _pick, "rounded": _rounded
}  # fmt: skip


def on_tensors() -> dict[str, Callable[..., Any]]:
    """Return the functions of ``formulas.py`` by name, for tensors of one format; their argument ``q`` is not read."""
    names: dict[str, Any] = dict(vars(formulas))
    compiled = {name: value.py_func for name, value in names.items() if hasattr(value, "py_func")}
    for name, function in compiled.items():
        names[name] = types.FunctionType(function.__code__, names, name, function.__defaults__)
    names |= _REPLACED
    return {name: names[name] for name in compiled}
