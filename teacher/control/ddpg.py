"""Deep deterministic policy gradient (Lillicrap 2016) over operations of any number format, with TD3's changes.

    y = r + γ Q̄(s', μ̄(s'))          critic: mean squared error          actor: −mean Q(s, μ(s))

TD3 (Fujimoto 2018) has a second critic, of which the smaller value is the target, noise on the target's action, and
an actor that steps every other time, along the first critic: options here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

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
from spikestill.teacher.control.optimiser import count

NOISE_LIMIT = 0.5
"""TD3 clips the noise on the target's action to this."""


def update(
    o: Any, state: AgentState, settings: Settings, batch: Batch, noise: Noise, both: Both = in_turn
) -> dict[str, Any]:
    """Do one update in place; see :func:`sac.update`. Only the next action's noise is read."""
    config, batch = settings.config, rounded_batch(o, batch)
    acting = state.updates % config.actor_period == 0

    def passes() -> tuple[list[Any], Any]:
        """Return the activations of the critics and of the actor, neither of which has stepped yet."""
        critics = [critic_pass(o, state, settings, batch, index) for index in range(config.twins)]
        actor = networks.layers(state.actor.p_NP[0], settings.actor_sizes)
        return critics, networks.forward(o, actor, batch.obs_BS) if acting else None

    target_B, (critics, actor) = side_by_side(both, lambda: targets(o, state, settings, batch, noise), passes)
    found = learn_critics(o, state, settings, batch, target_B, both, critics)
    if acting:
        found |= learn_actor(o, state, settings, batch.obs_BS, actor, both)
    end_update(o, state, settings, both)
    return found


def targets(o: Any, state: AgentState, settings: Settings, batch: Batch, noise: Noise) -> Any:
    """Return the critics' targets y, (B,)."""
    config = settings.config
    target_actor = networks.layers(state.target_actor_NP[0], settings.actor_sizes)
    following = o.tanh(networks.forward(o, target_actor, batch.next_obs_BS)[-1])
    if config.target_noise:
        added = np.clip(config.target_noise * noise.next_BD, -NOISE_LIMIT, NOISE_LIMIT)
        following = o.array(np.clip(o.host(following) + added, -1.0, 1.0))
    values = target_values(state, settings, o, o.joined(batch.next_obs_BS, following), in_turn)
    return o.target(
        batch.reward_B, batch.going_on_B, values, o.zeros(len(batch.reward_B)), 0.0, config.discount
    )


def learn_actor(
    o: Any, state: AgentState, settings: Settings, obs_BS: Any, activations: list[Any], both: Both
) -> dict[str, Any]:
    """Step the actor along the first critic's gradient; ``activations`` are its own for ``obs_BS``."""
    trained, sizes = state.actor, settings.actor_sizes
    net = networks.layers(trained.p_NP[0], sizes)
    action_BD = o.tanh(activations[-1])
    share = o.changing(lambda: o.scalar(-trained.scale / len(obs_BS)))
    g_BD, values = action_gradient(o, state, settings, obs_BS, action_BD, share, both)
    g_BD = o.tanh_backward(g_BD, action_BD)
    networks.backward(o, net, activations, g_BD, networks.layers(trained.g_NP[0], sizes), both=both)
    if count(o, trained, o.finish(trained.g_NP[0]), settings.methods):
        step_all(o, [trained], settings.adam_actor, settings.methods, both)
    return {"policy_values": values}
