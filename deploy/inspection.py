"""What is in a core map, as data: a row per layer, a row per chip."""

from __future__ import annotations

from typing import Any

import numpy as np

from spikestill.deploy.core_map import NONE, CoreMap


def summarise(core_map: CoreMap) -> dict[str, Any]:
    """Return the map's figures as plain JSON values.

    Keys: ``hardware``, ``cores``, ``cores_available``, ``chips``, ``ticks``, ``crossbars`` (distinct
    ones), ``layers`` and ``per_chip``. A layer has ``layer``, ``shape`` (O, H, W), ``tick``, ``cores``,
    ``splitters`` (among the cores), ``neurons`` (distinct ones that live), ``copies`` (neurons beyond
    those), ``axons`` (driven), ``axon_use`` and ``neuron_use`` (shares of what its cores have, 0..1). A
    chip has ``chip``, ``cores``, ``core_use`` and ``links_out`` (neurons that drive an axon of another chip).
    """
    spec, used = core_map.spec, core_map.used_CN
    driven = core_map.driven_CA
    layers = []
    for index, shape in enumerate(core_map.layer_shape_L3.tolist()):
        mine = core_map.core_layer_C == index
        cores, filled = int(mine.sum()), int(used[mine].sum())
        identity = (core_map.feature_CN[mine].astype(np.int64) * shape[1] + core_map.row_CN[mine]) * shape[2]
        identity = (identity + core_map.column_CN[mine])[used[mine]]
        neurons = len(np.unique(identity))
        axons = int(driven[mine].sum())
        layers.append(
            {
                "layer": index,
                "shape": shape,
                "tick": int(core_map.layer_tick_L[index]),
                "cores": cores,
                "splitters": int((mine & core_map.core_relay_C).sum()),
                "neurons": neurons if index else int(np.prod(shape)),
                "copies": filled - neurons,
                "axons": axons,
                "axon_use": axons / max(1, cores * spec.axons),
                "neuron_use": filled / max(1, cores * spec.neurons),
            }
        )
    chips = []
    source, neuron = np.nonzero(core_map.dest_core_CN != NONE)
    crosses = core_map.chip_C[source] != core_map.chip_C[core_map.dest_core_CN[source, neuron]]
    leaving_chip = core_map.chip_C[source[crosses]]
    for chip in np.unique(core_map.chip_C).tolist():
        cores = int((core_map.chip_C == chip).sum())
        chips.append(
            {
                "chip": chip,
                "cores": cores,
                "core_use": cores / spec.cores_per_chip,
                "links_out": int((leaving_chip == chip).sum()),
            }
        )
    return {
        "hardware": spec.name,
        "cores": core_map.cores,
        "cores_available": spec.cores,
        "chips": core_map.chips,
        "ticks": core_map.ticks,
        "crossbars": len(core_map.crossbar_XNW),
        "layers": layers,
        "per_chip": chips,
    }
