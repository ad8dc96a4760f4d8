"""What does not change from frame to frame: who plays what, and how it is drawn; handed on in files."""

from __future__ import annotations

import dataclasses
import json
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
    """

    game: str
    actions: tuple[str, ...]
    rate_hz: float
    frames_per_decision: int
    actors: tuple[Actor, ...]
    atari: bool = True
    notice: str = ""

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
        return Scene(**{**plain, "actions": tuple(plain["actions"]), "actors": tuple(actors)})
