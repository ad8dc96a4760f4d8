"""The teacher's play as a buffer of frames and Q-values: the HDF5 format, its recorder and its reader.

``dataset.recorder.run`` writes a buffer, ``dataset.reader.BufferReader`` reads one, ``dataset.format``
defines the file (docs/dataset.md), ``dataset.journal`` makes its flushes all-or-nothing.
"""

from typing import Any

from spikestill.common.lazy import exported

EXPORTS = {
    "BufferReader": "reader",
}
"""Name to the module that it comes from."""
__all__ = [*EXPORTS]


def __getattr__(name: str) -> Any:
    return exported(__name__, EXPORTS, name)
