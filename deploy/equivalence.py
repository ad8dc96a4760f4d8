"""Equivalence: whether a core map computes a net for every possible input, decided from the files alone.

Each neuron on a core is read back: which neuron of the layer before drives each of its axons, with which weight, and
its threshold. That must be the net's neuron, or both must be constant and equal. Together with the rules of
``deploy/validate.py`` (equal delays, splitters, votes) the map's votes are then the net's for every stack of frames.
Nothing here is shared with the mapper's passes.

Axis suffixes: C cores, N neurons of a core, A axons of a core, U distinct sources of a core.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from spikestill.deploy.core_map import NONE, CoreMap
from spikestill.deploy.validate import violations
from spikestill.student.integer_net import IntegerLayer, IntegerNet, sum_bound


def first_deviation(core_map: CoreMap, net: IntegerNet) -> str | None:
    """Return what first departs from the net: core, neuron, axon, value and the value wanted; None: nothing does."""
    broken = next(violations(core_map), None)
    if broken is not None:
        return f"the map {broken}"
    return next(_deviations(core_map, net), None)


def _deviations(core_map: CoreMap, net: IntegerNet) -> Iterator[str]:
    shapes = net.shapes()
    layers = [list(shape) for shape in shapes]
    for what, found, wanted in (
        ("input", core_map.input_shape, net.input_shape), ("game", core_map.game, net.game),
        ("legal actions", core_map.legal, net.legal),
        ("actions", core_map.actions, net.actions), ("layers", core_map.layer_shape_L3.tolist(), layers),
    ):  # fmt: skip
        if found != wanted:
            yield f"the map's {what}: {found}, the net's {wanted}"
            return
    host, first = core_map.transduction, net.layers[0]
    for name in ("stride", "pad", "groups"):
        if getattr(host, name) != getattr(first, name):
            yield f"transduction layer: {name} {getattr(host, name)}, the net's is {getattr(first, name)}"
    for name in ("weight_OIHW", "theta_O"):
        theirs, ours = getattr(host, name), getattr(first, name)
        differ = np.argwhere(theirs != ours) if theirs.shape == ours.shape else np.zeros((1, ours.ndim), int)
        if len(differ):
            at = tuple(differ[0].tolist())
            yield f"transduction layer, {name}{list(at)}: {theirs[at]}, the net's is {ours[at]}"
    source_CA, used_CN = sources(core_map), core_map.used_CN
    for core in range(core_map.cores):
        if not core_map.core_relay_C[core]:
            layer = int(core_map.core_layer_C[core])
            used = np.flatnonzero(used_CN[core])
            yield from _core(core_map, core, used, net.layers[layer], shapes[layer - 1], source_CA[core])


def sources(core_map: CoreMap) -> npt.NDArray[np.int64]:
    """Return which neuron drives each axon, int64 (C, A): its flat index in the output of its layer, -1 for none."""
    source_CA = np.full((core_map.cores, core_map.spec.axons), NONE, np.int64)
    source_CA[core_map.input_core_E, core_map.input_axon_E] = core_map.input_source_E
    core, neuron = np.nonzero(core_map.dest_core_CN != NONE)
    _, height, width = core_map.layer_shape_L3[core_map.core_layer_C[core]].astype(np.int64).T
    flat = (core_map.feature_CN[core, neuron] * height + core_map.row_CN[core, neuron]) * width
    flat += core_map.column_CN[core, neuron]
    source_CA[core_map.dest_core_CN[core, neuron], core_map.dest_axon_CN[core, neuron]] = flat
    return source_CA


def _core(
    core_map: CoreMap,
    core: int,
    used: npt.NDArray[np.int64],
    layer: IntegerLayer,
    in_shape: tuple[int, int, int],
    source_A: npt.NDArray[np.int64],
) -> Iterator[str]:
    words = core_map.crossbar_XNW[core_map.core_crossbar_C[core]].astype("<u8")
    bits_NA = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[used, : core_map.spec.axons]
    signed_NA = bits_NA * core_map.weight_Y[core_map.axon_type_CA[core]].astype(np.int64)
    driven = np.flatnonzero(source_A != NONE)
    # Side by side what one source drives, whose weights are added.
    driven = driven[np.argsort(source_A[driven], kind="stable")]
    source_U, first = np.unique(source_A[driven], return_index=True)
    found_NU = np.add.reduceat(signed_NA[:, driven], first, axis=1)
    feature, row, column = (
        axis[core, used].astype(np.int64)
        for axis in (core_map.feature_CN, core_map.row_CN, core_map.column_CN)
    )
    wanted_NU = wanted_weights(layer, in_shape, feature, row, column, source_U)
    theta, wanted_theta = (
        core_map.theta_CN[core, used].astype(np.int64),
        layer.theta_O.astype(np.int64)[feature],
    )
    bound = sum_bound(layer, first=False)[feature]
    constant = (wanted_theta > bound) | (wanted_theta <= -bound)
    missing = wanted_count(layer, in_shape, feature, row, column) - np.abs(wanted_NU).sum(axis=1)
    differ_NU = found_NU != wanted_NU
    departs = differ_NU.any(axis=1) | (missing != 0) | (theta != wanted_theta)
    if constant.any():
        low, high = np.minimum(found_NU, 0).sum(axis=1), np.maximum(found_NU, 0).sum(axis=1)
        departs = np.where(constant, np.where(wanted_theta > bound, high >= theta, low < theta), departs)
    for n in np.flatnonzero(departs).tolist():
        name = (
            f"core {core}, neuron {used[n]} (layer {core_map.core_layer_C[core]}, feature {feature[n]}, "
            f"row {row[n]}, column {column[n]})"
        )
        if constant[n]:
            yield f"{name}: is not constant, the net's neuron is"
            continue
        differ = np.flatnonzero(differ_NU[n])
        if differ.size:
            at = source_U[differ[0]]
            axons = driven[source_A[driven] == at].tolist()
            channel, y, x = (int(each) for each in np.unravel_index(at, in_shape))
            yield (
                f"{name}: weight {found_NU[n, differ[0]]} on axon{'s' * (len(axons) > 1)} "
                f"{', '.join(map(str, axons))} from feature {channel}, row {y}, column {x} of the layer before, "
                f"the net's is {wanted_NU[n, differ[0]]}"
            )
        elif missing[n]:
            yield f"{name}: {missing[n]} of its inputs reach no axon of the core"
        else:
            yield f"{name}: threshold {theta[n]}, the net's is {wanted_theta[n]}"


def wanted_weights(
    layer: IntegerLayer,
    in_shape: tuple[int, int, int],
    feature: npt.NDArray[np.int64],
    row: npt.NDArray[np.int64],
    column: npt.NDArray[np.int64],
    source_U: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """Return the net's weight between each neuron (N,) and each source (U,), int64 (N, U)."""
    per_in, per_out = layer.in_channels // layer.groups, layer.features // layer.groups
    channel, y, x = np.unravel_index(source_U, in_shape)
    u = y[None] - (row * layer.stride - layer.pad)[:, None]
    v = x[None] - (column * layer.stride - layer.pad)[:, None]
    inside = (u >= 0) & (u < layer.kernel) & (v >= 0) & (v < layer.kernel)
    inside &= channel[None] // per_in == (feature // per_out)[:, None]
    weight = layer.weight_OIHW[
        feature[:, None], (channel % per_in)[None], np.where(inside, u, 0), np.where(inside, v, 0)
    ]
    return np.where(inside, weight, 0).astype(np.int64)


def wanted_count(
    layer: IntegerLayer,
    in_shape: tuple[int, int, int],
    feature: npt.NDArray[np.int64],
    row: npt.NDArray[np.int64],
    column: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """Return how many inputs inside the picture each neuron (N,) meets with a weight that is not 0."""
    taps = np.arange(layer.kernel)
    y = (row * layer.stride - layer.pad)[:, None] + taps
    x = (column * layer.stride - layer.pad)[:, None] + taps
    inside = ((y >= 0) & (y < in_shape[1]))[:, :, None] & ((x >= 0) & (x < in_shape[2]))[:, None, :]
    nonzero = (layer.weight_OIHW != 0).sum(axis=1)[feature]
    return (nonzero * inside).sum(axis=(1, 2))
