"""The exported SystemVerilog is compiled by Verilator and played beside the core simulator, spike by spike."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gates import synthesised
from spikestill.common.errors import UserError
from spikestill.common.zoo import zoo_path
from spikestill.configs.environment import EnvironmentConfig
from spikestill.configs.hardware import HardwareSpec, hardware
from spikestill.deploy.core_map import load as load_core_map
from spikestill.deploy.exports import gates
from spikestill.deploy.mapping import map_net
from spikestill.deploy.simulator import CoreSimulator
from spikestill.student.architectures import LayerSpec
from spikestill.student.integer_net import load
from spikestill.teacher.atari.environment import VectorGames
from tests.exports.frames import replay_for, stacks_of
from tests.nets import random_net, small_net

VERILATOR, YOSYS = shutil.which("verilator"), shutil.which("yosys")
needs_verilator = pytest.mark.skipif(VERILATOR is None, reason="no Verilator: apt-get install verilator")
needs_yosys = pytest.mark.skipif(YOSYS is None, reason="no yosys: apt-get install yosys")
SOURCES = ("map_parameters.sv", *gates.MODULES)
# Cores of 48 neurons, which is no power of two: a net takes many of them, splitters too.
SMALL_CORES = HardwareSpec(name="small", axons=128, neurons=48, cores_x=40, cores_y=40)


def built(folder: Path) -> None:
    """Compile the test bench by the command that the export tells."""
    command = json.loads((folder / "layout.json").read_text())["play"].split(" && ")[0]
    done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def played(folder: Path) -> subprocess.CompletedProcess[str]:
    """Play the frames."""
    return subprocess.run(
        ["obj_dir/Vtestbench"], cwd=folder, capture_output=True, text=True, check=False, timeout=600
    )


@needs_verilator
@pytest.mark.parametrize(
    ("target", "layers"),
    [
        pytest.param(hardware("truenorth"), None, marks=pytest.mark.slow),
        (SMALL_CORES, (LayerSpec(4, 4, 4, 0, 1), LayerSpec(32, 3, 1, 1, 1), LayerSpec(240, 1, 1, 0, 1))),
    ],
    ids=["truenorth", "small cores"],
)
def test_the_gates_fire_as_the_core_simulator_does_one_frame_a_tick(
    tmp_path: Path, target: HardwareSpec, layers: tuple[LayerSpec, ...] | None
) -> None:
    net = small_net(0) if layers is None else random_net(layers, 5, actions=4, input_shape=(2, 20, 16))
    core_map = map_net(net, target)
    if layers is not None:
        assert core_map.core_relay_C.any()
        assert core_map.dest_delay_CN.max() > 1
    stacks = stacks_of(6, net.input_shape)
    layout = gates.write(core_map, replay_for(net, stacks), tmp_path)
    lint = subprocess.run(
        ["verilator", "--lint-only", "-Wall", "--timing", "--top-module", "testbench", *SOURCES],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (lint.returncode, lint.stderr) == (0, "")
    built(tmp_path)
    done = played(tmp_path)
    assert done.returncode == 0, done.stdout
    assert "0 spikes differ, 0 votes differ" in done.stdout
    assert f"{layout['cycles_a_tick']} cycles a tick" in done.stdout
    spikes = re.search(rf"6 frames, {6 + core_map.ticks} ticks, (\d+) spikes", done.stdout)
    assert spikes is not None
    assert int(spikes[1]) > 1000

    # A neuron that fired has a threshold now that it never reaches: the test bench sees it.
    fired = next(each for each in CoreSimulator(core_map).firings(stacks) if each.any())
    core, neuron = np.argwhere(fired)[0]
    lines = (tmp_path / "neuron.mem").read_text().splitlines()
    at = [index for index, line in enumerate(lines) if line.startswith("//")][core] + 1 + neuron
    lines[at] = f"{int(lines[at], 16) & ~0x1FF | 0xFF:x}"
    (tmp_path / "neuron.mem").write_text("\n".join(lines) + "\n")
    done = played(tmp_path)
    assert done.returncode != 0
    assert re.search(rf"tick \d+, core {core}: neurons [0-9a-f]+ fired, [0-9a-f]+ were expected", done.stdout)


def test_a_map_that_the_gates_cannot_hold_is_named(tmp_path: Path) -> None:
    net = small_net(3)
    core_map = map_net(net, hardware("truenorth"))
    core, neuron = np.argwhere(core_map.dest_core_CN >= 0)[5]
    theta, delay, late = (
        core_map.theta_CN.copy(),
        core_map.dest_delay_CN.copy(),
        core_map.input_delay_E.copy(),
    )
    theta[core, neuron], delay[core, neuron], late[4] = 256, 16, 16
    weight = core_map.weight_Y.copy()
    weight[1] = -257
    for changes, match in (
        ({"theta_CN": theta}, rf"core {core}, neuron {neuron}: theta 256..256, the gates hold -256..255"),
        ({"dest_delay_CN": delay}, rf"core {core}, neuron {neuron}: delay 16..16, the gates hold 1..15"),
        ({"input_delay_E": late}, r"input 4, to core \d+: delay 16, the gates hold 1..15"),
        ({"weight_Y": weight}, r"axon type 1: weight -257, the gates hold -256..255"),
    ):
        with pytest.raises(UserError, match=match):
            gates.write(dataclasses.replace(core_map, **changes), replay_for(net, stacks_of(1)), tmp_path)
    with pytest.raises(
        UserError, match=r"4096 axons of a core, the gates hold 2..256. Map the student again with"
    ):
        gates.write(map_net(net, hardware("loihi")), replay_for(net, stacks_of(1)), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    net = small_net(3)
    core_map, replay = map_net(net, hardware("gates")), replay_for(net, stacks_of(1))
    gates.write(core_map, replay, tmp_path)
    gates.write(core_map, replay, tmp_path)
    (tmp_path / "top.sv").touch()
    with pytest.raises(UserError, match=r"holds top\.sv, which this export does not write"):
        gates.write(core_map, replay, tmp_path)


@pytest.mark.slow
@needs_verilator
@pytest.mark.timeout(900)
def test_the_shipped_pong_student_in_gates_plays_twenty_frames_of_a_game(tmp_path: Path) -> None:
    core_map = load_core_map(zoo_path("pong", "core_map-1chip.h5"))
    net, _ = load(zoo_path("pong", "student-1chip.safetensors"))
    envs = VectorGames(EnvironmentConfig(game="pong"), 1)
    stacks, _ = envs.reset(3)
    rng, seen = np.random.default_rng(3), list[np.ndarray]()
    while len(seen) < 20:
        stacks, *_ = envs.step(rng.integers(0, 6, 1))
        seen.append(stacks[0].copy())
    envs.close()
    gates.write(core_map, replay_for(net, np.stack(seen)), tmp_path)
    built(tmp_path)
    done = played(tmp_path)
    assert done.returncode == 0, done.stdout
    assert "0 spikes differ, 0 votes differ" in done.stdout


@pytest.mark.slow
@needs_yosys
def test_one_core_is_synthesised_with_its_crossbar_in_block_memory(tmp_path: Path) -> None:
    core_map = load_core_map(zoo_path("pong", "core_map-1chip.h5"))
    counts = synthesised(core_map, 0, "xc7", tmp_path)
    assert counts["RAMB36E1"] == 4  # 256 x 256 bits, 64 a block
    assert sum(count for cell, count in counts.items() if cell.startswith("LUT")) < 3_000
    assert 300 < counts["FDRE"] < 2_000
