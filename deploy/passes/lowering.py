"""Lower: an integer net becomes threshold neurons within the target's limits.

The first layer is the transduction layer and stays on the host. A neuron whose threshold makes it
constant (theta > P: never, theta <= -P: always, P = sum |w|) loses its weights, so that nothing feeds it.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from spikestill.common.errors import UserError
from spikestill.configs.hardware import HardwareSpec
from spikestill.deploy.core_map import WORD_BITS
from spikestill.student.integer_net import IntegerLayer, IntegerNet, sum_bound


@dataclasses.dataclass(frozen=True, eq=False)
class LoweredLayer:
    """One layer for the cores.

    Attributes:
        index: its index in the net, >= 1.
        layer: weights and thresholds, constants without weights.
        in_shape: (C, H, W) of its input.
        out_shape: (O, H, W) of its output.
    """

    index: int
    layer: IntegerLayer
    in_shape: tuple[int, int, int]
    out_shape: tuple[int, int, int]

    @property
    def group_inputs(self) -> int:
        """Input channels of one group."""
        return int(self.layer.weight_OIHW.shape[1])

    @property
    def group_features(self) -> int:
        """Output features of one group."""
        return self.layer.features // self.layer.groups


def lower(net: IntegerNet, spec: HardwareSpec) -> tuple[LoweredLayer, ...]:
    """Return the layers that go to the cores, first to last.

    Raises:
        UserError: there is none, or a fan-in, leak or potential exceeds the target's limit.
    """
    if len(net.layers) < 2:
        raise UserError(
            "the net has only the transduction layer, which runs on the host; at least 2 layers are wanted",
            "map a student with layers for the cores",
        )
    if spec.axons % (2 * WORD_BITS):
        raise UserError(
            f"{spec.name} has {spec.axons} axons; core maps hold multiples of {2 * WORD_BITS}",
            "choose another target",
        )
    shapes = net.shapes()
    lowered = []
    for index, layer in enumerate(net.layers):
        if index == 0:
            continue
        if layer.fan_in > spec.max_fan_in:
            raise UserError(
                f"layer {index}: fan-in {layer.fan_in}, {spec.name} holds at most {spec.max_fan_in} "
                f"({spec.axons} axons, two for each ternary input)",
                "use more groups or a smaller kernel in that layer",
            )
        folded = _fold_constants(layer)
        _check_ranges(index, folded, spec)
        lowered.append(LoweredLayer(index, folded, shapes[index - 1], shapes[index]))
    return tuple(lowered)


def _fold_constants(layer: IntegerLayer) -> IntegerLayer:
    bound = sum_bound(layer, first=False)
    never, always = layer.theta_O > bound, layer.theta_O <= -bound
    theta = np.where(never, 1, np.where(always, 0, layer.theta_O)).astype(np.int32)
    weight = np.where((never | always)[:, None, None, None], 0, layer.weight_OIHW).astype(np.int8)
    return dataclasses.replace(layer, weight_OIHW=weight, theta_O=theta)


def _check_ranges(index: int, layer: IntegerLayer, spec: HardwareSpec) -> None:
    """Check -theta against the leak's width, and -P - theta .. P - theta against the potential's."""
    bound, theta = sum_bound(layer, first=False), layer.theta_O.astype(np.int64)
    for quantity, low, high, bits in (
        ("leak", -theta, -theta, spec.leak_bits),
        ("potential", -bound - theta, bound - theta, spec.potential_bits),
    ):
        limit = 1 << (bits - 1)
        bad = np.flatnonzero((low < -limit) | (high >= limit))
        if bad.size:
            feature = int(bad[0])
            raise UserError(
                f"layer {index}, feature {feature}: {quantity} {low[feature]}..{high[feature]}, "
                f"{spec.name} holds {-limit}..{limit - 1} ({bits} bits)",
                "map to hardware with wider neurons",
            )
