"""The ``lava`` backend: a whole integer net in one Lava Process, fast enough to play live."""

from __future__ import annotations

from types import TracebackType

import numpy as np
import numpy.typing as npt

from spikestill.deploy.lava.session import LavaSession
from spikestill.deploy.lava.wire import pack_stack
from spikestill.student.integer_net import IntegerNet, check_stack


class FusedLava:
    """An integer net played by Lava under ``RunContinuous``; a context manager.

    Lava runs in an interpreter of its own, so that it does not matter what this one has imported or used
    before. Starting takes about a second and ends with the kernel compiled and warm.

    Args:
        net: the integer net, of any size.
        timeout_s: seconds after which a frame without an answer is an error.

    Raises:
        UserError: Lava is not installed; the message has the command.
        LavaError: Lava cannot start.
    """

    def __init__(self, net: IntegerNet, *, timeout_s: float = 30.0) -> None:
        self.net = net
        self._timeout_s = timeout_s
        self._session = LavaSession("spikestill.deploy.lava.engines:FusedEngine", net)

    def votes(self, stack_CHW: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        """Return the votes of every action, int64 (A,).

        Args:
            stack_CHW: uint8 of the net's input shape.

        Raises:
            ValueError: wrong shape or dtype.
            LavaError: Lava failed (the message says how) or this is closed.
        """
        check_stack(self.net, stack_CHW)
        answer = self._session.exchange(pack_stack(stack_CHW).tobytes(), self._timeout_s)
        return np.frombuffer(answer, np.int32).astype(np.int64)

    def close(self) -> None:
        """Stop Lava; calling it again does nothing."""
        self._session.close()

    def __enter__(self) -> FusedLava:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
