"""N MuJoCo tasks that step together, as a :class:`VectorEnvironment`; their state is saved whole.

The tasks step one after the other: a step takes 0.1 to 0.4 ms, most of it in Python, which threads would share.
Axis suffixes: N environments, D action numbers, S numbers of a simulator's state.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from spikestill.common.environment import Box, Field, Observations, Step
from spikestill.common.errors import UserError
from spikestill.common.stacking import push
from spikestill.configs.control import PIXELS as SHAPE
from spikestill.teacher.control.simulator import Simulator

STATES = "float32"
"""Observations are computed in float64 and given in this type."""
PIXELS = Field("pixels", SHAPE, "uint8", 0, 255, stacked=True)
"""Three RGB frames, oldest first: (frame, colour, row, column)."""


class Outcome(NamedTuple):
    """What one task gave in one step: fields, reward, and whether its rules ended the episode."""

    fields: Mapping[str, npt.NDArray[Any]]
    reward: float
    terminated: bool


class SimulationError(Exception):
    """What a task raises where its simulator gave up; its text says why."""


class SimulationDivergedError(UserError):
    """What was done in an environment led its simulator to numbers that are not finite."""


class Task(Protocol):
    """One task of one library.

    Attributes:
        simulator: its model and data.
    """

    simulator: Simulator

    def reset(self, seed: int | None) -> Mapping[str, npt.NDArray[Any]]:
        """Begin an episode, with new random numbers where there is a seed; return its first fields."""
        ...

    def step(self, action_D: npt.NDArray[np.float64]) -> Outcome:
        """Do one step of the simulator's control rate.

        Raises:
            SimulationError: the simulator gave up.
        """
        ...

    def random_state(self) -> Any:
        """Return the state of its random numbers as what JSON holds."""
        ...

    def set_random_state(self, state: Any) -> None:
        """Restore what :meth:`random_state` returned."""
        ...


def bounded(name: str, low: npt.ArrayLike, high: npt.ArrayLike) -> Box:
    """Return the actions of ``name`` as a box.

    Raises:
        UserError: a number has no finite bounds, or none at all.
    """
    lows, highs = np.ravel(np.asarray(low, np.float64)), np.ravel(np.asarray(high, np.float64))
    wrong = np.flatnonzero(~(np.isfinite(lows) & np.isfinite(highs) & (lows < highs)))
    if len(wrong):
        each = wrong[0]
        raise UserError(
            f"{name}: action {each} has the bounds {lows[each]:g}..{highs[each]:g}, finite low < high wanted",
            "give the environment itself, for its wrappers are left off, an action_space with finite bounds",
        )
    if not len(lows):
        raise UserError(f"{name} has no actions", "give an environment with a box of one number or more")
    return Box(tuple(lows), tuple(highs))


class MujocoEnvironments:
    """N tasks as a :class:`VectorEnvironment`.

    Args:
        name: of the environment.
        fields: what is observed; :data:`PIXELS` alone for pixels.
        make: returns a new task.
        num_envs: N, >= 1.
        limit: simulator steps after which an episode is cut off.
        repeat: simulator steps a decision takes, >= 1; their rewards are summed.
        camera: that draws; -1: the free one.
    """

    def __init__(
        self,
        name: str,
        fields: Sequence[Field],
        make: Callable[[], Task],
        num_envs: int,
        *,
        limit: int,
        repeat: int = 1,
        camera: int = -1,
    ) -> None:
        self.name, self.fields, self.limit, self.repeat, self.camera = (
            name,
            tuple(fields),
            limit,
            repeat,
            camera,
        )
        self.tasks = [make() for _ in range(num_envs)]
        self.steps_N: npt.NDArray[np.int64] = np.zeros(num_envs, np.int64)
        self.ended_N: npt.NDArray[np.bool_] = np.ones(num_envs, np.bool_)
        self._observations = {
            field.name: np.zeros((num_envs, *field.shape), field.dtype) for field in self.fields
        }
        self._actions_ND: npt.NDArray[np.float64] | None = None

    @property
    def from_pixels(self) -> bool:
        """Pictures are what is observed."""
        return self.fields == (PIXELS,)

    def reset(
        self, seeds: npt.NDArray[np.int64] | None, mask: npt.NDArray[np.bool_] | None = None
    ) -> Observations:
        """See :meth:`VectorEnvironment.reset`."""
        chosen = np.flatnonzero(np.ones(len(self.tasks), np.bool_) if mask is None else mask)
        for place, index in enumerate(chosen):
            self._begin(int(index), None if seeds is None else int(seeds[place]))
        return self._copy()

    def _begin(self, index: int, seed: int | None) -> None:
        fields = self.tasks[index].reset(seed)
        self.steps_N[index], self.ended_N[index] = 0, False
        if self.from_pixels:
            self._observations[PIXELS.name][index] = 0
        self._observe(index, fields)

    def _observe(self, index: int, fields: Mapping[str, npt.NDArray[Any]]) -> None:
        if self.from_pixels:
            size = PIXELS.shape[-1]
            frame = self.tasks[index].simulator.picture(size, size, self.camera)
            push(self._observations[PIXELS.name][index])[...] = frame.transpose(2, 0, 1)
            return
        for field in self.fields:
            values = np.asarray(fields[field.name])
            if not np.isfinite(values).all():
                self._not_finite(index, field.name)
            self._observations[field.name][index] = values.reshape(field.shape)

    def _diverged(self, index: int, how: str) -> UserError:
        return SimulationDivergedError(
            f"{self.name}: environment {index} {how} in step {self.steps_N[index]} of its episode: the simulation "
            "diverged",
            "try another --seed",
        )

    def _not_finite(self, index: int, what: str) -> None:
        raise self._diverged(index, f"gave a {what} that is not finite")

    def _copy(self) -> Observations:
        return {name: values.copy() for name, values in self._observations.items()}

    def send(self, actions: npt.NDArray[Any]) -> None:
        """See :meth:`VectorEnvironment.send`."""
        self._actions_ND = np.asarray(actions, np.float64)

    def receive(self) -> Step:
        """See :meth:`VectorEnvironment.receive`.

        Raises:
            SimulationDivergedError: a simulation diverged.
        """
        assert self._actions_ND is not None, "receive() before send()"
        rewards_N = np.zeros(len(self.tasks), np.float64)
        terminated_N = np.zeros(len(self.tasks), np.bool_)
        for index, task in enumerate(self.tasks):
            if self.ended_N[index]:
                self._begin(index, None)
                continue
            fields: Mapping[str, npt.NDArray[Any]] = {}
            for _ in range(self.repeat):
                self.steps_N[index] += 1
                try:
                    fields, reward, terminated = task.step(self._actions_ND[index])
                except SimulationError as error:
                    raise self._diverged(index, f"gave up ({error})") from error
                rewards_N[index] += reward
                terminated_N[index] = terminated
                if terminated or self.steps_N[index] >= self.limit:
                    break
            if not np.isfinite(rewards_N[index]):
                self._not_finite(index, "reward")
            self._observe(index, fields)
        truncated_N = ~terminated_N & ~self.ended_N & (self.steps_N >= self.limit)
        self.ended_N = terminated_N | truncated_N
        self._actions_ND = None
        return Step(self._copy(), rewards_N, terminated_N, truncated_N)

    def render(self, index: int) -> npt.NDArray[np.uint8]:
        """Return a picture of task ``index``, uint8 (240, 320, 3).

        Raises:
            UserError: this machine has nothing to draw with.
        """
        return self.tasks[index].simulator.picture(240, 320, self.camera)

    def render_soon(self, index: int) -> npt.NDArray[np.uint8]:
        """Return as :meth:`render` does the newest picture that is ready, without waiting for one."""
        return self.tasks[index].simulator.picture_soon(240, 320, self.camera)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the simulators' states (N, S), their random numbers, steps and last observations."""
        texts = [json.dumps(task.random_state()).encode() for task in self.tasks]
        width = max(map(len, texts))
        random = np.frombuffer(b"".join(text.ljust(width) for text in texts), np.uint8)
        return {
            "simulator": np.stack([task.simulator.state() for task in self.tasks]),
            "random": random.reshape(len(texts), width).copy(),
            "steps": self.steps_N.copy(),
            "ended": self.ended_N.copy(),
            **{f"field.{name}": values.copy() for name, values in self._observations.items()},
        }

    def set_state(self, arrays: Mapping[str, npt.NDArray[Any]]) -> Observations:
        """Restore what :meth:`state` returned.

        Raises:
            ValueError, KeyError: the arrays are of another environment or another number of them.
        """
        if len(arrays["simulator"]) != len(self.tasks):
            raise ValueError(f"{len(arrays['simulator'])} states for {len(self.tasks)} environments")
        for index, task in enumerate(self.tasks):
            task.reset(0)
            task.simulator.set_state(arrays["simulator"][index])
            task.set_random_state(json.loads(arrays["random"][index].tobytes().decode()))
        self.steps_N, self.ended_N = arrays["steps"].copy(), arrays["ended"].copy()
        for name, values in self._observations.items():
            values[...] = arrays[f"field.{name}"]
        return self._copy()

    def close(self) -> None:
        """Release the simulators."""
        for task in self.tasks:
            task.simulator.close()
