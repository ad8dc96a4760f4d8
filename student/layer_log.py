"""What each layer of a student does while it trains: how much it fires, what of it is constant, what flips.

Axis suffixes: B batch, O output features, H height, W width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class LayerActivity(NamedTuple):
    """One layer on some frames.

    Attributes:
        rate: share of its neurons that fire, mean over the frames.
        dead: share of its neurons that fire on no frame.
        constant: share of its neurons that fire on every frame.
        flips: share of its ternary weights that the last step changed.
    """

    rate: float
    dead: float
    constant: float
    flips: float


def activity(
    spikes: Sequence[Tensor], before: Sequence[Tensor], after: Sequence[Tensor]
) -> list[LayerActivity]:
    """Return every layer's activity.

    Args:
        spikes: each layer's, 0 or 1, (B, O, H, W).
        before: each layer's ternary weights before the last step.
        after: those after it.
    """
    found = []
    for spikes_BOHW, old, new in zip(spikes, before, after, strict=True):
        fired_OHW = spikes_BOHW.sum(dim=0, dtype=torch.int64)
        found.append(
            LayerActivity(
                rate=round(float(fired_OHW.double().mean()) / len(spikes_BOHW), 5),
                dead=round(float((fired_OHW == 0).double().mean()), 5),
                constant=round(float((fired_OHW == len(spikes_BOHW)).double().mean()), 5),
                flips=round(float((old != new).double().mean()), 7),
            )
        )
    return found
