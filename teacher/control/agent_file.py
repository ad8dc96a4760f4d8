"""The file of a control agent: its networks in fp32, what they play, and where they come from.

A safetensors file (``common/tensors.py``: schema, version, provenance, hash). Tensors: ``actor.I.weight`` (inputs,
outputs) and ``actor.I.bias`` of each layer, ``critic.N.I.weight`` and so on of the critics. An agent that sees pixels
has ``encoder.I.weight`` (9 C, F; by row, column, channel) of each convolution, and ``actor.head.weight``, ``bias``,
``gain`` and ``offset``, and the critics' as ``critic.head``. ``net`` describes them.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from spikestill.common.environment import Box, EnvironmentSpec
from spikestill.common.errors import UserError, restoring
from spikestill.common.precision.names import check_emulated
from spikestill.common.provenance import Provenance
from spikestill.common.tensors import read_tensors, write_tensors
from spikestill.configs.control import sees_pixels
from spikestill.teacher.control.encoder import EncoderRule

SCHEMA = "spikestill.control-agent"
REMEDY = "give an agent that `spikestill teach` wrote for this task"
ALGORITHMS = ("sac", "ddpg")
HEAD_PARTS = ("weight", "bias", "gain", "offset")
Array = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True)
class PixelEncoder:
    """What an agent that sees pixels has besides.

    Attributes:
        rule: of the encoder.
        convolutions: (weight (9 C, F), bias (F,)) of each.
        actor, critic: weight (X, Z), bias, gain and offset (Z,) of the heads.
    """

    rule: EncoderRule
    convolutions: list[tuple[Array, Array]]
    actor: list[Array]
    critic: list[Array]


@dataclasses.dataclass(frozen=True)
class AgentFile:
    """What lies in the file.

    Attributes:
        environment: name of the task.
        fields: names of its observation's fields in the order in which they are joined, with their sizes.
        low, high: bounds of the actions.
        algorithm: ``sac``, whose actor gives (μ, z), or ``ddpg``, whose actor gives μ.
        precision: number format that it was trained in, and plays in.
        log_std: bounds of log σ.
        std_added: to σ.
        actor: (weight (I, O), bias (O,)) of each layer.
        critics: the same of each critic, which gets (s, a).
        provenance: what made it.
        encoder: where it sees pixels; s is then what its head gives.
    """

    environment: str
    fields: tuple[tuple[str, int], ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    algorithm: str
    precision: str
    log_std: tuple[float, float]
    std_added: float
    actor: list[tuple[Array, Array]]
    critics: list[list[tuple[Array, Array]]]
    provenance: Provenance
    encoder: PixelEncoder | None = None

    def check(self, path: Path, environment: EnvironmentSpec) -> None:
        """Raise UserError unless the agent plays ``environment``."""
        fields = tuple((field.name, int(np.prod(field.shape))) for field in environment.fields)
        actions = environment.actions
        if (self.encoder is not None) != sees_pixels(environment.fields):
            has = "an encoder of pixels" if self.encoder is not None else "no encoder of pixels"
            raise UserError(f"{path}: has {has}, {environment.name} is seen otherwise", REMEDY)
        if self.environment != environment.name or self.fields != fields:
            raise UserError(
                f"{path}: plays {self.environment}, not {environment.name}",
                f"play {self.environment} with it",
            )
        if not isinstance(actions, Box) or (actions.low, actions.high) != (self.low, self.high):
            raise UserError(f"{path}: its actions have other bounds than those of {environment.name}", REMEDY)


def save_agent(
    path: Path,
    weights: Mapping[str, npt.NDArray[np.float32]],
    environment: EnvironmentSpec,
    *,
    algorithm: str,
    precision: str,
    log_std: tuple[float, float],
    provenance: Provenance,
    std_added: float = 0.0,
    encoder: EncoderRule | None = None,
) -> None:
    """Write an agent's file, atomically.

    Args:
        path: the file.
        weights: ``actor.I.weight`` and so on, fp32.
        environment: what it plays.
        algorithm, precision, log_std, std_added: see :class:`AgentFile`.
        encoder: of pixels.
        provenance: what made it.
    """
    assert isinstance(environment.actions, Box)
    net: dict[str, Any] = {
        "environment": environment.name,
        "fields": [[field.name, int(np.prod(field.shape))] for field in environment.fields],
        "low": environment.actions.low,
        "high": environment.actions.high,
        "algorithm": algorithm,
        "precision": precision,
        "log_std": log_std,
        "std_added": std_added,
    }
    if encoder is not None:
        net["encoder"] = dataclasses.asdict(encoder)
    tensors = {name: torch.from_numpy(np.ascontiguousarray(each)) for name, each in weights.items()}
    write_tensors(path, tensors, SCHEMA, provenance, net=json.dumps(net))


def read_agent(path: Path) -> AgentFile:
    """Read what :func:`save_agent` wrote.

    Raises:
        UserError: the file cannot be read, a layer is missing or misshapen, or a weight is not finite.
    """
    tensors, metadata = read_tensors(path, SCHEMA, REMEDY)
    with restoring(path, REMEDY):
        net: dict[str, Any] = json.loads(metadata["net"])
        fields = tuple((str(name), int(size)) for name, size in net["fields"])
        low, high = (tuple(float(value) for value in net[name]) for name in ("low", "high"))
        if net["algorithm"] not in ALGORITHMS or len(low) != len(high) or not low:
            raise ValueError(f"algorithm {net['algorithm']!r} with {len(low)} and {len(high)} bounds")
        encoder = _encoder(tensors, net["encoder"]) if "encoder" in net else None
        observation = sum(size for _, size in fields) if encoder is None else encoder.rule.features
        heads = 2 if net["algorithm"] == "sac" else 1
        actor = _layers(tensors, "actor", observation, heads * len(low))
        count = len({name.split(".")[1] for name in tensors if name.startswith("critic.")} - {"head"})
        critics = [_layers(tensors, f"critic.{index}", observation + len(low), 1) for index in range(count)]
        bounds = (float(net["log_std"][0]), float(net["log_std"][1]))
        added = float(net.get("std_added", 0.0))
        if not all(map(math.isfinite, (*low, *high, *bounds, added))) or bounds[0] > bounds[1] or added < 0:
            raise ValueError(f"bounds {low}, {high}, {bounds}, {added} are not finite and in order")
        check_emulated(str(net["precision"]))
        provenance = Provenance.from_json(metadata["provenance"])
        return AgentFile(
            str(net["environment"]), fields, low, high, net["algorithm"], str(net["precision"]), bounds, added, actor,
            critics, provenance, encoder,
        )  # fmt: skip


def _encoder(tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]) -> PixelEncoder:
    """Return what sees pixels, checked.

    Raises:
        ValueError, TypeError, KeyError: a value or an array is missing or not such as is wanted.
    """
    rule = EncoderRule(**values)
    for field in dataclasses.fields(rule):
        value, wanted = getattr(rule, field.name), bool if field.type == "bool" else int
        if type(value) is not wanted or (wanted is int and not 1 <= value <= 4096):
            raise ValueError(
                f"encoder's {field.name} is {value!r}, {wanted.__name__} wanted, numbers 1..4096"
            )
    convolutions = [
        (
            _array(tensors, f"encoder.{index}.weight", shape),
            _array(tensors, f"encoder.{index}.bias", shape[1:]),
        )
        for index, shape in enumerate(rule.conv_shapes)
    ]
    shapes = [(rule.flat, rule.features), *[(rule.features,)] * 3]
    actor, critic = (
        [_array(tensors, f"{name}.{part}", shape) for part, shape in zip(HEAD_PARTS, shapes, strict=True)]
        for name in ("actor.head", "critic.head")
    )
    return PixelEncoder(rule, convolutions, actor, critic)


def _array(tensors: Mapping[str, torch.Tensor], name: str, shape: tuple[int, ...]) -> Array:
    """Return an array.

    Raises:
        ValueError, KeyError: it is missing, misshapen, not float32 or not finite.
    """
    found: Array = tensors[name].numpy()
    if found.shape != shape or found.dtype != np.float32 or not np.isfinite(found).all():
        raise ValueError(f"{name} is {found.dtype} {found.shape}, finite float32 {shape} wanted")
    return found


def _layers(
    tensors: Mapping[str, torch.Tensor], name: str, inputs: int, outputs: int
) -> list[tuple[Array, Array]]:
    """Return a network's layers, checked.

    Raises:
        ValueError, KeyError: one is missing, misshapen or not finite.
    """
    found: list[tuple[Array, Array]] = []
    width = inputs
    while f"{name}.{len(found)}.weight" in tensors:
        weight_IO, bias_O = (tensors[f"{name}.{len(found)}.{part}"].numpy() for part in ("weight", "bias"))
        if weight_IO.ndim != 2 or weight_IO.shape[0] != width or bias_O.shape != weight_IO.shape[1:]:
            raise ValueError(
                f"{name}.{len(found)} has shapes {weight_IO.shape}, {bias_O.shape}; {width} inputs wanted"
            )
        if weight_IO.dtype != np.float32 or bias_O.dtype != np.float32:
            raise ValueError(f"{name}.{len(found)} is {weight_IO.dtype}, float32 wanted")
        if not (np.isfinite(weight_IO).all() and np.isfinite(bias_O).all()):
            raise ValueError(f"{name}.{len(found)} holds NaN or infinite values")
        width = weight_IO.shape[1]
        found.append((weight_IO, bias_O))
    if not found or width != outputs:
        raise ValueError(f"{name} has {len(found)} layers and {width} outputs, {outputs} wanted")
    return found
