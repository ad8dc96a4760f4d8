from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import h5py
import nir
import numpy as np
import pytest
import torch

from spikestill.common.errors import UserError
from spikestill.common.legal import LegalActions
from spikestill.common.provenance import Provenance
from spikestill.common.zoo import zoo_path
from spikestill.configs.exporting import ExportConfig
from spikestill.configs.hardware import hardware
from spikestill.deploy import core_map as core_map_format
from spikestill.deploy.export import run
from spikestill.deploy.exports import gates, netx, nir_graph, ranc
from spikestill.deploy.mapping import map_net
from spikestill.student.architectures import LayerSpec, architecture, centred
from spikestill.student.integer_net import IntegerLayer, IntegerNet, count_votes, load, naive_forward, save
from tests.exports.frames import replay_for, stacks_of
from tests.exports.readers import netx_spikes, nir_spikes, ranc_outputs
from tests.nets import random_net, random_stack, small_net, table1_net


@pytest.mark.parametrize("target", ["truenorth", "ranc"])
@pytest.mark.parametrize("seed", [0, 1])
def test_ranc_plays_the_same_votes(tmp_path: Path, target: str, seed: int) -> None:
    net, stacks = small_net(seed), stacks_of(5)
    core_map = map_net(net, hardware(target))
    layout = ranc.write(core_map, replay_for(net, stacks), tmp_path)
    output = ranc_outputs(tmp_path)
    assert len(output) == layout["ticks_to_run"]
    action = np.array(layout["output_action"])
    for frame, stack in enumerate(stacks):
        fired = output[frame + core_map.ticks]
        votes = np.bincount(action, fired, net.actions).astype(np.int64)
        assert np.array_equal(votes, count_votes(naive_forward(net, stack)[-1], net.actions))
    assert output[core_map.ticks :].any()
    assert all(row["fits"] for row in layout["ranges"])
    assert layout["verdict"] == "RANC's simulator can play it, and so can RANC's RTL"
    written = json.loads((tmp_path / "layout.json").read_text())
    assert written["ticks_to_run"] == written["ticks"] + written["frames"] + 1 == len(output)
    lines = output[written["ticks"] : written["ticks"] + written["frames"]]
    replayed = [np.bincount(written["output_action"], fired, net.actions).tolist() for fired in lines]
    assert replayed == written["expected_votes"]


def test_ranc_marks_the_borders_of_chips(tmp_path: Path) -> None:
    tiny_chips = dataclasses.replace(hardware("truenorth"), cores_x=2, cores_y=2, chips_x=4, chips_y=4)
    net, stacks = small_net(2), stacks_of(2)
    core_map = map_net(net, tiny_chips)
    assert core_map.chips > 1
    layout = ranc.write(core_map, replay_for(net, stacks), tmp_path)
    output, action = ranc_outputs(tmp_path), np.array(layout["output_action"])
    votes = np.bincount(action, output[1 + core_map.ticks], net.actions).astype(np.int64)
    assert np.array_equal(votes, count_votes(naive_forward(net, stacks[1])[-1], net.actions))
    assert len(layout["chips"]) == core_map.chips
    assert sum(chip["cores"] for chip in layout["chips"]) == core_map.cores
    places = {
        tuple(core["coordinates"]) for core in json.loads((tmp_path / "input.json").read_text())["cores"]
    }
    for chip in layout["chips"]:
        inside = [
            place for place in places
            if chip["first_x"] <= place[0] <= chip["last_x"] and chip["first_y"] <= place[1] <= chip["last_y"]
        ]  # fmt: skip
        assert len(inside) == chip["cores"]


def test_ranc_names_the_neuron_that_does_not_fit(tmp_path: Path) -> None:
    core_map = map_net(small_net(3), hardware("truenorth"))
    theta = core_map.theta_CN.copy()
    core, neuron = np.argwhere(core_map.used_CN)[7]
    theta[core, neuron] = 300
    wide = dataclasses.replace(core_map, theta_CN=theta)
    with pytest.raises(
        UserError, match=rf"core {core}, neuron {neuron}: leak -300..-300, RANC holds -256..255"
    ):
        ranc.write(wide, replay_for(small_net(3), stacks_of(1)), tmp_path)
    assert not list(tmp_path.iterdir())


def test_ranc_refuses_axons_and_ticks_that_it_cannot_hold(tmp_path: Path) -> None:
    """Loihi's cores have more axons than RANC's packets can name."""
    core_map = map_net(small_net(3), hardware("loihi"))
    near = np.minimum(core_map.dest_axon_CN, 255)
    far = np.minimum(core_map.input_axon_E, 255)
    far[2] = 300
    at_once = np.zeros_like(core_map.input_delay_E)
    for changes, match in (
        ({}, r"destination_axon (\d+)\.\.\1, RANC holds 0\.\.255"),
        (
            {"dest_axon_CN": near, "input_axon_E": far},
            r"input 2, to core \d+: input_axon 300, RANC holds 0\.\.255",
        ),
        (
            {"dest_axon_CN": near, "input_axon_E": far * 0, "input_delay_E": at_once},
            r"input 0, to core \d+: input_tick -1, RANC holds 0\.\.14",
        ),
    ):
        with pytest.raises(UserError, match=match):
            ranc.write(
                dataclasses.replace(core_map, **changes), replay_for(small_net(3), stacks_of(1)), tmp_path
            )
    assert not list(tmp_path.iterdir())


def test_ranc_counts_the_way_to_the_output_bus(tmp_path: Path) -> None:
    """A voter of the first row, with a core 255 rows below: the bus is 256 rows away."""
    tall = dataclasses.replace(hardware("truenorth"), cores_y=300)
    core_map = map_net(small_net(3), tall)
    y = core_map.y_C.copy()
    voter = int(core_map.output_core_V[0])
    y[:] = 200
    y[voter] = 0
    y[(voter + 1) % core_map.cores] = 255
    x = np.arange(core_map.cores, dtype=core_map.x_C.dtype)
    with pytest.raises(UserError, match=rf"core {voter}, neuron \d+: dy 256..256, RANC holds -256..255"):
        ranc.write(
            dataclasses.replace(core_map, x_C=x, y_C=y), replay_for(small_net(3), stacks_of(1)), tmp_path
        )


@pytest.mark.parametrize("form", ["threshold", "lif"])
@pytest.mark.parametrize("full_kernels", [True, False])
def test_nir_gives_the_same_spikes(tmp_path: Path, form: str, full_kernels: bool) -> None:
    net, stacks = small_net(4), stacks_of(3)
    nir_graph.write(net, tmp_path / "net.nir", form, 1e-3, full_kernels)
    found = nir_spikes(tmp_path / "net.nir", stacks, type_check=full_kernels, dt=1e-3)
    for frame, stack in enumerate(stacks):
        for layer, wanted in enumerate(naive_forward(net, stack)):
            assert np.array_equal(found[layer][frame], wanted)


def test_snntorch_reads_the_lif_form_and_gives_the_same_spikes(tmp_path: Path) -> None:
    import nir
    from snntorch.import_nir import import_from_nir

    net, stacks = small_net(4), stacks_of(6)
    nir_graph.write(net, tmp_path / "net.nir", "lif", 1e-4, True)
    module, state = import_from_nir(nir.read(tmp_path / "net.nir")), None
    for stack in stacks:
        with torch.no_grad():
            spikes, state = module(torch.from_numpy(stack[None]).float(), state)
        assert np.array_equal(spikes[0].numpy(), naive_forward(net, stack)[-1])


def test_netx_refuses_more_groups_than_lava_holds(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"layer \d+: 128 groups, Lava's Conv holds 1\.\.127"):
        netx.write(table1_net("4chip"), tmp_path / "net.net")


def test_the_nir_reader_would_see_neurons_that_remember(tmp_path: Path) -> None:
    net, stacks = small_net(4), stacks_of(3)
    nir_graph.write(net, tmp_path / "net.nir", "lif", 1e-3, True)
    wanted = [np.stack(layer) for layer in zip(*(naive_forward(net, stack) for stack in stacks), strict=True)]
    found = nir_spikes(tmp_path / "net.nir", stacks, dt=1e-4)
    assert not all(np.array_equal(*pair) for pair in zip(found, wanted, strict=True))


def test_netx_gives_the_same_spikes(tmp_path: Path) -> None:
    net, stacks = small_net(5), stacks_of(3)
    rows = netx.write(net, tmp_path / "net.net")
    assert {row["field"] for row in rows} == {"weight", "bias", "state", "groups"}
    wanted = [naive_forward(net, stack) for stack in stacks]
    found = netx_spikes(tmp_path / "net.net", np.stack([layers[0] for layers in wanted]))
    for frame, layers in enumerate(wanted):
        for layer, spikes in enumerate(layers[1:]):
            assert np.array_equal(found[layer][frame], spikes)


@pytest.mark.parametrize("decay", ["iDecay", "vDecay"])
def test_the_netx_reader_would_see_neurons_that_remember(tmp_path: Path, decay: str) -> None:
    net, stacks = small_net(5), stacks_of(3)
    netx.write(net, tmp_path / "net.net")
    with h5py.File(tmp_path / "net.net", "r+") as file:
        file["layer/1/neuron"][decay][...] = 100
    wanted = [naive_forward(net, stack) for stack in stacks]
    found = netx_spikes(tmp_path / "net.net", np.stack([layers[0] for layers in wanted]))
    assert not np.array_equal(found[0], np.stack([layers[1] for layers in wanted]))


FULL_DISK = """
import resource, sys
from pathlib import Path
from spikestill.common.errors import UserError
from spikestill.configs.hardware import hardware
from spikestill.common.provenance import Provenance
from spikestill.deploy import core_map
from spikestill.deploy.exports import netx, nir_graph
from spikestill.deploy.mapping import map_net
from spikestill.student.integer_net import save
from tests.nets import table1_net
what, path = sys.argv[1], Path(sys.argv[2])
net = table1_net("1chip")
made = map_net(net, hardware("ns1e"), anneal_seconds=0) if what == "core_map" else None
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
write = {
    "core_map": lambda: core_map.save(made, path),
    "netx": lambda: netx.write(net, path),
    "nir": lambda: nir_graph.write(net, path, "threshold", 1e-4, True),
    "student": lambda: save(net, path, Provenance.of({}, 0)),
}
try:
    write[what]()
except UserError as error:
    print(error)
"""


@pytest.mark.parametrize("what", ["core_map", "netx", "nir", "student"])
def test_a_full_disk_is_one_error_and_leaves_nothing(tmp_path: Path, what: str) -> None:
    """A process of its own: HDF5 that cannot close its file brings the process down as it ends."""
    command = [sys.executable, "-c", FULL_DISK, what, str(tmp_path / "file")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "file: no space left on the disk (File too large)" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_core_map_that_breaks_a_rule_is_not_exported(tmp_path: Path) -> None:
    core_map = map_net(small_net(2), hardware("ranc"))
    twice = core_map.output_neuron_V.copy(), core_map.output_core_V.copy()
    for array in twice:
        array[1] = array[0]
    broken = dataclasses.replace(core_map, output_neuron_V=twice[0], output_core_V=twice[1])
    core_map_format.save(broken, tmp_path / "core_map.h5")
    with pytest.raises(UserError, match=r"core_map\.h5: core map breaks the rule 'one destination'"):
        run(ExportConfig(to="ranc", core_map=tmp_path / "core_map.h5"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_thresholds_out_of_range_export_as_never_and_always(tmp_path: Path) -> None:
    weight = np.ones((3, 2, 1, 1), np.int8)
    theta = np.array([2**31 - 1, -(2**31), 1], np.int32)
    first = IntegerLayer(np.ones((2, 2, 2, 2), np.int8), np.array([0, 500], np.int32), 2, 0, 1)
    net = IntegerNet((first, IntegerLayer(weight, theta, 1, 0, 1)), 3, (2, 4, 4))
    stack = random_stack(1, (2, 4, 4))
    wanted = naive_forward(net, stack)
    netx.write(net, tmp_path / "net.net")
    nir_graph.write(net, tmp_path / "net.nir", "threshold", 1e-4, True)
    assert np.array_equal(netx_spikes(tmp_path / "net.net", wanted[0][None])[0][0], wanted[1])
    assert np.array_equal(nir_spikes(tmp_path / "net.nir", stack[None])[1][0], wanted[1])


def test_netx_refuses_what_loihi_cannot_hold(tmp_path: Path) -> None:
    weight = np.ones((1, 5000, 1, 1), np.int8)
    first = IntegerLayer(np.ones((5000, 1, 1, 1), np.int8), np.zeros(5000, np.int32), 1, 0, 1)
    net = IntegerNet((first, IntegerLayer(weight, np.array([4999], np.int32), 1, 0, 1)), 1, (1, 1, 1))
    with pytest.raises(UserError, match=r"layer 1, feature 0: bias -4998..-4998, Loihi holds -4096..4095"):
        netx.write(net, tmp_path / "net.net")


def test_the_command_writes_each_format(tmp_path: Path) -> None:
    net = random_net((LayerSpec(8, 8, 8, 0, 1), LayerSpec(12, 3, 3, 0, 2)), seed=0)
    provenance = Provenance.of({}, 0)
    save(net, tmp_path / "student.safetensors", provenance)
    core_map_format.save(map_net(net, hardware("truenorth"), provenance), tmp_path / "core_map.h5")
    inputs = {"student": tmp_path / "student.safetensors", "core_map": tmp_path / "core_map.h5"}
    places = {
        "ranc": "ranc/input.json",
        "nir": "student.nir",
        "netx": "student.net",
        "c": "c/student.c",
        "rtl": "rtl/layout.json",
    }
    for to, name in places.items():
        result = run(ExportConfig(to=to, **inputs), tmp_path)
        assert result.artefact == tmp_path / name
        folder = result.artefact.parent
        written = [result.artefact] if folder == tmp_path else [*folder.iterdir()]
        assert result.summary["bytes"] == sum(file.stat().st_size for file in written) > 0


def test_table_1_geometry_in_nir_and_netx(tmp_path: Path) -> None:
    net, _ = load(zoo_path("pong", "student-1chip.safetensors"))
    assert len(net.layers) == len(centred(architecture("1chip"), 84))
    stacks = stacks_of(2, (4, 84, 84))
    wanted = [naive_forward(net, stack) for stack in stacks]
    nir_graph.write(net, tmp_path / "net.nir", "threshold", 1e-4, True)
    netx.write(net, tmp_path / "net.net")
    for frame in range(2):
        found = nir_spikes(tmp_path / "net.nir", stacks[frame : frame + 1])
        relayed = netx_spikes(tmp_path / "net.net", wanted[frame][0][None])
        for layer, spikes in enumerate(wanted[frame]):
            assert np.array_equal(found[layer][0], spikes)
            assert layer == 0 or np.array_equal(relayed[layer - 1][0], spikes)


def test_nir_and_netx_carry_frames_that_their_readers_pass_over(tmp_path: Path) -> None:
    net, stacks = small_net(5), stacks_of(3)
    replay = replay_for(net, stacks)
    nir_graph.write(net, tmp_path / "net.nir", "threshold", 1e-4, True, replay)
    netx.write(net, tmp_path / "net.net", replay)
    spikes = {"nir": nir_spikes(tmp_path / "net.nir", stacks)[-1]}
    for name in ("nir", "net"):
        with h5py.File(tmp_path / f"net.{name}") as file:
            frames = file["frames"]
            assert np.array_equal(frames["stack"][()], stacks)
            assert frames.attrs["source"] == "random"
            if name == "net":
                assert frames.attrs["latency"] == len(net.layers) - 1
                spikes["net"] = netx_spikes(tmp_path / "net.net", frames["input"][()])[-1]
            votes = [count_votes(each, net.actions) for each in spikes[name]]
            assert np.array_equal(votes, frames["votes"][()])


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    net = small_net(2)
    core_map, replay = map_net(net, hardware("ranc")), replay_for(net, stacks_of(1))
    (tmp_path / "input.json").write_text("an earlier export")
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(
        UserError, match=r"holds thesis\.tex, which this export does not write\. Move it away"
    ):
        ranc.write(core_map, replay, tmp_path)
    assert (tmp_path / "input.json").read_text() == "an earlier export"
    (tmp_path / "thesis.tex").unlink()
    ranc.write(core_map, replay, tmp_path)
    with pytest.raises(UserError, match=r"input\.json: is a file, and a folder is to be written there"):
        ranc.write(core_map, replay, tmp_path / "input.json")


def test_more_outputs_than_the_rtl_names_are_told_in_words(tmp_path: Path) -> None:
    core_map = core_map_format.load(zoo_path("pong", "core_map-1chip.h5"))
    told = ranc.verdict(ranc.check_ranges(core_map))
    assert told == (
        "RANC's simulator can play it. RANC's RTL cannot, for it has room for 256 outputs and this has 4,092"
    )


@pytest.mark.slow
def test_the_shipped_core_map_in_ranc(tmp_path: Path) -> None:
    net, _ = load(zoo_path("pong", "student-1chip.safetensors"))
    core_map = core_map_format.load(zoo_path("pong", "core_map-1chip.h5"))
    stacks = stacks_of(2, (4, 84, 84))
    layout = ranc.write(core_map, replay_for(net, stacks), tmp_path)
    output, action = ranc_outputs(tmp_path), np.array(layout["output_action"])
    for frame, stack in enumerate(stacks):
        votes = np.bincount(action, output[frame + core_map.ticks], net.actions).astype(np.int64)
        assert np.array_equal(votes, count_votes(naive_forward(net, stack)[-1], net.actions))


def test_every_export_says_which_actions_each_game_takes(tmp_path: Path) -> None:
    net, stacks = small_net(1), stacks_of(2)
    net = dataclasses.replace(
        net, game="freeway+pong", legal=(LegalActions("freeway", (0, 2)), LegalActions("pong", (1, 2)))
    )
    wanted = [{"game": "freeway", "actions": [0, 2]}, {"game": "pong", "actions": [1, 2]}]
    replay = replay_for(net, stacks)
    assert ranc.write(map_net(net, hardware("ranc")), replay, tmp_path / "ranc")["games"] == wanted
    assert gates.write(map_net(net, hardware("gates")), replay, tmp_path / "rtl")["games"] == wanted
    nir_graph.write(net, tmp_path / "student.nir", "threshold", 1e-4, True, replay)
    metadata = nir.read(tmp_path / "student.nir").metadata
    assert json.loads(metadata["games"]) == wanted
    assert "a game takes its own actions only" in metadata["votes"]
    netx.write(net, tmp_path / "student.net", replay)
    with h5py.File(tmp_path / "student.net") as file:
        assert json.loads(file["transduction"].attrs["geometry"])["games"] == wanted
