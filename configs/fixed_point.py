"""Options of DDPG in fixed point (FIXAR, Yang 2021)."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

from spikestill.common.errors import UserError
from spikestill.common.precision.fixed import QFormat
from spikestill.common.precision.fixed_adam import LARGEST_RATE
from spikestill.common.precision.names import MOST_HEADROOM
from spikestill.configs.options import Options, Range, Share

Variant = Literal["fixed32", "fixar", "fixed16"]


@dataclasses.dataclass(frozen=True)
class Formats:
    """The number formats of one variant, all two's complement of ``bits`` bits, and their fraction bits.

    Attributes:
        bits: of weights, activations, errors, gradients and moments.
        weight: fraction bits of weights and biases.
        activation: of observations, activations, actions, values and rewards.
        error: of the derivative of one transition's loss with respect to an activation.
        actor_gradient, critic_gradient: of a weight's gradient, its mean and root mean square; a second moment has
            twice as many less ``bits`` - 1.
    """

    bits: int
    weight: int
    activation: int
    error: int
    actor_gradient: int
    critic_gradient: int

    def widened(self, headroom: int) -> Formats:
        """Return formats whose errors and gradients reach 2^headroom times as far, in as many places fewer."""
        return dataclasses.replace(
            self,
            error=self.error - headroom,
            actor_gradient=self.actor_gradient - headroom,
            critic_gradient=self.critic_gradient - headroom,
        )

    def word(self, fraction: int) -> QFormat:
        """Return the format of ``fraction`` bits."""
        return QFormat(self.bits, fraction)


FORMATS: dict[str, Formats] = {
    "fixed32": Formats(32, weight=24, activation=20, error=22, actor_gradient=34, critic_gradient=29),
    "fixed16": Formats(16, weight=12, activation=6, error=9, actor_gradient=14, critic_gradient=12),
}
FORMATS["fixar"] = FORMATS["fixed32"]
"""Variant to its formats. 32 bits: weights to +-128, activations to +-2,048, errors to +-512, gradients to +-1/8 in the
actor and +-4 in the critic. FIXAR's are the same, with 16-bit activations from the quantisation delay on."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedPointConfig(Options):
    """DDPG in integers: the network, the update, and how numbers are kept."""

    variant: Variant = "fixar"
    """``fixed32``: 32 bits throughout; ``fixar``: activations of 16 bits after ``quantisation_delay`` (Algorithm 1);
    ``fixed16``: 16 bits throughout, which the paper shows to fail."""
    quantisation_delay: Annotated[int, Range(1, 1e9)] = 300_000
    """fixar: updates with 32-bit activations, whose least and largest values set the 16-bit format."""
    second_moment: Literal["plain", "root"] = "plain"
    """``plain``: Adam's second moment; ``root``: its root (hAdam), which has twice the range in the same bits."""
    rounding: Literal["nearest", "stochastic"] = "nearest"
    """How Adam rounds: the weights' steps and first moments to nearest and second moments upwards, or all by chance."""
    headroom: Annotated[int, Range(0, MOST_HEADROOM)] = 0
    """Binary places fewer for errors and gradients, which reach 2^headroom times as far then."""
    hidden: tuple[int, ...] = (400, 300)
    """Units of the hidden layers, each 1..4096."""
    learning_rate: Annotated[float, Range(1e-9, LARGEST_RATE)] = 1e-4
    """Adam's step size of both networks."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam's decay rates, 0..1 - 2^-31."""
    epsilon: Share = 1e-8
    """Adam's epsilon; at least one last place of a gradient."""
    discount: Share = 0.99
    """Discount of a step."""
    tau: Share = 0.005
    """Share of the way that the target networks move in an update."""
    noise: Annotated[float, Range(0, 10)] = 0.1
    """Deviation of the exploration noise, as a share of half the action's range."""

    def _check(self) -> None:
        if not self.hidden or not all(1 <= units <= 4096 for units in self.hidden):
            raise UserError(
                f"hidden {self.hidden}: layers of 1 to 4096 units are wanted", "give two, as 400,300"
            )
        if not all(0.0 <= beta <= 1 - 2**-31 for beta in self.betas):
            raise UserError(f"betas {self.betas}: 0..1 - 2^-31 is the range", "give 0.9,0.999")

    @property
    def formats(self) -> Formats:
        """The variant's number formats, with the headroom."""
        return FORMATS[self.variant].widened(self.headroom)
