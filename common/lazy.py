"""Names that a package exports and imports only when they are used, so that ``spikestill --help`` stays fast."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any


def exported(package: str, names: Mapping[str, str], name: str) -> Any:
    """Return what ``package`` exports as ``name``; for its module-level ``__getattr__``.

    Args:
        package: the package's ``__name__``.
        names: exported name to ``module``, or ``module:name`` where it has another name there.
        name: what is asked for.

    Raises:
        AttributeError: it exports no such name.
    """
    if name not in names:
        raise AttributeError(f"module {package!r} has no attribute {name!r}; it exports {', '.join(names)}")
    module, _, inner = names[name].partition(":")
    found = getattr(import_module(f"{package}.{module}"), inner or name)
    setattr(sys.modules[package], name, found)
    return found
