"""Training samples per second of ``distill`` beside the same net written plainly in PyTorch, in one run.

    python -m benchmarks.distill buffer.h5

The plain net is what a careful user would write first: the same centred 1-chip net in fp32, NCHW, ``conv2d``,
``batch_norm``, an autograd function for the step, all cores. It computes 21.5 M multiply-adds a frame, ours the 16.6 M
that a vote depends on, in the format that ``--precision auto`` picks.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.measurement import finish, median_rate
from spikestill.common.processor import cores
from spikestill.configs.distill import DistillConfig
from spikestill.dataset.reader import BufferReader
from spikestill.student.architectures import architecture, centred
from spikestill.student.distill import Distillation
from spikestill.student.integer_net import STACK_SHAPE
from spikestill.student.losses import kl
from spikestill.student.sources import BufferSource

BATCH = 128


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
    """The centred 1-chip student from PyTorch's own layers."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.actions, self.specs = actions, centred(architecture("1chip"), STACK_SHAPE[1])
        channels, shadows, norms = 4, [], []
        for spec in self.specs:
            shape = (spec.features, channels // spec.groups, spec.kernel, spec.kernel)
            shadows.append(nn.Parameter(torch.empty(shape).uniform_(-1, 1)))
            norms.append(nn.BatchNorm2d(spec.features))
            channels = spec.features
        self.shadows, self.norms = nn.ParameterList(shadows), nn.ModuleList(norms)

    def forward(self, stacks: Tensor) -> Tensor:
        """Return mean votes (B, A)."""
        left_out = -self.specs[0].pad
        x = stacks[..., left_out:-left_out, left_out:-left_out].float()
        for spec, shadow, norm in zip(self.specs, self.shadows, self.norms, strict=True):
            ternary = torch.where(shadow > 0.5, 1.0, torch.where(shadow < -0.5, -1.0, 0.0))
            weight = shadow + (ternary - shadow).detach()
            x = F.conv2d(x, weight, stride=spec.stride, padding=max(0, spec.pad), groups=spec.groups)
            x = PlainStep.apply(norm(x))
        rates = x.mean(dim=(2, 3))
        used = self.actions * (rates.shape[1] // self.actions)
        return rates[:, :used].reshape(len(rates), -1, self.actions).mean(dim=1)


def main() -> None:
    """Measure both and write ``benchmarks/results/distill.json``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("buffer", type=Path, help="what `spikestill record pong` wrote")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each of three runs of each")
    options = parser.parse_args()
    with BufferReader(options.buffer) as reader:
        torch.set_num_threads(cores())
        rng = np.random.default_rng(0)
        batch = reader.sample(rng, BATCH)
        stacks, q = torch.from_numpy(batch.stacks), torch.from_numpy(batch.q_values)
        plain = PlainStudent(reader.actions)
        optimizer = torch.optim.Adam(plain.parameters(), lr=1e-3)

        def plain_step() -> int:
            loss = kl(16.0 * plain(stacks), q, 0.01)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return BATCH

        torch.set_num_threads(1)
        training = Distillation(
            DistillConfig(batch_size=BATCH, buffer=options.buffer), BufferSource(reader, 0.02)
        )

        def our_step() -> int:
            training.train_step()
            return BATCH

        our_step()
        torch.set_num_threads(cores())
        plain_step()
        ours, theirs = [], []
        for _ in range(3):
            torch.set_num_threads(1)
            ours.append(median_rate(our_step, options.seconds, 1))
            torch.set_num_threads(cores())
            theirs.append(median_rate(plain_step, options.seconds, 1))
        training.close()
    mine, plain_rate = sorted(ours)[1], sorted(theirs)[1]
    finish(
        "distill",
        {
            "distill_samples_per_s": mine,
            "plain_pytorch_samples_per_s": plain_rate,
            "ratio": mine / plain_rate,
            "distill_precision": training.format.name,
            "runs": {"distill": ours, "plain": theirs},
        },
    )


if __name__ == "__main__":
    main()
