"""The DDQN learner whose whole update stays on the device; on a GPU it is captured in a CUDA graph.

An update is some 200 kernels, most of a few microseconds: launched one by one from Python they would wait for
the host. So the update draws its batch, gathers it, computes targets and gradients, steps the optimiser and renews
the working copy and the priorities in tensors that never move, and a graph of all that is launched at once. The host
writes the learning rate and the random numbers before a round and reads the losses after it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from spikestill.configs.teach import TeachConfig
from spikestill.teacher.atari.device_replay import DeviceReplay
from spikestill.teacher.atari.learner import DivergedError, Learner, UpdateReport
from spikestill.teacher.atari.q_network import Weights

WARM_UPDATES = 3


class DeviceLearner(Learner):
    """:class:`Learner` without a word to the host within a round.

    The loss scale of fp16 and fp16-master is a tensor too. Where a gradient overflows nothing is stepped: the optimiser
    reads that in ``overflow``, as mixed precision's scaler tells it.

    Args:
        config: the training's options.
        actions: A.
        replay: what it learns from; the captured graph reads and writes it.
    """

    def __init__(self, config: TeachConfig, actions: int, replay: DeviceReplay) -> None:
        super().__init__(config, actions)
        self.replay = replay
        self.learning_stream = torch.cuda.Stream() if self.capturable else None
        self.acting_stream = torch.cuda.Stream() if self.capturable else None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.warm = 0
        rounds = config.updates_per_round
        self.uniform = torch.zeros((rounds, config.batch_size), dtype=torch.float64, device=self.device)
        # Loss, mean Q, gradient norm; the loss scale and its good updates after it.
        self.found = torch.zeros((rounds, 5), device=self.device)
        self.leaves = torch.zeros((rounds, config.batch_size), dtype=torch.int64, device=self.device)
        self.index = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.beta = torch.zeros((), dtype=torch.float64, device=self.device)
        self.shown = {name: weight.detach().clone() for name, weight in self.working.items()}
        self.factor = torch.tensor(self.scale.value, device=self.device)
        self.good = torch.zeros((), device=self.device)
        self.overflow = torch.zeros((), device=self.device)
        if self.format.scaled:
            self.optimizer.found_inf = self.overflow  # type: ignore[attr-defined]

    @property
    def capturable(self) -> bool:
        """The optimiser's steps go into a CUDA graph."""
        return self.device.type == "cuda"

    def step_size(self) -> Tensor:
        """Return the learning rate as a tensor of its own, which the graph reads."""
        return torch.tensor(self.config.learning_rate, device=self.device)

    @property
    def loss_factor(self) -> float | Tensor:
        """What the loss is multiplied by before it is differentiated: a tensor that the graph reads."""
        return self.factor if self.format.scaled else 1.0

    def refresh_working(self) -> None:
        """Cast the masters into the working copy, which stays where it is."""
        with torch.no_grad():
            for name, weight in self.working.items():
                weight.copy_(self.master[name])

    def refresh_target(self) -> None:
        """Copy the online network to the target network, which stays where it is."""
        with torch.no_grad():
            for name, weight in self.target.items():
                weight.copy_(self.working[name])

    def acting_weights(self) -> Weights:
        """Return the weights to act with until the next call: a copy that learning leaves alone."""
        with torch.no_grad():
            for name, weight in self.shown.items():
                weight.copy_(self.working[name])
        if self.acting_stream is not None:
            self.acting_stream.wait_stream(torch.cuda.current_stream())
        return self.shown

    def _update(self) -> None:
        """Do the whole update number ``index`` of the round, in tensors of fixed place and shape."""
        replay = self.replay
        if replay.alpha:
            replay.sum_up()
        drawn = replay.draw(self.uniform.index_select(0, self.index)[0], self.beta)
        gradients, loss, error, q = self.differentiate(
            replay.stacks(drawn.time, drawn.env), replay.stacks(drawn.time_next, drawn.env),
            drawn.action, drawn.reward, drawn.discount, drawn.weight,
        )  # fmt: skip
        whole = [part.float().contiguous() for part in gradients]
        if self.format.scaled:
            torch._foreach_div_(whole, self.factor)
        parameters = self.hand_over(dict(zip(self.master, whole, strict=True)))
        limit = self.config.max_gradient_norm or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(parameters, limit)
        if self.format.scaled:
            self._rescale((loss + norm).isfinite())
        self.step_weights()
        # Where a forward pass overflowed, its errors say nothing, and would stay the largest priority for good.
        replay.set_priorities(drawn.leaves, error, self.overflow == 0 if self.format.scaled else None)
        found = torch.stack([loss, q.mean(), norm, self.factor, self.good])
        self.found.index_copy_(0, self.index, found[None])
        self.leaves.index_copy_(0, self.index, drawn.leaves[None])
        self.index += 1

    def _rescale(self, finite: Tensor) -> None:
        """Do what :meth:`LossScale.update` does, and note an overflow for whoever steps."""
        good = self.good + 1
        due = good >= self.scale.period
        self.factor.mul_(torch.where(finite, torch.where(due, 2.0, 1.0), 0.5))
        self.good.copy_(torch.where(finite & ~due, good, 0.0))
        self.overflow.copy_(~finite)

    def _average(self, mean: list[Tensor], weights: list[Tensor]) -> None:
        """See :meth:`Learner._average`; after an overflow the mean stays."""
        if not self.format.scaled:
            super()._average(mean, weights)
            return
        share = (1.0 - self.config.averaging) * (1.0 - self.overflow)
        torch._foreach_lerp_(mean, weights, [share] * len(mean))

    def learn(
        self, rng: np.random.Generator, updates: int, beta: float, learning_rate: float
    ) -> list[UpdateReport]:
        """See :meth:`Learner.learn`; after a DivergedError only the last checkpoint is good."""
        uniform = rng.random((updates, self.config.batch_size))
        self.uniform[:updates].copy_(torch.from_numpy(uniform))
        self.index.zero_()
        self.beta.fill_(beta)
        for group in self.optimizer.param_groups:
            group["lr"].fill_(learning_rate * group["factor"])
        self.replay.sum_up()
        for _ in range(updates):
            self._one()
        reports = []
        for number, (loss, q, norm, factor, good) in enumerate(self.found[:updates].cpu().tolist()):
            finite = bool(np.isfinite(loss) and np.isfinite(norm))
            reports.append(UpdateReport(loss, q, norm, np.empty(0, np.float32), skipped=not finite))
            if not finite and (self.scale.value <= 1.0 or np.isnan(loss)):
                slots = [divmod(leaf, self.replay.num_envs) for leaf in self.leaves[number, :4].tolist()]
                raise DivergedError(
                    f"update {self.updates}: loss {loss}, gradient norm {norm}: not finite; the batch's first replay "
                    f"slots (time, environment) are {slots}",
                )
            self.updates += finite
            self.scale.value, self.scale.good = factor, int(good)
        return reports

    def _one(self) -> None:
        """Launch one update: the first ones as they are, which warms the libraries up, then as a graph."""
        if self.learning_stream is None:
            self._update()
        elif self.graph is not None:
            self.graph.replay()
        elif self.warm < WARM_UPDATES:
            self.learning_stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.learning_stream):
                self._update()
            torch.cuda.current_stream().wait_stream(self.learning_stream)
            self.warm += 1
        else:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self.learning_stream, capture_error_mode="thread_local"):
                self._update()
            self.graph = graph
            graph.replay()

    def dead_units(self, rng: np.random.Generator) -> list[float]:
        """Return the fraction of dead units of every hidden layer on 64 random states of the replay."""
        self.replay.sum_up()
        uniform = torch.from_numpy(rng.random(64)).to(self.device)
        drawn = self.replay.draw(uniform, torch.zeros_like(self.beta))
        return self.dead_fractions(self.replay.stacks(drawn.time, drawn.env))

    def set_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore what :meth:`state` returned."""
        super().set_state(tensors)
        self.factor.fill_(self.scale.value)
        self.good.fill_(self.scale.good)
        # The optimiser's moments lie elsewhere now.
        self.graph, self.warm = None, 0

    def close(self) -> None:
        """Let the graph go."""
        self.graph = None
