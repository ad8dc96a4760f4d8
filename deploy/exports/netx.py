"""An integer net's layers on the cores in lava-dl's network exchange format, HDF5 for ``lava.lib.dl.netx``.

``/layer/0`` is the input, the transduction layer's spikes; ``/layer/1`` and on are convolutions with CUBA neurons
without memory: both decays 4096 of 4096, threshold 0, bias 1 - theta, so that a neuron fires iff s + 1 - theta > 0, iff
s >= theta. The transduction layer runs on the host; ``/transduction`` holds it. ``/frames`` has stacks, the spikes that
enter layer 0 for them, and their votes. Readers of netx pass over both. Each stock process hands its spikes on in the
next step: the last layer answers the input of step t in step t + layers - 1.
Format: lava-dl, netx's documentation.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from spikestill.common.atomic import write_bytes
from spikestill.common.errors import UserError
from spikestill.common.legal import legal_to_plain
from spikestill.configs.hardware import hardware, signed
from spikestill.deploy.exports.replay import Replay, add_replay
from spikestill.deploy.transduction import plan_transduction, transduce_planned
from spikestill.student.integer_net import IntegerLayer, IntegerNet, effective_theta, sum_bound

if TYPE_CHECKING:
    import h5py

FULL_DECAY = 4096
LOIHI = hardware("loihi")


def write(net: IntegerNet, path: Path, replay: Replay | None = None) -> list[dict[str, Any]]:
    """Write the net; return what it asks of Loihi's fields and what they hold, one row a field.

    Args:
        net: the net.
        path: of the file.
        replay: frames that the file carries; None: none.

    Raises:
        UserError: the net has no layer for the cores, a parameter exceeds Loihi's width, or the disk is full.
    """
    import h5py

    if len(net.layers) < 2:
        raise UserError(
            "the net has only the transduction layer, which runs on the host; at least 2 layers are wanted",
            "export a student with layers for the cores",
        )
    rows = check_ranges(net)
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        shapes = net.shapes()
        # A shape alone: with neurons of its own, Network would build a Process that nothing feeds.
        _describe(file.create_group("layer/0"), "input", shapes[0])
        for index, (layer, shape) in enumerate(zip(net.layers[1:], shapes[1:], strict=True), start=1):
            _convolution(file.create_group(f"layer/{index}"), layer, shape)
        host = file.create_group("transduction")
        first = net.layers[0]
        host.create_dataset("weight", data=first.weight_OIHW, compression="gzip")
        host.create_dataset("theta", data=first.theta_O)
        host.attrs["geometry"] = json.dumps({
            "stride": first.stride, "pad": first.pad, "groups": first.groups, "input_shape": list(net.input_shape),
            "actions": net.actions, "game": net.game, "games": legal_to_plain(net.legal),
        })  # fmt: skip
        if replay is not None:
            _frames(file.create_group("frames"), net, replay)
    write_bytes(path, content.getvalue())
    return rows


def _frames(group: h5py.Group, net: IntegerNet, replay: Replay) -> None:
    plan = plan_transduction(net.layers[0], net.input_shape)
    spikes_BOHW = np.stack([transduce_planned(plan, stack) for stack in replay.stacks_BCHW])
    group.create_dataset("input", data=spikes_BOHW, compression="gzip")
    group.attrs["latency"] = len(net.layers) - 1
    add_replay(group, replay)


def check_ranges(net: IntegerNet) -> list[dict[str, Any]]:
    """Return one row a field: ``field``, ``low``, ``high``, ``allowed`` [low, high], ``fits``.

    Raises:
        UserError: a bias, a sum or the number of groups does not fit; layer and feature are named.
    """
    assert LOIHI.groups_bits is not None
    allowed = {
        "weight": signed(LOIHI.weight_bits),
        "bias": signed(LOIHI.leak_bits),
        "state": signed(LOIHI.potential_bits),
        "groups": (1, signed(LOIHI.groups_bits)[1]),
    }
    most_groups = allowed["groups"][1]
    for index, layer in enumerate(net.layers[1:], start=1):
        if layer.groups > most_groups:
            raise UserError(
                f"layer {index}: {layer.groups} groups, Lava's Conv holds 1..{most_groups} (int8)",
                "distil a student of fewer groups, or export it to nir",
            )
    groups = [layer.groups for layer in net.layers[1:]]
    found = {"weight": [-1, 1], "bias": [0, 0], "state": [0, 0], "groups": [min(groups), max(groups)]}
    for index, layer in enumerate(net.layers):
        if index == 0:
            continue
        bias, bound = 1 - effective_theta(layer, first=False), sum_bound(layer, first=False)
        for field, low, high in (("bias", bias, bias), ("state", bias - bound, bias + bound)):
            least, most = allowed[field]
            bad = np.flatnonzero((low < least) | (high > most))
            if bad.size:
                raise UserError(
                    f"layer {index}, feature {bad[0]}: {field} {low[bad[0]]}..{high[bad[0]]}, Loihi holds "
                    f"{least}..{most}",
                    "use more groups or a smaller kernel in that layer",
                )
            found[field] = [min(found[field][0], int(low.min())), max(found[field][1], int(high.max()))]
    return [
        {"field": field, "low": low, "high": high, "allowed": list(allowed[field]), "fits": True}
        for field, (low, high) in found.items()
    ]


def _convolution(group: h5py.Group, layer: IntegerLayer, shape: tuple[int, int, int]) -> None:
    _describe(group, "conv", shape)
    _neurons(group.create_group("neuron"))
    group["inChannels"], group["outChannels"] = layer.in_channels, layer.features
    pairs = {"kernelSize": layer.kernel, "stride": layer.stride, "padding": layer.pad, "dilation": 1}
    for name, value in pairs.items():
        group[name] = np.array([value, value], np.int64)
    group["groups"] = layer.groups
    group.create_dataset("weight", data=layer.weight_OIHW, compression="gzip")
    group["bias"] = (1 - effective_theta(layer, first=False)).astype(np.int32)


def _describe(group: h5py.Group, kind: str, shape: tuple[int, int, int]) -> None:
    group.create_dataset("type", (1,), "S10", [kind.encode("ascii")])
    group["shape"] = np.array(shape, np.int64)


def _neurons(neuron: h5py.Group) -> None:
    neuron.create_dataset("type", (1,), "S10", [b"CUBA"])
    neuron["iDecay"], neuron["vDecay"], neuron["vThMant"], neuron["refDelay"] = FULL_DECAY, FULL_DECAY, 0, 1
    neuron["gradedSpike"] = False
