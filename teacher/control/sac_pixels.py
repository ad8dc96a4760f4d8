"""Soft actor-critic from pixels (Björck 2021, appendix G; Kostrikov 2020): ``sac.py`` behind an encoder.

The critics learn from every transition twice, as it is and randomly cropped (the state and the next one): 2 B rows.
The target of a transition is the mean of those of its two rows (Kostrikov 2020, K = 2). The convolutions learn from the
critics alone; actor and temperature learn from the B cropped rows.

Axis suffixes: B batch, V = 2 B rows, H, W rows and columns, C channels, D action numbers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spikestill.teacher.control import networks, sac
from spikestill.teacher.control.actor_critic import (
    AgentState,
    Batch,
    Settings,
    end_update,
    learn_critics,
    target_values,
)
from spikestill.teacher.control.encoder import (
    EffectiveHead,
    EncoderRule,
    convolve,
    convolve_backward,
    effective,
    flat_features,
    flattened,
    project,
    project_backward,
)
from spikestill.teacher.control.lanes import Both, in_turn
from spikestill.teacher.control.optimiser import Trained


class PixelNoise(NamedTuple):
    """Random numbers of one update.

    Attributes:
        next_VD, now_BD: standard normal, for the next actions of all rows and for the present ones.
        shift_B2, next_shift_B2: where the crops begin, 0..2 ``crop``, row and column.
    """

    next_VD: npt.NDArray[np.floating]
    now_BD: npt.NDArray[np.floating]
    shift_B2: npt.NDArray[np.int64]
    next_shift_B2: npt.NDArray[np.int64]

    @staticmethod
    def drawn(rng: np.random.Generator, rows: int, actions: int, crop: int) -> PixelNoise:
        """Return numbers for ``rows`` transitions."""
        shifts = [rng.integers(0, 2 * crop + 1, (rows, 2)) for _ in range(2)]
        return PixelNoise(
            rng.standard_normal((2 * rows, actions)),
            rng.standard_normal((rows, actions)),
            shifts[0],
            shifts[1],
        )


def cropped(o: Any, images_BHWC: Any, shift_B2: npt.NDArray[np.int64], crop: int) -> Any:
    """Return each image padded by ``crop`` copies of its edges and cut at ``shift``, where ``crop`` moves nothing."""
    side = np.arange(images_BHWC.shape[1])
    rows_BH, columns_BW = (np.clip(side + shift_B2[:, axis, None] - crop, 0, side[-1]) for axis in (0, 1))
    return o.cut(images_BHWC, rows_BH, columns_BW)


def update(
    o: Any, state: AgentState, settings: Settings, batch: Batch, noise: PixelNoise, both: Both = in_turn
) -> dict[str, Any]:
    """Do one update in place; see :func:`sac.update`.

    Args:
        o: operations of the format.
        state: is changed.
        settings: what does not change.
        batch: B transitions, observations uint8 (B, frame, colour, row, column).
        noise: of actions and crops.
        both: how work is shared out.
    """
    rule, encoder = encoder_of(state, settings)
    crop, flat = settings.config.crop, state.actor
    now, following = o.images(batch.obs_BS), o.images(batch.next_obs_BS)
    crops = cropped(o, now, noise.shift_B2, crop)
    next_VHWC = o.stacked([following, cropped(o, following, noise.next_shift_B2, crop)])
    head = effective(o, rule, rule.head(flat.p_NP[0]))
    target_B = targets(o, state, settings, batch, next_VHWC, o.array(noise.next_VD), head, both)
    found = learn_encoder(o, state, settings, batch, o.stacked([now, crops]), target_B, both)
    if state.updates % settings.config.actor_period == 0:
        net, critic_head = rule.whole(encoder.p_NP[0])
        x_BX = flat_features(o, rule, net, crops, both)
        critic = project(o, rule, effective(o, rule, critic_head), x_BX)
        actor = project(o, rule, head, x_BX)

        def learn(g_BZ: Any) -> None:
            project_backward(o, rule, actor, g_BZ, rule.head(flat.g_NP[0]))

        seen = sac.Seen(actor.features_BZ, critic.features_BZ, learn)
        found |= sac.learn_actor(o, state, settings, seen, o.array(noise.now_BD), both)
    end_update(o, state, settings, both)
    return sac.learn_temperature(o, state, settings, found)


def encoder_of(state: AgentState, settings: Settings) -> tuple[EncoderRule, Trained]:
    """Return the encoder's rule and its parameters, of an agent that sees pixels."""
    assert settings.encoder is not None
    assert state.encoder is not None
    return settings.encoder, state.encoder


def targets(
    o: Any,
    state: AgentState,
    settings: Settings,
    batch: Batch,
    next_VHWC: Any,
    noise_VD: Any,
    head: EffectiveHead,
    both: Both,
) -> Any:
    """Return the targets (B,): the mean of both rows of each transition; ``head`` is the actor's."""
    rule, encoder = encoder_of(state, settings)
    x_VX = flat_features(o, rule, rule.convolutions(encoder.p_NP[0]), next_VHWC, both)
    features = project(o, rule, head, x_VX).features_BZ
    output = networks.forward(o, settings.actor_net(state.actor.p_NP[0]), features)[-1]
    following = o.sample(output, noise_VD, settings.policy)
    net, target_head = rule.whole(state.target_encoder_NP[0])
    x_VX = flat_features(o, rule, net, next_VHWC, both)
    seen = project(o, rule, effective(o, rule, target_head), x_VX).features_BZ
    values = target_values(state, settings, o, o.joined(seen, following.action_BD), both)
    reward_V, going_on_V = (
        o.stacked([each, each]) for each in (o.array(batch.reward_B), o.array(batch.going_on_B))
    )
    alpha, discount = sac.temperature(o, state), settings.config.discount
    y_V = o.target(reward_V, going_on_V, values, following.density_B, alpha, discount)
    middle = len(batch.reward_B)
    y_B = o.sum([o.copy(y_V[:middle]), y_V[middle:]])
    o.multiply(y_B, 0.5)
    return y_B


def learn_encoder(
    o: Any, state: AgentState, settings: Settings, batch: Batch, now_VHWC: Any, target_B: Any, both: Both
) -> dict[str, Any]:
    """Step the critics and the encoder towards the targets, (B,); the loss is a mean over all rows."""
    rule, trained = encoder_of(state, settings)
    net, head = rule.whole(trained.p_NP[0])
    activations = convolve(o, rule, net, now_VHWC, both, keep=True)
    seen = project(o, rule, effective(o, rule, head), flattened(activations[-1]))
    target_V, action_VD = (o.stacked([each, each]) for each in (target_B, o.array(batch.action_BD)))
    rows = Batch(seen.features_BZ, action_VD, target_V, target_V, seen.features_BZ)

    def learn(g_inputs: list[Any]) -> None:
        g_P = trained.g_NP[0]
        g_VZ = o.sum([each[:, : rule.features] for each in g_inputs])
        g_VX = project_backward(o, rule, seen, g_VZ, rule.whole(g_P)[1], to_input=True)
        convolve_backward(o, rule, net, now_VHWC, activations, g_VX, g_P[: rule.conv_parameters], both)

    found = learn_critics(o, state, settings, rows, target_V, both, learn=learn)
    return {"values": [value[: len(target_B)] for value in found["values"]], "target": target_B}
