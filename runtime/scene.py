"""What does not change from frame to frame: who plays what, and how it is drawn; handed on in files."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclasses.dataclass(frozen=True)
class Actor:
    """One agent of a scene.

    Attributes:
        name: the agent's name.
        picture: what draws its inside, ``module:function``, '' for what it sees.
        layout: what that needs to know.
        note: what has been done to it, '' for nothing.
    """

    name: str
    picture: str = ""
    layout: Mapping[str, npt.NDArray[Any]] = dataclasses.field(default_factory=dict)
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Scene:
    """Who plays what.

    Attributes:
        game: the environment's name.
        actions: names of the actions.
        rate_hz: frames a second.
        frames_per_decision: frames between two decisions.
        actors: the agents, in their order.
        atari: its pixels are wider than high, 4 to 3.
        notice: what viewers are to be told, '' for nothing.
        bounds: (low, high) of each action that is a number, () where one of them is chosen.
        sees_pictures: some of what the agents see are pictures.
    """

    game: str
    actions: tuple[str, ...]
    rate_hz: float
    frames_per_decision: int
    actors: tuple[Actor, ...]
    atari: bool = True
    notice: str = ""
    bounds: tuple[tuple[float, float], ...] = ()
    sees_pictures: bool = True

    def bars(self, part: np.void) -> npt.NDArray[np.float64]:
        """Return how long each action's bar is, float64 (A,), 0..1.

        Numbers go from their lower to their upper bound, votes from 0 and Q-values from the lowest, to the highest.

        Args:
            part: an agent's, of a frame.
        """
        values = np.array(part["scores"][: len(self.actions)])
        if self.bounds:
            low, high = np.array(self.bounds).T
            found = (values - low) / (high - low)
        else:
            least = 0.0 if part["votes"] else values.min()
            found = (values - least) / max(values.max() - least, 1e-9)
        return np.clip(np.nan_to_num(found, nan=0.0), 0.0, 1.0)

    def expected(self, part: np.void) -> float | None:
        """Return what an agent expects of its numbers, None where it does not say."""
        value = float(part["value"])
        return value if self.bounds and math.isfinite(value) else None

    def value(self, part: np.void) -> str:
        """Return :meth:`expected` as text, '' for None."""
        value = self.expected(part)
        return "" if value is None else f"value {value:.4g}"

    def save(self, folder: Path, number: int) -> None:
        """Write it as scene ``number`` of ``folder``, whole or not at all."""
        plain = dataclasses.asdict(dataclasses.replace(self, actors=()))
        plain["actors"] = [{"name": a.name, "picture": a.picture, "note": a.note} for a in self.actors]
        arrays = {
            f"{index}.{key}": value for index, a in enumerate(self.actors) for key, value in a.layout.items()
        }
        temporary = folder / f".{number}.npz"
        with temporary.open("wb") as file:
            np.savez(file, scene=np.frombuffer(json.dumps(plain).encode(), np.uint8), **arrays)  # type: ignore[arg-type]
        os.replace(temporary, folder / f"{number}.npz")

    @staticmethod
    def load(folder: Path, number: int) -> Scene:
        """Return scene ``number`` of ``folder``."""
        with np.load(folder / f"{number}.npz") as file:
            arrays = dict(file)
        plain = json.loads(arrays.pop("scene").tobytes())
        actors = []
        for index, actor in enumerate(plain.pop("actors")):
            start = f"{index}."
            layout = {
                key.removeprefix(start): value for key, value in arrays.items() if key.startswith(start)
            }
            actors.append(Actor(actor["name"], actor["picture"], layout, actor["note"]))
        plain["bounds"] = tuple(map(tuple, plain["bounds"]))
        return Scene(**{**plain, "actions": tuple(plain["actions"]), "actors": tuple(actors)})
