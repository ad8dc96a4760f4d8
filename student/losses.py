"""Distillation losses (Rusu 2015; McKinstry 2018, section 2.4), as pure functions.

Axis suffixes: B batch, A actions. ``logits`` are the student's, ``q`` the teacher's.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

ILLEGAL = -1e9


def kl(logits_BA: Tensor, q_BA: Tensor, temperature: float) -> Tensor:
    """Return sum_a p ln(p / softmax(logits)) with p = softmax(q / temperature), mean over B.

    Actions that are not the game's have q = -inf: they are no part of either softmax.
    """
    illegal = q_BA == -torch.inf
    if illegal.any():
        logits = torch.log_softmax(logits_BA.masked_fill(illegal, ILLEGAL), dim=1)
        # The best action's is 0, which no temperature brings below ILLEGAL.
        below_best_BA = q_BA - q_BA.amax(dim=1, keepdim=True)
        target = torch.log_softmax((below_best_BA / temperature).masked_fill(illegal, ILLEGAL), dim=1)
        return (target.exp() * (target - logits)).masked_fill(illegal, 0.0).sum(dim=1).mean()
    return F.kl_div(
        torch.log_softmax(logits_BA, dim=1),
        torch.log_softmax(q_BA / temperature, dim=1),
        reduction="batchmean",
        log_target=True,
    )


def nll(logits_BA: Tensor, q_BA: Tensor) -> Tensor:
    """Return -ln softmax(logits) at the teacher's best action, mean over B; q = -inf: not one of the game's."""
    return F.cross_entropy(legal_scores(logits_BA, q_BA), q_BA.argmax(dim=1))


def mse(logits_BA: Tensor, q_BA: Tensor) -> Tensor:
    """Return the squared error between logits and Q-values, each less its mean over the state's actions.

    It is the mean over B and those actions that are the game's. What all actions of a state share is its value, which
    mean votes in 0..1 cannot follow; which action is best does not depend on it.
    """
    legal_BA = q_BA != -torch.inf
    apart_BA = torch.where(legal_BA, logits_BA - torch.where(legal_BA, q_BA, 0.0), 0.0)
    mean_B1 = apart_BA.sum(dim=1, keepdim=True) / legal_BA.sum(dim=1, keepdim=True)
    return torch.where(legal_BA, apart_BA - mean_B1, 0.0).square().sum() / legal_BA.sum()


def legal_scores(scores_BA: Tensor, q_BA: Tensor) -> Tensor:
    """Return scores with a value below all others where q = -inf: the action is not one of the game's."""
    illegal = q_BA == -torch.inf
    return scores_BA.masked_fill(illegal, ILLEGAL) if illegal.any() else scores_BA


def distillation_loss(name: str, logits_BA: Tensor, q_BA: Tensor, temperature: float) -> Tensor:
    """Return the loss called ``kl``, ``nll`` or ``mse``."""
    if name == "kl":
        return kl(logits_BA, q_BA, temperature)
    return {"nll": nll, "mse": mse}[name](logits_BA, q_BA)
