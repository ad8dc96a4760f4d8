"""What the page of a core map shows: every core with its layer, use and rate, where it sends, traffic between chips."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.common.errors import UserError
from spikestill.deploy.core_map import NONE, CoreMap
from spikestill.pictures import layer_colours, ramp

RAMP_STEPS = 32


def core_page(core_map: CoreMap, rate_C: npt.NDArray[np.float64] | None) -> dict[str, Any]:
    """Return the page's data as plain JSON values.

    Keys: ``size`` [cores_x, cores_y]; ``chips`` (``chip``, ``x``, ``y`` on the board); ``cores`` (an entry each:
    chip, x, y, layer, splitter 0/1, percent of its neurons and of its axons in use); ``rates`` (percent of the
    neurons in use that fire, or None); ``sends`` (an entry each, pairs one after another: core, neurons);
    ``traffic`` (neurons, chip to chip); ``colours``.

    Args:
        core_map: the map.
        rate_C: mean share of each core's neurons in use that fire, 0..1; None where no frames were given.
    """
    spec, used = core_map.spec, core_map.used_CN
    core, neuron = np.nonzero(core_map.dest_core_CN != NONE)
    target = core_map.dest_core_CN[core, neuron].astype(np.int64)
    neurons, axons = (np.round(100 * each.mean(axis=1)).astype(int) for each in (used, core_map.driven_CA))
    edge, count = np.unique(core * core_map.cores + target, return_counts=True)
    sends: list[list[int]] = [[] for _ in range(core_map.cores)]
    for key, times in zip(edge.tolist(), count.tolist(), strict=True):
        sends[key // core_map.cores] += [key % core_map.cores, times]
    chips = np.unique(core_map.chip_C)
    place = np.searchsorted(chips, core_map.chip_C)
    traffic = np.zeros((len(chips), len(chips)), np.int64)
    np.add.at(traffic, (place[core], place[target]), 1)
    return {
        "size": [spec.cores_x, spec.cores_y],
        "chips": [
            {"chip": chip, "x": chip % spec.chips_x, "y": chip // spec.chips_x} for chip in chips.tolist()
        ],
        "cores": np.stack([
            place, core_map.x_C, core_map.y_C, core_map.core_layer_C, core_map.core_relay_C, neurons, axons,
        ], axis=1).astype(int).tolist(),
        "rates": None if rate_C is None else np.round(100 * rate_C, 1).tolist(),
        "sends": sends,
        "traffic": traffic.tolist(),
        "colours": {
            "layers": layer_colours(len(core_map.layer_shape_L3)).tolist(),
            "ramp": ramp(np.linspace(0, 1, RAMP_STEPS)).tolist(),
        },
    }  # fmt: skip


def core_rates(core_map: CoreMap, path: Path, buffers: Sequence[Path], count: int) -> npt.NDArray[np.float64]:
    """Return the mean share of each core's neurons in use that fire over frames of buffers, (C,).

    ``path`` is the map's file, for errors.

    Raises:
        UserError: a buffer cannot be read, is of a game that the map does not play, or holds stacks of another shape
            than the map reads.
    """
    from spikestill.deploy.frames import Frames
    from spikestill.deploy.simulator import CoreSimulator

    frames = Frames(buffers, count, 0, core_map.game, core_map.input_shape, path)
    with contextlib.closing(frames):
        if not len(frames):
            names = ", ".join(map(str, buffers))
            raise UserError(f"{names}: no frames", "give a buffer that `spikestill record` finished")
        simulator = CoreSimulator(core_map)
        shares = []
        for stack in frames:
            simulator.votes(np.ascontiguousarray(stack))
            shares.append(simulator.trace().activity()[0])
        return np.asarray(np.mean(shares, axis=0), np.float64)
