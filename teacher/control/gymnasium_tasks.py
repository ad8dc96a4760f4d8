"""Gymnasium's MuJoCo tasks, version 5 (Towers 2024). The module is the family ``gymnasium``."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.common.environment import EnvironmentSpec, Field
from spikestill.common.errors import UserError
from spikestill.teacher.control.environment import STATES, MujocoEnvironments, Outcome, bounded
from spikestill.teacher.control.simulator import Simulator, importing

TASKS = {
    "half_cheetah": "HalfCheetah-v5",
    "hopper": "Hopper-v5",
    "swimmer": "Swimmer-v5",
    "walker2d": "Walker2d-v5",
    "ant": "Ant-v5",
}
"""Name to Gymnasium's."""
GROUPS = ("qpos", "qvel", "cinert", "cvel", "qfrc_actuator", "cfrc_ext")
"""Parts of the observation, in Gymnasium's order; a task has those whose size it names."""

FOLLOWS = "track"
"""What Gymnasium calls the camera that goes with the robot, where a model has one."""


class GymnasiumTask:
    """One task of Gymnasium.

    Args:
        name: of the environment.
        gym_id: Gymnasium's name.
    """

    def __init__(self, name: str, gym_id: str) -> None:
        with importing(name):
            import gymnasium

            made: Any = gymnasium.make(gym_id)
        if made.spec.max_episode_steps is None:
            raise UserError(
                f"{name}: {gym_id} has no max_episode_steps",
                "register it with one: where its episodes are cut off",
            )
        self.limit = int(made.spec.max_episode_steps)
        self.environment = made.unwrapped
        self.simulator = Simulator(name, self.environment.model, self.environment.data, finish=False)
        self.sizes = group_sizes(self.environment)

    def _fields(self, values: npt.NDArray[np.float64]) -> Mapping[str, npt.NDArray[Any]]:
        parts = np.split(values, np.cumsum(list(self.sizes.values()))[:-1])
        return dict(zip(self.sizes, parts, strict=True))

    def reset(self, seed: int | None) -> Mapping[str, npt.NDArray[Any]]:
        """See :class:`Task`."""
        values, _ = self.environment.reset(seed=seed)
        return self._fields(values)

    def step(self, action_D: npt.NDArray[np.float64]) -> Outcome:
        """See :class:`Task`."""
        values, reward, terminated, _, _ = self.environment.step(action_D)
        return Outcome(self._fields(values), float(reward), bool(terminated))

    def random_state(self) -> Any:
        """See :class:`Task`."""
        return self.environment.np_random.bit_generator.state

    def set_random_state(self, state: Any) -> None:
        """See :class:`Task`."""
        self.environment.np_random.bit_generator.state = state


def group_sizes(environment: Any) -> dict[str, int]:
    """Return the fields of a task's observation and their sizes; one ``observation`` where it names none."""
    structure = getattr(environment, "observation_structure", {})
    sizes = {name: int(structure[name]) for name in GROUPS if structure.get(name)}
    total = int(np.prod(environment.observation_space.shape))
    return sizes if sum(sizes.values()) == total else {"observation": total}


def names() -> tuple[str, ...]:
    """Return the names of all tasks."""
    return tuple(TASKS)


@functools.cache
def spec(name: str) -> EnvironmentSpec:
    """Return the task ``name``.

    Raises:
        UserError: MuJoCo is missing.
    """
    return gymnasium_spec(name, TASKS[name])


def gymnasium_spec(name: str, gym_id: str) -> EnvironmentSpec:
    """Return any MuJoCo task that Gymnasium knows as ``gym_id``, called ``name`` here; its wrappers are left off.

    Raises:
        UserError: MuJoCo is missing, an action has no bounds, or an episode no limit.
    """
    make = functools.partial(GymnasiumTask, name, gym_id)
    task = make()
    fields = tuple(Field(key, (size,), STATES, -np.inf, np.inf) for key, size in task.sizes.items())
    space, camera = task.environment.action_space, task.simulator.camera(FOLLOWS)

    def made(options: Any, num_envs: int, threads: int = 0) -> MujocoEnvironments:
        return MujocoEnvironments(name, fields, make, num_envs, limit=task.limit, camera=camera)

    return EnvironmentSpec(
        name=name,
        family="gymnasium",
        fields=fields,
        actions=bounded(name, space.low, space.high),
        decisions_per_s=1.0 / task.environment.dt,
        make=made,
        resumes_by="state",
    )
