"""Every rule of the validator is broken by one change to a good map, and is named."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spikestill.common.errors import UserError
from spikestill.common.provenance import Provenance
from spikestill.configs.hardware import HardwareSpec
from spikestill.deploy import validate as validate_module
from spikestill.deploy.core_map import NONE, CoreMap
from spikestill.deploy.mapping import map_net
from spikestill.deploy.validate import validate, violations
from spikestill.student.architectures import LayerSpec
from tests.nets import random_net

SMALL = HardwareSpec(name="small", axons=128, neurons=32, cores_x=16, cores_y=16, max_offset=15)


@pytest.fixture(scope="module")
def good() -> CoreMap:
    layers = (
        LayerSpec(4, 1, 1, 0, 1),
        LayerSpec(16, 1, 1, 0, 1),
        LayerSpec(24, 3, 1, 1, 4),
        LayerSpec(13, 1, 1, 0, 1),
    )
    core_map = map_net(random_net(layers, 5, input_shape=(2, 5, 5)), SMALL, Provenance.of({}, seed=0))
    assert core_map.core_relay_C.any()
    return core_map


def edit(core_map: CoreMap, **changes: Callable[[np.ndarray], Any]) -> CoreMap:
    """Return the map with each named array changed in place by a function of its copy."""
    arrays = {}
    for name, change in changes.items():
        arrays[name] = getattr(core_map, name).copy()
        change(arrays[name])
    return dataclasses.replace(core_map, **arrays)


def put(at: Any, value: Any) -> Callable[[np.ndarray], None]:
    def change(array: np.ndarray) -> None:
        array[at] = value

    return change


def driver(m: CoreMap, layer: int, *, relay: bool = False, to_relay: bool | None = None) -> tuple[int, int]:
    """Return core and neuron of the first driving neuron of a layer."""
    found = (m.dest_core_CN != NONE) & ((m.core_layer_C == layer) & (m.core_relay_C == relay))[:, None]
    if to_relay is not None:
        found &= m.core_relay_C[m.dest_core_CN] == to_relay
    core, neuron = np.argwhere(found)[0].tolist()
    return core, neuron


def spec(m: CoreMap, **limits: Any) -> CoreMap:
    return dataclasses.replace(m, spec=dataclasses.replace(m.spec, **limits))


def two_drivers(m: CoreMap) -> CoreMap:
    core, neuron = driver(m, 2)
    other = tuple(np.argwhere((m.core_layer_C == 2)[:, None] & (m.dest_core_CN != NONE))[1].tolist())
    to = m.dest_core_CN[core, neuron], m.dest_axon_CN[core, neuron]
    return edit(m, dest_core_CN=put(other, to[0]), dest_axon_CN=put(other, to[1]))


def undriven(m: CoreMap) -> CoreMap:
    keep = np.arange(len(m.input_core_E)) != 0
    start = m.input_start_S - (m.input_start_S > 0)
    return dataclasses.replace(
        m,
        input_start_S=start,
        input_core_E=m.input_core_E[keep],
        input_axon_E=m.input_axon_E[keep],
        input_delay_E=m.input_delay_E[keep],
    )


def forget(m: CoreMap, core: int, neuron: int) -> CoreMap:
    """Mark a neuron as unused and leave everything else."""
    at = put((core, neuron), NONE)
    return edit(m, feature_CN=at, row_CN=at, column_CN=at)


def unused_neuron(m: CoreMap) -> CoreMap:
    return forget(m, *driver(m, 2))


def drop_vote(m: CoreMap) -> CoreMap:
    """Leave out one vote together with its neuron and its row of the crossbar."""
    core, neuron = int(m.output_core_V[0]), int(m.output_neuron_V[0])
    crossbar = m.crossbar_XNW[m.core_crossbar_C[core]][None].copy()
    crossbar[0, neuron] = 0
    return dataclasses.replace(
        forget(m, core, neuron),
        crossbar_XNW=np.concatenate([m.crossbar_XNW, crossbar]),
        core_crossbar_C=np.where(np.arange(m.cores) == core, len(m.crossbar_XNW), m.core_crossbar_C).astype(
            np.int32
        ),
        output_core_V=m.output_core_V[1:],
        output_neuron_V=m.output_neuron_V[1:],
        output_action_V=m.output_action_V[1:],
    )


def loose(m: CoreMap) -> CoreMap:
    at = driver(m, 2)
    return edit(m, dest_core_CN=put(at, NONE), dest_axon_CN=put(at, NONE), dest_delay_CN=put(at, 0))


def swap_splitter_axon(m: CoreMap) -> CoreMap:
    """Exchange the axons of two sources of different neurons that go to one splitter."""
    relay = int(np.flatnonzero(m.core_relay_C)[0])
    (c0, n0), (c1, n1) = np.argwhere(m.dest_core_CN == relay)[:2].tolist()
    axons = m.dest_axon_CN.copy()
    axons[c0, n0], axons[c1, n1] = axons[c1, n1], axons[c0, n0]
    return dataclasses.replace(m, dest_axon_CN=axons)


def duplicate_crossbar(m: CoreMap) -> CoreMap:
    crossbars = np.concatenate([m.crossbar_XNW, m.crossbar_XNW[:1]])
    index = m.core_crossbar_C.copy()
    index[index == 0] = np.where(np.arange((index == 0).sum()) == 0, len(m.crossbar_XNW), 0)
    return dataclasses.replace(m, crossbar_XNW=crossbars, core_crossbar_C=index)


def idle_crossbar(m: CoreMap) -> CoreMap:
    crossbar = np.full_like(m.crossbar_XNW[:1], 2**64 - 1)
    return dataclasses.replace(m, crossbar_XNW=np.concatenate([m.crossbar_XNW, crossbar]))


def last_core(m: CoreMap) -> int:
    return int(m.output_core_V[0])


MUTATIONS: list[tuple[str, Callable[[CoreMap], CoreMap], str]] = [
    ("axon types", lambda m: spec(m, axon_types=1), r"2 axon types, limit 1"),
    (
        "weight width",
        lambda m: edit(m, weight_Y=put(1, -257)),
        r"axon type 1: weight -257, limit -256\.\.255",
    ),
    (
        "leak width",
        lambda m: edit(m, theta_CN=put((3, 2), 257)),
        r"core 3, neuron 2: leak -257, limit -256\.\.255",
    ),
    (
        "potential width",
        lambda m: spec(m, potential_bits=4),
        r"core \d+, neuron \d+: potential -?\d+\.\.-?\d+, limit -8\.\.7",
    ),
    (
        "whole destination",
        lambda m: edit(m, dest_delay_CN=put(driver(m, 2), 0)),
        r"core \d+, neuron \d+: core \d+, axon \d+, delay 0 \(all or none wanted\)",
    ),
    ("one destination", loose, r"core \d+, neuron \d+: drives 0 axons and votes 0 times, limit 1 in all"),
    ("unused neuron", unused_neuron, r"core \d+, neuron \d+: is unused yet drives an axon"),
    (
        "neuron identity",
        lambda m: edit(m, feature_CN=put((last_core(m), 0), 20)),
        r"core \d+, neuron 0: feature 20, row \d, column \d, its layer 3 is \[13, 5, 5\]",
    ),
    ("one driver", two_drivers, r"core \d+, axon \d+: 2 drivers, limit 1"),
    (
        "axon driven",
        undriven,
        r"core \d+, axon \d+: a neuron meets it and nothing drives it, 1 driver wanted",
    ),
    (
        "delay range",
        lambda m: edit(m, dest_delay_CN=put(driver(m, 2), 16)),
        r"core \d+, neuron \d+: delay 16, limit 1\.\.15",
    ),
    (
        "input delay range",
        lambda m: edit(m, input_delay_E=put(4, 0)),
        r"input entry 4: delay 0, limit 1\.\.15",
    ),
    (
        "equal delays",
        lambda m: edit(m, dest_delay_CN=put(driver(m, 2, relay=True), 3)),
        r"core \d+, neuron \d+: its spike reaches core \d+ in tick \d+, that core fires in tick \d+",
    ),
    (
        "equal delays",
        lambda m: edit(m, dest_delay_CN=put(driver(m, 1, to_relay=True), 2)),
        r"core \d+, neuron \d+: its spike reaches core",
    ),
    (
        "equal input delays",
        lambda m: edit(m, input_delay_E=put(4, 2)),
        r"input entry 4: reaches core \d+ in tick 2, which fires in tick 1",
    ),
    (
        "layer order",
        lambda m: edit(m, dest_core_CN=put(driver(m, 2), driver(m, 2)[0])),
        r"core \d+ \(layer 2\), neuron \d+: drives core \d+ \(layer 2\)",
    ),
    (
        "input layer",
        lambda m: edit(m, input_core_E=put(0, last_core(m))),
        r"input entry 0: goes to core \d+ of layer 3, layer 1 wanted",
    ),
    ("core count", lambda m: spec(m, cores_x=2, cores_y=2), r"\d+ cores, limit 4"),
    ("placement range", lambda m: edit(m, chip_C=put(2, 1)), r"core 2: chip 1, limit 0\.\.0"),
    ("placement range", lambda m: edit(m, x_C=put(2, 16)), r"core 2: x 16, limit 0\.\.15"),
    ("placement range", lambda m: edit(m, y_C=put(2, -1)), r"core 2: y -1, limit 0\.\.15"),
    (
        "placement unique",
        lambda m: edit(m, x_C=put(5, m.x_C[4]), y_C=put(5, m.y_C[4])),
        r"core 5: chip 0, x \d+, y \d+ is taken by another core",
    ),
    (
        "offset range",
        lambda m: spec(m, max_offset=1),
        r"core \d+, neuron \d+: core \d+ lies \d+ cores away, limit 1",
    ),
    (
        "splitter neuron",
        lambda m: edit(m, theta_CN=put(driver(m, 2, relay=True), 2)),
        r"core \d+, neuron \d+: meets 1 axons with threshold 2",
    ),
    ("splitter neuron", swap_splitter_axon, r"one axon of weight \+1 that carries its spike"),
    (
        "vote",
        lambda m: edit(m, output_action_V=put(0, (m.output_action_V[0] + 1) % 6)),
        r"core \d+, neuron \d+: feature \d+ of layer 3 votes for action \d, layer 3 and action \d wanted",
    ),
    ("votes complete", drop_vote, r"layer 3, feature \d+, row \d, column \d: votes 0 times, 1 wanted"),
    ("crossbars distinct", duplicate_crossbar, r"\d+ crossbars, \d+ of them distinct"),
    ("crossbars used", idle_crossbar, r"1 crossbars belong to no core, limit 0"),
]


def test_a_good_map_breaks_no_rule(good: CoreMap) -> None:
    assert list(violations(good)) == []
    validate(good)


@pytest.mark.parametrize(
    ("rule", "mutate", "match"), MUTATIONS, ids=[f"{r}-{i}" for i, (r, _, _) in enumerate(MUTATIONS)]
)
def test_a_broken_rule_is_named(
    good: CoreMap, rule: str, mutate: Callable[[CoreMap], CoreMap], match: str
) -> None:
    broken = {violation.rule: violation.what for violation in violations(mutate(good))}
    assert rule in broken
    assert re.search(match, broken[rule])
    with pytest.raises(UserError, match="core map breaks the rule"):
        validate(mutate(good))


def test_an_axon_beyond_the_core_is_named() -> None:
    net = random_net((LayerSpec(4, 1, 1, 0, 1), LayerSpec(6, 1, 1, 0, 1)), 1, input_shape=(2, 1, 1))
    m = map_net(net, SMALL, Provenance.of({}, seed=0))
    narrow = dataclasses.replace(
        m,
        spec=dataclasses.replace(m.spec, axons=96),
        axon_type_CA=m.axon_type_CA[:, :96].copy(),
        crossbar_XNW=m.crossbar_XNW | np.uint64(0),
    )
    assert list(violations(narrow)) == []
    narrow.crossbar_XNW[0, 0, 1] |= np.uint64(1 << (100 - 64))
    found = {violation.rule: violation.what for violation in violations(narrow)}
    assert found == {"axon exists": "core 0, axon 100: limit 96 axons"}


def test_every_rule_has_a_mutation() -> None:
    source = Path(validate_module.__file__).read_text(encoding="utf-8")
    named = set(re.findall(r'(?:_first|Violation)\(\s*"([^"]+)"', source))
    assert named == {rule for rule, _, _ in MUTATIONS} | {"axon exists"}
