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
    end_update,
    learn_critics,
    rounded_batch,
    step_all,
    target_values,
)
from spikestill.teacher.control.lanes import Both, in_turn
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
    batch = rounded_batch(o, batch)
    actor = settings.actor_net(state.actor.p_NP[0])
    head = networks.forward(o, actor, batch.next_obs_BS)[-1]
    following = o.sample(head, o.array(noise.next_BD), settings.policy)
    values = target_values(state, settings, o, o.joined(batch.next_obs_BS, following.action_BD), both)
    target_B = o.target(
        batch.reward_B,
        batch.going_on_B,
        values,
        following.density_B,
        temperature(o, state),
        settings.config.discount,
    )
    found = learn_critics(o, state, settings, batch, target_B, both)
    if state.updates % settings.config.actor_period == 0:
        seen = Seen(batch.obs_BS, batch.obs_BS)
        found |= learn_actor(o, state, settings, seen, o.array(noise.now_BD), both)
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
    o: Any, state: AgentState, settings: Settings, seen: Seen, noise_BD: Any, both: Both
) -> dict[str, Any]:
    """Step the actor, then the temperature by the same actions."""
    assert state.temperature is not None
    trained, alpha = state.actor, temperature(o, state)
    net, into = (settings.actor_net(flat_NP[0]) for flat_NP in (trained.p_NP, trained.g_NP))
    activations = networks.forward(o, net, seen.actor_BS)
    found = o.sample(activations[-1], noise_BD, settings.policy)
    share = o.scalar(trained.scale / len(noise_BD))
    g_action_BD, values = action_gradient(o, state, settings, seen.critic_BS, found.action_BD, -share, both)
    g_head = o.sample_backward(found, g_action_BD, o.scalar(share * alpha), settings.policy)
    g_BS = networks.backward(o, net, activations, g_head, into, seen.learn is not None, both=both)
    if seen.learn is not None:
        seen.learn(g_BS)
    if count(o, trained, o.finish(trained.g_NP[0]), settings.methods):
        step_all(o, [trained], settings.adam_actor, settings.methods, both)
    entropy = -o.mean(found.density_B)
    heat = state.temperature
    # d/d log α of mean(α (−log π − H̄)) is the same α (entropy − H̄).
    heat.g_NP[...] = o.array([[heat.scale * o.scalar(alpha * o.scalar(entropy + settings.action))]])
    if count(o, heat, o.finish(heat.g_NP[0]), settings.methods):
        step(o, heat, settings.adam, settings.methods)
        grow(o, [heat], settings.methods)
    return {"entropy": entropy, "alpha": alpha, "policy_values": values}
