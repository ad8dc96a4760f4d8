"""Emit: write the passes' results as one core map."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spikestill.common.provenance import Provenance
from spikestill.configs.hardware import HardwareSpec
from spikestill.deploy.core_map import NONE, WORD_BITS, CoreMap
from spikestill.deploy.passes.placement import Placement
from spikestill.deploy.passes.replication import LayerCores
from spikestill.deploy.passes.routing import Routes
from spikestill.student.integer_net import IntegerNet

WEIGHTS = np.array([1, -1], np.int16)
"""Weight of axon types 0 and 1."""


def emit(
    net: IntegerNet,
    layers: tuple[LayerCores, ...],
    placement: Placement,
    routes: Routes,
    spec: HardwareSpec,
    provenance: Provenance,
) -> CoreMap:
    """Return the core map."""
    crossbars, core_crossbar_C = _distinct_crossbars(layers)
    feature_CN, row_CN, column_CN = _positions(layers)
    start_S, core_E, axon_E = _inputs(layers[0])
    last = layers[-1]
    voter, neuron = np.nonzero(last.source_CN != NONE)
    voted = feature_CN[-len(last.source_CN) :][voter, neuron]
    words = -(-spec.axons // WORD_BITS)
    return CoreMap(
        spec=spec,
        transduction=net.layers[0],
        layer_shape_L3=np.array(net.shapes(), np.int32),
        layer_tick_L=routes.tick_L,
        actions=net.actions,
        input_shape=net.input_shape,
        game=net.game,
        legal=net.legal,
        crossbar_XNW=np.array(crossbars, np.uint64).reshape(-1, spec.neurons, words),
        weight_Y=WEIGHTS.copy(),
        core_crossbar_C=core_crossbar_C,
        core_layer_C=np.repeat(
            [layer.pruned.lowered.index for layer in layers], [layer.cores for layer in layers]
        ).astype(np.int16),
        core_relay_C=np.concatenate([np.arange(layer.cores) >= layer.computing for layer in layers]),
        axon_type_CA=np.concatenate([layer.minus_CA for layer in layers]).astype(np.uint8),
        theta_CN=np.concatenate([layer.theta_CN for layer in layers]),
        feature_CN=feature_CN.astype(np.int32),
        row_CN=row_CN.astype(np.int16),
        column_CN=column_CN.astype(np.int16),
        dest_core_CN=routes.dest_core_CN,
        dest_axon_CN=np.concatenate([layer.dest_axon_CN for layer in layers]),
        dest_delay_CN=routes.delay_CN,
        chip_C=placement.chip_C,
        x_C=placement.x_C,
        y_C=placement.y_C,
        input_start_S=start_S.astype(np.int64),
        input_core_E=core_E.astype(np.int32),
        input_axon_E=axon_E.astype(np.int16),
        input_delay_E=np.full(len(core_E), routes.input_delay, np.uint8),
        output_core_V=(placement.first_core_L[-2] + voter).astype(np.int32),
        output_neuron_V=neuron.astype(np.int16),
        output_action_V=(voted % net.actions).astype(np.int16),
        provenance=provenance,
    )


def _distinct_crossbars(
    layers: tuple[LayerCores, ...],
) -> tuple[list[npt.NDArray[np.uint64]], npt.NDArray[np.int32]]:
    """Return every crossbar of the net once, and which of them each core has, int32 (C,)."""
    known: dict[bytes, int] = {}
    crossbars: list[npt.NDArray[np.uint64]] = []
    core_crossbar = []
    for layer in layers:
        index = np.array([known.setdefault(each.tobytes(), len(known)) for each in layer.crossbars], np.int32)
        crossbars.extend(layer.crossbars[at] for at in np.flatnonzero(index >= len(crossbars)))
        core_crossbar.append(index[layer.core_crossbar_C])
    return crossbars, np.concatenate(core_crossbar)


def _positions(layers: tuple[LayerCores, ...]) -> list[npt.NDArray[np.int64]]:
    """Return feature, row and column of each core's neurons, int64 (C, N) each, NONE where there is none."""
    found = []
    for layer in layers:
        used = layer.source_CN != NONE
        position = np.unravel_index(np.where(used, layer.source_CN, 0), layer.pruned.lowered.out_shape)
        found.append(np.where(used, position, NONE))
    return list(np.concatenate(found, axis=1))


def _inputs(
    first: LayerCores,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return where each transduced neuron's entries begin, (S + 1,), and the core and axon of each entry, (E,)."""
    core, axon = np.nonzero(first.axon_source_CA[: first.computing] != NONE)
    source = first.axon_source_CA[core, axon]
    order = np.argsort(source, kind="stable")
    transduced = int(np.prod(first.pruned.lowered.in_shape))
    start_S = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=transduced))])
    return start_S, core[order], axon[order]
