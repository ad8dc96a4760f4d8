"""What plays: one contract of teachers, students, the agents of ``play`` and ``evaluate``, and anyone's own.

Axis suffixes: B batch (1 in real time), A scores, W words of packed spikes, O features, H, W of a layer.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from spikestill.common.environment import Observations


class Trace(Protocol):
    """What went on in an agent while it decided: spikes, kept packed and unpacked only when asked for."""

    @property
    def packed_BW(self) -> npt.NDArray[np.uint64]:
        """The spikes as the agent holds them, uint64 (B, W); a copy, so it outlives the next decision."""
        ...

    def spikes(self) -> list[npt.NDArray[np.uint8]]:
        """Return every layer's spikes, uint8 (B, O, H, W), 1 where a neuron fired, first layer first."""
        ...

    def counts(self) -> npt.NDArray[np.int64]:
        """Return how many neurons of each layer fired, int64 (B, layers)."""
        ...


@dataclasses.dataclass(frozen=True)
class Decision:
    """What a policy made of a batch of observations.

    Attributes:
        action: int64 (B,) where actions are discrete, float32 (B, D) where they are D numbers.
        scores: (B, A): Q-values, votes (integers), or what was found of each number and last the value; what is shown
            and recorded.
        trace: the spikes of it; None where the policy has none.
        value: (B,) what the policy expects of its action; None where Q-values say it, or nothing does.
        saturated: numbers of the batch that its arithmetic cut off on the way to the actions; None where it does not
            count them.
    """

    action: npt.NDArray[Any]
    scores: npt.NDArray[Any]
    trace: Trace | None = None
    value: npt.NDArray[np.floating] | None = None
    saturated: int | None = None

    @staticmethod
    def best(scores_BA: npt.NDArray[Any], trace: Trace | None = None) -> Decision:
        """Return the decision for the highest score of each row; ties go to the lowest action."""
        return Decision(np.argmax(scores_BA, axis=1), scores_BA, trace)


class Policy(Protocol):
    """Something that plays. Where it has a ``close()``, that is called when it plays no more."""

    def act(self, observations: Observations) -> Decision:
        """Decide on each row of ``observations``.

        It is called from one thread at a time, not always the same. A row's decision depends on that row alone.

        Raises:
            ValueError: a field is missing, or of the wrong shape or dtype.
        """
        ...
