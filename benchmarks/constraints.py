"""What each constraint of the hardware costs a student: the same frames, loss and batches, one constraint more a rung.

    python -m benchmarks.constraints seaquest fan-in --buffers a.h5,b.h5 [--batches 3000] [--games 30]

The rungs, each trained from random weights on the same draws of the same buffers by the same KL divergence:

- ``teacher``: the teacher's own network (Mnih 2015), fp32, no constraint at all. What it lacks of the teacher is due
  to the frames, the loss and the number of batches.
- ``fan-in``: the student's chain of grouped layers, at most 128 inputs a neuron, with ReLU and real weights.
- ``binary``: the same chain with binary activations, real weights.
- ``ternary``: the same with ternary weights as well, by plain straight-through rounding: all of the constraints.
- ``recipe``: the same net by ``spikestill distill``: hysteresis, hints, its own learning rate.

Chains have batch normalisation, by the batch's statistics, in the last tenth of the training by the running ones. Adam,
a cosine from ``--learning_rate`` to a sixtieth of it. A rung's result joins those of the same game in
``constraints-GAME.json``, by rung and number of batches; :mod:`spikestill.constraint_results` draws them. Held-out
agreement and regret are over the last 2 % of every buffer; games are whole, of the deployed form (``eval()``), by
``evaluate``'s rules.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import measurement
from benchmarks.distill import PlainStep, mean_votes, pixels
from benchmarks.measurement import finish, made
from spikestill.common.atari import STACK
from spikestill.common.environment import Observations
from spikestill.common.processor import keep_freed_memory
from spikestill.common.progress import Progress
from spikestill.configs.distill import DistillConfig
from spikestill.configs.environment import EnvironmentConfig
from spikestill.dataset.reader import BufferReader
from spikestill.student.architectures import LayerSpec, architecture, centred
from spikestill.student.distill import hinting_teachers
from spikestill.student.distillation import Distillation, learning_rate
from spikestill.student.integer_net import STACK_SHAPE
from spikestill.student.judging import judged
from spikestill.student.losses import kl
from spikestill.student.sources import BufferSource, Drawn
from spikestill.teacher.atari.q_network import initial_weights, q_values
from spikestill.teacher.checkpoint import read_teacher
from spikestill.teacher.evaluation import evaluate

BATCH = 128
LOGIT_SCALE = DistillConfig().logit_scale
TEMPERATURE = DistillConfig().temperature
RENORMALISED_SHARE = DistillConfig().renormalised_share
RATE_FALL = 60.0


class Rung(NamedTuple):
    """A chain's constraints beside the fan-in, and the learning rate to begin with."""

    binary: bool
    ternary: bool
    learning_rate: float


CHAINS = {
    "fan-in": Rung(binary=False, ternary=False, learning_rate=3e-3),
    "binary": Rung(binary=True, ternary=False, learning_rate=3e-3),
    "ternary": Rung(binary=True, ternary=True, learning_rate=3e-2),
}
TEACHER_RATE = 5e-4


def grouped_products(x: Tensor, weight: Tensor, spec: LayerSpec) -> Tensor:
    """Return the convolution of x (B, C, H, W); where patches do not overlap, by one product a group: it is faster."""
    size, (side, k) = len(x), (x.shape[2], spec.kernel)
    if spec.pad > 0 or spec.groups == 1 or (k != spec.stride and side != k):
        return F.conv2d(x, weight, stride=spec.stride, padding=max(0, spec.pad), groups=spec.groups)
    out, channels = (side - k) // spec.stride + 1, x.shape[1] // spec.groups
    cut = x[:, :, : out * k, : out * k].reshape(size, spec.groups, channels, out, k, out, k)
    patches = cut.permute(1, 0, 3, 5, 2, 4, 6).reshape(spec.groups, size * out * out, channels * k * k)
    products = torch.bmm(patches, weight.reshape(spec.groups, spec.features // spec.groups, -1).mT)
    whole = products.reshape(spec.groups, size, out, out, -1)
    return whole.permute(1, 0, 4, 2, 3).reshape(size, spec.features, out, out)


class Chain(nn.Module):
    """The student's layers with some of its constraints, from PyTorch's operations."""

    def __init__(self, layers: tuple[LayerSpec, ...], actions: int, rung: Rung) -> None:
        super().__init__()
        self.actions, self.specs, self.rung = actions, layers, rung
        channels, weights = STACK_SHAPE[0], []
        for spec in layers:
            fan_in = channels // spec.groups * spec.kernel**2
            bound = 1.0 if rung.ternary else 1.0 / math.sqrt(fan_in)
            shape = (spec.features, channels // spec.groups, spec.kernel, spec.kernel)
            weights.append(nn.Parameter(torch.empty(shape).uniform_(-bound, bound)))
            channels = spec.features
        self.weights = nn.ParameterList(weights)
        self.norms = nn.ModuleList(nn.BatchNorm2d(spec.features) for spec in layers)

    def forward(self, stacks: Tensor) -> Tensor:
        """Return the logits (B, A) of uint8 stacks."""
        x = pixels(stacks, self.specs) / 255.0
        for index, (spec, weight, norm) in enumerate(zip(self.specs, self.weights, self.norms, strict=True)):
            used = weight + (weight.clamp(-1, 1).round() - weight).detach() if self.rung.ternary else weight
            x = norm(grouped_products(x, used, spec))
            if self.rung.binary:
                x = PlainStep.apply(x)
            elif index < len(self.specs) - 1:
                x = F.relu(x)
        return LOGIT_SCALE * mean_votes(x, self.actions)


class TeacherNet(nn.Module):
    """The teacher's network with random weights."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        first = initial_weights(actions, torch.Generator().manual_seed(0))
        self.names = list(first)
        self.weights = nn.ParameterList(nn.Parameter(weight) for weight in first.values())

    def forward(self, stacks: Tensor) -> Tensor:
        """Return the logits (B, A) of uint8 stacks."""
        return LOGIT_SCALE * q_values(dict(zip(self.names, self.weights, strict=True)), stacks)


def trained(
    net: nn.Module, rate: float, source: BufferSource, batches: int, seed: int
) -> tuple[float, float]:
    """Train on ``batches`` batches; return loss and agreement over the last tenth of them."""
    optimizer = torch.optim.Adam(net.parameters(), lr=rate, fused=True)
    rng = np.random.default_rng([seed, 6])
    schedule = DistillConfig(steps=batches, learning_rate=rate, learning_rate_final=rate / RATE_FALL)
    last = int((1.0 - RENORMALISED_SHARE) * batches)
    found = []
    with Progress("training", batches, "batches") as bar:
        for step in range(batches):
            net.train(step < last)
            optimizer.param_groups[0]["lr"] = learning_rate(schedule, step)
            drawn = source.draw(rng, BATCH)
            logits, q = net(torch.from_numpy(drawn.stacks)), torch.from_numpy(drawn.q_values)
            loss = kl(logits, q, TEMPERATURE)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            agree = (logits.detach().argmax(dim=1) == q.argmax(dim=1)).float().mean()
            found.append((float(loss.detach()), float(agree)))
            bar.advance(1, loss=found[-1][0], agreement=found[-1][1])
    net.eval()
    loss_last, agreement_last = np.mean(found[last:], axis=0)
    return float(loss_last), float(agreement_last)


def recipe(
    options: argparse.Namespace, readers: list[BufferReader], source: BufferSource
) -> tuple[Callable[[Tensor], Tensor], float, float]:
    """Train as ``spikestill distill`` does; return the integer net's votes, and what :func:`trained` returns."""
    config = DistillConfig(
        buffer=options.buffers[0], also=tuple(options.buffers[1:]), steps=options.batches, batch_size=BATCH,
        ghost_batches=1, precision="fp32", seed=options.seed,
    )  # fmt: skip
    training = Distillation(
        config, source, [read_teacher(path)[0] for path in hinting_teachers(config, readers)]
    )
    found = []
    with Progress("training", config.steps, "batches") as bar:
        for _ in range(config.steps):
            found.append(training.train_step())
            bar.advance(1, loss=found[-1][0], agreement=found[-1][1])
    training.recalibrate(config.recalibration_batches)
    training.network.eval()
    loss, agreement = np.mean(found[int((1.0 - RENORMALISED_SHARE) * config.steps) :], axis=0)
    return training.network, float(loss), float(agreement)


def held_out(scores: Callable[[Tensor], Tensor], drawn: Drawn) -> dict[str, float]:
    """Return agreement and regret on frames that were not trained on."""
    with torch.no_grad():
        parts = [scores(part) for part in torch.from_numpy(drawn.stacks).split(BATCH)]
    found = judged(np.concatenate([np.asarray(part) for part in parts]).argmax(axis=1), drawn.q_values)
    return {"agreement": round(found.agreement, 4), "regret": round(found.regret, 4)}


def played(scores: Callable[[Tensor], Tensor], game: str, games: int, label: str) -> dict[str, Any]:
    """Return the score of whole games."""

    def choose(observations: Observations) -> np.ndarray:
        with torch.no_grad():
            return np.asarray(scores(torch.from_numpy(observations[STACK.name]))).argmax(axis=1)

    found = evaluate(choose, EnvironmentConfig(game=game), episodes=games, label=label)
    return {"games": games, "score": round(found.mean, 2), "ci95": [round(end, 2) for end in found.ci95]}


def main() -> None:
    """Train and play one rung; write ``benchmarks/results/constraints-GAME.json``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("game")
    parser.add_argument("rung", choices=("teacher", *CHAINS, "recipe"))
    parser.add_argument("--buffers", required=True, help="what `spikestill record` wrote: path,path,...")
    parser.add_argument("--architecture", default="1chip")
    parser.add_argument("--batches", type=int, default=3_000)
    parser.add_argument("--games", type=int, default=30)
    parser.add_argument("--learning_rate", type=float, help="default: the rung's own")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.buffers = [Path(part) for part in options.buffers.split(",")]
    name = f"constraints-{options.game}"
    torch.manual_seed(options.seed)
    keep_freed_memory()
    readers = [BufferReader(path) for path in options.buffers]
    source = BufferSource(readers, DistillConfig().validation)
    layers = centred(architecture(options.architecture), STACK_SHAPE[1])
    began = time.monotonic()
    scores: Callable[[Tensor], Tensor]
    if options.rung == "recipe":
        rate = DistillConfig().learning_rate
        scores, loss, agreement = recipe(options, readers, source)
    else:
        if options.rung == "teacher":
            net: nn.Module = TeacherNet(source.actions)
            rate = options.learning_rate or TEACHER_RATE
        else:
            net = Chain(layers, source.actions, CHAINS[options.rung])
            rate = options.learning_rate or CHAINS[options.rung].learning_rate
        loss, agreement = trained(net, rate, source, options.batches, options.seed)
        scores = net
    hours = (time.monotonic() - began) / 3600
    figures = {
        "rung": options.rung,
        "batches": options.batches,
        "frames": sum(map(len, readers)),
        "batch_size": BATCH,
        "learning_rate": rate,
        "training_loss": round(loss, 4),
        "training_agreement": round(agreement, 4),
        "held_out": held_out(scores, source.validation()),
        "hours": round(hours, 2),
    }
    print(json.dumps(figures), flush=True)
    figures["played"] = played(scores, options.game, options.games, f"evaluating {options.rung}")
    for reader in readers:
        reader.close()
    path = measurement.RESULTS / f"{name}.json"
    before = json.loads(path.read_text(encoding="utf-8"))["figures"] if path.exists() else {}
    finish(name, before | {f"{options.rung}-{options.batches}": figures | {"made": made()}})


if __name__ == "__main__":
    main()
