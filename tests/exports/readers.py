"""Readers of the exported formats, written from those formats' documentation; they share no code with the writers."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import torch
import torch.nn.functional as F


def ranc_outputs(folder: Path) -> np.ndarray:
    """Run RANC's simulation (its simulator's README) and return the output bus, uint8 (ticks, outputs).

    Line k holds the firings of tick k. A packet listed at tick i is integrated in tick i + 1 + destination_tick, a
    firing of tick t likewise in t + 1 + destination_tick.
    """
    network = json.loads((folder / "input.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    axons, rows = config["num_axons"], config["max_tick_offset"]
    bus = tuple(network["output_bus"]["coordinates"])
    cores = {tuple(core["coordinates"]): core for core in network["cores"]}
    assert bus not in cores
    assert len(cores) == len(network["cores"])
    for x, y in [*cores, bus]:
        assert 0 <= x < config["num_cores_x"]
        assert 0 <= y < config["num_cores_y"]
    scheduled = {place: np.zeros((rows, axons), np.int64) for place in cores}
    matrices = {}
    for place, core in cores.items():
        assert len(core["neurons"]) == config["num_neurons"]
        assert all(len(neuron["weights"]) == config["num_weights"] for neuron in core["neurons"])
        weight = np.array([neuron["weights"] for neuron in core["neurons"]])[:, core["axons"]]
        matrices[place] = weight * np.array(core["connections"])
    ticks = len(network["packets"])
    output = np.zeros((ticks, network["output_bus"]["num_outputs"]), np.uint8)
    potential = {
        place: np.array([n["current_potential"] for n in core["neurons"]]) for place, core in cores.items()
    }
    for tick in range(ticks):
        sent = []
        for place, core in cores.items():
            row = scheduled[place][tick % rows]
            active = row.copy()
            row[:] = 0
            sums = potential[place] + matrices[place] @ active
            after = np.zeros(len(sums), np.int64)
            for index, neuron in enumerate(core["neurons"]):
                value = sums[index] + neuron["leak"]
                assert neuron["reset_mode"] == 0
                after[index] = value
                if value >= neuron["positive_threshold"]:
                    after[index] = neuron["reset_potential"]
                    dx, dy = neuron["destination_core_offset"]
                    to = (place[0] + dx, place[1] + dy)
                    if to == bus:
                        output[tick, neuron["destination_axon"]] = 1
                    else:
                        sent.append((to, neuron["destination_axon"], neuron["destination_tick"]))
                elif value < neuron["negative_threshold"]:
                    after[index] = -neuron["reset_potential"]
            potential[place] = after
        for packet in network["packets"][tick]:
            to = tuple(packet["destination_core"])
            sent.append((to, packet["destination_axon"], packet["destination_tick"]))
        for to, axon, later in sent:
            assert 0 <= later <= rows - 2
            scheduled[to][(tick + 1 + later) % rows, axon] = 1
    return output


def nir_spikes(
    path: Path, stacks_BCHW: np.ndarray, *, type_check: bool = True, dt: float = 1e-4
) -> list[np.ndarray]:
    """Evaluate a chain of NIR nodes by their equations; return every spiking node's output (B, O, H, W).

    The stacks are the input of consecutive time steps of ``dt`` s: a neuron that remembered would show it.
    """
    import nir

    graph = nir.read(path, type_check=type_check)
    following = dict(graph.edges)
    x, name, spikes = torch.from_numpy(stacks_BCHW).double(), "input", []
    while name != "output":
        name = following[name]
        node = graph.nodes[name]
        if isinstance(node, nir.Conv2d):
            weight, bias = (torch.from_numpy(np.asarray(each)).double() for each in (node.weight, node.bias))
            stride, padding, dilation = (
                tuple(map(int, each)) for each in (node.stride, node.padding, node.dilation)
            )
            x = F.conv2d(x, weight, bias, stride, padding, dilation, int(node.groups))
        elif isinstance(node, nir.Threshold):
            x = (x > torch.from_numpy(node.threshold).double()).double()
            spikes.append(x.numpy().astype(np.uint8))
        elif isinstance(node, nir.LIF):
            tau, r, leak, threshold = (
                torch.from_numpy(each).double() for each in (node.tau, node.r, node.v_leak, node.v_threshold)
            )
            v, fired = torch.zeros_like(x[0]), []
            for current in x:
                v = v + dt / tau * (leak - v + r * current)
                fired.append((v > threshold).double())
                v = v * (1 - fired[-1])
            x = torch.stack(fired)
            spikes.append(x.numpy().astype(np.uint8))
        else:
            assert isinstance(node, nir.Output)
            assert tuple(node.output_type["output"]) == tuple(x.shape[1:])
    return spikes


def netx_spikes(path: Path, input_BCHW: np.ndarray) -> list[np.ndarray]:
    """Evaluate a netx file's layers by CUBA's equations; return every layer's spikes (B, O, H, W) of consecutive ticks.

    u = (1 - iDecay / 4096) u + synapses + bias, v = (1 - vDecay / 4096) v + u, a spike iff v > vThMant * 2^6.
    """
    found, x = [], torch.from_numpy(input_BCHW).double()
    with h5py.File(path) as file:
        layers = file["layer"]
        assert layers["0/type"][0] == b"input"
        assert tuple(layers["0/shape"]) == input_BCHW.shape[1:]
        # lava-dl would make a Process of it, and ask Lava to compile one that nothing feeds.
        assert "neuron" not in layers["0"]
        for index in range(1, len(layers)):
            layer = layers[str(index)]
            neuron = layer["neuron"]
            assert layer["type"][0] == b"conv"
            assert neuron["type"][0] == b"CUBA"
            assert not neuron["gradedSpike"][()]
            assert layer["weight"].shape[0] == layer["outChannels"][()]
            np.int8(int(layer["groups"][()]))  # as Lava's Conv keeps it
            assert layer["weight"].shape[1] * layer["groups"][()] == layer["inChannels"][()] == x.shape[1]
            assert tuple(layer["weight"].shape[2:]) == tuple(layer["kernelSize"])
            bias = torch.from_numpy(layer["bias"][()]).double()
            synapses = F.conv2d(
                x, torch.from_numpy(layer["weight"][()]).double(), None, tuple(layer["stride"]),
                tuple(layer["padding"]), tuple(layer["dilation"]), int(layer["groups"][()]),
            )  # fmt: skip
            assert tuple(layer["shape"]) == tuple(synapses.shape[1:])
            u, v, fired = torch.zeros_like(synapses[0]), torch.zeros_like(synapses[0]), []
            for arriving in synapses:
                u = (1 - neuron["iDecay"][()] / 4096) * u + arriving + bias[:, None, None]
                v = (1 - neuron["vDecay"][()] / 4096) * v + u
                fired.append((v > neuron["vThMant"][()] * 2**6).double())
                v = v * (1 - fired[-1])
            x = torch.stack(fired)
            found.append(x.numpy().astype(np.uint8))
    return found
