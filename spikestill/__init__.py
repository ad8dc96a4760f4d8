"""Spikestill: distil policies into networks that run on neurosynaptic cores, and play them live.

Each stage is a package: ``spikestill.teacher``, ``dataset``, ``student``, ``deploy`` and ``runtime``, over
``spikestill.configs`` and ``spikestill.common``. Each exports the few names that a Python user works with.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib import metadata

        return metadata.version("spikestill")
    raise AttributeError(f"module 'spikestill' has no attribute {name!r}")
