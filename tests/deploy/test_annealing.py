from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from spikestill.configs.hardware import HardwareSpec, hardware
from spikestill.deploy.core_map import NONE, CoreMap
from spikestill.deploy.mapping import map_with_gains
from spikestill.deploy.passes.annealing import BORDER_HOPS, PARTS, anneal, hops, ways
from spikestill.deploy.passes.lowering import lower
from spikestill.deploy.passes.placement import Placement, place
from spikestill.deploy.passes.pruning import prune
from spikestill.deploy.passes.replication import LayerCores, replicate
from spikestill.deploy.passes.tiling import tile
from spikestill.deploy.rates import firing_rates
from spikestill.student.integer_net import IntegerNet, naive_forward
from tests.nets import random_stack, table1_net

FOUR_CHIPS = dataclasses.replace(hardware("truenorth"), cores_x=32, cores_y=16, chips_x=2, chips_y=2)


@pytest.fixture(scope="module")
def net() -> IntegerNet:
    return table1_net("1chip", seed=4)


def placed(net: IntegerNet, spec: HardwareSpec) -> tuple[tuple[LayerCores, ...], Placement]:
    layers = prune(lower(net, spec), net.actions)
    cores = replicate(layers, tile(layers, spec), spec)
    return cores, place(cores, spec)


def by_hand(core_map: CoreMap) -> tuple[int, int]:
    """Return (hops, borders crossed), neuron by neuron, from a finished map."""
    spec, steps, crossed = core_map.spec, 0, 0
    for core, neuron in np.argwhere(core_map.dest_core_CN != NONE):
        at = []
        for c in (core, core_map.dest_core_CN[core, neuron]):
            chip_y, chip_x = divmod(int(core_map.chip_C[c]), spec.chips_x)
            x, y = int(core_map.x_C[c]), int(core_map.y_C[c])
            at.append((chip_x * spec.cores_x + x, chip_y * spec.cores_y + y, chip_x, chip_y))
        steps += abs(at[0][0] - at[1][0]) + abs(at[0][1] - at[1][1])
        crossed += abs(at[0][2] - at[1][2]) + abs(at[0][3] - at[1][3])
    return int(steps), int(crossed)


@pytest.mark.parametrize(
    "spec",
    [hardware("truenorth"), pytest.param(FOUR_CHIPS, marks=pytest.mark.slow)],
    ids=["one chip", "four chips"],
)
def test_ways_get_much_shorter_and_every_core_keeps_a_place_of_its_own(
    net: IntegerNet, spec: HardwareSpec
) -> None:
    cores, placement = placed(net, spec)
    found = ways(cores, placement)
    near, ended = anneal(found, placement, spec)
    assert ended == "all proposals made" or ended.endswith("gained nothing more")
    before, after = hops(found, placement, spec), hops(found, near, spec)
    assert after[0] + BORDER_HOPS * after[1] < 0.4 * (before[0] + BORDER_HOPS * before[1])
    places = set(zip(near.chip_C.tolist(), near.x_C.tolist(), near.y_C.tolist(), strict=True))
    assert len(places) == len(near.chip_C)
    assert set(near.chip_C.tolist()) <= set(placement.chip_C.tolist())
    again, _ = anneal(found, placement, spec)
    np.testing.assert_array_equal(again.x_C, near.x_C)
    np.testing.assert_array_equal(again.y_C, near.y_C)


class Clock:
    """A clock on which every look takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_time_ends_the_annealing_when_it_has_cooled(net: IntegerNet) -> None:
    spec = hardware("truenorth")
    cores, placement = placed(net, spec)
    found = ways(cores, placement)
    before = hops(found, placement, spec)[0]
    reached = {}
    for seconds in (20.0, 60.0):
        near, ended = anneal(found, placement, spec, seconds=seconds, clock=Clock())
        assert ended == f"ended by time at {(seconds - 1) / PARTS:.0%} of its proposals"
        assert len(set(zip(near.x_C.tolist(), near.y_C.tolist(), strict=True))) == len(near.x_C)
        reached[seconds] = hops(found, near, spec)[0]
    assert reached[60.0] < reached[20.0] < 0.5 * before


@pytest.mark.parametrize("seconds", [0.5, 2.0, 8.0])
def test_a_slow_machine_ends_it_after_a_few_proposals(net: IntegerNet, seconds: float) -> None:
    spec = hardware("truenorth")
    cores, placement = placed(net, spec)
    found = ways(cores, placement)
    near, ended = anneal(found, placement, spec, seconds=seconds, clock=Clock())
    assert re.fullmatch(r"ended by time at [0-4]% of its proposals", ended)
    assert hops(found, near, spec)[0] <= hops(found, placement, spec)[0]


def test_no_seconds_leave_the_cores_where_they_are(net: IntegerNet) -> None:
    spec = hardware("truenorth")
    cores, placement = placed(net, spec)
    assert anneal(ways(cores, placement), placement, spec, seconds=0.0) == (placement, "left out")


def test_a_run_that_gains_nothing_ends(net: IntegerNet) -> None:
    """Rates of 0: every placement is as good."""
    spec = hardware("truenorth")
    cores, placement = placed(net, spec)
    found = ways(cores, placement)
    idle = dataclasses.replace(found, rate_E=np.zeros_like(found.rate_E))
    same, ended = anneal(idle, placement, spec)
    assert same is placement
    assert ended == "ended at 51% of its proposals, which gained nothing more"


def test_hops_are_those_counted_neuron_by_neuron(net: IntegerNet) -> None:
    core_map, gains = map_with_gains(net, FOUR_CHIPS)
    steps, crossed = by_hand(core_map)
    assert f"-> {steps:,}, across chip borders" in gains["place, anneal"]
    assert gains["place, anneal"].endswith(f"-> {crossed:,}")


def test_measured_rates_weigh_the_ways(net: IntegerNet) -> None:
    stacks = np.stack([random_stack(seed) for seed in range(3)])
    rates = firing_rates(net, stacks)[1:]
    wanted = np.mean([naive_forward(net, stack)[3] for stack in stacks], axis=0)
    np.testing.assert_array_equal(rates[2], wanted)
    cores, placement = placed(net, FOUR_CHIPS)
    weighed, plain = ways(cores, placement, rates), ways(cores, placement)
    np.testing.assert_array_equal(weighed.source_E, plain.source_E)
    assert (weighed.rate_E <= plain.rate_E + 1e-9).all()
    layer = cores[2]
    driving = layer.dest_core_CN != NONE
    mine = (weighed.source_E >= placement.first_core_L[2]) & (weighed.source_E < placement.first_core_L[3])
    assert weighed.rate_E[mine].sum() == pytest.approx(wanted.reshape(-1)[layer.source_CN[driving]].sum())
