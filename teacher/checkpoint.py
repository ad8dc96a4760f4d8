"""Two files of the teacher: the artefact (weights in fp16 or fp32) and the training's checkpoint.

Both are safetensors; nothing is ever unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spikestill.common.errors import MALFORMED, UserError
from spikestill.common.provenance import Provenance
from spikestill.common.tensors import read_tensors, write_tensors
from spikestill.teacher.atari import q_network
from spikestill.teacher.atari.q_network import Weights

TEACHER_SCHEMA = "spikestill.teacher"
CHECKPOINT_SCHEMA = "spikestill.teach-checkpoint"
NATURE = "nature"
NATURE_LAYER_NORM = "nature-layer-norm"
NETWORKS = (NATURE, NATURE_LAYER_NORM)
"""Architectures whose weights are known one by one."""
TEACHER_REMEDY = "give a teacher that `spikestill teach` wrote"


def save_teacher(
    path: Path,
    weights: Weights,
    game: str,
    actions: int,
    provenance: Provenance,
    *,
    half: bool = False,
    selected: Mapping[str, Any] | None = None,
) -> None:
    """Write a teacher: the Q-network's weights, in fp16 where ``half``, else fp32.

    Args:
        path: the file.
        weights: of the Nature network, with layer norm or without.
        game: the game in snake case.
        actions: A.
        provenance: what made it.
        half: store in fp16.
        selected: of the best snapshot of a training, its ``step``, ``score`` and the ``games`` it was chosen by.
    """
    dtype = torch.float16 if half else torch.float32
    architecture = NATURE_LAYER_NORM if q_network.is_normalised(weights) else NATURE
    tensors = {name: weight.to(dtype).contiguous() for name, weight in weights.items()}
    write_tensors(
        path, tensors, TEACHER_SCHEMA, provenance,
        net=json.dumps(
            {"game": game, "actions": actions, "architecture": architecture}
            | ({"selected": dict(selected)} if selected else {})
        ),
    )  # fmt: skip


class TeacherFile(NamedTuple):
    """What lies in a teacher's file: tensors, what they are (of ``NETWORKS``, ``onnx``, ``torchscript``), its net."""

    tensors: dict[str, Tensor]
    architecture: str
    game: str
    actions: int
    net: dict[str, Any]
    provenance: Provenance


def read_teacher_file(path: Path, remedy: str = TEACHER_REMEDY) -> TeacherFile:
    """Read a teacher's file of any architecture.

    Raises:
        UserError: the file cannot be read.
    """
    tensors, metadata = read_tensors(path, TEACHER_SCHEMA, remedy)
    try:
        net = json.loads(metadata["net"])
        provenance = Provenance.from_json(metadata["provenance"])
        return TeacherFile(
            tensors, str(net["architecture"]), str(net["game"]), int(net["actions"]), net, provenance
        )
    except MALFORMED as error:
        raise UserError(f"{path}: its description is unreadable: {error}", remedy) from error


def read_teacher(path: Path) -> tuple[Weights, str, int, Provenance]:
    """Read a teacher: (fp32 weights, game, actions, provenance), shapes and values checked.

    Raises:
        UserError: the file cannot be read, is no Nature network, a shape is wrong, or a weight is not finite.
    """
    return nature_network(path, read_teacher_file(path))


def nature_network(path: Path, file: TeacherFile) -> tuple[Weights, str, int, Provenance]:
    """Return (fp32 weights, game, actions, provenance) of the file at ``path``, shapes and values checked.

    Raises:
        UserError: it is no Nature network, a shape is wrong, or a weight is not finite.
    """
    if file.architecture not in NETWORKS:
        raise UserError(
            f"{path}: is an imported program ({file.architecture}), the weights of a Nature network are wanted",
            "it can be recorded, scored and played; distill with --hint_weight 0",
        )
    tensors = file.tensors
    shapes = q_network.shapes(file.actions, layer_norm=file.architecture == NATURE_LAYER_NORM)
    for name in sorted(tensors.keys() - shapes.keys()):
        raise UserError(f"{path}: holds {name}, which no {file.architecture} network has", TEACHER_REMEDY)
    for name, shape in shapes.items():
        if name not in tensors or tuple(tensors[name].shape) != shape:
            found = tuple(tensors[name].shape) if name in tensors else "missing"
            raise UserError(f"{path}: {name} is {found}, shape {shape} wanted", TEACHER_REMEDY)
        if not torch.isfinite(tensors[name]).all():
            raise UserError(f"{path}: {name} holds NaN or infinite values", TEACHER_REMEDY)
    weights = {name: tensors[name].float() for name in shapes}
    return weights, file.game, file.actions, file.provenance
