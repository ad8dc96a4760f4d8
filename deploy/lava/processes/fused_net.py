"""One Lava Process that computes a whole integer net.

The frame arrives on ``stack`` as int32 words of four pixels each (zeros after the last pixel), the votes
leave on ``votes``. The model runs asynchronously: it waits for a frame and for a command at once, so that a
stop is heard while no frame comes.
"""

from __future__ import annotations

import numpy as np
from lava.magma.compiler.channels.pypychannel import CspSelector
from lava.magma.core.decorator import implements, requires
from lava.magma.core.model.py.model import PyAsyncProcessModel
from lava.magma.core.model.py.ports import PyInPort, PyOutPort
from lava.magma.core.model.py.type import LavaPyType
from lava.magma.core.process.ports.ports import InPort, OutPort
from lava.magma.core.process.process import AbstractProcess, ProcessParameters
from lava.magma.core.resources import CPU
from lava.magma.core.sync.protocols.async_protocol import AsyncProtocol

from spikestill.deploy.lava.wire import stack_words
from spikestill.deploy.packed_kernel import PackedNet
from spikestill.student.integer_net import IntegerNet

PIPE_FRAMES = 4


class FusedNet(AbstractProcess):
    """An integer net: int32 words of a stack in, int32 votes (A,) out, both through external pipes.

    Args:
        net: the integer net.
    """

    def __init__(self, net: IntegerNet) -> None:
        super().__init__(net=net)
        self.stack = InPort(shape=(stack_words(int(np.prod(net.input_shape))),))
        self.votes = OutPort(shape=(net.actions,))
        self.stack.flag_external_pipe(buffer_size=PIPE_FRAMES)
        self.votes.flag_external_pipe(buffer_size=PIPE_FRAMES)


@implements(proc=FusedNet, protocol=AsyncProtocol)
@requires(CPU)
class PyFusedNet(PyAsyncProcessModel):
    """Answers every frame with :class:`PackedNet`."""

    stack: PyInPort = LavaPyType(PyInPort.VEC_DENSE, np.int32)
    votes: PyOutPort = LavaPyType(PyOutPort.VEC_DENSE, np.int32)

    def __init__(self, proc_params: ProcessParameters) -> None:
        super().__init__(proc_params)
        net: IntegerNet = proc_params["net"]
        self._shape = net.input_shape
        self._kernel = PackedNet(net)
        # The kernel is compiled here, so that no frame waits for it.
        self._kernel.votes(np.zeros(self._shape, np.uint8))

    def run_async(self) -> None:
        """Answer frames until the runtime sends a command."""
        selector = CspSelector()
        size = int(np.prod(self._shape))
        while selector.select(
            (self.stack.csp_ports[0], lambda: True), (self.service_to_process, lambda: False)
        ):
            stack_CHW = self.stack.recv().view(np.uint8)[:size].reshape(self._shape)
            self.votes.send(self._kernel.votes(stack_CHW).astype(np.int32))
