"""Experience replay in the memory of a device: drawn, gathered and re-weighed there without asking the host.

The ring and its rules are those of ``replay.py`` beside it, to which tests hold it. Priorities lie in one tensor,
whose running sum takes the place of the tree: a batch costs one pass over them, and every step has a fixed shape, as a
CUDA graph wants it.
"""

from __future__ import annotations

import itertools
import operator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spikestill.common.atari import FRAMES, PIXELS, SIDE
from spikestill.teacher.atari.replay import MIN_PRIORITY, RINGS, check_state

MIN_PROBABILITY = 1e-12


class Draw(NamedTuple):
    """A batch: what :class:`Batch` holds, as tensors (B,), and the drawn slots' flat indices."""

    leaves: Tensor
    time: Tensor
    env: Tensor
    time_next: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    weight: Tensor


class DeviceReplay:
    """A ring of frames for ``num_envs`` streams of equal length.

    Args:
        capacity: frames in all; rounded down to a multiple of ``num_envs``.
        num_envs: streams E.
        n_step: rewards summed before bootstrapping.
        discount: discount of one step.
        alpha: exponent of the priorities; 0 samples uniformly.
        device: where it lies; 7,087 bytes a frame.
    """

    def __init__(
        self, capacity: int, num_envs: int, n_step: int, discount: float, alpha: float, device: torch.device
    ) -> None:
        self.length = capacity // num_envs
        self.num_envs, self.n_step, self.alpha = num_envs, n_step, alpha
        self.device = device
        shape = (self.length, num_envs)
        self.frames = torch.zeros((*shape, PIXELS), dtype=torch.uint8, device=device)
        self.action = torch.zeros(shape, dtype=torch.int64, device=device)
        self.reward = torch.zeros(shape, dtype=torch.float32, device=device)
        self.done = torch.zeros(shape, dtype=torch.bool, device=device)
        self.valid = torch.zeros(shape, dtype=torch.bool, device=device)
        self.start = torch.zeros(shape, dtype=torch.bool, device=device)
        # p^alpha of every slot that may be drawn, and the sum of those up to and including it.
        self.priority = torch.zeros(self.length * num_envs, dtype=torch.float64, device=device)
        self.running = torch.zeros_like(self.priority)
        self.max_priority = torch.ones((), dtype=torch.float64, device=device)
        self.size = torch.zeros((), dtype=torch.float64, device=device)
        self.written = 0
        # Of the steps after a start slot, the power of the discount before each and after the last; how many steps back
        # the frames of a stack are.
        self.steps = torch.arange(n_step, device=device)
        self.discounts = torch.tensor(
            list(itertools.accumulate([1.0] + [discount] * n_step, operator.mul)),
            dtype=torch.float64,
            device=device,
        )
        self.backs = torch.arange(FRAMES - 1, -1, -1, device=device)

    def append(
        self,
        frame_EP: npt.NDArray[np.uint8],
        action_E: npt.NDArray[np.integer[Any]],
        reward_E: npt.NDArray[np.float32],
        done_E: npt.NDArray[np.bool_],
        valid_E: npt.NDArray[np.bool_],
        start_E: npt.NDArray[np.bool_],
    ) -> None:
        """Store one step of every stream: the observation's newest frame (E, 7056) and what followed it."""
        slot = self.written % self.length
        for ring, step in (
            (self.frames, frame_EP), (self.action, action_E), (self.reward, reward_E),
            (self.done, done_E), (self.valid, valid_E), (self.start, start_E),
        ):  # fmt: skip
            ring[slot].copy_(torch.from_numpy(np.ascontiguousarray(step)))
        self.written += 1
        self.size.fill_(len(self))
        if self.written > self.n_step:
            earlier = (slot - self.n_step) % self.length
            self._slots(earlier).copy_(self.valid[earlier] * self.max_priority**self.alpha)
        self._slots((slot + FRAMES) % self.length).zero_()
        self._slots(slot).zero_()

    def _slots(self, slot: int) -> Tensor:
        return self.priority[slot * self.num_envs : (slot + 1) * self.num_envs]

    def __len__(self) -> int:
        return min(self.written, self.length) * self.num_envs

    def sum_up(self) -> None:
        """Renew the running sum of the priorities, which :meth:`draw` reads."""
        torch.cumsum(self.priority, 0, out=self.running)

    def draw(self, uniform_B: Tensor, beta: Tensor) -> Draw:
        """Return a batch drawn with probability proportional to p^alpha, stratified (Schaul 2016, 3.3).

        Args:
            uniform_B: float64 (B,) in [0, 1), where in its stratum each transition is drawn.
            beta: float64 (), exponent of the importance weights.
        """
        size = len(uniform_B)
        total = self.running[-1]
        strata = torch.arange(size, dtype=torch.float64, device=self.device)
        mass = (strata + uniform_B) * (total / size)
        # Below the total, so that a slot is found; a parallel sum may round past one that has no priority.
        mass = torch.minimum(mass, torch.nextafter(total, torch.zeros_like(total)))
        leaves = torch.searchsorted(self.running, mass, right=True)
        # A diverged error leaves no sum to find anything in; the round's end tells of it.
        leaves = leaves.clamp(max=len(self.running) - 1)
        time, env = leaves // self.num_envs, leaves % self.num_envs
        reward, time_next, discount = self._n_step(time, env)
        priority = self.priority[leaves]
        probability = (priority / total).clamp_min(MIN_PROBABILITY)
        # Where a parallel sum finds a slot that must not be drawn all the same, the batch is learnt from without it.
        weight = torch.where(priority > 0, (probability * self.size) ** -beta, 0.0)
        weight = (weight / weight.max().clamp_min(MIN_PROBABILITY)).float()
        return Draw(leaves, time, env, time_next, self.action[time, env], reward, discount, weight)

    def _n_step(self, time: Tensor, env: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return (sum of discounted rewards, bootstrap slot, bootstrap discount) of each start slot."""
        slots, env = (time[:, None] + self.steps) % self.length, env[:, None]
        done = self.done[slots, env]
        # A step counts where it and all before it are valid and the game was not over before it.
        may = self.valid[slots, env]
        may[:, 1:] &= ~done[:, :-1]
        going = may.cumprod(1)
        parts = going * self.discounts[:-1] * self.reward[slots, env]
        total = torch.zeros(len(time), dtype=torch.float32, device=self.device)
        for part in parts.unbind(1):
            # Rounded after every step, as the host's sum.
            total = (total + part).float()
        counted = going.sum(1)
        ended = (going * done).any(1)
        return total, (time + counted) % self.length, (self.discounts[counted] * ~ended).float()

    def stacks(self, time: Tensor, env: Tensor) -> Tensor:
        """Return stacks (B, 4, 84, 84), channels-last in memory, oldest frame first; before a game they are zero."""
        slots, env = (time[:, None] - self.backs) % self.length, env[:, None]
        # Of the frames, newest last, those count behind which no game starts.
        starts = self.start[slots, env].flip(1)
        here = (starts.cumsum(1) - starts.long() == 0).flip(1)
        frames = self.frames[slots, env] * here[:, :, None]
        shape = (-1, SIDE, SIDE, FRAMES)
        return frames.transpose(1, 2).contiguous().view(shape).permute(0, 3, 1, 2)

    def set_priorities(self, leaves: Tensor, error: Tensor, known: Tensor | None = None) -> None:
        """Set priorities |error| + 1e-3 of the batch's slots; one that must not be drawn keeps 0, and all keep theirs
        where ``known``, bool (), is False."""
        if self.alpha == 0.0:
            return
        before = self.priority[leaves]
        priority = torch.where(before == 0, 0.0, error.double().abs() + MIN_PRIORITY)
        largest, powers = priority.max(), priority**self.alpha
        if known is not None:
            largest, powers = torch.where(known, largest, 0.0), torch.where(known, powers, before)
        self.max_priority.copy_(torch.maximum(self.max_priority, largest))
        self.priority[leaves] = powers

    def mean_pixel(self) -> float:
        """Return the mean pixel of the first frames, at most 64 of each stream."""
        return float(self.frames[: min(self.written, 64)].double().mean())

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the whole state as arrays, for a checkpoint; the frames only as far as written."""
        used = min(self.written, self.length)
        arrays = {name: getattr(self, name)[:used].cpu().numpy() for name in RINGS}
        return arrays | {
            "leaves": self.priority.cpu().numpy(),
            "scalars": np.array([self.written, float(self.max_priority)], np.float64),
        }

    def set_state(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Restore what :meth:`state` returned, here or on the host; see :meth:`Replay.set_state`."""
        check_state(arrays, self.state(), self.length, 2 * len(self.priority))
        for name in RINGS:
            getattr(self, name)[: len(arrays[name])].copy_(torch.from_numpy(arrays[name]))
        # The host's tree has a power of two of them.
        self.priority.copy_(torch.from_numpy(arrays["leaves"][: len(self.priority)]))
        self.written = int(arrays["scalars"][0])
        self.max_priority.fill_(float(arrays["scalars"][1]))
        self.size.fill_(len(self))
