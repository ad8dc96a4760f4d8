"""How fast DDPG in integers trains, beside fp32: products, updates, inferences a second.

    python -m benchmarks.fixed_point [--seconds 2]

The networks are HalfCheetah's (17 observations, 6 actions, 400-300). *fp32* is the same update in PyTorch, its autograd
and its Adam, on the same threads. IPS is Yang 2021's: batch times updates a second, without the environment. Writes
``benchmarks/results/fixed_point.json``.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.measurement import finish
from spikestill.common.precision import fixed_product
from spikestill.common.processor import cores
from spikestill.configs.fixed_point import FixedPointConfig
from spikestill.teacher.control import fixed_ddpg
from spikestill.teacher.control.fixed_ddpg import Batch

S, A, HIDDEN = 17, 6, (400, 300)
BATCHES = (64, 128, 256, 512)


def rate(work: Callable[[], Any], seconds: float) -> float:
    """Return how often a second ``work`` is done, the best of three stretches."""
    work()
    best = 0.0
    for _ in range(3):
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < seconds / 3:
            work()
            count += 1
        best = max(best, count / (time.perf_counter() - began))
    return best


def products(seconds: float) -> dict[str, float]:
    """Return multiply-adds a second, 1e9, of 64 x 400 x 300 on one thread."""
    random = np.random.default_rng(0)
    stream = random.integers(-(2**24), 2**24, (64, 400)).astype(np.int32)
    right = random.integers(
        -(2**24), 2**24, (400, -(-300 // fixed_product.WIDTH) * fixed_product.WIDTH)
    ).astype(np.int32)
    out = np.empty((64, right.shape[1]), np.int64)
    a, b, c = torch.randn(64, 400), torch.randn(400, 300), torch.empty(64, 300)
    torch.set_num_threads(1)
    size = 64 * 400 * 300 / 1e9
    found = {
        "int32": size * rate(lambda: fixed_product.multiply(stream, right, out), seconds),
        "fp32": size * rate(lambda: torch.mm(a, b, out=c), seconds),
    }
    torch.set_num_threads(cores())
    return {name: round(value, 2) for name, value in found.items()}


def batch_of(size: int) -> Batch:
    """Return random transitions."""
    random = np.random.default_rng(size)
    obs, following = (random.normal(size=(size, S)).astype(np.float32) for _ in range(2))
    action = random.uniform(-1, 1, (size, A)).astype(np.float32)
    return Batch(obs, action, random.normal(size=size).astype(np.float32), np.ones(size, bool), following)


def integers(variant: Any, size: int, seconds: float) -> float:
    """Return updates a second in fixed point; FIXAR's after its quantisation delay."""
    state = fixed_ddpg.initial_state(FixedPointConfig(variant=variant, quantisation_delay=1), S, A, seed=0)
    batch = batch_of(size)
    for _ in range(2):
        state, _ = fixed_ddpg.update(state, batch)
    return rate(lambda: fixed_ddpg.update(state, batch), seconds)


def plain(size: int, seconds: float) -> float:
    """Return updates a second of the same agent in PyTorch, fp32."""

    def network(inputs: int, outputs: int, *last: torch.nn.Module) -> torch.nn.Sequential:
        first, second = HIDDEN
        return torch.nn.Sequential(
            torch.nn.Linear(inputs, first), torch.nn.ReLU(), torch.nn.Linear(first, second), torch.nn.ReLU(),
            torch.nn.Linear(second, outputs), *last,
        )  # fmt: skip

    actor, critic = network(S, A, torch.nn.Tanh()), network(S + A, 1)
    target_actor, target_critic = copy.deepcopy(actor), copy.deepcopy(critic)
    steps = [torch.optim.Adam(net.parameters(), 1e-4) for net in (actor, critic)]
    found = batch_of(size)
    obs, action, reward, going_on, following = (torch.from_numpy(np.asarray(x, np.float32)) for x in found)

    def update() -> None:
        with torch.no_grad():
            value = target_critic(torch.cat([following, target_actor(following)], 1))[:, 0]
            target = reward + 0.99 * going_on * value
        loss = 0.5 * (critic(torch.cat([obs, action], 1))[:, 0] - target).square().mean()
        steps[1].zero_grad()
        loss.backward()
        steps[1].step()
        loss = -critic(torch.cat([obs, actor(obs)], 1)).mean()
        steps[0].zero_grad()
        loss.backward()
        steps[0].step()
        with torch.no_grad():
            for net, slow in ((actor, target_actor), (critic, target_critic)):
                for weight, mean in zip(net.parameters(), slow.parameters(), strict=True):
                    mean.lerp_(weight, 0.005)

    return rate(update, seconds)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    seconds = parser.parse_args().seconds
    rows = []
    for size in BATCHES:
        row: dict[str, Any] = {"batch": size}
        for name, found in (
            ("fp32", plain(size, seconds)),
            ("fixed32", integers("fixed32", size, seconds)),
            ("fixar", integers("fixar", size, seconds)),
        ):
            row |= {f"{name}_updates_per_s": round(found, 1), f"{name}_ips": round(size * found)}
        rows.append(row)
    finish("fixed_point", {"gigamacs_per_s": products(seconds), "threads": cores(), "updates": rows})


if __name__ == "__main__":
    main()
