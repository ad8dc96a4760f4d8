"""The mathematics of Double DQN (van Hasselt 2016, equation 4) and of two wider gaps, as pure functions.

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


def munchausen_target(
    q_target_tm1: Tensor,
    a_tm1: Tensor,
    q_target_t: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    temperature: float,
    weight: float,
    floor: float = -1.0,
) -> Tensor:
    """Return Munchausen DQN's target (Vieillard 2020, equation 2), shape (B,).

        r_t + w max(f, tau ln pi(a_tm1 | s_tm1)) + discount_t sum_a pi(a | s_t) (q(s_t, a) - tau ln pi(a | s_t))

    with pi = softmax(q / tau) of the target network. The bonus is 0 for an action that the policy is sure of, and
    pushes the others down: the gaps between actions widen. With returns of n steps it is the first step's.

    Args:
        q_target_tm1: (B, A) of the target network at s_tm1.
        a_tm1: (B,) int64, the actions taken.
        q_target_t: (B, A) of the target network at s_t.
        r_t: (B,) reward or n-step sum of rewards.
        discount_t: (B,) discount, 0 at the end of a return.
        temperature: tau, > 0, in units of Q.
        weight: w, 0..1.
        floor: f, <= 0: the logarithm has no bound of its own.
    """
    log_tm1 = temperature * F.log_softmax(q_target_tm1 / temperature, dim=1)
    bonus = log_tm1.gather(1, a_tm1[:, None]).squeeze(1).clamp(floor, 0.0)
    policy_t = F.softmax(q_target_t / temperature, dim=1)
    log_t = temperature * F.log_softmax(q_target_t / temperature, dim=1)
    return r_t + weight * bonus + discount_t * (policy_t * (q_target_t - log_t)).sum(dim=1)


def advantage_learning_target(target_t: Tensor, q_target_tm1: Tensor, a_tm1: Tensor, weight: float) -> Tensor:
    """Return ``target_t`` less w (max_a q(s_tm1, a) - q(s_tm1, a_tm1)), shape (B,) (Bellemare 2016, equation 9).

    Args:
        target_t: (B,) target of another rule, :func:`double_q_target`'s say.
        q_target_tm1: (B, A) of the target network at s_tm1.
        a_tm1: (B,) int64, the actions taken.
        weight: w, 0..1.
    """
    taken = q_target_tm1.gather(1, a_tm1[:, None]).squeeze(1)
    return target_t - weight * (q_target_tm1.max(dim=1).values - taken)


def td_loss(q_tm1: Tensor, a_tm1: Tensor, target_t: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return (weighted mean Huber loss, TD errors (B,)); the error's gradient is clipped to [-1, 1].

    Source: Mnih 2015, Methods (error clipping); Schaul 2016 for the weights.
    """
    error = q_tm1.gather(1, a_tm1[:, None]).squeeze(1) - target_t
    huber = F.smooth_l1_loss(error, torch.zeros_like(error), reduction="none")
    return (weight * huber).mean(), error.detach()
