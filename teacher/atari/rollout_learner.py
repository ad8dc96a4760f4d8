"""Parallelised Q-learning (PQN, Gallici 2025, algorithm 1): no replay, no target network.

Many games play ``rollout_steps`` each; the learner then goes over those steps ``epochs`` times in shuffled batches,
with the lambda-returns that the weights gave before the first of them. A step costs two gradients where double DQN's
replay takes eight, and no pass of a target network, so that games must be many and decorrelate each other.

The authors normalise every layer (``layer_norm``), which takes the target network's place: without it Breakout's score
stood at 3 where it stood at 17 with it, after as many steps.

With ``target`` advantage a step's return is less a part of what its action is worth less than the best one, by the
weights from which the returns are (Bellemare 2016): the pass that they take gives it for nothing.

Axis suffixes: T steps of a rollout, S the states of T steps and the one after them, E environments, N steps of all, A
actions.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from spikestill.teacher.atari.ddqn import advantage_learning_target
from spikestill.teacher.atari.host_learner import HostLearner
from spikestill.teacher.atari.learner import Share, UpdateReport
from spikestill.teacher.atari.replay import Batch

FORWARD_BATCH = 256
"""States of one forward pass, in each of the threads."""


def lambda_returns(
    reward_TE: npt.NDArray[np.float32],
    done_TE: npt.NDArray[np.bool_],
    valid_TE: npt.NDArray[np.bool_],
    best_SE: npt.NDArray[np.float32],
    discount: float,
    decay: float,
) -> npt.NDArray[np.float32]:
    """Return Peng's lambda-returns (T, E) fp32, from the last step to the first:

        G_t = r_t + discount ((1 - decay) max_a q(s_{t+1}, a) + decay G_{t+1})

    The bracket is 0 where the return ended with step t, and max_a q(s_{t+1}, a) where t is the last step or step t + 1
    is not valid (an action that the game ignored, whose return is another game's).

    Args:
        reward_TE: r_t.
        done_TE: the return ended with step t.
        valid_TE: the action of step t was played.
        best_SE: max_a q(s_t, a) of the T + 1 states.
        discount: of one step, 0..1.
        decay: lambda, 0 (one step) to 1 (Monte Carlo as far as the steps go).

    Source: Peng 1994; Gallici 2025, equation 6.
    """
    found = np.empty_like(reward_TE)
    following = best_SE[-1]
    for t in range(len(reward_TE) - 1, -1, -1):
        found[t] = reward_TE[t] + np.float32(discount) * np.where(done_TE[t], np.float32(0.0), following)
        trace = np.where(valid_TE[t], np.float32(decay), np.float32(0.0))
        following = best_SE[t] + trace * (found[t] - best_SE[t])
    return found


class RolloutLearner(HostLearner):
    """:class:`HostLearner` that learns from the newest steps of the replay alone; arguments as of that.

    The newest step of all has no successor yet, and waits for the next rollout. Where a segment of the games ends, its
    last observation takes the place of that step, which is lost.
    """

    def learn(
        self, rng: np.random.Generator, updates: int, beta: float, learning_rate: float
    ) -> list[UpdateReport]:
        """Go over the newest rollout ``epochs`` times in shuffled batches; see :meth:`Learner.learn`.

        An epoch has as many batches of ``batch_size`` as the played steps fill, all of them nearly equal.
        ``updates`` and ``beta`` are a replay's.
        """
        config, replay = self.config, self.replay
        slots_S = np.arange(replay.written - 1 - config.rollout_steps, replay.written) % replay.length
        slots_T = slots_S[:-1]
        valid_TE, q_SEA = replay.valid[slots_T], self._rollout_values(slots_S)
        target_TE = lambda_returns(
            replay.reward[slots_T], replay.done[slots_T], valid_TE, q_SEA.max(axis=2),
            config.discount, config.trace_decay,
        )  # fmt: skip
        if config.target == "advantage":
            action = torch.from_numpy(replay.action[slots_T].astype(np.int64).reshape(-1))
            q_NA = torch.from_numpy(q_SEA[:-1]).flatten(0, 1)
            target = advantage_learning_target(
                torch.from_numpy(target_TE).view(-1), q_NA, action, config.gap_weight
            )
            target_TE = target.numpy().reshape(target_TE.shape)
        played_N = np.flatnonzero(valid_TE)
        if len(played_N) < self.shares:
            return []
        batches = max(1, len(played_N) // config.batch_size)
        reports = []
        for _ in range(config.epochs):
            for chosen in np.array_split(rng.permutation(played_N), batches):
                step, env = np.divmod(chosen, replay.num_envs)
                reports.append(
                    self.update(self._batch(slots_T[step], env, target_TE[step, env]), learning_rate)
                )
        return reports

    def _batch(
        self, time: npt.NDArray[np.int64], env: npt.NDArray[np.int64], target: npt.NDArray[np.float32]
    ) -> Batch:
        """Return slots with all that they are worth as the reward: nothing is bootstrapped from."""
        action = self.replay.action[time, env].astype(np.int64)
        # The loss is divided by ``batch_size``.
        weight = np.full_like(target, self.config.batch_size / len(target))
        return Batch(time, env, time, action, target, np.zeros_like(target), weight)

    def _rollout_values(self, slots_S: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return q (S, E, A) of the states in these slots of the ring, by the weights of now."""
        envs = self.replay.num_envs
        time, env = np.repeat(slots_S, envs), np.tile(np.arange(envs), len(slots_S))

        def values(begin: int) -> npt.NDArray[np.float32]:
            part = slice(begin, begin + FORWARD_BATCH)
            with torch.no_grad():
                stacks = self.stacks(self.replay.stacks(time[part], env[part]))
                return self.q_values(self.working, stacks).cpu().numpy()

        parts = list(self.pool.map(values, range(0, len(time), FORWARD_BATCH)))
        return np.concatenate(parts).reshape(len(slots_S), envs, -1)

    def _share(self, batch: Batch) -> Share:
        stacks = self.stacks(self.replay.stacks(batch.time, batch.env))
        action, target, weight = (
            torch.from_numpy(array).to(self.device) for array in (batch.action, batch.reward, batch.weight)
        )
        return self.regress(stacks, action, target, weight)
