"""Validate: every rule of the hardware, checked on a finished core map.

Nothing here is shared with the mapper's passes: the rules are read from the map and its target alone.
A rule that is broken gives a :class:`Violation` with the core, neuron or axon, the value and the limit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spikestill.common.errors import UserError
from spikestill.configs.hardware import HardwareSpec, signed
from spikestill.deploy.core_map import NONE, WORD_BITS, CoreMap, load


@dataclasses.dataclass(frozen=True)
class Violation:
    """One broken rule.

    Attributes:
        rule: the rule's name.
        what: the object, its value and the limit.
        count: how often the rule is broken.
    """

    rule: str
    what: str
    count: int

    def __str__(self) -> str:
        """What a sentence about the map says of it: the map ..."""
        times = f" ({self.count} such)" if self.count > 1 else ""
        return f"breaks the rule {self.rule!r}: {self.what}{times}"


def validate(core_map: CoreMap, name: str = "core map") -> None:
    """Raise unless the map, called ``name`` in the message, obeys every rule of its target.

    Raises:
        UserError: it does not; the first broken rule is named, with core, neuron or axon, value and limit.
    """
    for violation in violations(core_map):
        raise UserError(f"{name} {violation}", "map the student again with `spikestill map`")


def load_valid(path: Path) -> CoreMap:
    """Read a core map that obeys every rule of its target: one to play, to export or to cost.

    Raises:
        UserError: the file cannot be read, or its map breaks a rule.
    """
    core_map = load(path)
    validate(core_map, f"{path}: core map")
    return core_map


def violations(core_map: CoreMap) -> Iterator[Violation]:
    """Yield the first breach of every rule that the map breaks."""
    for rule in RULES:
        yield from rule(core_map)


def _first(rule: str, bad: npt.NDArray[np.bool_], say: Callable[..., str]) -> Iterator[Violation]:
    where = np.argwhere(bad)
    if len(where):
        yield Violation(rule, say(*where[0].tolist()), len(where))


def _widths(m: CoreMap) -> Iterator[Violation]:
    """Axon types, weights, leaks and potentials fit the target's widths."""
    spec = m.spec
    if len(m.weight_Y) > spec.axon_types:
        yield Violation("axon types", f"{len(m.weight_Y)} axon types, limit {spec.axon_types}", 1)
    low, high = signed(spec.weight_bits)
    yield from _first(
        "weight width",
        (m.weight_Y < low) | (m.weight_Y > high),
        lambda y: f"axon type {y}: weight {m.weight_Y[y]}, limit {low}..{high}",
    )
    leak = -m.theta_CN.astype(np.int64)
    leak_low, leak_high = signed(spec.leak_bits)
    yield from _first(
        "leak width",
        (leak < leak_low) | (leak > leak_high),
        lambda c, n: f"core {c}, neuron {n}: leak {leak[c, n]}, limit {leak_low}..{leak_high}",
    )
    least, most = reach(m)
    potential_low, potential_high = signed(spec.potential_bits)
    yield from _first(
        "potential width",
        (least + leak < potential_low) | (most + leak > potential_high),
        lambda c, n: (
            f"core {c}, neuron {n}: potential {least[c, n] + leak[c, n]}..{most[c, n] + leak[c, n]}, "
            f"limit {potential_low}..{potential_high}"
        ),
    )


def reach(m: CoreMap) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the least and the largest possible sum of every neuron, (C, N)."""
    least, most = (np.zeros(m.theta_CN.shape, np.int64) for _ in range(2))
    for core in range(m.cores):
        weight = m.weight_Y[m.axon_type_CA[core]].astype(np.float32)
        bits = _bits(m, core).astype(np.float32)
        least[core] = bits @ np.minimum(weight, 0)
        most[core] = bits @ np.maximum(weight, 0)
    return least, most


def _bits(m: CoreMap, core: int) -> npt.NDArray[np.uint8]:
    """Return a core's crossbar as 0/1, (N, A)."""
    words = m.crossbar_XNW[m.core_crossbar_C[core]].astype("<u8")
    return np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, : m.spec.axons]


def _neurons(m: CoreMap) -> Iterator[Violation]:
    """A used neuron drives one axon or votes; an unused one does neither and meets no axon."""
    used, driving = m.used_CN, m.dest_core_CN != NONE
    votes = np.zeros(used.shape, np.int64)
    np.add.at(votes, (m.output_core_V, m.output_neuron_V), 1)
    yield from _first(
        "whole destination",
        (driving != (m.dest_axon_CN != NONE)) | (driving != (m.dest_delay_CN != 0)),
        lambda c, n: (
            f"core {c}, neuron {n}: core {m.dest_core_CN[c, n]}, axon {m.dest_axon_CN[c, n]}, "
            f"delay {m.dest_delay_CN[c, n]} (all or none wanted)"
        ),
    )
    yield from _first(
        "one destination",
        used & (driving.astype(np.int64) + votes != 1),
        lambda c, n: (
            f"core {c}, neuron {n}: drives {int(driving[c, n])} axons and votes {votes[c, n]} times, "
            "limit 1 in all"
        ),
    )
    meets = (m.crossbar_XNW != 0).any(axis=2)[m.core_crossbar_C]
    yield from _first(
        "unused neuron",
        ~used & (driving | (votes > 0) | meets),
        lambda c, n: f"core {c}, neuron {n}: is unused yet drives an axon, votes or meets an axon",
    )
    shape = m.layer_shape_L3[m.core_layer_C]
    inside = np.ones(used.shape, bool)
    inside &= (m.feature_CN >= 0) & (m.feature_CN < shape[:, 0, None])
    inside &= (m.row_CN >= 0) & (m.row_CN < shape[:, 1, None])
    inside &= (m.column_CN >= 0) & (m.column_CN < shape[:, 2, None])
    yield from _first(
        "neuron identity",
        used & ~inside,
        lambda c, n: (
            f"core {c}, neuron {n}: feature {m.feature_CN[c, n]}, row {m.row_CN[c, n]}, column "
            f"{m.column_CN[c, n]}, its layer {m.core_layer_C[c]} is {shape[c].tolist()}"
        ),
    )


def _axons(m: CoreMap) -> Iterator[Violation]:
    """No axon has two drivers, and an axon that a neuron meets has one."""
    drivers = np.zeros(m.axon_type_CA.shape, np.int64)
    core, neuron = np.nonzero((m.dest_core_CN != NONE) & (m.dest_axon_CN != NONE))
    np.add.at(drivers, (m.dest_core_CN[core, neuron], m.dest_axon_CN[core, neuron]), 1)
    np.add.at(drivers, (m.input_core_E, m.input_axon_E), 1)
    yield from _first(
        "one driver",
        drivers > 1,
        lambda c, a: f"core {c}, axon {a}: {drivers[c, a]} drivers, limit 1",
    )
    any_neuron = np.bitwise_or.reduce(m.crossbar_XNW, axis=1)
    read = np.unpackbits(any_neuron.astype("<u8").view(np.uint8), axis=1, bitorder="little")
    met = read[m.core_crossbar_C].astype(bool)
    yield from _first(
        "axon driven",
        met[:, : m.spec.axons] & (drivers == 0),
        lambda c, a: f"core {c}, axon {a}: a neuron meets it and nothing drives it, 1 driver wanted",
    )
    yield from _first(
        "axon exists",
        met[:, m.spec.axons :],
        lambda c, a: f"core {c}, axon {a + m.spec.axons}: limit {m.spec.axons} axons",
    )


def _delays(m: CoreMap) -> Iterator[Violation]:
    """Delays lie in the target's range, and all paths to a core take equally long."""
    spec, driving = m.spec, m.dest_core_CN != NONE
    delay = m.dest_delay_CN.astype(np.int64)
    yield from _first(
        "delay range",
        driving & ((delay < spec.min_delay) | (delay > spec.max_delay)),
        lambda c, n: f"core {c}, neuron {n}: delay {delay[c, n]}, limit {spec.min_delay}..{spec.max_delay}",
    )
    entry_delay = m.input_delay_E.astype(np.int64)
    yield from _first(
        "input delay range",
        (entry_delay < spec.min_delay) | (entry_delay > spec.max_delay),
        lambda e: f"input entry {e}: delay {entry_delay[e]}, limit {spec.min_delay}..{spec.max_delay}",
    )
    tick = m.layer_tick_L[m.core_layer_C].astype(np.int64)
    core, neuron = np.nonzero(driving)
    dest = m.dest_core_CN[core, neuron]
    arrival = tick[core] + delay[core, neuron]
    to_splitter = m.core_relay_C[dest]
    # A splitter fires when its spikes arrive; the latest of them stands for all, and any other differs.
    tick[m.core_relay_C] = 0
    np.maximum.at(tick, dest[to_splitter], arrival[to_splitter])
    arrival = tick[core] + delay[core, neuron]
    late = np.zeros(driving.shape, bool)
    late[core, neuron] = arrival != tick[dest]
    yield from _first(
        "equal delays",
        late,
        lambda c, n: (
            f"core {c}, neuron {n}: its spike reaches core {m.dest_core_CN[c, n]} in tick "
            f"{tick[c] + delay[c, n]}, that core fires in tick {tick[m.dest_core_CN[c, n]]}"
        ),
    )
    yield from _first(
        "equal input delays",
        entry_delay != tick[m.input_core_E],
        lambda e: (
            f"input entry {e}: reaches core {m.input_core_E[e]} in tick {entry_delay[e]}, "
            f"which fires in tick {tick[m.input_core_E[e]]}"
        ),
    )


def _order(m: CoreMap) -> Iterator[Violation]:
    """Spikes go from a layer to the next one or to its own splitters; the host feeds the first layer."""
    core, neuron = np.nonzero(m.dest_core_CN != NONE)
    dest = m.dest_core_CN[core, neuron]
    step = m.core_layer_C[dest].astype(np.int64) - m.core_layer_C[core]
    relay = m.core_relay_C[dest]
    bad = np.zeros(m.dest_core_CN.shape, bool)
    bad[core, neuron] = np.where(relay, (step != 0) | m.core_relay_C[core], step != 1)
    yield from _first(
        "layer order",
        bad,
        lambda c, n: (
            f"core {c} (layer {m.core_layer_C[c]}), neuron {n}: drives core {m.dest_core_CN[c, n]} "
            f"(layer {m.core_layer_C[m.dest_core_CN[c, n]]})"
        ),
    )
    yield from _first(
        "input layer",
        (m.core_layer_C[m.input_core_E] != 1) | m.core_relay_C[m.input_core_E],
        lambda e: (
            f"input entry {e}: goes to core {m.input_core_E[e]} of layer "
            f"{m.core_layer_C[m.input_core_E[e]]}, layer 1 wanted"
        ),
    )


def _place(m: CoreMap) -> Iterator[Violation]:
    """Every core has a place of its own on a chip that exists, within reach of those it drives."""
    spec = m.spec
    if m.cores > spec.cores:
        yield Violation("core count", f"{m.cores} cores, limit {spec.cores}", 1)
    for name, value, limit in (
        ("chip", m.chip_C, spec.chips),
        ("x", m.x_C, spec.cores_x),
        ("y", m.y_C, spec.cores_y),
    ):
        yield from _first(
            "placement range",
            (value < 0) | (value >= limit),
            lambda c, name=name, value=value, limit=limit: (
                f"core {c}: {name} {value[c]}, limit 0..{limit - 1}"
            ),
        )
    site = (m.chip_C.astype(np.int64) * (1 << 16) + m.x_C) * (1 << 16) + m.y_C
    _, first = np.unique(site, return_index=True)
    again = np.ones(m.cores, bool)
    again[first] = False
    yield from _first(
        "placement unique",
        again,
        lambda c: f"core {c}: chip {m.chip_C[c]}, x {m.x_C[c]}, y {m.y_C[c]} is taken by another core",
    )
    if spec.max_offset is not None:
        yield from _reaches(m, spec, spec.max_offset)


def _reaches(m: CoreMap, spec: HardwareSpec, limit: int) -> Iterator[Violation]:
    across, down = spec.on_grid(m.chip_C, m.x_C, m.y_C)
    dest = np.where(m.dest_core_CN == NONE, np.arange(m.cores)[:, None], m.dest_core_CN)
    offset = np.maximum(np.abs(across[dest] - across[:, None]), np.abs(down[dest] - down[:, None]))
    yield from _first(
        "offset range",
        offset > limit,
        lambda c, n: f"core {c}, neuron {n}: core {dest[c, n]} lies {offset[c, n]} cores away, limit {limit}",
    )


def _relays(m: CoreMap) -> Iterator[Violation]:
    """A splitter's neuron meets one axon, of weight +1, that carries its own spike; its threshold is 1."""
    driver = np.full((*m.axon_type_CA.shape, 3), NONE, np.int64)
    core, neuron = np.nonzero(m.dest_core_CN != NONE)
    identity = np.stack([m.feature_CN, m.row_CN, m.column_CN], axis=2)
    driver[m.dest_core_CN[core, neuron], m.dest_axon_CN[core, neuron]] = identity[core, neuron]
    for c in np.flatnonzero(m.core_relay_C).tolist():
        bits, used = _bits(m, c), m.used_CN[c]
        axon = bits.argmax(axis=1)
        right = (bits.sum(axis=1) == 1) & (m.weight_Y[m.axon_type_CA[c, axon]] == 1) & (m.theta_CN[c] == 1)
        right &= (driver[c, axon] == identity[c]).all(axis=1)
        for n in np.flatnonzero(used & ~right).tolist():
            yield Violation(
                "splitter neuron",
                f"core {c}, neuron {n}: meets {bits[n].sum()} axons with threshold {m.theta_CN[c, n]}; "
                "one axon of weight +1 that carries its spike and threshold 1 wanted",
                1,
            )
            return


def _votes(m: CoreMap) -> Iterator[Violation]:
    """Every neuron of the last layer whose feature votes is there once and votes for feature mod A."""
    last = len(m.layer_shape_L3) - 1
    core, neuron = m.output_core_V, m.output_neuron_V
    feature = m.feature_CN[core, neuron]
    wrong = (m.core_layer_C[core] != last) | m.core_relay_C[core] | (feature % m.actions != m.output_action_V)
    yield from _first(
        "vote",
        wrong,
        lambda v: (
            f"core {core[v]}, neuron {neuron[v]}: feature {feature[v]} of layer "
            f"{m.core_layer_C[core[v]]} votes for action {m.output_action_V[v]}, "
            f"layer {last} and action {feature[v] % m.actions} wanted"
        ),
    )
    features, height, width = m.layer_shape_L3[last].tolist()
    count = np.zeros((features, height, width), np.int64)
    if not wrong.any():
        np.add.at(count, (feature, m.row_CN[core, neuron], m.column_CN[core, neuron]), 1)
        wanted = np.zeros(count.shape, np.int64)
        wanted[: m.actions * (features // m.actions)] = 1
        yield from _first(
            "votes complete",
            count != wanted,
            lambda f, r, c: (
                f"layer {last}, feature {f}, row {r}, column {c}: votes {count[f, r, c]} times, "
                f"{wanted[f, r, c]} wanted"
            ),
        )


def _words(m: CoreMap) -> Iterator[Violation]:
    """The identical crossbars are stored once, and a core's row has its axons in whole words."""
    flat = m.crossbar_XNW.reshape(len(m.crossbar_XNW), -1)
    distinct = len({row.tobytes() for row in flat})
    if distinct != len(flat):
        yield Violation("crossbars distinct", f"{len(flat)} crossbars, {distinct} of them distinct", 1)
    unused = len(flat) - len(np.unique(m.core_crossbar_C))
    if unused:
        yield Violation("crossbars used", f"{unused} crossbars belong to no core, limit 0", unused)
    assert m.crossbar_XNW.shape[2] * WORD_BITS >= m.spec.axons


RULES: tuple[Callable[[CoreMap], Iterator[Violation]], ...] = (
    _widths, _neurons, _axons, _delays, _order, _place, _relays, _votes, _words,
)  # fmt: skip
