"""An integer net as a graph of the Neuromorphic Intermediate Representation (Pedersen 2024, package ``nir``).

NIR's Threshold and LIF fire iff v > threshold, our neurons iff s >= theta; s is an integer, so theta - 1/2 says the
same. Two forms: Conv2d and Threshold, a net without memory; or Conv2d and LIF with tau = dt, r = 1 and v_leak = 0, for
the simulators that read no Threshold: their Euler step v += dt / tau (v_leak - v + r I) gives v = I. There the bias of
the convolution is 1/2 - theta and v_threshold 0, for snnTorch takes one threshold for all neurons of a layer.

The graph's input is the stack of pixels, 0..255; its output the last layer's spikes. How they vote is in the metadata.
"""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from spikestill.common.atomic import write_bytes
from spikestill.common.legal import legal_to_plain
from spikestill.deploy.exports.replay import Replay, add_replay
from spikestill.student.integer_net import IntegerLayer, IntegerNet

if TYPE_CHECKING:
    import nir

VOTES = "feature i, at every position, votes for action i mod A, for i < A * floor(F / A); most votes win"
AMONG = "; a game takes its own actions only, those that `games` (JSON) lists"


def write(
    net: IntegerNet,
    path: Path,
    form: Literal["threshold", "lif"],
    dt: float,
    full_kernels: bool,
    replay: Replay | None = None,
) -> None:
    """Write the net as a NIR file, for ``nir.read``.

    Args:
        net: any integer net.
        path: of the file.
        form: ``threshold`` or ``lif``.
        dt: the time constant tau of the ``lif`` form, the reading simulator's time step, s.
        full_kernels: write grouped convolutions as full ones, zero where groups do not meet: ``nir`` 1.0.8 cannot check
            the types of grouped ones and reads them with ``type_check=False`` only.
        replay: frames that the file carries in the group ``/frames``, which readers of NIR pass over; None: none.

    Raises:
        UserError: the disk is full.
    """
    import h5py
    import nir

    content = io.BytesIO()
    nir.write(content, graph(net, form, dt, full_kernels))
    if replay is not None:
        with h5py.File(content, "r+") as file:
            add_replay(file.create_group("frames"), replay)
    write_bytes(path, content.getvalue())


def graph(net: IntegerNet, form: Literal["threshold", "lif"], dt: float, full_kernels: bool) -> nir.NIRGraph:
    """Return the net as a graph; the arguments are :func:`write`'s."""
    import nir

    nodes: dict[str, nir.NIRNode] = {"input": nir.Input(input_type={"input": np.array(net.input_shape)})}
    shape = net.input_shape
    for index, (layer, out) in enumerate(zip(net.layers, net.shapes(), strict=True)):
        threshold_O = layer.theta_O.astype(np.float32) - np.float32(0.5)
        bias_O = -threshold_O if form == "lif" else np.zeros_like(threshold_O)
        weight, pad = kernels(layer, full_kernels)
        nodes[f"conv_{index}"] = nir.Conv2d(
            input_shape=(shape[1], shape[2]), weight=weight, stride=layer.stride, padding=pad, dilation=1,
            groups=1 if full_kernels else layer.groups, bias=bias_O,
        )  # fmt: skip
        threshold = np.broadcast_to((threshold_O + bias_O)[:, None, None], out).copy()
        nodes[f"spike_{index}"] = _neurons(threshold, form, dt)
        shape = out
    nodes["output"] = nir.Output(output_type={"output": np.array(shape)})
    names = list(nodes)
    return nir.NIRGraph(
        nodes=nodes,
        edges=list(itertools.pairwise(names)),
        metadata=_metadata(net),
        type_check=full_kernels,
    )


def _metadata(net: IntegerNet) -> dict[str, Any]:
    found = {"game": net.game, "actions": net.actions, "votes": VOTES}
    if net.legal:
        found |= {"votes": VOTES + AMONG, "games": json.dumps(legal_to_plain(net.legal))}
    return found


def _neurons(
    threshold_OHW: npt.NDArray[np.float32], form: Literal["threshold", "lif"], dt: float
) -> nir.NIRNode:
    import nir

    if form == "threshold":
        return nir.Threshold(threshold=threshold_OHW)
    zero = np.zeros_like(threshold_OHW)
    return nir.LIF(tau=zero + np.float32(dt), r=zero + 1, v_leak=zero, v_threshold=threshold_OHW)


def kernels(layer: IntegerLayer, full: bool) -> tuple[npt.NDArray[np.float32], int]:
    """Return (weights (O, C_in or C_in / groups, K, K), padding) as a convolution without negative padding.

    Pixels that a negative padding leaves out are met by zeros around the kernel.
    """
    weight = layer.weight_OIHW.astype(np.float32)
    if full and layer.groups > 1:
        features, per_in = weight.shape[:2]
        per_out = features // layer.groups
        spread = np.zeros((features, layer.in_channels, *weight.shape[2:]), np.float32)
        for group in range(layer.groups):
            rows = slice(group * per_out, (group + 1) * per_out)
            spread[rows, group * per_in : (group + 1) * per_in] = weight[rows]
        weight = spread
    left_out = max(0, -layer.pad)
    weight = np.pad(weight, ((0, 0), (0, 0), (left_out, left_out), (left_out, left_out)))
    return weight, max(0, layer.pad)
