from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from spikestill.configs.hardware import hardware
from spikestill.deploy.core_map import NONE, CoreMap
from spikestill.deploy.equivalence import first_deviation
from spikestill.deploy.mapping import map_net
from spikestill.student.integer_net import IntegerNet
from tests.nets import small_net, table1_net


@pytest.fixture(scope="module")
def net() -> IntegerNet:
    return small_net(3)


@pytest.fixture(scope="module")
def core_map(net: IntegerNet) -> CoreMap:
    return map_net(net, hardware("truenorth"))


def changed(core_map: CoreMap, **arrays: np.ndarray) -> CoreMap:
    return dataclasses.replace(core_map, **arrays)


def test_a_map_is_its_net(net: IntegerNet, core_map: CoreMap) -> None:
    assert first_deviation(core_map, net) is None


def test_the_1_chip_map_with_splitters_is_its_net() -> None:
    net = table1_net("1chip", seed=5)
    core_map = map_net(net, hardware("truenorth"), anneal_seconds=0)
    assert core_map.core_relay_C.any()
    assert first_deviation(core_map, net) is None


def test_another_net_with_these_shapes_is_found(core_map: CoreMap) -> None:
    other = small_net(4)
    assert "transduction layer, weight_OIHW" in str(first_deviation(core_map, other))


@pytest.mark.parametrize("seed", range(12))
def test_any_flipped_crosspoint_is_named(net: IntegerNet, core_map: CoreMap, seed: int) -> None:
    rng = np.random.default_rng(seed)
    core, neuron = rng.choice(np.argwhere(core_map.used_CN & ~core_map.core_relay_C[:, None]))
    driven = np.flatnonzero(core_map.driven_CA[core])
    axon = int(rng.choice(driven))
    crossbar, which = core_map.crossbar_XNW.copy(), core_map.core_crossbar_C.copy()
    one = crossbar[which[core]].copy()
    one[neuron, axon // 64] ^= np.uint64(1) << np.uint64(axon % 64)
    mates = np.flatnonzero(which == which[core])
    if len(mates) > 1:
        which[core] = len(crossbar)
        crossbar = np.concatenate([crossbar, one[None]])
    else:
        crossbar[which[core]] = one
    found = str(first_deviation(changed(core_map, crossbar_XNW=crossbar, core_crossbar_C=which), net))
    layer = core_map.core_layer_C[core]
    assert (
        f"core {core}, neuron {neuron} (layer {layer}, feature {core_map.feature_CN[core, neuron]}, " in found
    )
    assert str(axon) in found.split("axon")[1]


@pytest.mark.parametrize("seed", range(6))
def test_any_other_threshold_is_named(net: IntegerNet, core_map: CoreMap, seed: int) -> None:
    rng = np.random.default_rng(seed)
    bound = np.array([np.abs(layer.weight_OIHW).sum(axis=(1, 2, 3)).max() for layer in net.layers])
    lively = (
        core_map.used_CN & ~core_map.core_relay_C[:, None] & (np.abs(core_map.theta_CN) < bound[-1] // 2)
        & (core_map.theta_CN > 1)
    )  # fmt: skip
    core, neuron = rng.choice(np.argwhere(lively))
    theta = core_map.theta_CN.copy()
    theta[core, neuron] += 1
    found = str(first_deviation(changed(core_map, theta_CN=theta), net))
    assert f"core {core}, neuron {neuron} " in found
    assert f"threshold {theta[core, neuron]}, the net's is {theta[core, neuron] - 1}" in found


@pytest.mark.parametrize("seed", range(6))
def test_two_exchanged_routes_are_found(net: IntegerNet, core_map: CoreMap, seed: int) -> None:
    """Two neurons of a core swap their destinations: every rule of the hardware still holds."""
    rng = np.random.default_rng(seed)
    axon, dest = core_map.dest_axon_CN.copy(), core_map.dest_core_CN.copy()
    core = rng.choice(np.flatnonzero((dest != NONE).sum(axis=1) > 1))
    identity = (
        core_map.feature_CN[core].astype(np.int64) * 10_000
        + core_map.row_CN[core] * 100
        + core_map.column_CN[core]
    )
    driving = np.flatnonzero(dest[core] != NONE)
    a = rng.choice(driving)
    b = rng.choice(driving[identity[driving] != identity[a]])
    for array in (axon, dest):
        array[core, [a, b]] = array[core, [b, a]]
    found = first_deviation(changed(core_map, dest_axon_CN=axon, dest_core_CN=dest), net)
    assert found is not None
    assert "on axon" in found or "reach no axon" in found or "splitter" in found


@pytest.mark.parametrize("seed", range(6))
def test_any_other_delay_is_named(net: IntegerNet, core_map: CoreMap, seed: int) -> None:
    rng = np.random.default_rng(seed)
    core, neuron = rng.choice(np.argwhere(core_map.dest_core_CN != NONE))
    delay = core_map.dest_delay_CN.copy()
    delay[core, neuron] += 1
    found = str(first_deviation(changed(core_map, dest_delay_CN=delay), net))
    assert "equal delays" in found
    assert "core" in found
