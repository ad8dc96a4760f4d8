"""An engine for the Lava host around a Process that fails; imported in the host only."""

from __future__ import annotations

import numpy as np
from lava.magma.core.run_conditions import RunContinuous, RunSteps
from lava.magma.core.run_configs import Loihi2SimCfg

from tests.lava.processes.faulty import Faulty


class FaultyEngine:
    """Argument: the fault, then ``, stepwise`` where Lava runs one step a request."""

    def __init__(self, argument):
        fault, _, self.mode = argument.partition(", ")
        self.process = Faulty(fault)
        self.run_config = Loihi2SimCfg()

    def start(self, runtime):
        self.runtime = runtime
        if self.mode != "stepwise":
            runtime.start(RunContinuous())

    def exchange(self, request):
        self.process.words.external_pipe_csp_send_port.send(np.frombuffer(request, np.int32))
        if self.mode == "stepwise":
            self.runtime.start(RunSteps(num_steps=1, blocking=False))
        answer = self.process.answers.external_pipe_csp_recv_port.recv().tobytes()
        if self.mode == "stepwise":
            self.runtime.wait()
        return answer
