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

    Gradients need no loss scaling here: fp16 and fp16-master skip updates, which the host decides.

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
        self.found = torch.zeros((rounds, 3), device=self.device)
        self.leaves = torch.zeros((rounds, config.batch_size), dtype=torch.int64, device=self.device)
        self.index = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.beta = torch.zeros((), dtype=torch.float64, device=self.device)
        self.shown = {name: weight.detach().clone() for name, weight in self.working.items()}

    @property
    def capturable(self) -> bool:
        """The optimiser's steps go into a CUDA graph."""
        return self.device.type == "cuda"

    def step_size(self) -> Tensor:
        """Return the learning rate as a tensor of its own, which the graph reads."""
        return torch.tensor(self.config.learning_rate, device=self.device)

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
        parameters = self.hand_over(
            {name: part.float().contiguous() for name, part in zip(self.master, gradients, strict=True)}
        )
        limit = self.config.max_gradient_norm or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(parameters, limit)
        self.step_weights()
        replay.set_priorities(drawn.leaves, error)
        self.found.index_copy_(0, self.index, torch.stack([loss, q.mean(), norm])[None])
        self.leaves.index_copy_(0, self.index, drawn.leaves[None])
        self.index += 1

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
        found = self.found[:updates].cpu().tolist()
        reports = [UpdateReport(loss, q, norm, np.empty(0, np.float32)) for loss, q, norm in found]
        for number, report in enumerate(reports):
            if not (np.isfinite(report.loss) and np.isfinite(report.gradient_norm)):
                slots = [divmod(leaf, self.replay.num_envs) for leaf in self.leaves[number, :4].tolist()]
                raise DivergedError(
                    f"update {self.updates + number}: loss {report.loss}, gradient norm {report.gradient_norm}: not "
                    f"finite; the batch's first replay slots (time, environment) are {slots}",
                )
        self.updates += updates
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
        # The optimiser's moments lie elsewhere now.
        self.graph, self.warm = None, 0

    def close(self) -> None:
        """Let the graph go."""
        self.graph = None
