"""A Lava Process that answers a word with itself, and fails in one of many ways at the fatal word."""

from __future__ import annotations

import os
import time

import numpy as np
from lava.magma.core.decorator import implements, requires
from lava.magma.core.model.py.model import PyLoihiProcessModel
from lava.magma.core.model.py.ports import PyInPort, PyOutPort
from lava.magma.core.model.py.type import LavaPyType
from lava.magma.core.process.ports.ports import InPort, OutPort
from lava.magma.core.process.process import AbstractProcess
from lava.magma.core.resources import CPU
from lava.magma.core.sync.protocols.loihi_protocol import LoihiProtocol

FATAL = 13


class UnpicklableError(Exception):
    def __reduce__(self):
        raise TypeError("this exception cannot be pickled")


class NotRebuiltError(Exception):
    def __init__(self, axon, neuron):
        super().__init__(f"axon {axon} of neuron {neuron} melted")


class Faulty(AbstractProcess):
    def __init__(self, fault):
        super().__init__(fault=fault)
        self.words = InPort(shape=(1,))
        self.answers = OutPort(shape=(1,))
        self.words.flag_external_pipe()
        self.answers.flag_external_pipe()


@implements(proc=Faulty, protocol=LoihiProtocol)
@requires(CPU)
class PyFaulty(PyLoihiProcessModel):
    words: PyInPort = LavaPyType(PyInPort.VEC_DENSE, np.int32)
    answers: PyOutPort = LavaPyType(PyOutPort.VEC_DENSE, np.int32)

    def __init__(self, proc_params):
        super().__init__(proc_params)
        self.fault = proc_params["fault"]
        if self.fault == "raise while built":
            raise ValueError("the third axon is missing")
        if self.fault == "die while built":
            os._exit(7)

    def run_spk(self):
        words = self.words.recv()
        if words[0] == FATAL:
            if self.fault == "raise":
                raise ValueError("the third synapse is on fire")
            if self.fault == "raise unpicklable":
                raise UnpicklableError("half a spike")
            if self.fault == "raise not rebuilt":
                raise NotRebuiltError(3, 4)
            if self.fault == "exit":
                os._exit(7)
            if self.fault == "hang":
                time.sleep(3600)
        self.answers.send(words)
