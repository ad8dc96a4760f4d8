"""What the session and its host say to each other over their socket, and what an engine is to the host.

The session sends the pickled argument of the engine, then requests; the host sends a tag and a body: READY with the
names of its shared memory (JSON), ANSWER, or FAILED with what happened (UTF-8), after which it is gone. End of file on
the socket means: stop. This module imports nothing of Lava: both sides, and the Processes, may import it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from lava.magma.core.process.process import AbstractProcess
    from lava.magma.core.run_configs import RunConfig
    from lava.magma.runtime.runtime import Runtime

READY, ANSWER, FAILED = b"R", b"A", b"F"
PIXELS_PER_WORD = 4
"""Pixels in an int32 word of the fused Process."""


class Engine(Protocol):
    """A graph of Lava Processes, and the exchange of one request for one answer.

    An engine waits for Lava on its output ports only, never in a blocking run: where a model raises, a
    blocking run joins the other Processes, which may never end, and reads the exception away from the guard.
    """

    process: AbstractProcess
    run_config: RunConfig

    def start(self, runtime: Runtime) -> None:
        """Begin to run; called once, after the runtime is initialised."""

    def exchange(self, request: bytes) -> bytes:
        """Return the answer to ``request``."""


def stack_words(pixels: int) -> int:
    """Return the words that hold a stack of so many pixels."""
    return -(-pixels // PIXELS_PER_WORD)


def pack_stack(stack_CHW: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
    """Return a stack as int32 words of four pixels each, flat in C order, zeros after the last pixel."""
    flat = np.ascontiguousarray(stack_CHW).reshape(-1)
    filler = np.zeros(-flat.size % PIXELS_PER_WORD, np.uint8)
    return np.concatenate([flat, filler]).view(np.int32)
