"""A teacher, a student and its core map for the runtime's tests: random weights, real files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import NamedTuple

import torch

from spikestill.common.provenance import Provenance
from spikestill.configs.hardware import hardware
from spikestill.deploy import core_map
from spikestill.deploy.mapping import map_net
from spikestill.student import integer_net
from spikestill.student.integer_net import IntegerNet
from spikestill.teacher.atari.q_network import initial_weights
from spikestill.teacher.checkpoint import save_teacher
from tests.nets import table1_net


class Files(NamedTuple):
    """Paths of the three artefacts, and the net."""

    teacher: Path
    student: Path
    core_map: Path
    net: IntegerNet


def make_files(folder: Path, game: str, actions: int) -> Files:
    """Write a 1-chip student with random weights, its core map and a random teacher for ``game``."""
    net = dataclasses.replace(table1_net("1chip", seed=2), game=game, actions=actions)
    provenance = Provenance.of({}, 0)
    teacher, student, cores = folder / "t.safetensors", folder / "s.safetensors", folder / "c.h5"
    save_teacher(
        teacher, initial_weights(actions, torch.Generator().manual_seed(0)), game, actions, provenance
    )
    integer_net.save(net, student, provenance)
    core_map.save(map_net(net, hardware("ns1e"), provenance, anneal_seconds=0), cores)
    return Files(teacher, student, cores, net)
