"""The mathematics of Double DQN (van Hasselt 2016, equation 4), as pure functions.

Time-indexed names: ``s_tm1, a_tm1`` are acted on, ``r_t, discount_t, s_t`` follow.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def double_q_target(q_online_t: Tensor, q_target_t: Tensor, r_t: Tensor, discount_t: Tensor) -> Tensor:
    """Return r_t + discount_t * q_target(s_t, argmax_a q_online(s_t, a)), shape (B,).

    Args:
        q_online_t: (B, A) of the online network at s_t; it selects.
        q_target_t: (B, A) of the target network at s_t; it evaluates.
        r_t: (B,) reward or n-step sum of rewards.
        discount_t: (B,) discount, 0 at the end of a return.
    """
    best = q_online_t.argmax(dim=1, keepdim=True)
    return r_t + discount_t * q_target_t.gather(1, best).squeeze(1)


def td_loss(q_tm1: Tensor, a_tm1: Tensor, target_t: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return (weighted mean Huber loss, TD errors (B,)); the error's gradient is clipped to [-1, 1].

    Source: Mnih 2015, Methods (error clipping); Schaul 2016 for the weights.
    """
    error = q_tm1.gather(1, a_tm1[:, None]).squeeze(1) - target_t
    huber = F.smooth_l1_loss(error, torch.zeros_like(error), reduction="none")
    return (weight * huber).mean(), error.detach()
