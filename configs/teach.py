"""Options of ``spikestill teach``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from spikestill.common.errors import UserError
from spikestill.configs.environment import EnvironmentConfig
from spikestill.configs.options import Options, Range, Seed, Share

READ_BY_DDQN = (
    "replay_capacity", "update_period", "n_step", "priority_exponent", "priority_correction", "target_period",
    "entropy_temperature",
)  # fmt: skip
"""Options that PQN has no use for."""
READ_BY_PQN = ("rollout_steps", "epochs", "trace_decay")
"""Options that double DQN has no use for."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeachConfig(Options):
    """Q-learning on one Atari game, double DQN (van Hasselt 2016) or PQN; periods count agent steps of all
    environments."""

    NEWER: ClassVar[tuple[str, ...]] = ("algorithm", "rollout_steps", "epochs", "trace_decay", "layer_norm")

    environment: EnvironmentConfig = dataclasses.field(default_factory=EnvironmentConfig)
    """The game."""
    algorithm: Literal["ddqn", "pqn"] = "ddqn"
    """``ddqn``: double DQN from a replay. ``pqn``: parallelised Q-learning (Gallici 2025) from the steps just played by
    many games, a fifth of the arithmetic a step; ``--config teach-pqn`` has the options that go with it."""
    initial: Path | None = None
    """Teacher file to go on from; None: random weights. Exploration then begins at ``epsilon_final``."""
    steps: Annotated[int, Range(1, 1e9)] = 1_200_000
    """Agent steps to train for (a step is ``frame_skip`` emulator frames)."""
    num_envs: Annotated[int, Range(1, 1024)] = 32
    """Environments stepped together."""
    replay_capacity: Annotated[int, Range(1, 1e7)] = 400_000
    """Frames that the replay holds; 7,056 bytes each."""
    replay_start: Annotated[int, Range(1, 1e9)] = 10_000
    """Agent steps taken before the first update; actions are random until then (without ``initial``)."""
    update_period: Annotated[int, Range(1, 1024)] = 16
    """Agent steps per gradient update; it divides ``num_envs`` or is a multiple of it."""
    batch_size: Annotated[int, Range(1, 65536)] = 128
    """Transitions per update; pqn cuts a rollout into equal batches of this size or a little more."""
    rollout_steps: Annotated[int, Range(2, 512)] = 32
    """pqn: steps of each environment between two rounds of learning."""
    epochs: Annotated[int, Range(1, 64)] = 2
    """pqn: how often a round goes over its steps."""
    trace_decay: Share = 0.65
    """pqn: lambda of the lambda-returns (Peng 1994); 0: returns of one step."""
    n_step: Annotated[int, Range(1, 32)] = 3
    """Rewards summed before bootstrapping; 1 is the paper's (Sutton 1988 for n-step returns)."""
    discount: Share = 0.99
    """Discount of one agent step."""
    priority_exponent: Share = 0.5
    """Alpha of proportional prioritised replay (Schaul 2016); 0 samples uniformly."""
    priority_correction: Share = 0.4
    """Beta at the start, raised linearly to 1 at the end."""
    target_period: Annotated[int, Range(1, 1e9)] = 4_000
    """Agent steps between copies of the online network to the target network."""
    target: Literal["double", "munchausen", "advantage"] = "double"
    """What Q is trained towards: ``double`` DQN (of pqn its lambda-return); ``munchausen`` (Vieillard 2020), which adds
    the scaled log-policy to the reward, and a soft maximum; ``advantage`` learning (Bellemare 2016), the same as
    ``double`` less a part of the action's disadvantage. The latter two widen the gaps between actions, at one more
    forward pass a sample of ddqn. pqn has no ``munchausen``."""
    gap_weight: Annotated[float, Range(0, 1)] = 0.9
    """Weight of that log-policy, or of that disadvantage; no effect with ``double``."""
    entropy_temperature: Annotated[float, Range(1e-6, 1e3)] = 0.03
    """Tau of the policy softmax(Q / tau), in units of Q; ``munchausen`` only."""
    dueling: bool = False
    """Split the last layer into a value and an advantage stream (Wang 2016). The teacher is saved with a plain last
    layer, which says the same."""
    layer_norm: bool | None = None
    """Normalise the features of every place of every hidden layer (Ba 2016), which PQN needs to learn fast without a
    target network; None: with ``pqn``. Integers (``--agent fixed``) cannot play such a teacher."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """``adam`` (Kingma 2015) or ``rmsprop``, centred with decay 0.95 (Mnih 2015, teacher/atari/rmsprop.py)."""
    learning_rate: Annotated[float, Range(1e-12, 1e3)] = 2.5e-4
    """Step size of the optimiser. Adam at 2.5e-4 without ``center_pixels`` kills conv1's ReLUs in Pong."""
    learning_rate_final: Annotated[float, Range(1e-12, 1e3)] = 2e-5
    """Step size at the end; it falls linearly over the last third of the training."""
    optimizer_epsilon: Annotated[float, Range(1e-30, 1e3)] = 1e-5
    """Epsilon in the optimiser's denominator: beside Adam's root, inside RMSProp's."""
    center_pixels: bool = True
    """Train on pixels less their mean; folded into conv1's bias when the teacher is saved."""
    averaging: Annotated[float, Range(0, 0.99999)] = 0.0
    """Decay per update of the running mean of the weights that is saved as the teacher; 0: the last
    weights themselves. The gaps between Q-values are small against the noise of single updates (Polyak 1992)."""
    selection_period: Annotated[int, Range(0, 1e9)] = 0
    """Agent steps between two snapshots of the weights, each of which plays full games; the best becomes the teacher,
    as Mnih 2015 reports its best evaluation; 0: the last weights (at a resumption: the best before stays). Where
    ``initial``, it is the first snapshot."""
    selection_games: Annotated[int, Range(1, 100_000)] = 50
    """Games that each snapshot plays, with epsilon 0.05, none of them one of ``spikestill evaluate``; a
    minute or two for 50 on two cores."""
    max_gradient_norm: Annotated[float, Range(0, 1e9)] = 10.0
    """Gradients are scaled down to this L2 norm; 0: never."""
    epsilon_final: Share = 0.03
    """Exploration rate after the decay; it starts at 1."""
    epsilon_steps: Annotated[int, Range(1, 1e9)] = 150_000
    """Agent steps over which the exploration rate falls linearly."""
    life_loss_terminal: bool = True
    """End the return (not the game) where a life is lost, as DQN does."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16", "fp16-master", "fp8"] = "auto"
    """Format of training, docs/precision.md; master weights are fp32 in each. auto: bf16 if that is faster
    (AMX, AMD's AVX-512 BF16, a GPU from compute capability 8.0), else fp32."""
    loss_scale: Annotated[float, Range(1, 2**40)] = 65_536.0
    """Factor on the loss at the start; fp16 and fp16-master only. Halved where a gradient overflows."""
    loss_scale_period: Annotated[int, Range(1, 1e9)] = 2_000
    """Updates without overflow after which the factor doubles."""
    flat_masters: bool = False
    """Keep the master weights of each group in one flat tensor, which is what the optimiser steps."""
    head_learning_rate_factor: Annotated[float, Range(1e-6, 1e6)] = 1.0
    """Step size of the last layer, a group of its own, as a multiple of the others'."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the network runs."""
    threads: Annotated[int, Range(0, 1024)] = 0
    """Gradient threads on a CPU, each taking a share of the batch; 0: one per core."""
    segment_steps: Annotated[int, Range(1, 1e9)] = 30_000
    """Agent steps of each environment after which all games restart with a new seed, which bounds what a resume
    replays. More than the longest game lasts (108,000 frames: 27,000 steps at frame_skip 4, 54,000 at 2), or such
    games never end."""
    checkpoint_minutes: Annotated[float, Range(1e-3, 1e5)] = 10.0
    """Wall-clock minutes between checkpoints."""
    seed: Seed = 0
    """Seed of weights, exploration, replay and games."""

    def _check(self) -> None:
        unread = READ_BY_DDQN if self.algorithm == "pqn" else READ_BY_PQN
        self._refuse_unread(dict.fromkeys(unread, f"algorithm {self.algorithm}"))
        if self.algorithm == "pqn":
            self._check_rollouts()
        else:
            self._check_replay()
        if self.steps <= self.replay_start:
            raise UserError(
                f"steps {self.steps} end before the first update: replay_start is {self.replay_start}",
                f"give --steps more than {self.replay_start}, or --replay_start less than {self.steps}",
            )
        if self.dueling and self.initial is not None:
            raise UserError(
                f"dueling with initial {self.initial}: a saved teacher has no streams to go on from",
                "omit one of --dueling and --initial",
            )
        for name in ("batch_size", "num_envs"):
            if self.precision == "fp8" and getattr(self, name) % 16:
                raise UserError(
                    f"{name} {getattr(self, name)} with precision fp8: FP8 products want a multiple of 16",
                    f"give --{name} a multiple of 16",
                )

    def _check_rollouts(self) -> None:
        if self.target == "munchausen":
            raise UserError(
                "target munchausen with algorithm pqn, whose returns take the greatest Q-value and no soft maximum",
                "give --target advantage, which widens the gaps between actions too",
            )
        rollout = self.rollout_steps * self.num_envs
        first = -(-self.replay_start // rollout) * rollout
        if self.replay_start < self.steps <= first:
            raise UserError(
                f"steps {self.steps} end before the first update: a round is {rollout} steps, and replay_start "
                f"{self.replay_start} is past after {first}",
                f"give --steps more than {first}",
            )
        if self.batch_size > rollout:
            raise UserError(
                f"batch_size {self.batch_size} is more than a rollout of {self.rollout_steps} steps (rollout_steps) "
                f"of {self.num_envs} environments has",
                f"give --batch_size at most {rollout}, or raise --num_envs",
            )
        if self.replay_start <= rollout:
            raise UserError(
                f"replay_start {self.replay_start} begins to learn before a rollout of {rollout} steps and the "
                "state after it are there",
                f"give --replay_start more than {rollout}",
            )

    def _check_replay(self) -> None:
        if self.num_envs % self.update_period and self.update_period % self.num_envs:
            raise UserError(
                f"update_period {self.update_period} neither divides num_envs {self.num_envs} nor is a multiple of it",
                "give an update_period that does",
            )
        if self.replay_start <= self.n_step * self.num_envs:
            raise UserError(
                f"replay_start {self.replay_start} leaves nothing to learn from: the first {self.n_step} steps "
                f"(n_step) of {self.num_envs} environments have no return yet",
                f"give --replay_start more than {self.n_step * self.num_envs}",
            )
        if self.replay_capacity // self.num_envs < 64 + self.n_step:
            raise UserError(
                f"replay_capacity {self.replay_capacity} leaves {self.replay_capacity // self.num_envs} frames "
                f"for each of {self.num_envs} environments, at least {64 + self.n_step} wanted",
                "raise replay_capacity or lower num_envs",
            )

    @property
    def normalised(self) -> bool:
        """The network has layer norm."""
        return self.algorithm == "pqn" if self.layer_norm is None else self.layer_norm

    @property
    def vector_steps_per_round(self) -> int:
        """Vector steps of acting in one round."""
        if self.algorithm == "pqn":
            return self.rollout_steps
        return max(1, self.update_period // self.num_envs)

    @property
    def updates_per_round(self) -> int:
        """Gradient updates in one round of ``ddqn``."""
        return max(1, self.num_envs // self.update_period)
