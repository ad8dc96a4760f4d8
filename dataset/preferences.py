"""Whether a teacher's Q-values say anything: what a student is to learn from them, before hours go into it.

Axis suffixes: B steps, A actions.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spikestill.common.errors import UserError
from spikestill.dataset.format import Steps

FIRST_ROWS = 256
"""Vector steps of a recording after which its Q-values are looked at: games show the same for seconds as they begin."""


class PrefersNothingError(UserError):
    """Nothing can be learnt from a teacher."""


def check_prefers(q_BA: npt.NDArray[np.floating], where: str, remedy: str) -> None:
    """Check that a teacher's Q-values say something of what to do in which state.

    Args:
        q_BA: of steps of its play.
        where: what they come from, for the error.
        remedy: what else to do.

    Raises:
        PrefersNothingError: they are the same for all actions, or in all states.
    """
    if (q_BA == q_BA[:, :1]).all():
        raise PrefersNothingError(
            f"{where}: the teacher's Q-values are the same for all {q_BA.shape[1]} actions in all of {len(q_BA):,} "
            "steps: it prefers nothing, and nothing can be learnt from it",
            remedy,
        )
    if len(q_BA) > 1 and (q_BA == q_BA[:1]).all():
        raise PrefersNothingError(
            f"{where}: the teacher's Q-values are the same in all of {len(q_BA):,} steps: it does not look at the "
            "game, and nothing can be learnt from it",
            remedy,
        )


class FirstRows:
    """The Q-values of a recording's first rows, checked once there are enough of them.

    Args:
        rows: that the recording will have; of a shorter one than ``FIRST_ROWS`` all are looked at.
        where: what plays, for the error.
    """

    def __init__(self, rows: int, where: str) -> None:
        self._left, self._where = min(rows, FIRST_ROWS), where
        self._q: list[npt.NDArray[np.float32]] = []

    def note(self, steps: Steps) -> None:
        """Take the rows that come next.

        Raises:
            PrefersNothingError: see :func:`check_prefers`.
        """
        if self._left <= 0:
            return
        self._q.append(steps.q_values[steps.valid])
        self._left -= len(steps.valid)
        if self._left <= 0:
            check_prefers(np.concatenate(self._q), self._where, "record with another --teacher")
            self._q.clear()
