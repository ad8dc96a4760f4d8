"""The learner whose replay lies in the host's memory.

On a CPU the batch is shared among threads, each of which gathers, runs forward and backward on its
share; the shares' gradients are added in a fixed order, so that the result does not depend on timing.
Adding, clipping and Adam's step are two passes over the weights by the same threads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spikestill.configs.teach import TeachConfig
from spikestill.teacher.atari.learner import DivergedError, Learner, Share, UpdateReport
from spikestill.teacher.atari.q_network import Weights
from spikestill.teacher.atari.replay import Batch, Replay
from spikestill.teacher.atari.weight_passes import AdamStep, Moments, WeightPasses


class HostLearner(Learner):
    """:class:`Learner` on a replay in the host's memory; :meth:`update` does one gradient step.

    Args:
        config: the training's options.
        actions: A.
        replay: what it learns from.
        threads: gradient threads on a CPU; never more than the batch has transitions.
    """

    def __init__(self, config: TeachConfig, actions: int, replay: Replay, threads: int) -> None:
        super().__init__(config, actions)
        self.replay = replay
        self.shares = min(threads, config.batch_size) if self.device.type == "cpu" else 1
        self.pool = ThreadPoolExecutor(
            self.shares, "gradient", initializer=torch.set_num_threads, initargs=(1,)
        )
        self.passes = WeightPasses(self.master, self._in_threads) if self.device.type == "cpu" else None

    def _in_threads(self, work: Callable[[int, int], Any]) -> list[Any]:
        """Return what ``work(thread, threads)`` gives in each of the gradient threads."""
        return list(self.pool.map(work, range(self.shares), itertools.repeat(self.shares)))

    def stacks(self, stacks_BHWC: np.ndarray) -> Tensor:
        """Return channels-last stacks as a (B, 4, 84, 84) tensor on the device, without copying on a CPU."""
        return torch.from_numpy(stacks_BHWC).to(self.device, non_blocking=True).permute(0, 3, 1, 2)

    def _share(self, batch: Batch) -> Share:
        s_tm1 = self.stacks(self.replay.stacks(batch.time, batch.env))
        s_t = self.stacks(self.replay.stacks(batch.time_next, batch.env))
        a_tm1, r_t, discount_t, weight = (
            torch.from_numpy(array).to(self.device)
            for array in (batch.action, batch.reward, batch.discount, batch.weight)
        )
        return self.differentiate(s_tm1, s_t, a_tm1, r_t, discount_t, weight)

    def gradients(self, batch: Batch) -> tuple[Weights, float, list[Share]]:
        """Return the batch's fp32 gradients by name, the loss scale divided out, their L2 norm, and the shares.

        The next call writes over the gradients.
        """
        shares = list(self.pool.map(lambda i: self._share(batch.share(i, self.shares)), range(self.shares)))
        if self.passes is not None:
            norm = self.passes.add([share[0] for share in shares], 1.0 / self.scale.value)
            return self.passes.gradients, norm, shares
        (only,) = shares
        found = {
            name: gradient.float().div(self.scale.value).contiguous()
            for name, gradient in zip(self.master, only[0], strict=True)
        }
        return found, float(torch.stack([each.norm() for each in found.values()]).norm()), shares

    def update(self, batch: Batch, learning_rate: float) -> UpdateReport:
        """Do one gradient step on ``batch``; none where a gradient overflows under loss scaling.

        Raises:
            DivergedError: the loss or a gradient is not finite, with no loss scale left to blame; the weights are
                left as they were.
        """
        gradients, norm, shares = self.gradients(batch)
        loss = float(sum(share[1] for share in shares))
        error = torch.cat([share[2] for share in shares]).cpu().numpy()
        q = float(torch.cat([share[3] for share in shares]).mean())
        finite = bool(np.isfinite(loss) and np.isfinite(norm))
        if not finite and (self.scale.value <= 1.0 or np.isnan(loss)):
            wrong = np.flatnonzero(~np.isfinite(error))
            shown, whose = (
                (wrong[:4], "of the first of those")
                if len(wrong)
                else (np.arange(len(batch))[:4], "of the first")
            )
            raise DivergedError(
                f"update {self.updates}: loss {loss}, gradient norm {norm}: not finite; of the batch's {len(batch)} "
                f"transitions {len(wrong)} have no finite error, replay slots (time, environment) {whose} "
                f"{list(zip(batch.time[shown].tolist(), batch.env[shown].tolist(), strict=True))}",
            )
        if self.format.scaled:
            self.scale.update(finite)
        if not finite:
            return UpdateReport(loss, q, norm, error, skipped=True)
        clip = min(1.0, (self.config.max_gradient_norm or float("inf")) / (norm + 1e-6))
        if self.passes is not None and isinstance(self.optimizer, torch.optim.Adam):
            self._step_adam(self.passes, self.optimizer, clip, learning_rate)
        else:
            self.hand_over({name: gradient * clip for name, gradient in gradients.items()})
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate * group["factor"]
            self.step_weights()
        self.updates += 1
        return UpdateReport(loss, q, norm, error)

    def _step_adam(
        self, passes: WeightPasses, optimizer: torch.optim.Adam, clip: float, learning_rate: float
    ) -> None:
        """Do what PyTorch's Adam would do with the added gradients times ``clip``, to the moments that it keeps."""
        config = self.config
        moments: dict[str, Moments] = {}
        steps: dict[str, AdamStep] = {}
        for group in self.groups:
            for parameter, names in zip(group.parameters, group.names_by_parameter(), strict=True):
                state = optimizer.state[parameter]
                if not state:
                    state["step"] = torch.zeros(())
                    state |= {each: torch.zeros_like(parameter) for each in ("exp_avg", "exp_avg_sq")}
                state["step"] += 1
                rate = learning_rate * group.factor
                step = AdamStep.at(int(state["step"]), clip, rate, config.optimizer_epsilon, config.averaging)
                sizes = [self.master[name].numel() for name in names]
                m, v = (state[each].view(-1).split(sizes) for each in ("exp_avg", "exp_avg_sq"))
                moments |= {name: Moments(m[i].numpy(), v[i].numpy()) for i, name in enumerate(names)}
                steps |= dict.fromkeys(names, step)
        passes.step(self.master, self.mean if config.averaging else {}, moments, steps)
        self.refresh_working()

    def learn(
        self, rng: np.random.Generator, updates: int, beta: float, learning_rate: float
    ) -> list[UpdateReport]:
        """See :meth:`Learner.learn`."""
        reports = []
        for _ in range(updates):
            batch = self.replay.sample(rng, self.config.batch_size, beta)
            reports.append(self.update(batch, learning_rate))
            # Where a forward pass overflowed, its errors say nothing, and would stay the largest priority for good.
            if not reports[-1].skipped:
                self.replay.set_priorities(batch, reports[-1].error)
        return reports

    def dead_units(self, rng: np.random.Generator) -> list[float]:
        """Return the fraction of dead units of every hidden layer on 64 random states of the replay."""
        batch = self.replay.sample(rng, 64, 0.0)
        return self.dead_fractions(self.stacks(self.replay.stacks(batch.time, batch.env)))

    def state(self) -> dict[str, Tensor]:
        """See :meth:`Learner.state`; and the shares, on whose number the sums' rounding depends."""
        return super().state() | {"shares": torch.tensor(self.shares)}

    def set_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore what :meth:`state` returned."""
        super().set_state(tensors)
        if self.device.type == "cpu" and "shares" in tensors:
            self.shares = int(tensors["shares"])

    def close(self) -> None:
        """End the gradient threads."""
        self.pool.shutdown()
