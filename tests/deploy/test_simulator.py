from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.chip import random_chip
from spikestill.common.provenance import Provenance
from spikestill.configs.hardware import HardwareSpec, hardware
from spikestill.deploy import crossbar_program
from spikestill.deploy.core_map import NONE, CoreMap
from spikestill.deploy.crossbar_program import compile_program
from spikestill.deploy.mapping import map_net
from spikestill.deploy.simulator import DISAGREE, CoreSimulator
from spikestill.student.architectures import LayerSpec
from spikestill.student.integer_net import IntegerLayer, IntegerNet, count_votes, naive_forward
from tests.deploy.naive_cores import play
from tests.nets import random_net, random_stack

SMALL = HardwareSpec(name="small", axons=128, neurons=32, cores_x=16, cores_y=16, chips_x=3)
SHAPE = (2, 9, 9)
AXES = ("feature", "row", "column")
PROVENANCE = Provenance.of({}, seed=0)
LAYERS = (
    LayerSpec(8, 2, 1, 0, 1),
    LayerSpec(24, 2, 1, 0, 2),
    LayerSpec(32, 2, 2, 1, 4),
    LayerSpec(13, 1, 1, 0, 1),
)


def mapped(spec: HardwareSpec, seed: int = 0) -> tuple[IntegerNet, CoreMap]:
    net = random_net(LAYERS, seed, actions=3, input_shape=SHAPE)
    return net, map_net(net, spec, PROVENANCE)


def stacks(count: int, seed: int = 0) -> np.ndarray:
    return np.stack([random_stack(seed + index, SHAPE) for index in range(count)])


@pytest.mark.parametrize("spec", [SMALL, hardware("truenorth")], ids=lambda spec: spec.name)
def test_firings_are_the_layers_spikes_each_in_its_tick(spec: HardwareSpec) -> None:
    net, core_map = mapped(spec)
    frames = stacks(3)
    fired_TCN = np.stack(list(CoreSimulator(core_map).firings(frames)))
    assert len(fired_TCN) == len(frames) + core_map.ticks
    assert not fired_TCN[:, ~core_map.used_CN].any()
    computing = core_map.used_CN & ~core_map.core_relay_C[:, None]
    for frame, stack in enumerate(frames):
        for layer, spikes in list(enumerate(naive_forward(net, stack)))[1:]:
            core, neuron = np.nonzero(computing & (core_map.core_layer_C == layer)[:, None])
            at = tuple(getattr(core_map, f"{axis}_CN")[core, neuron] for axis in AXES)
            fired = fired_TCN[frame + core_map.layer_tick_L[layer], core, neuron]
            assert np.array_equal(fired, spikes[at])


@pytest.mark.parametrize(
    "spec", [SMALL, hardware("truenorth"), hardware("loihi")], ids=lambda spec: spec.name
)
def test_plays_like_the_net_and_like_the_naive_interpreter(spec: HardwareSpec) -> None:
    """2, 4 and 64 axon words a core; frame by frame and pipelined; votes and every layer's spikes."""
    net, core_map = mapped(spec)
    simulator, frames = CoreSimulator(core_map), stacks(4)
    votes, spikes = simulator.pipelined_spikes(frames)
    references = [naive_forward(net, stack) for stack in frames]
    wanted = np.stack([count_votes(layers[-1], net.actions) for layers in references])
    assert np.array_equal(votes, wanted)
    assert np.array_equal(simulator.pipelined(frames), wanted)
    for threads in (2, 3, 9):
        assert np.array_equal(CoreSimulator(core_map, threads).pipelined(frames), wanted)
    for frame, reference in enumerate(references):
        alone = simulator.spikes(frames[frame])
        assert np.array_equal(simulator.votes(frames[frame]), wanted[frame])
        for layer, kept in enumerate(simulator.kept):
            assert np.array_equal(alone[layer], reference[layer] * kept)
            assert np.array_equal(spikes[frame][layer], reference[layer] * kept)
    if spec is not hardware("loihi"):
        slow_votes, slow_spikes = play(core_map, list(frames))
        assert np.array_equal(votes, slow_votes)
        for frame in range(len(frames)):
            for layer, found in enumerate(slow_spikes[frame], start=1):
                assert np.array_equal(spikes[frame][layer], found)


@pytest.mark.parametrize("most_moves", [20, 0])
def test_a_chip_of_random_full_cores_plays_like_the_naive_interpreter(
    most_moves: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 0 moves allowed, words are collected bit by bit, as those of a chip of 4,096 cores are."""
    monkeypatch.setattr(crossbar_program, "MOST_MOVES", most_moves)
    core_map = random_chip(32)
    program, _ = compile_program(core_map)
    assert ((program.collected_RW == NONE).sum() == 0) == (most_moves == 0)
    frames = np.random.default_rng(1).integers(0, 256, (3, *core_map.input_shape), np.uint8)
    votes, spikes = CoreSimulator(core_map).pipelined_spikes(frames)
    slow_votes, slow_spikes = play(core_map, list(frames))
    assert np.array_equal(votes, slow_votes)
    assert np.array_equal(np.stack([CoreSimulator(core_map).votes(frame) for frame in frames]), slow_votes)
    for frame, found in enumerate(spikes):
        assert all(map(np.array_equal, found[1:], slow_spikes[frame]))


@settings(deadline=None, max_examples=15, derandomize=True)
@given(st.integers(0, 2**31), st.sampled_from(["delay", "theta", "axon", "type", "cut"]))
def test_a_damaged_map_plays_its_damage_tick_by_tick(seed: int, part: str) -> None:
    """Late spikes, moved axons, other types: the simulator does what the naive interpreter does."""
    rng = np.random.default_rng(seed)
    shape = (1, 5, 6)
    net = random_net((LayerSpec(4, 2, 1, 0, 1), LayerSpec(8, 2, 1, 0, 1), LayerSpec(6, 2, 1, 0, 1)), seed % 5,
                     actions=3, input_shape=shape)  # fmt: skip
    core_map = map_net(net, SMALL, PROVENANCE)
    routed = np.argwhere(core_map.dest_core_CN != NONE)
    at = tuple(routed[rng.integers(len(routed))])
    arrays = {
        name: getattr(core_map, name).copy()
        for name in ("dest_delay_CN", "theta_CN", "dest_core_CN", "dest_axon_CN", "axon_type_CA")
    }
    if part == "delay":
        arrays["dest_delay_CN"][at] += 1
    elif part == "theta":
        arrays["theta_CN"][at] += rng.integers(-3, 4)
    elif part == "axon":
        target = arrays["dest_core_CN"][at]
        taken = set(arrays["dest_axon_CN"][arrays["dest_core_CN"] == target].tolist())
        taken |= set(core_map.input_axon_E[core_map.input_core_E == target].tolist())
        free = [axon for axon in range(core_map.spec.axons) if axon not in taken]
        if free:
            arrays["dest_axon_CN"][at] = rng.choice(free)
    elif part == "type":
        core = rng.integers(core_map.cores)
        arrays["axon_type_CA"][core, slice(*rng.choice([(0, 64), (64, 128)]))] ^= 1
    else:
        arrays["dest_core_CN"][at], arrays["dest_axon_CN"][at], arrays["dest_delay_CN"][at] = NONE, NONE, 0
    damaged = dataclasses.replace(core_map, **arrays)
    frames = np.stack([random_stack(seed % 1000 + index, shape) for index in range(5)])
    found = CoreSimulator(damaged).pipelined(frames)
    wanted, _ = play(damaged, list(frames))
    # The interpreter begins with silent cores, the simulator with resting ones: a late spike of the
    # time before frame 0 reaches frame 0 only.
    assert np.array_equal(found[1:], wanted[1:])


def test_a_late_route_is_seen_in_both_modes() -> None:
    """One layer's routes come a tick late: the votes of a frame are then not the net's."""
    net, core_map = mapped(SMALL)
    late = core_map.dest_delay_CN.copy()
    cores = (core_map.core_layer_C == 2) & ~core_map.core_relay_C
    late[cores] += core_map.dest_core_CN[cores] != NONE
    simulator, frames = CoreSimulator(dataclasses.replace(core_map, dest_delay_CN=late)), stacks(4)
    wanted = np.stack([count_votes(naive_forward(net, stack)[-1], net.actions) for stack in frames])
    assert not np.array_equal(simulator.pipelined(frames), wanted)
    assert not np.array_equal(np.stack([simulator.votes(stack) for stack in frames]), wanted)


def test_frames_played_alone_leave_nothing_behind() -> None:
    _, core_map = mapped(SMALL)
    simulator, frames = CoreSimulator(core_map), stacks(5)
    fresh = [CoreSimulator(core_map).votes(stack) for stack in frames]
    order = [3, 1, 4, 1, 0, 2, 3]
    assert np.array_equal(
        [simulator.votes(frames[index]) for index in order], [fresh[index] for index in order]
    )


def test_features_that_fire_alike_all_vote() -> None:
    """A last layer without weights and with theta 0 fires everywhere: its neurons share a lane, not a vote."""
    net = random_net(LAYERS[:2], 1, actions=3, input_shape=SHAPE)
    last = IntegerLayer(np.zeros((12, 24, 1, 1), np.int8), np.array([0] * 9 + [1] * 3, np.int32), 1, 0, 1)
    net = IntegerNet((*net.layers, last), 3, SHAPE)
    votes = CoreSimulator(map_net(net, SMALL, PROVENANCE)).votes(random_stack(1, SHAPE))
    positions = np.prod(net.shapes()[-1][1:])
    assert votes.tolist() == [3 * positions] * 3


def test_neurons_that_nothing_reads_are_not_kept() -> None:
    """13 features vote for 3 actions: the thirteenth votes for none."""
    _, core_map = mapped(SMALL)
    kept = CoreSimulator(core_map).kept[-1]
    assert kept[:12].all()
    assert not kept[12].any()


def test_copies_that_differ_are_marked() -> None:
    _, core_map = mapped(SMALL)
    cores = (core_map.core_layer_C == 1) & ~core_map.core_relay_C
    core, neuron = (int(index) for index in np.argwhere(core_map.used_CN & cores[:, None])[0])
    at = tuple(int(getattr(core_map, f"{axis}_CN")[core, neuron]) for axis in AXES)
    stack = random_stack(2, SHAPE)
    fired = CoreSimulator(core_map).spikes(stack)[1][at]
    theta = core_map.theta_CN.copy()
    theta[core, neuron] = 1000 if fired else -1000
    same = [(getattr(core_map, f"{axis}_CN") == at[i])[cores] for i, axis in enumerate(AXES)]
    assert np.logical_and.reduce(same).sum() > 1
    assert CoreSimulator(dataclasses.replace(core_map, theta_CN=theta)).spikes(stack)[1][at] == DISAGREE


def test_cores_that_never_rest_are_named() -> None:
    """A neuron that silences itself fires in every second tick."""
    host = IntegerLayer(np.ones((1, 1, 1, 1), np.int8), np.ones(1, np.int32), 1, 0, 1)
    inverter = IntegerLayer(-np.ones((1, 1, 1, 1), np.int8), np.zeros(1, np.int32), 1, 0, 1)
    core_map = map_net(IntegerNet((host, inverter), 1, (1, 1, 1)), SMALL, PROVENANCE)
    core, neuron = (int(index) for index in np.argwhere(core_map.used_CN)[0])
    minus = int(
        core_map.input_axon_E[core_map.weight_Y[core_map.axon_type_CA[core, core_map.input_axon_E]] < 0][0]
    )
    arrays = {
        name: getattr(core_map, name).copy() for name in ("dest_core_CN", "dest_axon_CN", "dest_delay_CN")
    }
    for name, value in zip(arrays, (core, minus, 1), strict=True):
        arrays[name][core, neuron] = value
    with pytest.raises(ValueError, match=f"core {core} does not come to rest within .* ticks"):
        CoreSimulator(dataclasses.replace(core_map, **arrays))


def test_cores_with_the_same_crossbar_and_thresholds_share_its_storage() -> None:
    net = random_net((LayerSpec(8, 1, 1, 0, 1), LayerSpec(64, 1, 1, 0, 1)), 3, input_shape=SHAPE)
    core_map = map_net(net, hardware("truenorth"), PROVENANCE)
    program, _ = compile_program(core_map)
    assert core_map.cores > 20
    assert len(program.block_start_K) - 1 == len(np.unique(core_map.core_crossbar_C))
    assert len(program.crossbar) < core_map.cores


def test_refuses_a_stack_of_another_shape() -> None:
    _, core_map = mapped(SMALL)
    with pytest.raises(ValueError, match=r"input must be uint8 of shape \(2, 9, 9\)"):
        CoreSimulator(core_map).pipelined(np.zeros((2, 2, 9, 8), np.uint8))
