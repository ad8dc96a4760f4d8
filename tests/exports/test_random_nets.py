"""Random nets through map, simulate and every export: the same spikes at the end of each way."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spikestill.deploy.equivalence import first_deviation
from spikestill.deploy.exports import netx, nir_graph, ranc
from spikestill.deploy.exports.replay import Replay
from spikestill.deploy.mapping import map_net
from spikestill.deploy.simulator import CoreSimulator
from spikestill.student.integer_net import IntegerNet, count_votes, naive_forward
from tests.deploy.test_mapping import SMALL, small_nets
from tests.exports.readers import netx_spikes, nir_spikes, ranc_outputs
from tests.nets import random_stack


def check(net: IntegerNet, seed: int) -> None:
    stacks = np.stack([random_stack(seed + frame, net.input_shape) for frame in range(2)])
    layers = [np.stack(each) for each in zip(*(naive_forward(net, stack) for stack in stacks), strict=True)]
    votes = np.stack([count_votes(last, net.actions) for last in layers[-1]])
    core_map = map_net(net, SMALL)
    assert first_deviation(core_map, net) is None
    simulator = CoreSimulator(core_map)
    assert np.array_equal(np.stack([simulator.votes(stack) for stack in stacks]), votes)
    assert np.array_equal(simulator.pipelined(stacks), votes)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        action = np.array(
            ranc.write(core_map, Replay(stacks, votes, "random", np.arange(2)), folder)["output_action"], int
        )
        output = ranc_outputs(folder)
        for frame in range(len(stacks)):
            fired = output[frame + core_map.ticks]
            assert np.array_equal(np.bincount(action, fired, net.actions).astype(np.int64), votes[frame])
        nir_graph.write(net, folder / "net.nir", "lif" if seed % 2 else "threshold", 1e-4, seed % 3 > 0)
        netx.write(net, folder / "net.net")
        nir = nir_spikes(folder / "net.nir", stacks, type_check=seed % 3 > 0)
        relayed = netx_spikes(folder / "net.net", layers[0])
    for index, wanted in enumerate(layers):
        assert np.array_equal(nir[index], wanted)
        assert index == 0 or np.array_equal(relayed[index - 1], wanted)


@settings(deadline=None, max_examples=20, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(small_nets(), st.integers(0, 2**31))
def test_twenty_nets(net: IntegerNet, seed: int) -> None:
    check(net, seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(deadline=None, max_examples=2_000, derandomize=True, suppress_health_check=list(HealthCheck))
@given(small_nets(), st.integers(0, 2**31 - 2))
def test_two_thousand_nets(net: IntegerNet, seed: int) -> None:
    check(net, seed)
