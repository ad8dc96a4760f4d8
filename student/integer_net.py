"""The integer net: the one definition of a deployed student, and its file format.

Layer: s = sum w x over a grouped convolution with zero padding, w in {-1, 0, +1};
y = 1 iff s >= theta. The first layer (transduction, on the host) has x in 0..255; every later one
has x in {0, 1}. Output feature i, at every position, votes for action i mod A, for
i < A * floor(F / A); the action is the argmax of the votes, ties to the lowest index.
Source: docs/architecture.md, the exactness contract; McKinstry 2018; Esser 2016.

Axis suffixes: O output features, I input features of a group, C channels, H height, W width,
F features, A actions.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spikestill.common.atari import STACK
from spikestill.common.atomic import write_bytes
from spikestill.common.legal import LegalActions, check_legal, legal_of_plain, legal_to_plain
from spikestill.common.limits import NET_NEURONS, NET_PRODUCTS, NET_VALUES
from spikestill.common.provenance import Provenance, check_content, content_sha256, warn_unchecked
from spikestill.common.tensor_file import open_tensor_file, sort_metadata

SCHEMA = "spikestill.student"
VERSION = 3
SINGLE_GAME_VERSION = 2
"""The last version that knew one game only."""
STACK_SHAPE = (STACK.shape[0], STACK.shape[1], STACK.shape[2])
MAX_PIXEL = 255
MAX_SIDE = 4096
"""Largest height, width, stride and padding, pixels: what lies beyond is a damaged file."""


@dataclasses.dataclass(frozen=True, eq=False)
class IntegerLayer:
    """One grouped convolution with a threshold.

    Attributes:
        weight_OIHW: int8, values -1, 0, +1, shape (O, C_in / groups, K, K), none of them 0.
        theta_O: int32 thresholds, one per output feature; y = 1 iff s >= theta.
        stride: step of the kernel, 1..MAX_SIDE.
        pad: zeros added on every side, at most MAX_SIDE; below zero, in the first layer of a net only: pixels left out
            there.
        groups: divides both C_in and O.
    """

    weight_OIHW: npt.NDArray[np.int8]
    theta_O: npt.NDArray[np.int32]
    stride: int
    pad: int
    groups: int

    def __post_init__(self) -> None:
        weight, theta = self.weight_OIHW, self.theta_O
        if weight.dtype != np.int8 or weight.ndim != 4 or weight.shape[2] != weight.shape[3]:
            raise ValueError(f"weight must be int8 of shape (O, I, K, K), got {weight.dtype} {weight.shape}")
        if theta.dtype != np.int32 or theta.shape != weight.shape[:1]:
            raise ValueError(
                f"theta must be int32 of shape {weight.shape[:1]}, got {theta.dtype} {theta.shape}"
            )
        if not weight.size:
            raise ValueError(f"weight must have at least one value, its shape is {weight.shape}")
        if weight.min() < -1 or weight.max() > 1:
            raise ValueError(f"weights must lie in -1..1, got {weight.min()}..{weight.max()}")
        if not 1 <= self.stride <= MAX_SIDE or abs(self.pad) > MAX_SIDE:
            raise ValueError(
                f"stride {self.stride} (1..{MAX_SIDE}), pad {self.pad} (-{MAX_SIDE}..{MAX_SIDE})"
            )
        if self.groups < 1 or weight.shape[0] % self.groups:
            raise ValueError(f"groups {self.groups} (must divide {weight.shape[0]} features)")

    @property
    def features(self) -> int:
        """Output features O."""
        return int(self.weight_OIHW.shape[0])

    @property
    def in_channels(self) -> int:
        """Input features C_in of all groups."""
        return int(self.weight_OIHW.shape[1]) * self.groups

    @property
    def kernel(self) -> int:
        """Kernel size K, pixels."""
        return int(self.weight_OIHW.shape[2])

    @property
    def fan_in(self) -> int:
        """Inputs of one neuron, C_in / groups * K * K."""
        return int(np.prod(self.weight_OIHW.shape[1:]))

    def output_shape(self, shape_CHW: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return the (O, H, W) that an input of ``shape_CHW`` gives.

        Raises:
            ValueError: the channels differ from the layer's, or the kernel does not fit.
        """
        channels, height, width = shape_CHW
        if channels * (height + 2 * max(0, self.pad)) * (width + 2 * max(0, self.pad)) > NET_VALUES:
            raise ValueError(
                f"its input of {channels}x{height}x{width}, padded by {self.pad}, has more than {NET_VALUES:,} values"
            )
        if channels != self.in_channels:
            raise ValueError(f"layer reads {self.in_channels} channels, its input has {channels}")
        out = [(size + 2 * self.pad - self.kernel) // self.stride + 1 for size in (height, width)]
        if min(height, width) + 2 * self.pad < self.kernel:
            raise ValueError(
                f"kernel {self.kernel} exceeds the padded input {height}x{width} (pad {self.pad})"
            )
        if self.features * out[0] * out[1] > NET_VALUES:
            raise ValueError(
                f"its output of {self.features}x{out[0]}x{out[1]} has more than {NET_VALUES:,} values"
            )
        return self.features, out[0], out[1]


@dataclasses.dataclass(frozen=True, eq=False)
class IntegerNet:
    """A student as it is deployed: layers, the number of actions, and the input's shape.

    Attributes:
        layers: at least one; the first is the transduction layer.
        actions: A, the number of actions, 1..features of the last layer.
        input_shape: (C, H, W) of the uint8 input, oldest frame first.
        game: the game in snake case, several joined by ``+``, '' where there is none.
        legal: which of the actions each game takes, where there are several games; () for one.
    """

    layers: tuple[IntegerLayer, ...]
    actions: int
    input_shape: tuple[int, int, int] = STACK_SHAPE
    game: str = ""
    legal: tuple[LegalActions, ...] = ()

    def __post_init__(self) -> None:
        check_legal(self.legal, self.game, self.actions)
        if not self.layers:
            raise ValueError("an integer net needs at least one layer")
        check_input_shape(self.input_shape)
        sizes = [math.prod(shape) for shape in self.shapes()]
        products = sum(size * layer.fan_in for size, layer in zip(sizes, self.layers, strict=True))
        if sum(sizes) > NET_NEURONS or products > NET_PRODUCTS:
            raise ValueError(
                f"{sum(sizes):,} neurons that read {products:,} weights, at most {NET_NEURONS:,} and {NET_PRODUCTS:,}"
            )
        if not 1 <= self.actions <= self.layers[-1].features:
            raise ValueError(f"{self.actions} actions for {self.layers[-1].features} output features")

    def shapes(self) -> list[tuple[int, int, int]]:
        """Return the (O, H, W) of every layer's output, first to last.

        Raises:
            ValueError: a layer does not fit its input; the layer is named.
        """
        found: list[tuple[int, int, int]] = []
        shape = self.input_shape
        for index, layer in enumerate(self.layers):
            if index and layer.pad < 0:
                raise ValueError(f"layer {index}: pad {layer.pad}, only the first layer's may be below zero")
            try:
                shape = layer.output_shape(shape)
            except ValueError as error:
                raise ValueError(f"layer {index}: {error}") from error
            found.append(shape)
        return found

    def neurons(self) -> int:
        """Return the number of neurons of all layers, the transduction layer among them."""
        return sum(int(np.prod(shape)) for shape in self.shapes())


def check_input_shape(shape_CHW: tuple[int, ...]) -> None:
    """Raise ValueError unless ``shape_CHW`` is three positive integers, height and width at most MAX_SIDE."""
    if (
        len(shape_CHW) != 3
        or not all(isinstance(size, int | np.integer) and size >= 1 for size in shape_CHW)
        or max(shape_CHW[1:]) > MAX_SIDE
    ):
        raise ValueError(
            f"input shape {shape_CHW}, (C, H, W) of integers >= 1 wanted, H and W at most {MAX_SIDE}"
        )


def sum_bound(layer: IntegerLayer, *, first: bool) -> npt.NDArray[np.int64]:
    """Return P, the largest possible |s| of every output feature, shape (O,): x_max * sum |w|."""
    scale = MAX_PIXEL if first else 1
    return scale * np.abs(layer.weight_OIHW.astype(np.int64)).sum(axis=(1, 2, 3))


def effective_theta(layer: IntegerLayer, *, first: bool) -> npt.NDArray[np.int64]:
    """Return the thresholds where they matter, theta clamped to [-P, P + 1], shape (O,): the spikes are the same."""
    bound = sum_bound(layer, first=first)
    return np.clip(layer.theta_O.astype(np.int64), -bound, bound + 1)


def layer_sums(layer: IntegerLayer, x_CHW: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Return s = sum w x as int64 (O, H, W): the naive reference, a loop over output positions.

    Args:
        layer: the layer.
        x_CHW: uint8 input, (C, H, W).
    """
    features, height, width = layer.output_shape(tuple(x_CHW.shape))  # type: ignore[arg-type]
    zeros, left_out = max(layer.pad, 0), max(-layer.pad, 0)
    inner = x_CHW[:, left_out : x_CHW.shape[1] - left_out, left_out : x_CHW.shape[2] - left_out]
    padded = np.pad(inner.astype(np.int64), ((0, 0), (zeros, zeros), (zeros, zeros)))
    per_in, per_out = layer.in_channels // layer.groups, features // layer.groups
    weight = layer.weight_OIHW.astype(np.int64).reshape(layer.groups, per_out, -1)
    sums = np.empty((features, height, width), np.int64)
    for row in range(height):
        for column in range(width):
            top, left = row * layer.stride, column * layer.stride
            patch = padded[:, top : top + layer.kernel, left : left + layer.kernel]
            patch = patch.reshape(layer.groups, per_in * layer.kernel**2)
            sums[:, row, column] = np.einsum("goi,gi->go", weight, patch).reshape(features)
    return sums


def naive_layer(layer: IntegerLayer, x_CHW: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return y = 1 iff s >= theta, uint8 (O, H, W)."""
    return (layer_sums(layer, x_CHW) >= layer.theta_O[:, None, None]).astype(np.uint8)


def naive_forward(net: IntegerNet, stack_CHW: npt.NDArray[np.uint8]) -> list[npt.NDArray[np.uint8]]:
    """Return every layer's spikes, first to last: the first rung of the parity ladder.

    Args:
        net: the integer net.
        stack_CHW: uint8 input of ``net.input_shape``.

    Raises:
        ValueError: wrong shape or dtype.
    """
    check_stack(net, stack_CHW)
    spikes: list[npt.NDArray[np.uint8]] = []
    x = stack_CHW
    for layer in net.layers:
        x = naive_layer(layer, x)
        spikes.append(x)
    return spikes


def check_stack(net: IntegerNet, stack: npt.NDArray[np.uint8]) -> None:
    """Raise ValueError unless ``stack`` is uint8 of the net's input shape."""
    if stack.dtype != np.uint8 or tuple(stack.shape) != tuple(net.input_shape):
        raise ValueError(f"input must be uint8 of shape {net.input_shape}, got {stack.dtype} {stack.shape}")


def count_votes(spikes_OHW: npt.NDArray[np.uint8], actions: int) -> npt.NDArray[np.int64]:
    """Return votes (A,): feature i votes for action i mod A at every position, i < A * floor(F / A).

    Source: Esser 2016 (EEDN prediction layer).
    """
    per_feature = spikes_OHW.reshape(spikes_OHW.shape[0], -1).sum(axis=1, dtype=np.int64)
    used = actions * (len(per_feature) // actions)
    return per_feature[:used].reshape(-1, actions).sum(axis=0)


def choose(votes_A: npt.NDArray[np.int64]) -> int:
    """Return the argmax of the votes; ties go to the lowest index."""
    return int(np.argmax(votes_A))


def pack_ternary(weight: npt.NDArray[np.int8]) -> npt.NDArray[np.uint8]:
    """Return ternary weights as 2 bits each (0: 0, 1: +1, 2: -1), four a byte, low bits first, flat."""
    codes = (weight.reshape(-1).astype(np.int16) % 3).astype(np.uint8)
    quads = np.concatenate([codes, np.zeros(-len(codes) % 4, np.uint8)]).reshape(-1, 4)
    return (quads << np.array([0, 2, 4, 6], np.uint8)).sum(axis=1).astype(np.uint8)


def unpack_ternary(packed: npt.NDArray[np.uint8], shape: tuple[int, ...]) -> npt.NDArray[np.int8]:
    """Return the int8 weights of ``shape`` that :func:`pack_ternary` packed.

    Raises:
        ValueError: the length does not fit the shape, or a code is 3.
    """
    size = math.prod(shape)
    if min(shape, default=1) < 1 or len(packed) != -(-size // 4):
        raise ValueError(f"{len(packed)} bytes of packed weights for shape {shape}, {-(-size // 4)} wanted")
    codes = ((packed[:, None] >> np.array([0, 2, 4, 6], np.uint8)) & 3).reshape(-1)[:size]
    if (codes == 3).any():
        raise ValueError("a packed weight has the unused code 3")
    return np.array([0, 1, -1], np.int8)[codes].reshape(shape)


def save(net: IntegerNet, path: Path, provenance: Provenance) -> None:
    """Write the net to a safetensors file, weights packed to 2 bits, atomically.

    Tensors ``layer.N.weight`` (uint8, packed) and ``layer.N.theta`` (int32); the metadata's ``net``
    holds the geometry, ``schema``, ``version`` and ``provenance`` the rest, ``sha256`` the hash of all of it.
    """
    from safetensors.numpy import save as serialise

    tensors: dict[str, np.ndarray] = {}
    geometry = []
    for index, layer in enumerate(net.layers):
        tensors[f"layer.{index}.weight"] = pack_ternary(layer.weight_OIHW)
        tensors[f"layer.{index}.theta"] = layer.theta_O
        geometry.append(
            {
                "shape": list(layer.weight_OIHW.shape),
                "stride": layer.stride,
                "pad": layer.pad,
                "groups": layer.groups,
            }
        )
    description = {
        "layers": geometry,
        "actions": net.actions,
        "input_shape": list(net.input_shape),
        "game": net.game,
    }
    if net.legal:
        description["games"] = legal_to_plain(net.legal)
    texts = json.dumps(description), provenance.to_json()
    metadata = {
        "schema": SCHEMA,
        # What has one game is written as before, for programs that know no others.
        "version": str(VERSION if net.legal else SINGLE_GAME_VERSION),
        "net": texts[0],
        "provenance": texts[1],
        "sha256": content_sha256(texts, tensors),
    }
    write_bytes(path, sort_metadata(serialise(tensors, metadata=metadata)))


def load(path: Path) -> tuple[IntegerNet, Provenance]:
    """Read a net and its provenance, checking schema, version, hash (from version 2 on), shapes, dtypes and ranges.

    Raises:
        UserError: the file is missing, truncated, foreign, newer, altered, or holds an impossible net.
    """
    path = Path(path)
    remedy = "give a student that `spikestill distill` wrote"
    with open_tensor_file(path, SCHEMA, VERSION, remedy, noun="student") as (file, metadata):
        if int(metadata["version"]) == 1:
            warn_unchecked(path)
        else:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            check_content((metadata["net"], metadata["provenance"]), tensors, metadata["sha256"])
        description = json.loads(metadata["net"])
        net = IntegerNet(
            layers=tuple(_read_layers(file, description["layers"])),
            actions=int(description["actions"]),
            input_shape=tuple(map(int, description["input_shape"])),  # type: ignore[arg-type]
            game=str(description["game"]),
            legal=legal_of_plain(description.get("games")),
        )
        return net, Provenance.from_json(metadata["provenance"])


def _read_layers(file: object, geometry: list[dict[str, object]]) -> Iterator[IntegerLayer]:
    for index, entry in enumerate(geometry):
        packed = file.get_tensor(f"layer.{index}.weight")  # type: ignore[attr-defined]
        theta = file.get_tensor(f"layer.{index}.theta")  # type: ignore[attr-defined]
        shape = tuple(int(size) for size in entry["shape"])  # type: ignore[attr-defined]
        if packed.dtype != np.uint8 or packed.ndim != 1:
            raise ValueError(f"layer {index}: packed weights must be flat uint8, got {packed.dtype}")
        yield IntegerLayer(
            weight_OIHW=unpack_ternary(packed, shape),
            theta_O=theta,
            stride=int(entry["stride"]),  # type: ignore[call-overload]
            pad=int(entry["pad"]),  # type: ignore[call-overload]
            groups=int(entry["groups"]),  # type: ignore[call-overload]
        )
