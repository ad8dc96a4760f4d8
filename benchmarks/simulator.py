"""Frames a second of the core simulator, of the packed kernel and of dense PyTorch, at batch 1.

    python -m benchmarks.simulator [--student student.safetensors] [--architecture 1chip]

All play the same integer net on the same frames, on one thread, one frame after another: rounds of all
players alternate, and the median round counts. ``cpu_ms`` is processor time: on a machine that does other work too,
it is the number to trust. The simulator's pipelined run is timed once more on all cores. ``pytorch``
is the student as plain fp32 convolutions with thresholds, PyTorch's fastest form of it at batch 1 (channels-first and
channels-last are both timed).

``work`` counts what the simulator does in a frame: masked words that it gathers, and blocks of 64 neurons that it
evaluates, each 64 lanes of 4 words (AND, population count, product with a weight, sum). ``floor_ms`` is what as many
blocks cost alone, where all that they read lies in the first-level cache; ``floor_share`` is that by a frame's
processor time, of which the transducer and the gathering are a part. Writes ``benchmarks/results/simulator-NET.json``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from numba import njit

from benchmarks.measurement import finish, stand_in
from spikestill.common.processor import cores
from spikestill.common.provenance import Provenance
from spikestill.configs.hardware import hardware
from spikestill.deploy.crossbar_program import compile_program
from spikestill.deploy.mapping import map_net
from spikestill.deploy.packed_kernel import PackedNet
from spikestill.deploy.popcount import WORDS, fire_four_words
from spikestill.deploy.simulator import CoreSimulator
from spikestill.student.architectures import ARCHITECTURES
from spikestill.student.integer_net import IntegerNet, load
from spikestill.student.torch_net import TorchIntegerNet, convolve
from tests.nets import table1_net

# What lets a processor stand in for one with AVX2 only: benchmarks/distill.py has the line.
ROUNDS = 9
ROUND_FRAMES = 50


def dense(net: IntegerNet, memory_format: torch.memory_format) -> Callable[[np.ndarray], np.ndarray]:
    """Return the net in PyTorch: fp32 convolutions and thresholds, one frame at a time, votes as output."""
    weights = [
        torch.from_numpy(layer.weight_OIHW).float().contiguous(memory_format=memory_format)
        for layer in net.layers
    ]
    thetas = [torch.from_numpy(layer.theta_O).float()[:, None, None] for layer in net.layers]
    actions = net.actions
    used = actions * (net.layers[-1].features // actions)

    def play(stack_CHW: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            x = torch.from_numpy(stack_CHW)[None].float()
            for layer, weight, theta in zip(net.layers, weights, thetas, strict=True):
                s = convolve(x, weight, layer)
                x = (s >= theta).float()
            return x.sum(dim=(0, 2, 3))[:used].view(-1, actions).sum(dim=0).long().numpy()

    return play


def measure(
    players: dict[str, Callable[[np.ndarray], np.ndarray]], stacks: np.ndarray
) -> dict[str, list[tuple[float, float]]]:
    """Return (wall, processor) seconds a frame of every player in every round; a round plays ``stacks`` once."""
    for play in players.values():
        play(stacks)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in players}
    for _ in range(ROUNDS):
        for name, play in players.items():
            began, worked = time.perf_counter(), time.process_time()
            play(stacks)
            wall_s, cpu_s = time.perf_counter() - began, time.process_time() - worked
            seconds[name].append((wall_s / len(stacks), cpu_s / len(stacks)))
    return seconds


def each(play: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """Return a player of many stacks, one after another."""
    return lambda stacks: np.stack([play(stack) for stack in stacks])


@njit(nogil=True)
def _evaluate(axons, weights, crossbar, theta, spikes, blocks):  # type: ignore[no-untyped-def]
    for block in range(blocks):
        one = block % len(crossbar)
        spikes[one] = fire_four_words(axons[one], weights, crossbar[one], theta[one])


def floor_s(blocks: int) -> float:
    """Return the least seconds of processor time that evaluating ``blocks`` blocks of 64 neurons takes."""
    rng, few = np.random.default_rng(0), 8
    axons = rng.integers(0, 1 << 63, (few, WORDS), np.uint64)
    crossbar = rng.integers(0, 1 << 63, (few, 8, WORDS, 8), np.uint64)
    arguments = (
        axons,
        np.array([1, -1, 1, -1]),
        crossbar,
        np.zeros((few, 64), np.int32),
        np.zeros(few, np.uint64),
    )
    _evaluate(*arguments, 1)
    seconds = []
    for _ in range(ROUNDS):
        began = time.process_time()
        _evaluate(*arguments, blocks * ROUND_FRAMES)
        seconds.append((time.process_time() - began) / ROUND_FRAMES)
    return statistics.median(seconds)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--student", type=Path, help="student file; without it: random weights")
    parser.add_argument("--architecture", default="1chip", choices=sorted(ARCHITECTURES))
    parser.add_argument("--name", help="of the result's file, after `simulator-`; default: the net's")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    net = load(arguments.student)[0] if arguments.student else table1_net(arguments.architecture)
    stacks = np.random.default_rng(0).integers(0, 256, (ROUND_FRAMES, *net.input_shape), np.uint8)
    core_map = map_net(net, hardware("truenorth"), Provenance.of({}, seed=0))
    began = time.perf_counter()
    simulator = CoreSimulator(core_map)
    compiling_s = time.perf_counter() - began
    players: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "cores, frame by frame": each(simulator.votes),
        "cores, pipelined": simulator.pipelined,
        f"cores, pipelined, {cores()} threads": CoreSimulator(core_map, cores()).pipelined,
        "packed kernel": each(PackedNet(net).votes),
        "pytorch fp32": each(dense(net, torch.contiguous_format)),
        "pytorch fp32, channels last": each(dense(net, torch.channels_last)),
    }
    reference = TorchIntegerNet(net).votes(torch.from_numpy(stacks)).numpy()
    for name, play in players.items():
        if not np.array_equal(play(stacks), reference):
            raise SystemExit(f"{name} does not give the integer net's votes")
    seconds = measure(players, stacks)
    wall = {name: [each_round[0] for each_round in rounds] for name, rounds in seconds.items()}
    cpu = {
        name: statistics.median(each_round[1] for each_round in rounds) for name, rounds in seconds.items()
    }
    program, _ = compile_program(core_map)
    blocks = int(np.diff(program.block_start_K)[program.tile_R].sum())
    floor = floor_s(blocks) if program.weight_KW.shape[1] == WORDS else None
    peer = min(value for name, value in cpu.items() if name.startswith("pytorch"))
    result = {
        "net": str(arguments.student or f"{arguments.architecture}, random weights"),
        "stand_in": stand_in(),
        "cores": core_map.cores,
        "ticks": core_map.ticks,
        "simulator_start_s": round(compiling_s, 2),
        "work": {"words": len(program.move_M), "blocks": blocks, "distinct_blocks": len(program.crossbar)},
        "floor_ms": floor and round(1e3 * floor, 3),
        "floor_share": floor and round(floor / cpu["cores, frame by frame"], 3),
        "players": {
            name: {
                "frames_per_s": round(1 / statistics.median(rounds), 1),
                "ms": round(1e3 * statistics.median(rounds), 3),
                "ms_best": round(1e3 * min(rounds), 3),
                "ms_worst": round(1e3 * max(rounds), 3),
                "cpu_ms": round(1e3 * cpu[name], 3),
                "times_pytorch": round(peer / cpu[name], 2),
            }
            for name, rounds in wall.items()
        },
        "rounds": ROUNDS,
        "frames_per_round": ROUND_FRAMES,
    }
    net_name = arguments.student.stem if arguments.student else arguments.architecture
    finish(f"simulator-{arguments.name or net_name}", result)


if __name__ == "__main__":
    main()
