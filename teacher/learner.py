"""The DDQN learner: fp32 master weights, a working copy in the compute format, a target copy.

On a CPU the batch is shared among threads, each of which gathers, runs forward and backward on its
share; the shares' gradients are added in a fixed order, so that the result does not depend on timing.
"""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from configs.errors import UserError
from configs.teach import TeachConfig
from teacher import q_network
from teacher.checkpoint import optimizer_tensors, restore_optimizer
from teacher.ddqn import double_q_target, td_loss
from teacher.precision.formats import number_format
from teacher.precision.scaling import LossScale
from teacher.q_network import Weights
from teacher.replay import Batch, Replay


@dataclasses.dataclass(frozen=True)
class UpdateReport:
    """What one update tells the log.

    Attributes:
        loss: mean Huber loss of the batch.
        q: mean Q of the taken actions.
        gradient_norm: L2 norm of all gradients, before clipping; not finite where ``skipped``.
        error: TD errors (B,).
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
    """A loss or gradient that is not finite, and no loss scale to blame."""


@dataclasses.dataclass(frozen=True)
class Group:
    """Weights that the optimiser steps at ``factor`` times the learning rate: their names, and its parameters."""

    names: list[str]
    parameters: list[Tensor]
    factor: float


def compute_device(name: str) -> torch.device:
    """Return the device that ``auto``, ``cpu`` or ``cuda`` means here.

    Raises:
        UserError: CUDA was asked for and there is none.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda: PyTorch sees no CUDA device on this machine", "give --device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


class Learner:
    """Owns the weights and the optimiser; :meth:`update` does one gradient step.

    Args:
        config: the training's options.
        actions: A.
        threads: gradient threads on a CPU.
    """

    def __init__(self, config: TeachConfig, actions: int, threads: int) -> None:
        self.config = config
        self.device = compute_device(config.device)
        self.format = number_format(config.precision, self.device)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.format.tf32
        self.scale = LossScale(config.loss_scale if self.format.scaled else 1.0, config.loss_scale_period)
        self.shares = threads if self.device.type == "cpu" else 1
        self.pool = ThreadPoolExecutor(
            self.shares, "gradient", initializer=torch.set_num_threads, initargs=(1,)
        )
        generator = torch.Generator().manual_seed(config.seed)
        self.master, self.groups = self._masters(
            q_network.initial_weights(actions, generator, config.dueling)
        )
        self.mean = self._copy()
        self.pixel_offset = 0.0
        self.updates = 0
        self.optimizer = self._optimizer()
        self.refresh_working()
        self.refresh_target()

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
        groups = [{"params": group.parameters, "factor": group.factor} for group in self.groups]
        if c.optimizer == "adam":
            return torch.optim.Adam(groups, lr=c.learning_rate, eps=c.optimizer_epsilon, fused=True)
        return torch.optim.RMSprop(
            groups, lr=c.learning_rate, alpha=0.95, eps=c.optimizer_epsilon, centered=True
        )

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

    def stacks(self, stacks_BHWC: np.ndarray) -> Tensor:
        """Return channels-last stacks as a (B, 4, 84, 84) tensor on the device, without copying on a CPU."""
        return torch.from_numpy(stacks_BHWC).to(self.device, non_blocking=True).permute(0, 3, 1, 2)

    def _share(self, replay: Replay, batch: Batch) -> Share:
        s_tm1 = self.stacks(replay.stacks(batch.time, batch.env))
        s_t = self.stacks(replay.stacks(batch.time_next, batch.env))
        a_tm1, r_t, discount_t, weight = (
            torch.from_numpy(array).to(self.device)
            for array in (batch.action, batch.reward, batch.discount, batch.weight)
        )
        with torch.no_grad():
            target_t = double_q_target(
                self.q_values(self.working, s_t), self.q_values(self.target, s_t), r_t, discount_t
            )
        q_tm1 = self.q_values(self.working, s_tm1)
        loss, error = td_loss(q_tm1, a_tm1, target_t, weight)
        # The share's part of the whole batch's mean.
        loss = loss * (len(batch) / self.config.batch_size)
        gradients = torch.autograd.grad(loss * self.scale.value, list(self.working.values()))
        return list(gradients), loss.detach(), error, q_tm1.detach().gather(1, a_tm1[:, None])

    def gradients(self, replay: Replay, batch: Batch) -> tuple[Weights, list[Share]]:
        """Return the batch's fp32 gradients by name, the loss scale divided out, and what each share found."""
        shares = list(
            self.pool.map(lambda i: self._share(replay, batch.share(i, self.shares)), range(self.shares))
        )
        found: Weights = {}
        for index, name in enumerate(self.master):
            gradient = shares[0][0][index].float()
            for other in shares[1:]:
                gradient = gradient + other[0][index].float()
            # The fused optimiser reads a gradient's memory in its parameter's order.
            found[name] = (
                gradient.div_(self.scale.value).contiguous() if self.format.scaled else gradient.contiguous()
            )
        return found, shares

    def _hand_over(self, gradients: Weights) -> list[Tensor]:
        """Give the optimiser's parameters their gradients; return the parameters."""
        for group in self.groups:
            parts = [gradients[name] for name in group.names]
            if self.config.flat_masters:
                parts = [torch.cat([part.reshape(-1) for part in parts])]
            for parameter, part in zip(group.parameters, parts, strict=True):
                parameter.grad = part
        return [parameter for group in self.groups for parameter in group.parameters]

    def update(self, replay: Replay, batch: Batch, learning_rate: float) -> UpdateReport:
        """Do one gradient step on ``batch``; none where a gradient overflows under loss scaling.

        Raises:
            DivergedError: the loss or a gradient is not finite, with no loss scale left to blame; the weights are
                left as they were.
        """
        gradients, shares = self.gradients(replay, batch)
        parameters = self._hand_over(gradients)
        loss = float(sum(share[1] for share in shares))
        limit = self.config.max_gradient_norm or float("inf")
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, limit))
        error = torch.cat([share[2] for share in shares]).cpu().numpy()
        q = float(torch.cat([share[3] for share in shares]).mean())
        finite = bool(np.isfinite(loss) and np.isfinite(norm))
        if not finite and (self.scale.value <= 1.0 or np.isnan(loss)):
            wrong = np.flatnonzero(~np.isfinite(error))
            raise DivergedError(
                f"update {self.updates}: loss {loss}, gradient norm {norm}: not finite; of the batch's {len(batch)} "
                f"transitions {len(wrong)} have no finite error, replay slots (time, environment) "
                f"{list(zip(batch.time[wrong[:4]].tolist(), batch.env[wrong[:4]].tolist(), strict=True))}",
                "lower --learning_rate, then go on from the last checkpoint with --resume",
            )
        if self.format.scaled:
            self.scale.update(finite)
        if not finite:
            return UpdateReport(loss, q, norm, np.nan_to_num(error), skipped=True)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate * group["factor"]
        self.optimizer.step()
        self.updates += 1
        if self.config.averaging:
            with torch.no_grad():
                for name, weight in self.master.items():
                    self.mean[name].lerp_(weight, 1.0 - self.config.averaging)
        self.refresh_working()
        return UpdateReport(loss, q, norm, error)

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
        """Restore what :meth:`state` returned."""
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
        """Return fp32 weights, the mean where ``averaging``, with the pixel offset folded in: a plain Nature net."""
        weights = q_network.plain(self.mean if self.config.averaging else self.master)
        return {
            name: weight.cpu() for name, weight in q_network.fold_offset(weights, self.pixel_offset).items()
        }

    def close(self) -> None:
        """End the gradient threads."""
        self.pool.shutdown()
