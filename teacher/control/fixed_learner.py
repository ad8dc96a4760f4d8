"""DDPG in fixed point (FIXAR, Yang 2021) as a learner, and as a policy that plays.

Axis suffixes: N environments, B batch, S observation, D action numbers.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.common.environment import Box, EnvironmentSpec, Observations
from spikestill.common.errors import UserError
from spikestill.common.policy import Decision
from spikestill.common.provenance import Provenance
from spikestill.configs.control import ControlConfig
from spikestill.configs.fixed_point import FixedPointConfig
from spikestill.teacher.control import fixed_ddpg, fixed_file
from spikestill.teacher.control.actor_critic import Batch
from spikestill.teacher.control.play import joined, within


def fixed_config(config: ControlConfig) -> FixedPointConfig:
    """Return the options of the fixed-point agent that ``config`` asks for."""
    variant: Any = config.precision
    return FixedPointConfig(
        variant=variant,
        quantisation_delay=config.quantisation_delay,
        second_moment=config.second_moment,
        rounding=config.rounding,
        headroom=config.headroom,
        hidden=config.hidden,
        learning_rate=config.learning_rate,
        betas=(config.beta1, config.beta2),
        epsilon=config.adam_epsilon,
        discount=config.discount,
        tau=config.target_rate,
        noise=config.exploration,
    )


class FixedLearner:
    """The integers of ``fixed_ddpg.py`` behind :class:`spikestill.teacher.control.learner.Learner`.

    Exploration draws from the agent's own generator, not from the training's.

    Args:
        config: the options.
        observation, action: sizes S, D.
        seed: of the weights and of the exploration.
    """

    def __init__(self, config: ControlConfig, observation: int, action: int, seed: int) -> None:
        self.agent = fixed_ddpg.initial_state(fixed_config(config), observation, action, seed)

    def act(
        self, obs_NS: npt.NDArray[np.float32], rng: np.random.Generator | None
    ) -> npt.NDArray[np.float32]:
        """See :class:`Learner`. Without ``rng`` the agent is left as it is: how often a training is evaluated, changes
        nothing of it."""
        after, action_ND = fixed_ddpg.act(self.agent, obs_NS, rng is not None)
        if rng is not None:
            self.agent = after
        return action_ND

    def update(self, batch: Batch, rng: np.random.Generator) -> dict[str, float]:
        """See :class:`Learner`."""
        self.agent, found = fixed_ddpg.update(
            self.agent,
            fixed_ddpg.Batch(
                batch.obs_BS, batch.action_BD, batch.reward_B, batch.going_on_B, batch.next_obs_BS
            ),
        )
        numbers = {
            name: float(value) for name, value in found.items() if np.ndim(value) == 0 and _is_number(value)
        }
        saturated = {
            f"saturated_{place}": float(count) for place, count in self.agent.saturated.items() if count
        }
        return numbers | saturated

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """See :class:`Learner`."""
        arrays, plain = fixed_ddpg.to_arrays(self.agent)
        text = np.frombuffer(json.dumps(plain).encode(), np.uint8).copy()
        return {**arrays, "plain": text}

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """See :class:`Learner`."""
        rest = dict(arrays)
        plain = json.loads(rest.pop("plain").tobytes().decode())
        found = fixed_ddpg.from_arrays(rest, plain)
        for name in ("config", "observation_size", "action_size", "seed"):
            theirs, own = getattr(found, name), getattr(self.agent, name)
            if theirs != own:
                raise ValueError(f"its agent has the {name} {theirs}, the training {own}")
        self.agent = found

    def save(self, path: Path, spec: EnvironmentSpec, provenance: Provenance) -> None:
        """See :class:`Learner`."""
        fixed_file.save(path, self.agent, spec.name, provenance)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


class FixedPolicy:
    """A fixed-point agent that plays its actor's output; see :class:`spikestill.common.policy.Policy`.

    Args:
        agent: its state.
        spec: where it plays.
    """

    def __init__(self, agent: fixed_ddpg.FixedState, spec: EnvironmentSpec) -> None:
        assert isinstance(spec.actions, Box)
        self.agent, self.spec, self.actions = agent, spec, spec.actions

    def act(self, observations: Observations) -> Decision:
        """Return the actions; the scores are the action itself, and last the value Q(s, a), (B, D + 1)."""
        self.spec.check(observations)
        obs_BS = joined(observations)
        after, unit_BD = fixed_ddpg.act(self.agent, obs_BS, False)
        acting = fixed_ddpg.ACTING
        saturated = after.saturated[acting] - self.agent.saturated[acting]
        value_B = fixed_ddpg.values(self.agent, obs_BS, unit_BD)
        action_BD = within(self.actions, unit_BD)
        scores = np.concatenate([action_BD, value_B[:, None]], axis=1)
        return Decision(action_BD, scores, value=value_B, saturated=saturated)


def load_fixed_policy(path: Path, spec: EnvironmentSpec) -> FixedPolicy:
    """Return the agent of the file at ``path``.

    Raises:
        UserError: the file cannot be read, or is for another task.
    """
    file = fixed_file.read(path)
    sizes = sum(int(np.prod(field.shape)) for field in spec.fields), spec.actions.shape[0]
    if file.environment != spec.name or sizes != (file.state.observation_size, file.state.action_size):
        raise UserError(
            f"{path}: plays {file.environment}, not {spec.name}", f"play {file.environment} with it"
        )
    return FixedPolicy(dataclasses.replace(file.state), spec)
