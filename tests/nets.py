"""Random integer nets for the tests: real Table 1 geometries and small arbitrary ones."""

from __future__ import annotations

import numpy as np

from spikestill.student.architectures import LayerSpec, architecture
from spikestill.student.integer_net import STACK_SHAPE, IntegerLayer, IntegerNet


def random_net(
    layers: tuple[LayerSpec, ...],
    seed: int,
    *,
    actions: int = 6,
    input_shape: tuple[int, int, int] = STACK_SHAPE,
    density: float = 0.6,
) -> IntegerNet:
    """Return a net with random ternary weights and thresholds that keep about a third of the neurons firing."""
    rng = np.random.default_rng(seed)
    channels, made = input_shape[0], []
    for index, spec in enumerate(layers):
        shape = (spec.features, channels // spec.groups, spec.kernel, spec.kernel)
        weight = rng.choice([-1, 0, 1], size=shape, p=[density / 2, 1 - density, density / 2]).astype(np.int8)
        spread = np.sqrt(density * np.prod(shape[1:])) * (100 if index == 0 else 0.6)
        theta = np.round(rng.normal(0.4 * spread, spread, spec.features)).astype(np.int32)
        made.append(IntegerLayer(weight, theta, spec.stride, spec.pad, spec.groups))
        channels = spec.features
    return IntegerNet(tuple(made), actions, input_shape, "pong")


def table1_net(name: str, seed: int = 0) -> IntegerNet:
    """Return a random net of the Table 1 geometry ``name``."""
    return random_net(architecture(name), seed)


def random_stack(seed: int, shape: tuple[int, int, int] = STACK_SHAPE) -> np.ndarray:
    """Return a random uint8 stack."""
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


# A first layer that leaves pixels out, groups, a spatial kernel, more features than a core has neurons: several cores.
SMALL_LAYERS = (
    LayerSpec(16, 4, 4, -2, 1),
    LayerSpec(48, 3, 1, 1, 4),
    LayerSpec(70, 2, 2, 0, 2),
    LayerSpec(20, 1, 1, 0, 2),
)
SMALL_SHAPE = (2, 24, 24)
SMALL_ON_STACKS = (LayerSpec(16, 8, 8, 0, 1), LayerSpec(32, 3, 2, 1, 2), LayerSpec(24, 5, 1, 0, 8))
"""Three layers that read stacks of 84 x 84."""


def small_net(seed: int) -> IntegerNet:
    """Return a random net that takes a few cores, with three actions."""
    return random_net(SMALL_LAYERS, seed, actions=3, input_shape=SMALL_SHAPE)
