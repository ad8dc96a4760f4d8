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
from teacher.machine import native_bf16
from teacher.q_network import Weights
from teacher.replay import Batch, Replay


@dataclasses.dataclass(frozen=True)
class UpdateReport:
    """What one update tells the log: loss, mean Q of the taken actions, gradient norm, TD errors (B,)."""

    loss: float
    q: float
    gradient_norm: float
    error: np.ndarray


def compute_device(name: str) -> torch.device:
    """Return the device that ``auto``, ``cpu`` or ``cuda`` means here.

    Raises:
        UserError: CUDA was asked for and there is none.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda: PyTorch sees no CUDA device on this machine", "give --device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def compute_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Return the format that ``auto``, ``bf16`` or ``fp32`` means on ``device``."""
    if precision == "fp32":
        return torch.float32
    if precision == "bf16" or device.type == "cuda" or native_bf16():
        return torch.bfloat16
    return torch.float32


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
        self.dtype = compute_dtype(config.precision, self.device)
        self.shares = threads if self.device.type == "cpu" else 1
        self.pool = ThreadPoolExecutor(
            self.shares, "gradient", initializer=torch.set_num_threads, initargs=(1,)
        )
        generator = torch.Generator().manual_seed(config.seed)
        self.master = {
            name: weight.to(self.device).requires_grad_()
            for name, weight in q_network.initial_weights(actions, generator).items()
        }
        self.mean = self._copy()
        self.pixel_offset = 0.0
        self.updates = 0
        self.optimizer = self._optimizer()
        self.refresh_working()
        self.refresh_target()

    def _optimizer(self) -> torch.optim.Optimizer:
        parameters, c = list(self.master.values()), self.config
        if c.optimizer == "adam":
            return torch.optim.Adam(parameters, lr=c.learning_rate, eps=c.optimizer_epsilon, fused=True)
        return torch.optim.RMSprop(
            parameters, lr=c.learning_rate, alpha=0.95, eps=c.optimizer_epsilon, centered=True
        )

    def _copy(self) -> Weights:
        return {name: weight.detach().clone() for name, weight in self.master.items()}

    def refresh_working(self) -> None:
        """Cast the masters to a new working copy; the old one stays valid for whoever still reads it."""
        self.working = q_network.working_copy(self.master, self.dtype, requires_grad=True)

    def refresh_target(self) -> None:
        """Copy the online network to the target network."""
        self.target = q_network.working_copy(self.working, self.dtype, requires_grad=False)

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

    def _share(self, replay: Replay, batch: Batch) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
        s_tm1 = self.stacks(replay.stacks(batch.time, batch.env))
        s_t = self.stacks(replay.stacks(batch.time_next, batch.env))
        a_tm1, r_t, discount_t, weight = (
            torch.from_numpy(array).to(self.device)
            for array in (batch.action, batch.reward, batch.discount, batch.weight)
        )
        with torch.no_grad():
            target_t = double_q_target(
                q_network.q_values(self.working, s_t, self.pixel_offset),
                q_network.q_values(self.target, s_t, self.pixel_offset),
                r_t,
                discount_t,
            )
        q_tm1 = q_network.q_values(self.working, s_tm1, self.pixel_offset)
        loss, error = td_loss(q_tm1, a_tm1, target_t, weight)
        # The share's part of the whole batch's mean.
        loss = loss * (len(batch) / self.config.batch_size)
        gradients = torch.autograd.grad(loss, list(self.working.values()))
        return list(gradients), loss.detach(), error, q_tm1.detach().gather(1, a_tm1[:, None])

    def update(self, replay: Replay, batch: Batch, learning_rate: float) -> UpdateReport:
        """Do one gradient step on ``batch``.

        Raises:
            UserError: the loss or a gradient is not finite; the weights are left as they were.
        """
        shares = list(
            self.pool.map(lambda i: self._share(replay, batch.share(i, self.shares)), range(self.shares))
        )
        for index, parameter in enumerate(self.master.values()):
            gradient = shares[0][0][index].float()
            for other in shares[1:]:
                gradient = gradient + other[0][index].float()
            parameter.grad = gradient.contiguous()
        loss = float(sum(share[1] for share in shares))
        limit = self.config.max_gradient_norm or float("inf")
        norm = float(torch.nn.utils.clip_grad_norm_(list(self.master.values()), limit))
        if not (np.isfinite(loss) and np.isfinite(norm)):
            raise UserError(
                f"update {self.updates}: loss {loss}, gradient norm {norm}: not finite",
                "lower --learning_rate, then go on from the last checkpoint with --resume",
            )
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.updates += 1
        if self.config.averaging:
            with torch.no_grad():
                for name, weight in self.master.items():
                    self.mean[name].lerp_(weight, 1.0 - self.config.averaging)
        self.refresh_working()
        q = torch.cat([share[3] for share in shares])
        return UpdateReport(
            loss, float(q.mean()), norm, torch.cat([share[2] for share in shares]).cpu().numpy()
        )

    def state(self) -> dict[str, Tensor]:
        """Return masters, their mean, target, optimiser moments and counters as flat named tensors."""
        tensors = {f"master.{name}": weight.detach() for name, weight in self.master.items()}
        if self.config.averaging:
            tensors |= {f"mean.{name}": weight for name, weight in self.mean.items()}
        tensors |= {f"target.{name}": weight.float() for name, weight in self.target.items()}
        tensors |= optimizer_tensors(self.optimizer)
        tensors["scalars"] = torch.tensor([self.updates, self.pixel_offset], dtype=torch.float64)
        return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}

    def set_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore what :meth:`state` returned."""
        with torch.no_grad():
            for name, weight in self.master.items():
                weight.copy_(tensors[f"master.{name}"])
                if self.config.averaging:
                    self.mean[name].copy_(tensors[f"mean.{name}"])
        restore_optimizer(self.optimizer, tensors)
        self.updates, self.pixel_offset = int(tensors["scalars"][0]), float(tensors["scalars"][1])
        self.refresh_working()
        target = {name: tensors[f"target.{name}"].to(self.device) for name in self.master}
        self.target = q_network.working_copy(target, self.dtype, requires_grad=False)

    def deployable(self) -> Weights:
        """Return fp32 weights, the mean where ``averaging``, with the pixel offset folded in: a plain Nature net."""
        weights = self.mean if self.config.averaging else self.master
        return {
            name: weight.cpu() for name, weight in q_network.fold_offset(weights, self.pixel_offset).items()
        }

    def close(self) -> None:
        """End the gradient threads."""
        self.pool.shutdown()
