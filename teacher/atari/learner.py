"""What every Q-learner has: fp32 master weights, a working copy in the compute format, a target network."""

from __future__ import annotations

import abc
import dataclasses

import numpy as np
import torch
from torch import Tensor

from spikestill.common.errors import UserError
from spikestill.common.precision.formats import number_format
from spikestill.common.precision.scaling import LossScale
from spikestill.common.processor import compute_device
from spikestill.common.tensors import optimizer_tensors, restore_optimizer
from spikestill.common.training import check_arrays
from spikestill.configs.teach import TeachConfig
from spikestill.teacher.atari import q_network
from spikestill.teacher.atari.ddqn import (
    advantage_learning_target,
    double_q_target,
    munchausen_target,
    td_loss,
)
from spikestill.teacher.atari.q_network import Weights
from spikestill.teacher.atari.rmsprop import CenteredRMSprop


@dataclasses.dataclass(frozen=True)
class UpdateReport:
    """What one update tells the log.

    Attributes:
        loss: mean Huber loss of the batch.
        q: mean Q of the taken actions.
        gradient_norm: L2 norm of all gradients, before clipping; not finite where ``skipped``.
        error: TD errors (B,), where the host has them.
        skipped: a gradient overflowed under loss scaling, and the weights are as before.
    """

    loss: float
    q: float
    gradient_norm: float
    error: np.ndarray
    skipped: bool = False


Share = tuple[list[Tensor], Tensor, Tensor, Tensor]
"""Of a thread's part of the batch: gradients of the working copy, loss, TD errors (b,), Q of the actions (b, 1)."""


class DivergedError(UserError):
    """A loss, gradient or weight that is not finite, and no loss scale to blame."""

    def __init__(self, what: str) -> None:
        super().__init__(what, "lower --learning_rate, then go on from the last checkpoint with --resume")


@dataclasses.dataclass(frozen=True)
class Group:
    """Weights that the optimiser steps at ``factor`` times the learning rate: their names, and its parameters."""

    names: list[str]
    parameters: list[Tensor]
    factor: float

    def names_by_parameter(self) -> list[list[str]]:
        """Return the names of the weights that each parameter holds: all in a flat one, else one each."""
        flat = len(self.parameters) < len(self.names)
        return [self.names] if flat else [[name] for name in self.names]


class Learner(abc.ABC):
    """Owns the weights and the optimiser; how a batch is drawn, and where, is for those that derive from it.

    Args:
        config: the training's options.
        actions: A.
    """

    def __init__(self, config: TeachConfig, actions: int) -> None:
        self.config = config
        # To act on beside the learning, where there is one.
        self.acting_stream: torch.cuda.Stream | None = None
        self.device = compute_device(config.device)
        self.format = number_format(config.precision, self.device)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.format.tf32
        self.scale = LossScale(config.loss_scale if self.format.scaled else 1.0, config.loss_scale_period)
        generator = torch.Generator().manual_seed(config.seed)
        self.master, self.groups = self._masters(
            q_network.initial_weights(actions, generator, config.dueling, config.normalised)
        )
        self.mean = self._copy()
        self.pixel_offset = 0.0
        self.updates = 0
        self.optimizer = self._optimizer()
        self.working = self._working_copy(self.master, requires_grad=True)
        self.target = self._working_copy(self.working, requires_grad=False)

    def _masters(self, initial: Weights) -> tuple[Weights, list[Group]]:
        """Return the fp32 master weights by name, and the optimiser's groups: the body's, the head's.

        With ``flat_masters`` a group has one parameter, of which the named weights are views.
        """
        master: Weights = {}
        groups = []
        for in_head, factor in ((False, 1.0), (True, self.config.head_learning_rate_factor)):
            names = [name for name in initial if q_network.in_last_layer(name) == in_head]
            weights = [initial[name].to(self.device) for name in names]
            parameters = weights
            if self.config.flat_masters:
                parameters = [torch.cat([weight.reshape(-1) for weight in weights])]
                parts = parameters[0].split([weight.numel() for weight in weights])
                weights = [part.view(weight.shape) for part, weight in zip(parts, weights, strict=True)]
            master |= dict(zip(names, weights, strict=True))
            groups.append(Group(names, parameters, factor))
        return master, groups

    def _optimizer(self) -> torch.optim.Optimizer:
        c = self.config
        groups = [
            {"params": group.parameters, "factor": group.factor, "lr": self.step_size()}
            for group in self.groups
        ]
        if c.optimizer == "adam":
            return torch.optim.Adam(
                groups, lr=self.step_size(), eps=c.optimizer_epsilon, fused=True, capturable=self.capturable
            )
        return CenteredRMSprop(groups, lr=self.step_size(), decay=0.95, eps=c.optimizer_epsilon)

    @property
    def capturable(self) -> bool:
        """The optimiser's steps go into a CUDA graph."""
        return False

    def step_size(self) -> float | Tensor:
        """Return the learning rate as a group of the optimiser holds it."""
        return self.config.learning_rate

    @property
    def loss_factor(self) -> float | Tensor:
        """What the loss is multiplied by before it is differentiated."""
        return self.scale.value

    def _copy(self) -> Weights:
        return {name: weight.detach().clone() for name, weight in self.master.items()}

    def refresh_working(self) -> None:
        """Cast the masters to a new working copy; the old one stays valid for whoever still reads it."""
        self.working = self._working_copy(self.master, requires_grad=True)

    def _working_copy(self, weights: Weights, *, requires_grad: bool) -> Weights:
        return q_network.working_copy(
            weights, self.format.body, self.format.head, requires_grad=requires_grad
        )

    def q_values(self, weights: Weights, stacks_BCHW: Tensor) -> Tensor:
        """Return q (B, A) of a working copy, computed in the format of the training."""
        return q_network.q_values(weights, stacks_BCHW, self.pixel_offset, self.format.operations)

    def refresh_target(self) -> None:
        """Copy the online network to the target network."""
        self.target = self._working_copy(self.working, requires_grad=False)

    def begin_with(self, weights: Weights) -> None:
        """Replace the random weights, online and target, by those of a teacher."""
        with torch.no_grad():
            for name, weight in self.master.items():
                weight.copy_(weights[name])
        self.mean = self._copy()
        self.refresh_working()
        self.refresh_target()

    def center(self, pixel_offset: float) -> None:
        """Train on pixels less ``pixel_offset`` from here on.

        Random weights stay as they are; those of a teacher get the bias that leaves its Q-values unchanged.
        """
        if self.config.initial is not None:
            self.begin_with(q_network.fold_offset(self.master, self.pixel_offset - pixel_offset))
        self.pixel_offset = pixel_offset

    def differentiate(
        self, s_tm1: Tensor, s_t: Tensor, a_tm1: Tensor, r_t: Tensor, discount_t: Tensor, weight: Tensor
    ) -> Share:
        """Return a share's gradients, scaled, and what it found; stacks are (b, 4, 84, 84), the others (b,)."""
        with torch.no_grad():
            # All networks read the same copy.
            s_tm1, s_t = (stacks.to(self.working["conv1.weight"].dtype) for stacks in (s_tm1, s_t))
            target_t = self._targets(s_tm1, s_t, a_tm1, r_t, discount_t)
        return self.regress(s_tm1, a_tm1, target_t, weight)

    def regress(self, s_tm1: Tensor, a_tm1: Tensor, target_t: Tensor, weight: Tensor) -> Share:
        """Return a share's gradients, scaled, of the Huber loss to targets (b,), and what it found."""
        q_tm1 = self.q_values(self.working, s_tm1)
        loss, error = td_loss(q_tm1, a_tm1, target_t, weight)
        # The share's part of the whole batch's mean.
        loss = loss * (len(a_tm1) / self.config.batch_size)
        gradients = torch.autograd.grad(loss * self.loss_factor, list(self.working.values()))
        return list(gradients), loss.detach(), error, q_tm1.detach().gather(1, a_tm1[:, None])

    def _targets(self, s_tm1: Tensor, s_t: Tensor, a_tm1: Tensor, r_t: Tensor, discount_t: Tensor) -> Tensor:
        """Return what Q(s_tm1, a_tm1) shall become, by the rule that ``target`` names."""
        rule, weight = self.config.target, self.config.gap_weight
        q_target_t = self.q_values(self.target, s_t)
        if rule == "munchausen":
            q_target_tm1 = self.q_values(self.target, s_tm1)
            return munchausen_target(
                q_target_tm1, a_tm1, q_target_t, r_t, discount_t, self.config.entropy_temperature, weight
            )
        target_t = double_q_target(self.q_values(self.working, s_t), q_target_t, r_t, discount_t)
        if rule == "double":
            return target_t
        return advantage_learning_target(target_t, self.q_values(self.target, s_tm1), a_tm1, weight)

    def hand_over(self, gradients: Weights) -> list[Tensor]:
        """Give the optimiser's parameters their gradients; return the parameters."""
        for group in self.groups:
            parts = [gradients[name] for name in group.names]
            if self.config.flat_masters:
                parts = [torch.cat([part.reshape(-1) for part in parts])]
            for parameter, part in zip(group.parameters, parts, strict=True):
                parameter.grad = part
        return [parameter for group in self.groups for parameter in group.parameters]

    def step_weights(self) -> None:
        """Let the optimiser step by the gradients that its parameters hold; renew what follows from the weights."""
        self.optimizer.step()
        if self.config.averaging:
            with torch.no_grad():
                self._average([self.mean[name] for name in self.master], list(self.master.values()))
        self.refresh_working()

    def _average(self, mean: list[Tensor], weights: list[Tensor]) -> None:
        """Move the running mean towards the weights."""
        torch._foreach_lerp_(mean, weights, 1.0 - self.config.averaging)

    def dead_fractions(self, stacks_BCHW: Tensor) -> list[float]:
        """Return the fraction of units of every hidden layer that are active on none of the stacks."""
        with torch.no_grad():
            return q_network.dead_fractions(
                q_network.features(self.working, stacks_BCHW, self.pixel_offset, self.format.operations)
            )

    def check_finite(self) -> None:
        """Raise DivergedError where a weight is not finite."""
        for name, weight in self.master.items():
            if not torch.isfinite(weight).all():
                raise DivergedError(f"update {self.updates}: {name} holds weights that are not finite")

    def state(self) -> dict[str, Tensor]:
        """Return masters, their mean, target, optimiser moments and counters as flat named tensors."""
        tensors = {f"master.{name}": weight.detach() for name, weight in self.master.items()}
        if self.config.averaging:
            tensors |= {f"mean.{name}": weight for name, weight in self.mean.items()}
        tensors |= {f"target.{name}": weight.float() for name, weight in self.target.items()}
        tensors |= optimizer_tensors(self.optimizer)
        scalars = [self.updates, self.pixel_offset, self.scale.value, self.scale.good]
        tensors["scalars"] = torch.tensor(scalars, dtype=torch.float64)
        return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}

    def set_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore what :meth:`state` returned.

        Raises:
            ValueError, LookupError: a tensor is missing, misshapen or not finite.
        """
        # Where no update was done yet there are no moments.
        check_arrays(
            tensors, {name: each for name, each in self.state().items() if not name.startswith("optimizer.")}
        )
        with torch.no_grad():
            for name, weight in self.master.items():
                weight.copy_(tensors[f"master.{name}"])
                if self.config.averaging:
                    self.mean[name].copy_(tensors[f"mean.{name}"])
        restore_optimizer(self.optimizer, tensors)
        updates, self.pixel_offset, self.scale.value, good = tensors["scalars"].tolist()
        self.updates, self.scale.good = int(updates), int(good)
        self.refresh_working()
        target = {name: tensors[f"target.{name}"].to(self.device) for name in self.master}
        self.target = self._working_copy(target, requires_grad=False)

    def deployable(self) -> Weights:
        """Return fp32 weights, the mean where ``averaging``, with the pixel offset folded in and a plain head."""
        weights = q_network.plain(self.mean if self.config.averaging else self.master)
        return {
            name: weight.cpu() for name, weight in q_network.fold_offset(weights, self.pixel_offset).items()
        }

    def acting_weights(self) -> Weights:
        """Return the weights to act with until the next call, which learning leaves as they are."""
        return self.working

    @abc.abstractmethod
    def learn(
        self, rng: np.random.Generator, updates: int, beta: float, learning_rate: float
    ) -> list[UpdateReport]:
        """Do ``updates`` gradient steps, each on a batch drawn anew; return their reports.

        Args:
            rng: draws the batches.
            updates: at most those of one round.
            beta: exponent of the importance weights, 0..1.
            learning_rate: of all but the last layer, which may have its own.

        Raises:
            DivergedError: a loss or a gradient is not finite, with no loss scale left to blame.
        """

    @abc.abstractmethod
    def dead_units(self, rng: np.random.Generator) -> list[float]:
        """Return the fraction of dead units of every hidden layer on 64 random states of the replay."""

    @abc.abstractmethod
    def close(self) -> None:
        """End what the learner began."""
