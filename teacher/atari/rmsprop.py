"""RMSProp as DQN was published with (Mnih 2015, Methods): centred, the least squared gradient inside the root.

    n <- decay n + (1 - decay) d^2
    g <- decay g + (1 - decay) d
    w <- w - learning_rate * d / sqrt(n - g^2 + epsilon)

d is the gradient, n and g the running means of its square and of itself. PyTorch's own, ``RMSprop(centered=True)``,
adds epsilon beside the root: its steps are 0.7 to 1 times these. And its root is of a negative number where a gradient
stays the same for so long that n - g^2 is lost in rounding.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class CenteredRMSprop(torch.optim.Optimizer):
    """A step makes no tensor that the next one reads, but the moments; so it can be captured in a CUDA graph.

    Where the attribute ``found_inf``, a tensor (), is set and not 0 a step changes nothing, as in PyTorch's optimisers.

    Args:
        groups: parameters, as every optimiser of PyTorch takes them.
        lr: learning rate, a number or a tensor ().
        decay: of both running means, 0..1.
        eps: least squared gradient, > 0. Mnih's 0.01 is for a loss summed over 32 transitions: 0.01 / 32^2 for a mean.
    """

    def __init__(
        self, groups: Iterable[dict[str, Any]], lr: float | Tensor, decay: float, eps: float
    ) -> None:
        super().__init__(groups, {"lr": lr, "decay": decay, "eps": eps})
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter] = {
                    "square_avg": torch.zeros_like(parameter), "grad_avg": torch.zeros_like(parameter),
                }  # fmt: skip

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Step every parameter by its gradient."""
        overflow: Tensor | None = getattr(self, "found_inf", None)
        for group in self.param_groups:
            decay, lr = group["decay"], group["lr"]
            keep = decay if overflow is None else torch.where(overflow == 0, decay, 1.0)
            for parameter in group["params"]:
                d, moments = parameter.grad, self.state[parameter]
                if overflow is not None:
                    d = torch.where(overflow == 0, d, 0.0)
                n, g = moments["square_avg"], moments["grad_avg"]
                n.mul_(keep).addcmul_(d, d, value=1.0 - decay)
                g.mul_(keep).add_(d, alpha=1.0 - decay)
                root = torch.addcmul(n, g, g, value=-1.0).clamp_min_(0.0).add_(group["eps"]).sqrt_()
                parameter.sub_(torch.div(d, root).mul_(lr))
