"""Route: number destinations across layers and give every path to a layer the same delay.

A layer whose spikes partly pass splitters fires two ticks before its readers integrate: one tick to the
splitter and one from it, or a delay of two for a copy that goes straight. So every frame reaches a layer
in one tick, and a new frame may enter at every tick.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from spikestill.common.errors import UserError
from spikestill.configs.hardware import HardwareSpec
from spikestill.deploy.core_map import NONE
from spikestill.deploy.passes.placement import Placement
from spikestill.deploy.passes.replication import LayerCores


@dataclasses.dataclass(frozen=True, eq=False)
class Routes:
    """Destinations over all cores, and the ticks.

    Attributes:
        tick_L: int32, the tick in which each layer of the net fires, the transduction layer's 0 first.
        dest_core_CN: int32, -1 none.
        delay_CN: uint8, 0 none.
        input_delay: ticks from the host's spikes to the first layer on cores.
    """

    tick_L: npt.NDArray[np.int32]
    dest_core_CN: npt.NDArray[np.int32]
    delay_CN: npt.NDArray[np.uint8]
    input_delay: int


def route(layers: tuple[LayerCores, ...], placement: Placement, spec: HardwareSpec) -> Routes:
    """Return the routes.

    Raises:
        UserError: a destination lies further than the target's largest core offset, or a delay is too long.
    """
    step = spec.min_delay
    if 2 * step > spec.max_delay and any(layer.splits for layer in layers):
        raise UserError(
            f"{spec.name}: a path beside a splitter needs delay {2 * step}, the limit is {spec.max_delay}",
            "choose hardware with longer delays",
        )
    ticks, dest_cores, delays = [0, step], [], []
    for index, layer in enumerate(layers):
        through = 2 * step if layer.splits else step
        ticks.append(ticks[-1] + through)
        driving = layer.dest_core_CN != NONE
        base = np.where(
            layer.to_splitter_CN, placement.first_core_L[index], placement.first_core_L[index + 1]
        )
        dest_cores.append(np.where(driving, layer.dest_core_CN + base, NONE))
        relayed = layer.to_splitter_CN.copy()
        relayed[layer.computing :] = True
        delays.append(np.where(driving, np.where(relayed, step, through), 0))
    routes = Routes(
        tick_L=np.array(ticks[:-1], np.int32),
        dest_core_CN=np.concatenate(dest_cores).astype(np.int32),
        delay_CN=np.concatenate(delays).astype(np.uint8),
        input_delay=step,
    )
    _check_offsets(routes, placement, spec)
    return routes


def _check_offsets(routes: Routes, placement: Placement, spec: HardwareSpec) -> None:
    if spec.max_offset is None:
        return
    across, down = spec.on_grid(placement.chip_C, placement.x_C, placement.y_C)
    core, neuron = np.nonzero(routes.dest_core_CN != NONE)
    dest = routes.dest_core_CN[core, neuron]
    for axis, position in (("x", across), ("y", down)):
        offset = position[dest] - position[core]
        bad = np.flatnonzero(np.abs(offset) > spec.max_offset)
        if bad.size:
            raise UserError(
                f"core {core[bad[0]]}, neuron {neuron[bad[0]]}: its destination lies {offset[bad[0]]} cores "
                f"away in {axis}, {spec.name} reaches {spec.max_offset}",
                "map a smaller student",
            )
