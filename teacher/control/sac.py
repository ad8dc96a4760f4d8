"""Soft actor-critic (Haarnoja 2018) over operations of any number format.

    y = r + γ (min Q̄(s', a') − α log π(a'|s'))          critics: the sum of both mean squared errors
    actor: mean(α log π − min Q)                         temperature: mean(α (−log π − H̄)), H̄ = −D

The losses are multiplied by their loss scales where they begin: in the gradients of Q, log π and log α.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from spikestill.teacher.control import networks
from spikestill.teacher.control.actor_critic import (
    AgentState,
    Batch,
    Noise,
    Settings,
    action_gradient,
    critic_pass,
    end_update,
    learn_critics,
    rounded_batch,
    step_all,
    target_values,
)
from spikestill.teacher.control.lanes import Both, in_turn, side_by_side
from spikestill.teacher.control.optimiser import count, grow, step


def temperature(o: Any, state: AgentState) -> float:
    """Return α = exp(log α), rounded."""
    assert state.temperature is not None
    logarithm = float(o.host(state.temperature.p_NP)[0, 0])
    return float(o.scalar(math.exp(min(logarithm, 700.0)))) if not math.isnan(logarithm) else math.nan


def update(
    o: Any, state: AgentState, settings: Settings, batch: Batch, noise: Noise, both: Both = in_turn
) -> dict[str, Any]:
    """Do one update in place; return what it found, of which only the log reads.

    Args:
        o: operations of the format.
        state: is changed.
        settings: what does not change.
        batch: transitions, rounded here.
        noise: of both actions.
        both: how work on two networks is done.
    """
    return learn_temperature(o, state, settings, learn_networks(o, state, settings, batch, noise, both))


def learn_networks(
    o: Any, state: AgentState, settings: Settings, batch: Batch, noise: Noise, both: Both = in_turn
) -> dict[str, Any]:
    """Do :func:`update` but for the temperature."""
    batch = rounded_batch(o, batch)
    actor = settings.actor_net(state.actor.p_NP[0])
    acting = state.updates % settings.config.actor_period == 0

    def passes() -> list[list[Any]]:
        """Return the critics' activations."""
        return [critic_pass(o, state, settings, batch, index) for index in range(settings.config.twins)]

    def actions() -> tuple[Any, Any]:
        """Return what follows, and the actor's activations where it learns; it steps after both."""
        head = networks.forward(o, actor, batch.next_obs_BS)[-1]
        following = o.sample(head, o.array(noise.next_BD), settings.policy)
        return following, networks.forward(o, actor, batch.obs_BS) if acting else None

    (following, activations), critics = side_by_side(both, actions, passes)
    values = target_values(state, settings, o, o.joined(batch.next_obs_BS, following.action_BD), both)
    target_B = o.target(
        batch.reward_B,
        batch.going_on_B,
        values,
        following.density_B,
        o.changing(lambda: temperature(o, state)),
        settings.config.discount,
    )
    found = learn_critics(o, state, settings, batch, target_B, both, critics)
    if acting:
        seen = Seen(batch.obs_BS, batch.obs_BS)
        noise_BD = o.array(noise.now_BD)
        found |= learn_actor(o, state, settings, seen, noise_BD, both, activations)
    end_update(o, state, settings, both)
    return found


class Seen(NamedTuple):
    """What the actor and the critics make of the same observations, (B, S) each.

    Attributes:
        actor_BS, critic_BS: from states both are the state.
        learn: takes the gradient of ``actor_BS`` further, to what made it; None: nothing learned made it.
    """

    actor_BS: Any
    critic_BS: Any
    learn: Callable[[Any], None] | None = None


def learn_actor(
    o: Any,
    state: AgentState,
    settings: Settings,
    seen: Seen,
    noise_BD: Any,
    both: Both,
    activations: list[Any] | None = None,
) -> dict[str, Any]:
    """Step the actor; ``activations`` are its own for what it sees, where they are there already."""
    trained = state.actor
    net, into = (settings.actor_net(flat_NP[0]) for flat_NP in (trained.p_NP, trained.g_NP))
    if activations is None:
        activations = networks.forward(o, net, seen.actor_BS)
    found = o.sample(activations[-1], noise_BD, settings.policy)

    def share() -> float:
        """Return what the loss's scale makes of one row's part of the mean."""
        return o.scalar(trained.scale / len(noise_BD))

    less = o.changing(lambda: -share())
    g_action_BD, values = action_gradient(o, state, settings, seen.critic_BS, found.action_BD, less, both)
    g_density = o.changing(lambda: o.scalar(share() * temperature(o, state)))
    g_head = o.sample_backward(found, g_action_BD, g_density, settings.policy)
    g_BS = networks.backward(o, net, activations, g_head, into, seen.learn is not None, both=both)
    if seen.learn is not None:
        seen.learn(g_BS)
    if count(o, trained, o.finish(trained.g_NP[0]), settings.methods):
        step_all(o, [trained], settings.adam_actor, settings.methods, both)
    return {"density": found.density_B, "policy_values": values}


def learn_temperature(o: Any, state: AgentState, settings: Settings, found: dict[str, Any]) -> dict[str, Any]:
    """Step the temperature by the actions with which the actor learned, if it did; return what was found, with that."""
    if "density" not in found:
        return found
    assert state.temperature is not None
    alpha, heat = temperature(o, state), state.temperature
    entropy = -o.mean(found["density"])
    # d/d log α of mean(α (−log π − H̄)) is the same α (entropy − H̄).
    heat.g_NP[...] = o.array([[heat.scale * o.scalar(alpha * o.scalar(entropy + settings.action))]])
    if count(o, heat, o.finish(heat.g_NP[0]), settings.methods):
        step(o, heat, settings.adam, settings.methods)
        grow(o, [heat], settings.methods)
    return found | {"entropy": entropy, "alpha": alpha}
