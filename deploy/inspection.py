"""What is in a core map, as data: a row per layer, a row per chip, and both as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from deploy.core_map import NONE, CoreMap


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


def format_tables(summary: Mapping[str, Any]) -> str:
    """Return the figures of :func:`summarise` as two aligned tables and a line of totals."""
    layers = [
        (
            str(row["layer"]), "x".join(str(size) for size in row["shape"]), str(row["tick"]),
            f"{row['cores']:,}", f"{row['splitters']:,}", f"{row['neurons']:,}", f"{row['copies']:,}",
            f"{row['axons']:,}", f"{row['axon_use']:.0%}", f"{row['neuron_use']:.0%}",
        )
        if row["cores"]
        else (str(row["layer"]), "x".join(str(size) for size in row["shape"]), str(row["tick"]), "host",
              "", f"{row['neurons']:,}", "", "", "", "")
        for row in summary["layers"]
    ]  # fmt: skip
    heads = (
        "layer",
        "shape",
        "tick",
        "cores",
        "splitters",
        "neurons",
        "copies",
        "axons",
        "axons %",
        "neurons %",
    )
    chips = [
        (str(row["chip"]), f"{row['cores']:,}", f"{row['core_use']:.0%}", f"{row['links_out']:,}")
        for row in summary["per_chip"]
    ]
    total = (
        f"{summary['cores']:,} of {summary['cores_available']:,} cores of {summary['hardware']}, "
        f"{summary['chips']} chip(s), {summary['crossbars']:,} distinct crossbars, "
        f"{summary['ticks']} ticks from input to votes"
    )
    return "\n".join(
        [*_aligned(heads, layers), "", *_aligned(("chip", "cores", "in use", "links out"), chips), "", total]
    )


def _aligned(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in (heads, *rows)) for column in range(len(heads))]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in (heads, *rows)
    ]
