"""How much an update computes, which says whether to spread it over threads pays."""

from __future__ import annotations

import itertools

from spikestill.configs.control import ControlConfig
from spikestill.teacher.control.actor_critic import Settings
from spikestill.teacher.control.encoder import SIDES


def encoder_flops(config: ControlConfig, action: int) -> float:
    """Return the multiply-adds of an update's encoders, a transition: both of its rows go through the critics' encoder,
    forward and backward, and their next ones through the critics' convolutions with the actor's head and through the
    target's encoder; one more row goes to the actor."""
    rule = Settings.of(config, 0, action).encoder
    if rule is None:
        return 0.0
    shapes = list(zip(SIDES[1:], rule.conv_shapes, strict=True))
    first, *others = (side**2 * inputs * outputs for side, (inputs, outputs) in shapes)
    convolutions, head = first + sum(others), rule.flat * rule.features
    trained = 3 * (convolutions + head) - first
    return 2 * (trained + 2 * (convolutions + head)) + convolutions + 3 * head


def flops(config: ControlConfig, observation: int, action: int) -> float:
    """Return the floating-point operations of an update's products: two for each multiply-add.

    Args:
        config: the options.
        observation, action: sizes S, D; from pixels S is not read.
    """
    heads, seen = (
        2 if config.algorithm == "sac" else 1,
        config.features if config.from_pixels else observation,
    )
    actor, critic = (
        sum(a * b for a, b in itertools.pairwise(sizes))
        for sizes in ((seen, *config.hidden, heads * action), (seen + action, *config.hidden, 1))
    )
    first_actor, first_critic = seen * config.hidden[0], (seen + action) * config.hidden[0]
    if config.from_pixels:
        # All of it goes on to the features; the critics and the next actions have two rows a transition.
        critics = 2 * config.twins * (3 * critic + critic) + config.twins * 2 * critic
        return 2.0 * config.batch_size * (2 * actor + 3 * actor + critics + encoder_flops(config, action))
    # Forward, weights' gradients, and the activations' of all layers but the first; the actor's update goes through
    # the critics to the action.
    trained_critic, trained_actor = 3 * critic - first_critic, 3 * actor - first_actor
    through = 2 * critic
    total = actor + trained_actor + config.twins * (critic + trained_critic + through)
    return 2.0 * config.batch_size * total
