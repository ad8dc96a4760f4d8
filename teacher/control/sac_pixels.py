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
    differentiate_critics,
    move_targets,
    step_all,
    target_values,
)
from spikestill.teacher.control.encoder import (
    CHANNELS,
    SIDE,
    EncoderRule,
    convolve,
    convolve_backward,
    effective,
    project,
    project_backward,
)
from spikestill.teacher.control.lanes import Both, in_turn
from spikestill.teacher.control.optimiser import count


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


def images(frames_B: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return stacks (B, frame, colour, row, column) as images (B, H, W, C), the oldest frame's colours first."""
    return np.ascontiguousarray(frames_B.transpose(0, 3, 4, 1, 2)).reshape(-1, SIDE, SIDE, CHANNELS)


def cropped(
    images_BHWC: npt.NDArray[np.uint8], shift_B2: npt.NDArray[np.int64], crop: int
) -> npt.NDArray[np.uint8]:
    """Return each image padded by ``crop`` copies of its edges and cut at ``shift``, where ``crop`` moves nothing."""
    side = np.arange(images_BHWC.shape[1])
    rows, columns = (np.clip(side + shift_B2[:, axis, None] - crop, 0, side[-1]) for axis in (0, 1))
    return images_BHWC[np.arange(len(images_BHWC))[:, None, None], rows[:, :, None], columns[:, None, :]]


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
    rule, crop = settings.encoder, settings.config.crop
    assert rule is not None
    assert state.encoder is not None
    now, following = images(batch.obs_BS), images(batch.next_obs_BS)
    crops = cropped(now, noise.shift_B2, crop)
    next_VHWC = np.concatenate([following, cropped(following, noise.next_shift_B2, crop)])
    target_B = targets(o, state, settings, batch, next_VHWC, o.array(noise.next_VD), both)
    found = learn_critics(o, state, settings, batch, np.concatenate([now, crops]), target_B, both)
    if state.updates % settings.config.actor_period == 0:
        net, flat = state.encoder.p_NP[0], state.actor
        x_BX = flattened(convolve(o, rule, rule.convolutions(net), crops, both)[-1])
        critic = project(o, rule, effective(o, rule, rule.head(net[rule.conv_parameters :])), x_BX)
        actor = project(o, rule, effective(o, rule, rule.head(flat.p_NP[0])), x_BX)

        def learn(g_BZ: Any) -> None:
            project_backward(o, rule, actor, g_BZ, rule.head(flat.g_NP[0]))

        seen = sac.Seen(actor.features_BZ, critic.features_BZ, learn)
        found |= sac.learn_actor(o, state, settings, seen, o.array(noise.now_BD), both)
    if state.updates % settings.config.target_period == 0:
        move_targets(o, state, settings, both)
    state.updates += 1
    return found


def flattened(x_BHWF: Any) -> Any:
    """Return what the convolutions give as rows, (B, X)."""
    return x_BHWF.reshape(len(x_BHWF), -1)


def targets(
    o: Any, state: AgentState, settings: Settings, batch: Batch, next_VHWC: Any, noise_VD: Any, both: Both
) -> Any:
    """Return the targets (B,): the mean of both rows of each transition."""
    rule = settings.encoder
    assert rule is not None
    assert state.encoder is not None
    x_VX = flattened(convolve(o, rule, rule.convolutions(state.encoder.p_NP[0]), next_VHWC, both)[-1])
    features = project(o, rule, effective(o, rule, rule.head(state.actor.p_NP[0])), x_VX).features_BZ
    head = networks.forward(o, settings.actor_net(state.actor.p_NP[0]), features)[-1]
    following = o.sample(head, noise_VD, settings.policy)
    values = target_values(
        state,
        settings,
        o,
        o.joined(target_features(o, state, rule, next_VHWC, both), following.action_BD),
        both,
    )
    reward_V, going_on_V = (
        o.stacked([each, each]) for each in (o.array(batch.reward_B), o.array(batch.going_on_B))
    )
    alpha, discount = sac.temperature(o, state), settings.config.discount
    y_V = o.target(reward_V, going_on_V, values, following.density_B, alpha, discount)
    middle = len(batch.reward_B)
    y_B = o.sum([y_V[:middle].copy(), y_V[middle:]])
    o.multiply(y_B, 0.5)
    return y_B


def target_features(o: Any, state: AgentState, rule: EncoderRule, next_VHWC: Any, both: Both) -> Any:
    """Return what the target encoder sees, (V, Z)."""
    target_P = state.target_encoder_NP[0]
    x_VX = flattened(convolve(o, rule, rule.convolutions(target_P), next_VHWC, both)[-1])
    return project(o, rule, effective(o, rule, rule.head(target_P[rule.conv_parameters :])), x_VX).features_BZ


def learn_critics(
    o: Any, state: AgentState, settings: Settings, batch: Batch, now_VHWC: Any, target_B: Any, both: Both
) -> dict[str, Any]:
    """Step the critics and the encoder towards the targets, (B,); the loss is a mean over all rows."""
    rule, trained = settings.encoder, state.encoder
    assert rule is not None
    assert trained is not None
    p_P, g_P, middle = trained.p_NP[0], trained.g_NP[0], rule.conv_parameters
    net, head, into = rule.convolutions(p_P), rule.head(p_P[middle:]), rule.head(g_P[middle:])
    activations = convolve(o, rule, net, now_VHWC, both, keep=True)
    seen = project(o, rule, effective(o, rule, head), flattened(activations[-1]))
    target_V, action_VD = (o.stacked([each, each]) for each in (target_B, o.array(batch.action_BD)))
    rows = Batch(seen.features_BZ, action_VD, target_V, target_V, seen.features_BZ)
    found = differentiate_critics(o, state, settings, rows, target_V, both, to_input=True)
    g_VZ = o.sum([each[:, : rule.features] for each in found.g_inputs])
    g_VX = project_backward(o, rule, seen, g_VZ, into, to_input=True)
    convolve_backward(o, rule, net, now_VHWC, activations, g_VX, g_P[:middle], both)
    finite = o.finish(g_P) and found.finite
    together = [state.critics, trained]
    if all([count(o, each, finite, settings.methods) for each in together]):
        step_all(o, together, settings.adam, settings.methods, both)
    return {"values": [value[: len(target_B)] for value in found.values], "target": target_B}
