"""dm_control's tasks (Tassa 2018), from states and from pixels. The module is the family ``dm_control``.

From pixels an action is repeated as Björck 2021, Table 8, has it: ``cheetah_run_pixels``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.common.environment import EnvironmentSpec, Field
from spikestill.teacher.control.environment import (
    PIXELS,
    STATES,
    MujocoEnvironments,
    Outcome,
    SimulationError,
    bounded,
)
from spikestill.teacher.control.simulator import Simulator, importing

TASKS = {
    "cartpole_swingup": ("cartpole", "swingup", 8),
    "reacher_easy": ("reacher", "easy", 4),
    "cheetah_run": ("cheetah", "run", 4),
    "finger_spin": ("finger", "spin", 2),
    "ball_in_cup_catch": ("ball_in_cup", "catch", 4),
    "walker_walk": ("walker", "walk", 2),
}
"""Name to (domain, task, action repeat from pixels)."""
SUFFIX = "_pixels"
SHADOWS = 512
"""Side of the shadows' map for pictures of 84 x 84. dm_control's 2,048 takes twice as long in software and changes them
by less than 0.02 of 255 levels on average."""


class SuiteTask:
    """One task of the suite.

    Args:
        name: of the environment.
        domain, task: dm_control's names.
        shadows: side of the shadows' map; None: dm_control's.
    """

    def __init__(self, name: str, domain: str, task: str, shadows: int | None = None) -> None:
        with importing(name):
            from dm_control import suite

            self.environment: Any = suite.load(domain, task, task_kwargs={"random": 0})
        self.name = name
        physics = self.environment.physics
        if shadows is not None:
            physics.model.ptr.vis.quality.shadowsize = shadows
        self.simulator = Simulator(name, physics.model.ptr, physics.data.ptr, finish=True)

    def reset(self, seed: int | None) -> Mapping[str, npt.NDArray[Any]]:
        """See :class:`Task`."""
        if seed is not None:
            self.environment.task.random.seed(seed)
        fields: Mapping[str, npt.NDArray[Any]] = self.environment.reset().observation
        return fields

    def step(self, action_D: npt.NDArray[np.float64]) -> Outcome:
        """See :class:`Task`.

        Raises:
            SimulationError: a number of the simulation is not finite, or far too large.
        """
        from dm_control.rl.control import PhysicsError

        try:
            found = self.environment.step(action_D)
        except PhysicsError as error:
            raise SimulationError(" ".join(str(error).split())) from error
        # The suite's own limit of time is ours: its last step comes with discount 1.
        return Outcome(found.observation, float(found.reward or 0.0), found.discount == 0.0)

    def random_state(self) -> Any:
        """See :class:`Task`."""
        kind, keys, *rest = self.environment.task.random.get_state()
        return [kind, keys.tolist(), *rest]

    def set_random_state(self, state: Any) -> None:
        """See :class:`Task`."""
        kind, keys, *rest = state
        self.environment.task.random.set_state((kind, np.asarray(keys, np.uint32), *rest))


def names() -> tuple[str, ...]:
    """Return the names of all tasks, each from states and from pixels."""
    return (*TASKS, *(name + SUFFIX for name in TASKS))


@functools.cache
def spec(name: str) -> EnvironmentSpec:
    """Return the task ``name``.

    Raises:
        UserError: dm_control or MuJoCo is missing.
    """
    from_pixels = name.endswith(SUFFIX)
    domain, task, repeat = TASKS[name.removesuffix(SUFFIX)]
    repeat = repeat if from_pixels else 1
    make = functools.partial(SuiteTask, name, domain, task, SHADOWS if from_pixels else None)
    environment = make().environment
    shapes = {key: np.shape(value) for key, value in environment.reset().observation.items()}
    states = tuple(Field(key, shape, STATES, -np.inf, np.inf) for key, shape in shapes.items())
    fields = (PIXELS,) if from_pixels else states
    actions = environment.action_spec()
    limit = int(environment._step_limit)

    def made(options: Any, num_envs: int, threads: int = 0) -> MujocoEnvironments:
        return MujocoEnvironments(name, fields, make, num_envs, limit=limit, repeat=repeat, camera=0)

    return EnvironmentSpec(
        name=name,
        family="dm_control",
        fields=fields,
        actions=bounded(name, actions.minimum, actions.maximum),
        decisions_per_s=1.0 / (environment.control_timestep() * repeat),
        make=made,
        resumes_by="state",
        frames_per_decision=lambda options: repeat,
    )
