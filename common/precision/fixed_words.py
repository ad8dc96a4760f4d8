"""What a fixed-point agent computes between two networks, one number at a time: noise, errors, the derivative of tanh.

NumPy reference, for kernels and accelerator alike: one number in a thousand is of these.

Axis suffixes: B batch, A actions, I inputs of the critic (observation, then action).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spikestill.common.precision.fixed import Int32, gaussian, round_shift, saturate

DISCOUNT_FRACTION = 30
NOISE_FRACTION = 20
"""Fraction bits of the noise and of its deviation."""
DRAWS = 6
"""Counters of the generator that one near-normal number uses up."""


def explore(action_BA: Int32, key: int, counter: int, deviation: int, fraction: int) -> Int32:
    """Return ``clip(a + round(deviation n), -1, 1)``, n near-normal (``fixed.gaussian``), int32 (B, A).

    Args:
        action_BA: the actor's output.
        key: of the stream of random numbers.
        counter: of the first draw; the next free one is ``counter + 6 B A``.
        deviation: of the noise, 20 fraction bits.
        fraction: of an action.
    """
    drawn_BA = gaussian(key, counter, action_BA.size, NOISE_FRACTION).reshape(action_BA.shape)
    added_BA = round_shift(drawn_BA * deviation, 2 * NOISE_FRACTION - fraction)
    one = 1 << fraction
    return np.clip(action_BA + added_BA, -one, one).astype(np.int32)


def td_errors(
    reward_B: Int32, not_done_B: npt.NDArray[np.bool_], next_q_B1: Int32, q_B1: Int32, discount: int, by: int,
    bits: int,
) -> tuple[Int32, int, int]:  # fmt: skip
    """Return (e = Q - y, int32 (B, 1); targets saturated; errors saturated).

        y = saturate(r + round(discount Q')), or r where the episode ended;  e = saturate((Q - y) 2^by)

    Args:
        reward_B: r, in the values' format.
        not_done_B: the episode goes on.
        next_q_B1: Q', of the target networks.
        q_B1: Q.
        discount: 30 fraction bits.
        by: fraction bits that an error has more than a value, fewer where negative.
        bits: of both.
    """
    future_B = round_shift(next_q_B1[:, 0].astype(np.int64) * discount, DISCOUNT_FRACTION)
    target_B, over = saturate(reward_B + np.where(not_done_B, future_B, 0), bits)
    difference = q_B1.astype(np.int64) - target_B[:, None]
    found, lost = saturate(difference << by if by >= 0 else round_shift(difference, -by), bits)
    return found.astype(np.int32), over, lost


def through_tanh(error_BI: Int32, action_BA: Int32, fraction: int, bits: int) -> tuple[Int32, int]:
    """Return (e (1 - a^2), int32 (B, A); values saturated): 1 - a^2 is rounded to an action's fraction first.

    Args:
        error_BI: derivatives with respect to the critic's inputs, of which the actions are the last A.
        action_BA: the actor's output, tanh taken.
        fraction: of an action.
        bits: of an error.
    """
    error_BA = error_BI[:, error_BI.shape[1] - action_BA.shape[1] :]
    slope_BA = round_shift((1 << (2 * fraction)) - action_BA.astype(np.int64) ** 2, fraction)
    found, lost = saturate(round_shift(error_BA * slope_BA, fraction), bits)
    return found.astype(np.int32), lost
