"""Branches of a net: that they never meet, which are taken out, and what the mapper saves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spikestill.configs.hardware import hardware
from spikestill.deploy.passes.lowering import lower
from spikestill.deploy.passes.pruning import prune
from spikestill.deploy.passes.replication import replicate
from spikestill.deploy.passes.tiling import tile
from spikestill.student.architectures import ARCHITECTURES
from spikestill.student.branches import (
    BRANCHES,
    branch_of_features,
    first_branching,
    least_missed,
    votes_by_branch,
)
from spikestill.student.integer_net import count_votes
from spikestill.student.network import StudentNetwork

FIRST = {"1chip": 5, "1chip-wide": 3, "2chip": 7, "4chip": 3, "8chip": 1}


def cores_by_layer(net):
    """Return how many cores the mapper takes for each layer after the first."""
    spec = hardware("ns16e")
    layers = prune(lower(net, spec), net.actions)
    return np.array([layer.cores for layer in replicate(layers, tile(layers, spec), spec)])


def calibrated(name, frames=2):
    """Return an untrained net whose statistics are those of noise, so that its neurons fire, and the noise."""
    network = StudentNetwork(ARCHITECTURES[name], 6, seed=1)
    stacks = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (frames, 4, 84, 84), np.uint8))
    with torch.no_grad():
        _, statistics, _ = network.propagate(stacks, network.working_weights(), kept=())
    network.absorb([statistics], momentum=1.0)
    return network.eval(), stacks


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_groups_of_the_papers_nets_divide_by_eight_from_some_layer_on(name):
    layers = ARCHITECTURES[name]
    assert first_branching(layers) == FIRST[name]
    assert layers[FIRST[name] - 1].groups % BRANCHES


@pytest.mark.parametrize("name", ["1chip", pytest.param("8chip", marks=pytest.mark.slow)])
def test_a_branch_that_falls_silent_changes_nothing_in_the_others(name):
    network, stacks = calibrated(name)
    before = network.integer().spikes(stacks)
    network.silence([2, 7])
    after = network.integer().spikes(stacks)
    for index, (one, other) in enumerate(zip(before, after, strict=True)):
        silent = torch.isin(branch_of_features(one.shape[1]), torch.tensor([2, 7]))
        if index < FIRST[name]:
            silent[:] = False
        assert one[:, silent].sum() > 0 or not silent.any()
        assert other[:, silent].sum() == 0
        assert torch.equal(one[:, ~silent], other[:, ~silent]), index


def test_the_votes_of_all_branches_are_the_nets_votes():
    network, stacks = calibrated("1chip")
    spikes = network.integer().spikes(stacks)[-1]
    votes_BKA = votes_by_branch(spikes.float().mean(dim=(2, 3)), 6)
    counted = count_votes(spikes[0].numpy().astype(np.uint8), 6)
    assert np.array_equal((votes_BKA[0].sum(dim=0) * (4096 // 6)).round().numpy(), counted)


def test_those_without_which_the_loss_is_least_are_taken_out_in_blocks():
    generator = torch.Generator().manual_seed(0)
    wanted = torch.rand((5, 3), generator=generator)
    good = wanted[:, None].repeat(1, BRANCHES, 1) / BRANCHES
    # By how much each branch is wrong: 3 most of all, its neighbour not at all.
    for branch, wrong in ((3, 1.0), (6, 0.9), (7, 0.8)):
        good[:, branch] += wrong * torch.rand((5, 3), generator=generator)

    def loss(votes_BA):
        return float(((votes_BA - wanted) ** 2).mean())

    found = [least_missed(good, loss, count) for count in range(BRANCHES)]
    assert found[:4] == [[], [3], [6, 7], [3, 6, 7]]
    assert found[4] == [4, 5, 6, 7]
    assert found[5] == [3, 4, 5, 6, 7]
    assert [len(each) for each in found] == list(range(BRANCHES))


@pytest.mark.parametrize(("name", "chips"), [("2chip", 1), pytest.param("4chip", 2, marks=pytest.mark.slow)])
def test_without_a_pair_of_branches_the_net_fits_on_fewer_chips(name, chips):
    network, _ = calibrated(name)
    room = chips * hardware("ns16e").cores_per_chip
    assert cores_by_layer(network.to_integer()).sum() > room
    network.silence([4, 5])
    assert cores_by_layer(network.to_integer()).sum() <= room


def test_branches_taken_out_save_their_share_of_the_cores_from_there_on_but_for_the_voters():
    network, _ = calibrated("1chip")
    whole = cores_by_layer(network.to_integer())
    network.silence([0, 5])
    left = cores_by_layer(network.to_integer())
    first = FIRST["1chip"] - 1  # the first layer takes no core
    assert (left[:first] <= whole[:first]).all()
    np.testing.assert_array_equal(left[first:-1], whole[first:-1] * 6 // 8)
    assert left[-1] == whole[-1]
