"""Training samples per second of ``distill``, as a share of the machine's own product rate, beside two peers.

    python -m benchmarks.distill buffer.h5 [--architecture 1chip] [--precision fp32] [--name NAME]

``a @ b`` of 2,048 x 2,048 in the same format, on all cores, is measured in the same rounds. The *floor* counts the
products that a sample needs: the student's, forward and for both gradients (none to the pixels), and the forward pass
of the hints' teacher; readouts, normalisation, steps and the optimiser come on top and are not in it. The share is what
the floor's products alone would take of the time that a sample took.

A training has hints in its first part (``hint_share``) and none later. Both are measured, and ``distill`` is the mean
over a training. Its share is of the floor with the teacher's pass in every sample, as if all had hints;
``share_of_own_floor`` tells each part's share, of the products that it does.

The plain net is what a careful user would write first: the same centred net in fp32, NCHW, ``conv2d``,
``batch_norm``, an autograd function for the step, all cores. It computes what no vote depends on, too. The other peer
is the same net in Brevitas's quantised layers (``pip install brevitas``; left out where that is missing).

On any x86 processor these variables stand in for one with AVX2 only, and the record says so:
ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 NUMBA_CPU_NAME=znver3
NUMBA_CPU_FEATURES=+avx,+avx2,+bmi,+bmi2,+cmov,+cx16,+cx8,+f16c,+fma,+fxsr,+lzcnt,+mmx,+movbe,+popcnt,+sse,+sse2,+sse3,+sse4.1,+sse4.2,+ssse3,+xsave
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.measurement import NATURE_PRODUCTS, finish, stand_in
from spikestill.common.processor import cores, keep_freed_memory
from spikestill.configs.distill import DistillConfig
from spikestill.dataset.reader import BufferReader
from spikestill.student.architectures import ARCHITECTURES, LayerSpec, architecture, centred, visible_sizes
from spikestill.student.distill import hinting_teachers
from spikestill.student.distillation import Distillation
from spikestill.student.integer_net import STACK_SHAPE
from spikestill.student.losses import kl
from spikestill.student.sources import BufferSource
from spikestill.teacher.checkpoint import read_teacher

BATCH = 128
PRODUCT_SIDE = 2048


def products(layers: tuple[LayerSpec, ...]) -> list[int]:
    """Return each layer's multiply-adds for one sample, of the neurons that a vote depends on."""
    sides = visible_sizes(layers, STACK_SHAPE[1])[1:]
    inputs = [STACK_SHAPE[0], *(spec.features for spec in layers)]
    return [
        spec.features * channels // spec.groups * spec.kernel**2 * side**2
        for spec, channels, side in zip(layers, inputs, sides, strict=False)
    ]


def floor_flops(layers: tuple[LayerSpec, ...], *, hints: bool) -> int:
    """Return the operations of a sample's products, two for each multiply-add."""
    first, *others = products(layers)
    return 2 * (2 * first + 3 * sum(others) + hints * sum(NATURE_PRODUCTS[:-1]))


class PlainStep(torch.autograd.Function):
    """Step with the triangle surrogate."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return 1 where x >= 0."""
        ctx.save_for_backward(x)
        return (x >= 0).float()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        """Return dy * max(0, 1 - |x|)."""
        (x,) = ctx.saved_tensors
        return dy * (1 - x.abs()).clamp(min=0)


class PlainStudent(nn.Module):
    """The centred student from PyTorch's own layers."""

    def __init__(self, layers: tuple[LayerSpec, ...], actions: int) -> None:
        super().__init__()
        self.actions, self.specs = actions, layers
        channels, shadows, norms = STACK_SHAPE[0], [], []
        for spec in self.specs:
            shape = (spec.features, channels // spec.groups, spec.kernel, spec.kernel)
            shadows.append(nn.Parameter(torch.empty(shape).uniform_(-1, 1)))
            norms.append(nn.BatchNorm2d(spec.features))
            channels = spec.features
        self.shadows, self.norms = nn.ParameterList(shadows), nn.ModuleList(norms)

    def forward(self, stacks: Tensor) -> Tensor:
        """Return mean votes (B, A)."""
        x = pixels(stacks, self.specs)
        for spec, shadow, norm in zip(self.specs, self.shadows, self.norms, strict=True):
            ternary = torch.where(shadow > 0.5, 1.0, torch.where(shadow < -0.5, -1.0, 0.0))
            weight = shadow + (ternary - shadow).detach()
            x = F.conv2d(x, weight, stride=spec.stride, padding=max(0, spec.pad), groups=spec.groups)
            x = PlainStep.apply(norm(x))
        return mean_votes(x, self.actions)


def pixels(stacks: Tensor, layers: tuple[LayerSpec, ...]) -> Tensor:
    """Return the pixels that the first layer reads, fp32."""
    left_out = max(0, -layers[0].pad)
    return stacks[..., left_out : 84 - left_out, left_out : 84 - left_out].float()


def mean_votes(x: Tensor, actions: int) -> Tensor:
    """Return mean votes (B, A) of the last layer's spikes."""
    rates = x.mean(dim=(2, 3))
    used = actions * (rates.shape[1] // actions)
    return rates[:, :used].reshape(len(rates), -1, actions).mean(dim=1)


def brevitas_student(layers: tuple[LayerSpec, ...]) -> nn.Module:
    """Return the net of Brevitas's layers: ternary weights, batch normalisation, binary activations."""
    from brevitas.nn import QuantConv2d, QuantIdentity
    from brevitas.quant import SignedBinaryActPerTensorConst, SignedTernaryWeightPerTensorConst

    made: list[nn.Module] = []
    channels = STACK_SHAPE[0]
    for spec in layers:
        made += [
            QuantConv2d(
                channels, spec.features, spec.kernel, stride=spec.stride, padding=max(0, spec.pad),
                groups=spec.groups, bias=False, weight_quant=SignedTernaryWeightPerTensorConst,
            ),
            nn.BatchNorm2d(spec.features),
            QuantIdentity(act_quant=SignedBinaryActPerTensorConst),
        ]  # fmt: skip
        channels = spec.features
    return nn.Sequential(*made)


def trainer(
    votes: Callable[[Tensor], Tensor], module: nn.Module, stacks: Tensor, q: Tensor
) -> Callable[[], int]:
    """Return a function that trains a peer on one batch, and returns the batch's size."""
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)

    def step() -> int:
        loss = kl(16.0 * votes(stacks), q, 0.01)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return len(stacks)

    return step


def rate(work: Callable[[], int], seconds: float) -> float:
    """Return units a second, by the median time of one call."""
    times: list[float] = []
    units, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds or len(times) < 3:
        start = time.perf_counter()
        units = work()
        times.append(time.perf_counter() - start)
    return units / statistics.median(times)


def measure(
    works: dict[str, tuple[Callable[[], int], int]], rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Return each work's rates, round by round, with as many PyTorch threads as it wants."""
    for work, threads in works.values():
        torch.set_num_threads(threads)
        work()
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, (work, threads) in works.items():
            torch.set_num_threads(threads)
            found[name].append(rate(work, seconds))
    return found


def peers(
    layers: tuple[LayerSpec, ...], actions: int, stacks: Tensor, q: Tensor
) -> dict[str, tuple[Callable[[], int], int]]:
    """Return the peers' work by name: the net from PyTorch's layers, and from Brevitas's where that is installed."""
    plain = PlainStudent(layers, actions)
    works = {"plain": (trainer(plain, plain, stacks, q), cores())}
    if importlib.util.find_spec("brevitas") is not None:
        quantised = brevitas_student(layers)

        def votes(stacks: Tensor) -> Tensor:
            return mean_votes(quantised(pixels(stacks, layers)), actions)

        works["brevitas"] = (trainer(votes, quantised, stacks, q), cores())
    return works


def figures(runs: dict[str, list[float]], layers: tuple[LayerSpec, ...], hinted: float) -> dict[str, Any]:
    """Return what is told of the rounds: medians, the floor, ratios to the peers.

    Args:
        runs: each work's rates, round by round.
        layers: the net's.
        hinted: share of a training's batches that have hints.
    """
    rates = {name: statistics.median(found) for name, found in runs.items()}
    parts = {"hinted": rates["hinted"], "later": rates["later"]}
    mean = 1.0 / (hinted / parts["hinted"] + (1.0 - hinted) / parts["later"])
    flops = floor_flops(layers, hints=True)
    floor = rates["products"] / flops
    own = {name: rates["products"] / floor_flops(layers, hints=name == "hinted") for name in parts}
    others = {name: found for name, found in rates.items() if name in ("plain", "brevitas")}
    return {
        "products_gflop_per_s": round(rates["products"] / 1e9, 1),
        "floor_mflop_per_sample": round(flops / 1e6, 1),
        "floor_samples_per_s": round(floor, 1),
        "hint_share": round(hinted, 2),
        "distill_samples_per_s": round(mean, 1),
        "share_of_floor": round(mean / floor, 3),
        "parts_samples_per_s": {name: round(found, 1) for name, found in parts.items()},
        "share_of_own_floor": {name: round(found / own[name], 3) for name, found in parts.items()},
        "times": {name: round(mean / found, 2) for name, found in others.items()},
        "peers_samples_per_s": {name: round(found, 1) for name, found in others.items()},
        "runs": {name: [float(f"{value:.4g}") for value in found] for name, found in runs.items()},
    }


def main() -> None:
    """Measure and write ``benchmarks/results/NAME.json``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("buffer", type=Path, help="what `spikestill record` wrote")
    parser.add_argument("--teacher", type=Path, help="the teacher that recorded it; default: the zoo's")
    parser.add_argument("--architecture", default="1chip", choices=sorted(ARCHITECTURES))
    parser.add_argument("--precision", default="auto", choices=("auto", "fp32", "bf16"))
    parser.add_argument("--seconds", type=float, default=3.0, help="of each in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--peers", default=True, action=argparse.BooleanOptionalAction, help="measure the peers"
    )
    parser.add_argument("--name", default="distill", help="of the result's file")
    options = parser.parse_args()
    keep_freed_memory()
    layers = centred(architecture(options.architecture), STACK_SHAPE[1])
    with BufferReader(options.buffer) as reader:
        batch = reader.sample(np.random.default_rng(0), BATCH)
        stacks, q = torch.from_numpy(batch.stacks), torch.from_numpy(batch.q_values)
        config = DistillConfig(
            batch_size=BATCH,
            buffer=options.buffer,
            architecture=options.architecture,
            precision=options.precision,
            teacher=options.teacher,
        )
        training = Distillation(
            config,
            BufferSource([reader], config.validation),
            [read_teacher(path)[0] for path in hinting_teachers(config, [reader])],
        )
        a, b = (torch.randn(PRODUCT_SIDE, PRODUCT_SIDE).to(training.format.body) for _ in range(2))

        def product() -> int:
            torch.mm(a, b)
            return 2 * PRODUCT_SIDE**3

        def step_from(first: int) -> Callable[[], int]:
            def our_step() -> int:
                training.step = first
                training.train_step()
                return BATCH

            return our_step

        works = {
            "products": (product, cores()),
            "hinted": (step_from(0), cores()),
            "later": (step_from(training.hinted_steps), cores()),
        }
        if options.peers:
            works |= peers(layers, reader.actions, stacks, q)
        runs = measure(works, options.rounds, options.seconds)
        training.close()
    finish(
        options.name,
        {
            "architecture": options.architecture,
            "precision": training.format.name,
            "stand_in": stand_in(),
            **figures(runs, layers, training.hinted_steps / config.steps),
            "batch": BATCH,
            "median_of_rounds": options.rounds,
        },
    )


if __name__ == "__main__":
    main()
