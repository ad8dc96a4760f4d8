"""Mean firing rates of a net on some frames: what spikes cost, and how far they travel, is linear in them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from spikestill.deploy.packed_kernel import PackedNet
from spikestill.student.integer_net import IntegerNet

Rates = list[npt.NDArray[np.float64]]


def firing_rates(net: IntegerNet, stacks: Iterable[npt.NDArray[np.uint8]]) -> Rates:
    """Return the mean firing rate (O, H, W), 0..1, of every layer over uint8 stacks (C, H, W), at least one."""
    packed = PackedNet(net)
    total = [np.zeros(shape) for shape in net.shapes()]
    count = 0
    for count, stack in enumerate(stacks, start=1):  # noqa: B007
        for sums, spikes in zip(total, packed.spikes(np.ascontiguousarray(stack)), strict=True):
            sums += spikes
    return [sums / count for sums in total]
