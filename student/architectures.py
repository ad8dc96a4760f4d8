"""The four students of McKinstry 2018, Table 1, and one of ours: two of the 1-chip net side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from spikestill.common.errors import UserError, nearest


class LayerSpec(NamedTuple):
    """Geometry of one layer: output features, kernel size, stride, zero padding (< 0: pixels left out), groups."""

    features: int
    kernel: int
    stride: int
    pad: int
    groups: int


MAX_FAN_IN = 128
"""Inputs of a neuron, but for the first layer's, which the host computes: two axons of a core's 256 for each."""


def check_layers(layers: Sequence[LayerSpec], channels: int) -> None:
    """Refuse a chain of layers that cores cannot hold.

    Args:
        layers: geometry, first to last.
        channels: of the input.

    Raises:
        UserError: groups that do not divide a layer's inputs and features, or a fan-in beyond :data:`MAX_FAN_IN`.
    """
    for index, spec in enumerate(layers):
        if channels % spec.groups or spec.features % spec.groups:
            raise UserError(
                f"layer {index}: {spec.groups} groups must divide both {channels} inputs and {spec.features} features",
                "choose a divisor of both",
            )
        fan_in = channels // spec.groups * spec.kernel**2
        if index and fan_in > MAX_FAN_IN:
            raise UserError(
                f"layer {index}: fan-in {fan_in} ({channels // spec.groups} inputs a group, kernel {spec.kernel}), at "
                f"most {MAX_FAN_IN} wanted",
                "use more groups or a smaller kernel in that layer",
            )
        channels = spec.features


def _layers(*rows: tuple[int, int, int, int, int]) -> tuple[LayerSpec, ...]:
    return tuple(LayerSpec(*row) for row in rows)


# fmt: off
ARCHITECTURES: dict[str, tuple[LayerSpec, ...]] = {
    "1chip": _layers(
        (32, 8, 4, 2, 1), (256, 4, 2, 2, 4), (256, 1, 1, 0, 2), (512, 3, 1, 1, 32), (512, 1, 1, 0, 4),
        (1024, 4, 4, 0, 64), (1024, 1, 1, 0, 8), (2048, 2, 1, 0, 32), (2048, 1, 1, 0, 16), (4096, 1, 1, 0, 16),
    ),
    "1chip-wide": _layers(
        (64, 8, 4, 2, 1), (512, 4, 2, 2, 8), (512, 1, 1, 0, 4), (1024, 3, 1, 1, 64), (1024, 1, 1, 0, 8),
        (2048, 4, 4, 0, 128), (2048, 1, 1, 0, 16), (4096, 2, 1, 0, 64), (4096, 1, 1, 0, 32), (8192, 1, 1, 0, 32),
    ),
    "2chip": _layers(
        (32, 8, 4, 2, 1), (256, 4, 2, 2, 4), (256, 1, 1, 0, 2), (256, 1, 1, 0, 2), (512, 3, 1, 1, 32),
        (512, 1, 1, 0, 4), (512, 1, 1, 0, 4), (1024, 4, 3, 0, 64), (1024, 1, 1, 0, 8), (1024, 1, 1, 0, 8),
        (2048, 2, 1, 0, 32), (4096, 1, 1, 0, 16), (4096, 1, 1, 0, 32), (8192, 1, 1, 0, 32),
    ),
    "4chip": _layers(
        (128, 8, 2, 1, 1), (512, 3, 2, 1, 16), (512, 1, 1, 0, 4), (512, 2, 2, 0, 16), (1024, 3, 1, 1, 64),
        (1024, 1, 1, 0, 8), (1024, 2, 2, 0, 32), (2048, 3, 1, 1, 128), (2048, 1, 1, 0, 16), (2048, 2, 2, 0, 64),
        (4096, 2, 1, 0, 128), (4096, 1, 1, 0, 32), (4096, 1, 1, 0, 32), (4096, 1, 1, 0, 32), (8192, 1, 1, 0, 32),
    ),
    "8chip": _layers(
        (256, 8, 2, 1, 1), (1024, 3, 2, 1, 32), (1024, 1, 1, 0, 8), (1024, 2, 2, 0, 32), (2048, 3, 1, 1, 128),
        (2048, 1, 1, 0, 16), (2048, 2, 2, 0, 64), (4096, 3, 1, 1, 256), (4096, 1, 1, 0, 32), (4096, 2, 2, 0, 128),
        (8192, 2, 1, 0, 256), (8192, 1, 1, 0, 64), (8192, 1, 1, 0, 64), (8192, 1, 1, 0, 64), (16384, 1, 1, 0, 64),
    ),
}
# fmt: on
"""``1chip-wide`` has twice the features and groups of ``1chip``, whose 1,886 cores are less than half of a chip's
4,096: it is two such nets that read the same picture and vote together."""
WIDE = "1chip-wide"


def visible_sizes(layers: Sequence[LayerSpec], size: int) -> list[int]:
    """Return how many rows (as many columns) of the input and of each layer's output any vote depends on.

    They are the first ones: strides that do not fit leave the last rows and columns unread. The 1-chip nets
    see 74 of 84 pixels, and need 18, 9, 9, 8, 8, 2, 2, 1, 1, 1 of their layers' 21, 11, 11, 11, 11, 2, 2, 1, 1, 1 rows.

    Args:
        layers: geometry, first to last.
        size: side of the square input.
    """
    sizes = [size]
    for spec in layers:
        sizes.append((sizes[-1] + 2 * spec.pad - spec.kernel) // spec.stride + 1)
    visible = sizes[-1:]
    for spec, inside in zip(reversed(layers), reversed(sizes[:-1]), strict=True):
        visible.append(min(inside, (visible[-1] - 1) * spec.stride + spec.kernel - spec.pad))
    return visible[::-1]


def centred(layers: Sequence[LayerSpec], size: int) -> tuple[LayerSpec, ...]:
    """Return the layers with the first one's padding such that what the net sees lies in the picture's middle.

    The weights, and the neurons that matter, are the same. The 1-chip nets, whose kernels cover 76 pixels a side,
    then see 4..79 of 0..83, not 0..73: their padding of 2 becomes -4. The others see all as published.

    Args:
        layers: geometry, first to last.
        size: side of the square input.
    """
    first = layers[0]
    covered = (visible_sizes(layers, size)[1] - 1) * first.stride + first.kernel
    return (first._replace(pad=-((size - covered) // 2)), *layers[1:])


def architecture(name: str) -> tuple[LayerSpec, ...]:
    """Return the layers of the net called ``name``: ``1chip``, ``2chip``, ``4chip``, ``8chip``, ``1chip-wide``.

    Raises:
        UserError: no such net; the nearest one is named.
    """
    if name not in ARCHITECTURES:
        raise UserError(
            f"unknown architecture {name!r}; known: {', '.join(ARCHITECTURES)}",
            f"did you mean {nearest(name, list(ARCHITECTURES))!r}",
        )
    return ARCHITECTURES[name]
