"""How good a student's actions are by its teacher's Q-values.

Axis suffixes: B batch, A actions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Judged(NamedTuple):
    """A student's decisions beside its teacher's.

    Attributes:
        agreement: share of them that are the teacher's.
        regret: mean of max Q - Q(the student's action), over that of a player at random: 0 is as good as the teacher,
            1 is random.
    """

    agreement: float
    regret: float


def judged(chosen_B: npt.NDArray[np.int64], q_BA: npt.NDArray[np.floating]) -> Judged:
    """Return how good actions are by a teacher's Q-values, -inf where a game has not the action."""
    q = q_BA.astype(np.float64)
    best = q.max(axis=1)
    lost = (best - np.take_along_axis(q, chosen_B[:, None], axis=1)[:, 0]).mean()
    at_random = (best - q.mean(axis=1, where=q > -np.inf)).mean()
    return Judged(float((chosen_B == q.argmax(axis=1)).mean()), float(lost / max(at_random, 1e-12)))
