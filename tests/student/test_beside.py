"""Two nets side by side: every neuron fires as in its own net, the votes are added."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from spikestill.common.errors import UserError
from spikestill.student.architectures import architecture
from spikestill.student.beside import beside, places
from spikestill.student.integer_net import count_votes, naive_forward
from tests.nets import random_stack, table1_net


@pytest.mark.parametrize(("first", "features", "groups", "actions"), [
    (4096, 4096, 16, 6), (4096, 4096, 16, 18), (4096, 4096, 16, 3), (4096, 4096, 16, 4), (24, 16, 2, 5), (7, 12, 1, 12),
])  # fmt: skip
def test_features_keep_their_group_and_nearly_all_their_action(first, features, groups, actions):
    found = places(first, features, groups, actions)
    assert sorted(found) == list(range(features))
    size = features // groups
    place = np.arange(features)
    assert np.array_equal(found // size, place // size)
    moved = (first + place) % actions != found % actions
    assert moved.reshape(groups, size).sum(axis=1).max() < actions
    if not first % actions:
        assert np.array_equal(found, place)


def test_every_neuron_fires_as_in_its_own_net_and_votes_are_added():
    one, other = (table1_net("1chip", seed=seed) for seed in (3, 4))
    both = beside(one, other, Path("other"))
    assert [(each.features, each.kernel, each.stride, each.pad, each.groups) for each in both.layers] == list(
        map(tuple, architecture("1chip-wide"))
    )
    stack, actions = random_stack(5), one.actions
    fired = [naive_forward(net, stack) for net in (one, other, both)]
    for a, b, whole in list(zip(*fired, strict=True))[:-1]:
        assert np.array_equal(np.concatenate([a, b]), whole)
    assert np.array_equal(fired[0][-1], fired[2][-1][:4096])
    order = places(4096, 4096, 16, actions)
    assert np.array_equal(fired[1][-1][order], fired[2][-1][4096:])
    kept = (4096 + np.arange(4096)) % actions == order % actions
    assert kept.mean() > 0.98
    # Those that vote for another action there, and those that did not vote before, are all that differs.
    apart = count_votes(fired[2][-1], actions) - sum(count_votes(each[-1], actions) for each in fired[:2])
    assert abs(apart).sum() <= 2 * (~kept).sum() + 2 * actions


def test_nets_that_cannot_stand_side_by_side_are_refused_and_what_differs_is_named():
    one, two = table1_net("1chip", seed=3), table1_net("2chip", seed=3)
    with pytest.raises(UserError, match=r"b\.safetensors: number of layers: 14, beside 10"):
        beside(one, two, Path("b.safetensors"))
    centred = dataclasses.replace(one.layers[0], pad=-4)
    with pytest.raises(
        UserError, match=r"layer 0 \(inputs .*\): \(4, 'any', 8, 4, -4\), beside \(4, 'any', 8, 4, 2\)"
    ):
        beside(one, dataclasses.replace(one, layers=(centred, *one.layers[1:])), Path("b.safetensors"))
    with pytest.raises(UserError, match=r"b\.safetensors: number of actions: 18, beside 6") as refused:
        beside(one, dataclasses.replace(one, actions=18), Path("b.safetensors"))
    assert "--initial_beside" in str(refused.value)
