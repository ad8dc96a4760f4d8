"""Branches of a net: eighths that no neuron joins again before the votes, some of which training can take out.

The groups of every net of ours divide by eight from some layer on, and a group reads neighbouring features. So the
features of that layer and of all later ones fall into eight blocks that never meet: block k of a layer is its k-th
eighth, and reads block k of the layer before. Where a block's neurons never fire, the mapper gives no core to what only
they read: a branch taken out saves an eighth of the cores from there on, and part of the layer before. Earlier layers
have groups that feed two or four neighbouring branches. So two are taken out as a pair and four as a half of the net,
which saves those groups too. The last layer's silent voters keep their cores: a core map has every voter.

Axis suffixes: B batch, K branches, V voters of an action, A actions, O output features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from spikestill.student.architectures import LayerSpec

BRANCHES = 8


def first_branching(layers: Sequence[LayerSpec]) -> int:
    """Return the first layer from which on the branches never meet; ``len(layers)`` where they meet in the last one."""
    first = len(layers)
    while first and not layers[first - 1].groups % BRANCHES:
        first -= 1
    return first


def branch_of_features(features: int) -> Tensor:
    """Return the branch of each of a layer's features, int64 (O,)."""
    return torch.arange(features) * BRANCHES // features


def votes_by_branch(spikes_BO: Tensor, actions: int) -> Tensor:
    """Return how much each branch adds to the mean votes, fp32 (B, K, A).

    Args:
        spikes_BO: the last layer's spikes, the mean over places.
        actions: A; feature f votes for action f mod A, the last O mod A features do not vote.
    """
    voting = actions * (spikes_BO.shape[1] // actions)
    branch_K = torch.arange(BRANCHES, device=spikes_BO.device)
    own_KO = branch_of_features(spikes_BO.shape[1]).to(spikes_BO.device) == branch_K[:, None]
    spikes_BKO = spikes_BO[:, None, :voting].float() * own_KO[:, :voting].float()
    return spikes_BKO.reshape(len(spikes_BO), BRANCHES, -1, actions).mean(dim=2)


def least_missed(votes_BKA: Tensor, loss: Callable[[Tensor], float], count: int) -> list[int]:
    """Return ``count`` branches without which the loss is least, by what the mapper saves with them.

    They are a half (0-3 or 4-7), a pair (0-1, 2-3, ...) and a single one, as the binary digits of ``count`` say; the
    largest block is chosen first. The votes of those that stay are scaled to their share, so that a block is not kept
    for its number of votes alone.

    Args:
        votes_BKA: what :func:`votes_by_branch` gives.
        loss: of mean votes (B, A).
        count: 0..BRANCHES - 1.
    """
    left = set(range(BRANCHES))
    for size in (4, 2, 1):
        found = []
        for first in range(0, BRANCHES, size) if count & size else ():
            others = sorted(left.difference(range(first, first + size)))
            if len(others) == len(left) - size:
                votes_BA = votes_BKA[:, others].sum(dim=1) * (BRANCHES / len(others))
                found.append((loss(votes_BA), others))
        if found:
            left = set(min(found)[1])
    return sorted(set(range(BRANCHES)) - left)
