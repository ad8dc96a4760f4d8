"""What runs inside the Lava host: a graph of Processes and how a request passes through it.

This module imports Lava; only ``deploy/lava/host.py`` may import it, once the shim is in place.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from lava.magma.core.run_conditions import RunContinuous, RunSteps
from lava.magma.core.run_configs import Loihi2HwCfg, Loihi2SimCfg, RunConfig
from lava.magma.runtime.runtime import Runtime
from lava.proc.lif.process import LIF
from lava.proc.sparse.process import Sparse

from spikestill.deploy.lava.lowering import bias_mantissa, synapses
from spikestill.deploy.lava.processes.fused_net import FusedNet
from spikestill.student.integer_net import IntegerNet

STEPS_PER_RUN = 16


class FusedEngine:
    """One custom Process under ``RunContinuous``: int32 words of a stack in, int32 votes out.

    Args:
        net: the integer net.
    """

    def __init__(self, net: IntegerNet) -> None:
        self.process = FusedNet(net)
        self.run_config = Loihi2SimCfg()

    def start(self, runtime: Runtime) -> None:
        """Run until stopped."""
        runtime.start(RunContinuous())

    def exchange(self, request: bytes) -> bytes:
        """Return the votes, int32 (A,), of the stack in ``request``, int32 words."""
        self.process.stack.external_pipe_csp_send_port.send(np.frombuffer(request, np.int32))
        return self.process.votes.external_pipe_csp_recv_port.recv().tobytes()


class StockEngine:
    """Stock ``Sparse`` and ``LIF`` Processes for the layers after transduction, in fixed point.

    A connection hands its sums on in the next time step, so that layer l (1 the first) answers the frame of
    step t in step t + l. Frames follow each other, one a step.

    Args:
        net: the integer net, with at least one layer after transduction.
    """

    def __init__(self, net: IntegerNet) -> None:
        shapes = net.shapes()
        self._sizes = [int(np.prod(shape)) for shape in shapes]
        self._connections: list[Sparse] = []
        self._neurons: list[LIF] = []
        for layer, shape in zip(net.layers[1:], shapes[:-1], strict=True):
            bias = bias_mantissa(layer, shape)
            connection = Sparse(weights=2 * synapses(layer, shape), weight_exp=-1, num_message_bits=1)
            neurons = LIF(shape=bias.shape, du=4095, dv=4095, vth=0, bias_mant=bias, bias_exp=6)
            if self._neurons:
                self._neurons[-1].s_out.connect(connection.s_in)
            connection.a_out.connect(neurons.a_in)
            neurons.s_out.flag_external_pipe(buffer_size=STEPS_PER_RUN)
            self._connections.append(connection)
            self._neurons.append(neurons)
        self._connections[0].s_in.flag_external_pipe(buffer_size=STEPS_PER_RUN)
        self.process = self._neurons[0]
        self.run_config: RunConfig = Loihi2SimCfg(select_tag="fixed_pt")

    def start(self, runtime: Runtime) -> None:
        """Keep the runtime; every request runs as many steps as it needs."""
        self._runtime = runtime

    def exchange(self, request: bytes) -> bytes:
        """Return the spikes of every stock layer for the host spikes in ``request``.

        Args:
            request: bits (frames, neurons of layer 0), each frame filled up to whole bytes, low bits first.

        Returns:
            the bits of layer 1, (frames, neurons), likewise, then those of layer 2, and so on.
        """
        packed = np.frombuffer(request, np.uint8).reshape(-1, -(-self._sizes[0] // 8))
        frames, delay = len(packed), len(self._neurons)
        source = self._connections[0].s_in.external_pipe_csp_send_port
        sinks = [neurons.s_out.external_pipe_csp_recv_port for neurons in self._neurons]
        found = [np.zeros((frames, -(-size // 8)), np.uint8) for size in self._sizes[1:]]
        for first in range(0, frames + delay, STEPS_PER_RUN):
            steps = range(first, min(first + STEPS_PER_RUN, frames + delay))
            for step in steps:
                source.send(self._frame(packed, step))
            self._runtime.start(RunSteps(num_steps=len(steps), blocking=False))
            for step in steps:
                for index, sink in enumerate(sinks):
                    spikes, frame = sink.recv(), step - (index + 1)
                    if 0 <= frame < frames:
                        found[index][frame] = np.packbits(spikes.astype(bool), bitorder="little")
            self._runtime.wait()
        return b"".join(layer.tobytes() for layer in found)

    def _frame(self, packed: npt.NDArray[np.uint8], step: int) -> npt.NDArray[np.bool_]:
        """Return the input of a time step: a frame's spikes, none while the last frames pass through."""
        if step >= len(packed):
            return np.zeros(self._sizes[0], bool)
        return np.unpackbits(packed[step], count=self._sizes[0], bitorder="little").astype(bool)


class Loihi2Engine(StockEngine):
    """The same Processes on Loihi 2, where Intel's compiler is installed."""

    def __init__(self, net: IntegerNet) -> None:
        super().__init__(net)
        self.run_config = Loihi2HwCfg()
