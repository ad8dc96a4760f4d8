"""Where a training's frames and Q-values come from: a buffer that was recorded, or a teacher that plays meanwhile.

Axis suffixes: B batch, C the four frames of a stack, H height, W width, A actions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from spikestill.common.atari import MAX_ACTIONS, STACK
from spikestill.common.errors import UserError
from spikestill.common.legal import TOGETHER, LegalActions, actions_in
from spikestill.dataset.preferences import check_prefers
from spikestill.dataset.reader import BufferReader
from spikestill.teacher.atari.environment import action_meanings, console_actions

VALIDATION_FRAMES = 1_024


class Drawn(NamedTuple):
    """Frames with the teacher's Q-values.

    Attributes:
        stacks: uint8 (B, 4, 84, 84), oldest frame first.
        q_values: float32 (B, A).
        game: int64 (B,), the place of each frame's game among the source's.
    """

    stacks: npt.NDArray[np.uint8]
    q_values: npt.NDArray[np.float32]
    game: npt.NDArray[np.int64]


class Source(Protocol):
    """What a training draws from."""

    @property
    def game(self) -> str:
        """The game in snake case."""

    @property
    def actions(self) -> int:
        """A."""

    @property
    def legal(self) -> tuple[LegalActions, ...]:
        """Which of them each game takes, where there are several games."""

    @property
    def held_out(self) -> int:
        """Steps that are validated on and never drawn."""

    def advance(self) -> None:
        """Make ready what the next batch may be drawn from."""

    def draw(self, rng: np.random.Generator, size: int) -> Drawn:
        """Return ``size`` steps drawn uniformly, with replacement; ``rng`` alone decides which."""

    def validation(self) -> Drawn:
        """Return up to ``VALIDATION_FRAMES`` steps: of those held out, or else of the training's own."""

    def origin(self, q_value: float) -> str:
        """Return what a Q-value that was drawn comes from, for an error."""

    def state(self) -> Mapping[str, Tensor]:
        """Return all that changes, as named tensors, for a checkpoint."""

    def set_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state` returned."""


class BufferSource:
    """Recorded buffers, merged: every step of all of them is as likely to be drawn as any other.

    Of buffers of one game the actions are that game's. Of several games they are the console's, and an action that
    is not the game's has the Q-value -inf.

    Args:
        readers: at least one.
        validation: share of each buffer's steps, the last ones, that is held out.

    Raises:
        UserError: a buffer does not show stacks, buffers of one game have different actions, those of several games
            others than the game's own, or a buffer's Q-values are the same for all actions.
    """

    def __init__(self, readers: Sequence[BufferReader], validation: float) -> None:
        self._readers = tuple(readers)
        held = [int(len(reader) * validation) for reader in readers]
        self.held_out = sum(held)
        self._parts = [len(reader) - own for reader, own in zip(readers, held, strict=True)]
        self._ends = np.cumsum(self._parts)
        games = tuple(dict.fromkeys(reader.game for reader in readers))
        self.game = TOGETHER.join(games)
        self._game = np.array([games.index(reader.game) for reader in readers], np.int64)
        self.legal: tuple[LegalActions, ...] = ()
        self.actions = readers[0].actions
        for reader in readers:
            _check_buffer(reader, next(each for each in readers if each.game == reader.game))
        if len(games) > 1:
            self.actions = MAX_ACTIONS
            for reader in readers:
                _check_own_actions(reader)
            self.legal = tuple(LegalActions(game, console_actions(game)) for game in games)
        self._columns = [self._own_columns(reader) for reader in readers]

    def _own_columns(self, reader: BufferReader) -> npt.NDArray[np.int64]:
        own = actions_in(self.legal, reader.game)
        return np.array(range(reader.actions) if own is None else own, np.int64)

    def advance(self) -> None:
        """Do nothing: all is there."""

    def draw(self, rng: np.random.Generator, size: int) -> Drawn:
        """See :meth:`Source.draw`."""
        return self._gather(rng.integers(0, self._ends[-1], size), self._ends)

    def _gather(self, drawn: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> Drawn:
        """Return the steps numbered through all buffers, of which buffer i has those below ``ends[i]``."""
        which = np.searchsorted(ends, drawn, side="right")
        starts = np.concatenate([[0], ends[:-1]])
        stacks = np.empty((len(drawn), *STACK.shape), np.uint8)
        q_values = np.full((len(drawn), self.actions), -np.inf, np.float32)
        for index, reader in enumerate(self._readers):
            rows = np.flatnonzero(which == index)
            if len(rows):
                own = drawn[rows] - starts[index]
                stacks[rows] = reader.stacks(own)
                q_values[np.ix_(rows, self._columns[index])] = reader.q_values(own)
        return Drawn(stacks, q_values, self._game[which])

    def validation(self) -> Drawn:
        """See :meth:`Source.validation`."""
        lengths = np.array([len(reader) for reader in self._readers])
        ends = np.cumsum(lengths)
        firsts = ends - lengths + (np.array(self._parts) if self.held_out else 0)
        # A buffer that is too short to hold a step out shows none.
        shown = np.flatnonzero(firsts < ends)
        count = VALIDATION_FRAMES // len(shown)
        chosen = [
            np.unique(np.linspace(firsts[index], ends[index] - 1, count).astype(np.int64)) for index in shown
        ]
        return self._gather(np.concatenate(chosen), ends)

    def origin(self, q_value: float) -> str:
        """Return the first buffer that holds the Q-value."""
        holders = (
            reader for reader in self._readers if (reader.q_values(range(len(reader))) == q_value).any()
        )
        return str(next(holders, self._readers[0]).path)

    def state(self) -> Mapping[str, Tensor]:
        """Return nothing: a buffer does not change."""
        return {}

    def set_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Do nothing."""


def _check_buffer(reader: BufferReader, first: BufferReader) -> None:
    """Raise UserError where a student cannot learn from a buffer, or not beside the first one of its game."""
    reader.check_stacks()
    own, others = reader.header.action_names, first.header.action_names
    if own != others:
        raise UserError(
            f"{reader.path}: a buffer of {reader.game} with the actions {', '.join(own)}; {first.path} has "
            f"{', '.join(others)}",
            "record both with the same teacher",
        )
    q_BA = reader.q_values(np.unique(np.linspace(0, len(reader) - 1, VALIDATION_FRAMES).astype(np.int64)))
    check_prefers(q_BA, str(reader.path), "record with another --teacher")


def _check_own_actions(reader: BufferReader) -> None:
    """Raise UserError where a buffer's actions are not the game's: a head of 18 has no place for them."""
    own, minimal = reader.header.action_names, tuple(action_meanings(reader.game))
    if own != minimal:
        raise UserError(
            f"{reader.path}: has the actions {', '.join(own)}; {reader.game}'s own are {', '.join(minimal)}, and a "
            "student of several games takes those",
            "record it anew",
        )
