"""Prune: find the neurons that something reads; the others get no place on a core."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from spikestill.deploy.passes.lowering import LoweredLayer


@dataclasses.dataclass(frozen=True, eq=False)
class PrunedLayer:
    """A lowered layer and the neurons of it that live.

    Attributes:
        lowered: the layer.
        live_OHW: bool, True where a neuron of the next layer reads the neuron, or where it votes.
    """

    lowered: LoweredLayer
    live_OHW: npt.NDArray[np.bool_]


def prune(layers: tuple[LoweredLayer, ...], actions: int) -> tuple[PrunedLayer, ...]:
    """Return the layers with their living neurons.

    In the last layer features below A * floor(F / A) live (the others do not vote); in every other
    layer what a living neuron of the next layer meets with a weight that is not 0.
    """
    last = layers[-1]
    live: npt.NDArray[np.bool_] = np.zeros(last.out_shape, bool)
    live[: actions * (last.out_shape[0] // actions)] = True
    pruned = [PrunedLayer(last, live)]
    for reader, layer in zip(layers[:0:-1], layers[-2::-1], strict=True):
        live = read_by(reader, pruned[-1].live_OHW)
        if live.shape != layer.out_shape:
            raise AssertionError(f"layer {layer.index}: {live.shape} read of {layer.out_shape}")
        pruned.append(PrunedLayer(layer, live))
    return tuple(reversed(pruned))


def read_by(reader: LoweredLayer, live_OHW: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return which inputs (C, H, W) of ``reader`` its living neurons meet with a weight that is not 0."""
    layer, groups = reader.layer, reader.layer.groups
    _, height, width = reader.out_shape
    nonzero_GIF = (layer.weight_OIHW != 0).reshape(
        groups, reader.group_features, reader.group_inputs, layer.kernel, layer.kernel
    )
    live_GFP = live_OHW.reshape(groups, reader.group_features, height * width).astype(np.float32)
    channels, in_height, in_width = reader.in_shape
    padded = np.zeros((channels, in_height + 2 * layer.pad, in_width + 2 * layer.pad), bool)
    for ky in range(layer.kernel):
        for kx in range(layer.kernel):
            meets = nonzero_GIF[:, :, :, ky, kx].transpose(0, 2, 1).astype(np.float32)
            hit = (np.matmul(meets, live_GFP) > 0).reshape(channels, height, width)
            rows = slice(ky, ky + (height - 1) * layer.stride + 1, layer.stride)
            columns = slice(kx, kx + (width - 1) * layer.stride + 1, layer.stride)
            padded[:, rows, columns] |= hit
    return padded[:, layer.pad : layer.pad + in_height, layer.pad : layer.pad + in_width]
