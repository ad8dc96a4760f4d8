"""Updates a second of SAC and DDPG as a share of the machine's own product rate, beside PyTorch's own gradients.

    python -m benchmarks.control

The floor of an update is its products alone at the rate of NumPy's ``a @ b`` of 2,048 on all cores, measured in the
same run. The peer is the same SAC with PyTorch's gradients and its fused Adam, fp32, all cores. Random transitions of
HalfCheetah's sizes, and of pictures; the simulator and the replay are not in it.

With the variables of ``python -m benchmarks.distill --help``, ``OPENBLAS_CORETYPE=ZEN`` and
``NPY_DISABLE_CPU_FEATURES="AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL"`` an x86 processor stands in
for one with AVX2 only, and the record says so.
"""

from __future__ import annotations

import argparse
import itertools
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from benchmarks.measurement import finish, median_rate, stand_in
from spikestill.common.precision.names import FIXED
from spikestill.common.precision.rounding import number_format
from spikestill.common.processor import cores, keep_freed_memory
from spikestill.configs.control import PIXELS, ControlConfig
from spikestill.configs.environment import EnvironmentConfig
from spikestill.teacher.control import fixed_ddpg
from spikestill.teacher.control.actor_critic import Batch
from spikestill.teacher.control.blas import one_thread
from spikestill.teacher.control.fixed_learner import FixedLearner
from spikestill.teacher.control.flops import flops
from spikestill.teacher.control.lanes import OtherThread, in_turn, quick_turns
from spikestill.teacher.control.learner import FloatLearner

S, D = 17, 6
AGENTS: dict[str, dict[str, Any]] = {
    "sac": {"hidden": (256, 256), "batch_size": 256},
    "ddpg": {"algorithm": "ddpg", "hidden": (400, 300), "batch_size": 64},
    "sac_pixels": {"game": "cheetah_run_pixels", "hidden": (256, 256), "batch_size": 32},
}


def config_of(agent: str, precision: str) -> ControlConfig:
    """Return the options of a measured agent."""
    options = {"game": "half_cheetah", **AGENTS[agent]}
    return ControlConfig(
        environment=EnvironmentConfig(game=options.pop("game")), precision=precision, **options
    )


def batch_of(rng: np.random.Generator, size: int, from_pixels: bool = False) -> Batch:
    """Return random transitions."""
    arrays: tuple[npt.NDArray[Any], ...] = (
        rng.standard_normal((size, S)), rng.uniform(-1, 1, (size, D)), rng.uniform(0, 1, size), np.ones(size),
        rng.standard_normal((size, S)),
    )  # fmt: skip
    batch = Batch(*(each.astype(np.float32) for each in arrays))
    if not from_pixels:
        return batch
    frames = [rng.integers(0, 256, (size, *PIXELS), np.uint8) for _ in range(2)]
    return batch._replace(obs_BS=frames[0], next_obs_BS=frames[1])


def updates_per_s(config: ControlConfig, seconds: float, repeats: int, seeds: int = 1) -> float:
    """Return updates a second: of one agent on all cores, or of several together."""
    both = OtherThread() if seeds == 1 and cores() > 1 else in_turn
    learners = [FloatLearner(config, S, D, seed, both) for seed in range(seeds)]
    rngs = [np.random.default_rng(seed) for seed in range(seeds)]
    turns = 1 if config.from_pixels else 5
    # Of one batch alone the errors, and with them the moments, soon become subnormal, which no training's are.
    batches = [batch_of(rngs[0], config.batch_size, config.from_pixels) for _ in range(3 * turns)]
    drawn = itertools.cycle(batches)

    def turn(index: int) -> None:
        for _ in range(turns):
            learners[index].update(next(drawn), rngs[index])

    def work() -> int:
        if seeds == 1:
            turn(0)
            return turns
        threads = [threading.Thread(target=turn, args=(index,)) for index in range(seeds)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return turns * seeds

    work()
    found = median_rate(work, seconds, repeats)
    if isinstance(both, OtherThread):
        both.close()
    return found


def product_rate(seconds: float, repeats: int) -> float:
    """Return floating-point operations a second of ``a @ b``, 2,048 each, fp32, all cores."""
    a = np.random.default_rng(0).standard_normal((2048, 2048)).astype(np.float32)
    out = np.empty_like(a)

    def work() -> int:
        np.matmul(a, a, out=out)
        return 2 * 2048**3

    work()
    return median_rate(work, seconds, repeats)


def plain_sac(seconds: float, repeats: int) -> float:
    """Return updates a second of SAC written plainly in PyTorch, fp32."""
    torch.manual_seed(0)
    config = config_of("sac", "fp32")

    def net(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, outputs)
        )

    actor, critics, targets = (
        net(S, 2 * D),
        [net(S + D, 1) for _ in range(2)],
        [net(S + D, 1) for _ in range(2)],
    )
    weights: list[torch.Tensor] = [p for critic in critics for p in critic.parameters()]
    averages: list[torch.Tensor] = [p for target in targets for p in target.parameters()]
    log_alpha = torch.zeros(1, requires_grad=True)
    adams = [
        torch.optim.Adam(group, lr=1e-4, fused=True)
        for group in (list(actor.parameters()), weights, [log_alpha])
    ]
    obs, action, reward, going_on, following = map(torch.from_numpy, batch_of(np.random.default_rng(0), 256))

    def sample(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, z = actor(x).chunk(2, 1)
        normal = torch.distributions.Normal(mean, (-5 + 3.5 * (torch.tanh(z) + 1)).exp())
        u = normal.rsample()
        density = normal.log_prob(u) - 2 * (np.log(2) - u - nn.functional.softplus(-2 * u))
        return torch.tanh(u), density.sum(1)

    def work() -> int:
        with torch.no_grad():
            a, density = sample(following)
            x = torch.cat([following, a], 1)
            value = torch.min(*(target(x)[:, 0] for target in targets)) - log_alpha.exp() * density
            y = reward + config.discount * going_on * value
        x = torch.cat([obs, action], 1)
        loss = sum(((critic(x)[:, 0] - y) ** 2).mean() for critic in critics)
        _step(adams[1], loss, weights)
        a, density = sample(obs)
        x = torch.cat([obs, a], 1)
        value = torch.min(*(critic(x)[:, 0] for critic in critics))
        _step(adams[0], (log_alpha.exp().detach() * density - value).mean(), list(actor.parameters()))
        _step(adams[2], (log_alpha.exp() * (D - density.detach())).mean(), [log_alpha])
        with torch.no_grad():
            torch._foreach_lerp_(averages, weights, 0.005)
        return 1

    work()
    return median_rate(work, seconds, repeats)


def _step(adam: torch.optim.Optimizer, loss: Any, group: list[torch.Tensor]) -> None:
    for weight, gradient in zip(group, torch.autograd.grad(loss, group), strict=True):
        weight.grad = gradient
    adam.step()


def state_bytes(agent: str, precision: str) -> int:
    """Return the bytes of everything that learns, were each number stored in its format."""
    config = config_of(agent, precision)
    if precision in FIXED:
        state = FixedLearner(config, S, D, 0).agent
        arrays, _ = fixed_ddpg.to_arrays(state)
        words = sum(array.size for name, array in arrays.items() if name.endswith("_N"))
        return words * state.formats.bits // 8
    learner = FloatLearner(config, S, D, 0)
    numbers = sum(
        array.size for name, array in learner.arrays().items() if "counters" not in name and name != "updates"
    )
    return round(numbers * number_format(precision).bytes)


def main() -> None:
    """Measure and write ``benchmarks/results/control.json``."""
    parser = argparse.ArgumentParser(
        description=f"benchmarks.control: {__doc__}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--name", default="control", help="of the result's file")
    given = parser.parse_args()
    keep_freed_memory()
    measured = given.seconds, given.repeats
    rate = product_rate(*measured)
    figures: dict[str, Any] = {"stand_in": stand_in(), "product_gflop_per_s": round(rate / 1e9, 1)}
    figures["sac_pytorch_updates_per_s"] = round(plain_sac(*measured), 1)
    with one_thread(), quick_turns():
        for agent in AGENTS:
            config = config_of(agent, "fp32")
            floor = rate / flops(config, S, D)
            figures |= {
                f"{agent}_mflop": round(flops(config, S, D) / 1e6, 1),
                f"{agent}_floor_per_s": round(floor, 1),
            }
            for precision in ("fp32", "fp16"):
                found = updates_per_s(config_of(agent, precision), *measured)
                name = f"{agent}_{precision}"
                figures |= {
                    f"{name}_updates_per_s": round(found, 1),
                    f"{name}_share_of_floor": round(found / floor, 3),
                    f"{name}_ips": round(found * config.batch_size),
                    f"{name}_state_bytes": state_bytes(agent, precision),
                }
            formats = ("bf16", "fp8-e5m2", *(FIXED if config.algorithm == "ddpg" else ()))
            figures |= {f"{agent}_{name}_state_bytes": state_bytes(agent, name) for name in formats}
            figures[f"{agent}_fp32_two_seeds_updates_per_s"] = round(
                updates_per_s(config, *measured, seeds=2), 1
            )
            ratio = figures[f"{agent}_fp16_updates_per_s"] / figures[f"{agent}_fp32_updates_per_s"]
            figures[f"{agent}_fp16_share_of_fp32"] = round(ratio, 3)
    finish(given.name, figures)


if __name__ == "__main__":
    main()
