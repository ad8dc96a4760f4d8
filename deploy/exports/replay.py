"""The frames that an export carries, with the votes that whoever replays them must get."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from spikestill.deploy.frames import Frames

if TYPE_CHECKING:
    import h5py


@dataclasses.dataclass(frozen=True, eq=False)
class Replay:
    """Frames and what they must give.

    Attributes:
        stacks_BCHW: uint8, at least one.
        votes_BA: int64.
        source: ``buffer`` or ``random`` pixels.
        indices_B: int64, their places, each in its own buffer; of random pixels, their numbers.
    """

    stacks_BCHW: npt.NDArray[np.uint8]
    votes_BA: npt.NDArray[np.int64]
    source: str
    indices_B: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.stacks_BCHW)


def replay_of(frames: Frames, votes: Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.int64]]) -> Replay:
    """Return all of ``frames`` with their votes.

    Args:
        frames: drawn frames.
        votes: a player: one uint8 stack (C, H, W) to its votes (A,).
    """
    stacks_BCHW = np.ascontiguousarray(frames.stacks(0, len(frames)))
    votes_BA = np.stack([votes(stack) for stack in stacks_BCHW])
    return Replay(stacks_BCHW, votes_BA, frames.source, frames.indices)


def add_replay(group: h5py.Group, replay: Replay) -> None:
    """Write the frames into an HDF5 group: ``stack``, ``votes`` and ``index``, the attribute ``source``."""
    group.create_dataset("stack", data=replay.stacks_BCHW, compression="gzip")
    group.create_dataset("votes", data=replay.votes_BA)
    group.create_dataset("index", data=replay.indices_B)
    group.attrs["source"] = replay.source
