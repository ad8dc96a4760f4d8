"""The ``lava-loihi`` backend: stock Lava Processes, one ``Sparse`` and one ``LIF`` a layer, for conformance.

The transduction layer stays on the host, as in every backend. Every stock Process is a process of the
operating system and every synapse is stored by itself, so that this form is for small nets and few frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Literal

import numpy as np
import numpy.typing as npt

from spikestill.common.errors import UserError
from spikestill.deploy.lava.loader import require_loihi2
from spikestill.deploy.lava.lowering import bias_mantissa
from spikestill.deploy.lava.session import LavaSession
from spikestill.deploy.transduction import plan_transduction, transduce_planned
from spikestill.student.integer_net import IntegerNet, check_stack, count_votes

Target = Literal["simulation", "loihi2"]
MAX_PROCESSES = 32
MAX_SYNAPSES = 50_000_000


def check_size(net: IntegerNet) -> None:
    """Raise UserError where stock Processes cannot hold the net: layers, synapses or fan-in."""
    shapes, layers = net.shapes(), len(net.layers) - 1
    remedy = "use the fused Lava backend, which has no such limit"
    if layers == 0:
        raise UserError("the net has only a transduction layer, which stays on the host", remedy)
    if 2 * layers > MAX_PROCESSES:
        raise UserError(
            f"{layers} layers after transduction take {2 * layers} stock Lava Processes, at most "
            f"{MAX_PROCESSES} are started",
            remedy,
        )
    synapses = synapse_count(net)
    if synapses > MAX_SYNAPSES:
        raise UserError(
            f"the net has {synapses} synapses, stock Lava Processes are given at most {MAX_SYNAPSES}", remedy
        )
    for layer, shape in zip(net.layers[1:], shapes[:-1], strict=True):
        bias_mantissa(layer, shape)


def synapse_count(net: IntegerNet) -> int:
    """Return how many synapses stock Processes store: one for each weight that is not 0, at each position."""
    return sum(
        int(np.count_nonzero(layer.weight_OIHW)) * shape[1] * shape[2]
        for layer, shape in zip(net.layers[1:], net.shapes()[1:], strict=True)
    )


class StockLava:
    """An integer net in stock Lava Processes, fixed point; a context manager.

    Args:
        net: the integer net; :func:`check_size` has the limits.
        timeout_s: seconds, for each time step of a request, after which it is an error to have no answer.
        target: ``simulation`` on this machine (``Loihi2SimCfg``), or ``loihi2`` (``Loihi2HwCfg``).

    Raises:
        UserError: Lava, or for ``loihi2`` Intel's compiler, is not installed, or the net is too large.
        LavaError: Lava cannot start.
    """

    def __init__(self, net: IntegerNet, *, timeout_s: float = 10.0, target: Target = "simulation") -> None:
        if target == "loihi2":
            require_loihi2()
        check_size(net)
        self.net = net
        self._shapes = net.shapes()
        self._plan = plan_transduction(net.layers[0], net.input_shape)
        self._timeout_s = timeout_s
        engine = "Loihi2Engine" if target == "loihi2" else "StockEngine"
        self._session = LavaSession(f"spikestill.deploy.lava.engines:{engine}", net)

    def spikes_many(self, stacks: Sequence[npt.NDArray[np.uint8]]) -> list[npt.NDArray[np.uint8]]:
        """Return every layer's spikes for many stacks, one frame a time step, uint8 0/1 (N, O, H, W) each.

        The first layer is the host's. N frames take N + L steps for L layers after transduction.

        Args:
            stacks: N >= 1 uint8 stacks of the net's input shape.

        Raises:
            ValueError: no stack, or one of wrong shape or dtype.
            LavaError: Lava failed (the message says how) or this is closed.
        """
        if len(stacks) == 0:
            raise ValueError("no stack was given, at least one is needed")
        for stack_CHW in stacks:
            check_stack(self.net, stack_CHW)
        host = np.stack([transduce_planned(self._plan, stack_CHW) for stack_CHW in stacks])
        request = np.packbits(host.reshape(len(stacks), -1), axis=1, bitorder="little")
        steps = len(stacks) + len(self._shapes) - 1
        answer = np.frombuffer(self._session.exchange(request.tobytes(), steps * self._timeout_s), np.uint8)
        found, begin = [host], 0
        for shape in self._shapes[1:]:
            size = int(np.prod(shape))
            end = begin + len(stacks) * -(-size // 8)
            packed = answer[begin:end].reshape(len(stacks), -1)
            bits = np.unpackbits(packed, axis=1, count=size, bitorder="little")
            found.append(bits.reshape(len(stacks), *shape))
            begin = end
        return found

    def spikes(self, stack_CHW: npt.NDArray[np.uint8]) -> list[npt.NDArray[np.uint8]]:
        """Return every layer's spikes for one stack, uint8 0/1 (O, H, W) each; see :meth:`spikes_many`."""
        return [layer[0] for layer in self.spikes_many([stack_CHW])]

    def votes(self, stack_CHW: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        """Return the votes of every action, int64 (A,); see :meth:`spikes_many` for errors."""
        return count_votes(self.spikes(stack_CHW)[-1], self.net.actions)

    def close(self) -> None:
        """Stop Lava; calling it again does nothing."""
        self._session.close()

    def __enter__(self) -> StockLava:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
