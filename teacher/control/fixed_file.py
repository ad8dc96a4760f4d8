"""The file of a fixed-point agent: its whole state, so that it plays, goes on training and runs on the accelerator.

A safetensors file (``common/tensors.py``: schema, version, provenance, hash) of schema ``spikestill.fixed-agent``.
Tensors, for ``actor`` and ``critic``: ``weight_N``, ``target_N``, ``m_N``, ``v_N`` (int32, every layer's weights by
rows, then its biases) and ``range_L2`` (int64, least and largest activation at each layer's input). ``agent`` in the
header has the options, the sizes, the counters and the task.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from spikestill.common.errors import restoring
from spikestill.common.provenance import Provenance
from spikestill.common.tensors import read_tensors, write_tensors
from spikestill.teacher.control import fixed_ddpg
from spikestill.teacher.control.fixed_ddpg import FixedState

SCHEMA = "spikestill.fixed-agent"
REMEDY = "give an agent that `spikestill teach` wrote with --precision fixed32, fixar or fixed16"


class FixedAgent(NamedTuple):
    """What lies in the file."""

    state: FixedState
    environment: str
    provenance: Provenance


def save(path: Path, state: FixedState, environment: str, provenance: Provenance) -> None:
    """Write an agent's file, atomically.

    Args:
        path: the file.
        state: the agent.
        environment: the task that it plays.
        provenance: what made it.
    """
    arrays, plain = fixed_ddpg.to_arrays(state)
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
    header = json.dumps(plain | {"environment": environment})
    write_tensors(path, tensors, SCHEMA, provenance, agent=header)


def read(path: Path) -> FixedAgent:
    """Read what :func:`save` wrote.

    Raises:
        UserError: the file cannot be read, is no fixed-point agent, or an array is missing or misshapen.
    """
    tensors, metadata = read_tensors(path, SCHEMA, REMEDY)
    with restoring(path, REMEDY):
        plain = json.loads(metadata["agent"])
        state = fixed_ddpg.from_arrays({name: tensor.numpy() for name, tensor in tensors.items()}, plain)
        return FixedAgent(state, str(plain["environment"]), Provenance.from_json(metadata["provenance"]))
