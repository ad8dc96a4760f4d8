"""Making a deployed student trainable again: the inverse of :mod:`spikestill.student.fold`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from spikestill.common.errors import UserError
from spikestill.student.integer_net import IntegerNet, effective_theta
from spikestill.student.network import StudentNetwork
from spikestill.student.quantise import VARIANCE_EPSILON

MIDDLE = 0.75
"""Shadow weight of a ternary +1: the middle of 0.5..1, the shadow weights that it stands for."""


def check_same_net(net: IntegerNet, network: StudentNetwork, path: Path) -> None:
    """Check that ``net``, read from ``path``, has the layers of ``network``; it may play another game.

    Raises:
        UserError: its layers are others; the first difference is named.
    """
    specs = [layer.spec for layer in network.ternary_layers()]
    ours = [(spec.features, spec.kernel, spec.stride, spec.pad, spec.groups) for spec in specs]
    theirs = [(each.features, each.kernel, each.stride, each.pad, each.groups) for each in net.layers]
    pairs = itertools.zip_longest(ours, theirs, fillvalue="no such layer")
    for index, (wanted, found) in enumerate(pairs):
        if wanted == found:
            continue
        raise UserError(
            f"{path}: layer {index} (features, kernel, stride, pad, groups) is {found}, the net to train has {wanted}",
            "give the --architecture and the --window that it was trained with, or another student",
        )


def unfold(net: IntegerNet, network: StudentNetwork, batches: Iterable[Tensor]) -> None:
    """Give ``network`` weights and statistics that fold to ``net`` exactly.

    A deployed student has lost its shadow weights, gamma and statistics. The shadow weights become 0 and +-0.75, gamma
    1; mean mu and variance v are those of the sums s on ``batches``, each layer reading the deployed net's own spikes.
    With beta = (mu - theta + 1/2) / sqrt(v + epsilon) a neuron fires where s >= theta - 1/2, which for integers is
    s >= theta.

    Args:
        net: what to go on from, checked by :func:`check_same_net`.
        network: is changed in place.
        batches: at least one of stacks uint8 (B, 4, 84, 84), on the network's device.
    """
    layers = network.ternary_layers()
    theta = [
        torch.from_numpy(effective_theta(layer, first=index == 0)).to(layers[index].mu) - 0.5
        for index, layer in enumerate(net.layers)
    ]
    with torch.no_grad():
        for layer, folded, threshold_O in zip(layers, net.layers, theta, strict=True):
            layer.shadow.copy_(torch.from_numpy(folded.weight_OIHW) * MIDDLE)
            layer.ternary.copy_(torch.from_numpy(folded.weight_OIHW))
            layer.gamma.fill_(1.0)
            layer.beta.zero_()
            # So the spikes are the deployed net's while the statistics are taken.
            layer.mu.copy_(threshold_O)
            layer.variance.fill_(1.0 - VARIANCE_EPSILON)
        weights = network.working_weights()
        taken = [
            network.propagate(stacks_BCHW, weights, renormalise=True, kept=())[1] for stacks_BCHW in batches
        ]
        network.absorb(taken, momentum=1.0)
        for layer, threshold_O in zip(layers, theta, strict=True):
            layer.beta.copy_((layer.mu - threshold_O) / (layer.variance + VARIANCE_EPSILON).sqrt())
