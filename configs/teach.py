"""Options of ``spikestill teach``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from spikestill.common.errors import UserError
from spikestill.common.ranges import check_range
from spikestill.configs.environment import EnvironmentConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeachConfig:
    """Double DQN on one Atari game (van Hasselt 2016); periods count agent steps of all environments."""

    environment: EnvironmentConfig = dataclasses.field(default_factory=EnvironmentConfig)
    """The game."""
    initial: Path | None = None
    """Teacher file to go on from; None: random weights. Exploration then begins at ``epsilon_final``."""
    steps: int = 1_200_000
    """Agent steps to train for (a step is ``frame_skip`` emulator frames), 1..1e9."""
    num_envs: int = 32
    """Environments stepped together, 1..1024."""
    replay_capacity: int = 400_000
    """Frames that the replay holds, 1..1e7; 7,056 bytes each."""
    replay_start: int = 10_000
    """Agent steps taken before the first update, >= 1; actions are random until then (without ``initial``)."""
    update_period: int = 16
    """Agent steps per gradient update, 1..1024; it divides ``num_envs`` or is a multiple of it."""
    batch_size: int = 128
    """Transitions per update, 1..65536."""
    n_step: int = 3
    """Rewards summed before bootstrapping, 1..32; 1 is the paper's (Sutton 1988 for n-step returns)."""
    discount: float = 0.99
    """Discount of one agent step, 0..1."""
    priority_exponent: float = 0.5
    """Alpha of proportional prioritised replay (Schaul 2016), 0..1; 0 samples uniformly."""
    priority_correction: float = 0.4
    """Beta at the start, raised linearly to 1 at the end, 0..1."""
    target_period: int = 4_000
    """Agent steps between copies of the online network to the target network, >= 1."""
    dueling: bool = False
    """Split the last layer into a value and an advantage stream (Wang 2016). The teacher is saved as a plain Nature
    network, which says the same."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """``adam`` (Kingma 2015) or ``rmsprop``, centred with decay 0.95 (Mnih 2015, teacher/atari/rmsprop.py)."""
    learning_rate: float = 2.5e-4
    """Step size of the optimiser, > 0. Adam at 2.5e-4 without ``center_pixels`` kills conv1's ReLUs in Pong."""
    learning_rate_final: float = 2e-5
    """Step size at the end; it falls linearly over the last third of the training, > 0."""
    optimizer_epsilon: float = 1e-5
    """Epsilon in the optimiser's denominator, > 0: beside Adam's root, inside RMSProp's."""
    center_pixels: bool = True
    """Train on pixels less their mean; folded into conv1's bias when the teacher is saved."""
    averaging: float = 0.0
    """Decay per update of the running mean of the weights that is saved as the teacher, 0..0.99999; 0: the last
    weights themselves. The gaps between Q-values are small against the noise of single updates (Polyak 1992)."""
    selection_period: int = 0
    """Agent steps between two snapshots of the weights, each of which plays full games; the best becomes the teacher,
    as Mnih 2015 reports its best evaluation; 0: the last weights (at a resumption: the best before stays). Where
    ``initial``, it is the first snapshot."""
    selection_games: int = 50
    """Games that each snapshot plays, with epsilon 0.05, none of them one of ``spikestill evaluate``, 1..100000; a
    minute or two for 50 on two cores."""
    max_gradient_norm: float = 10.0
    """Gradients are scaled down to this L2 norm, >= 0; 0: never."""
    epsilon_final: float = 0.03
    """Exploration rate after the decay, 0..1; it starts at 1."""
    epsilon_steps: int = 150_000
    """Agent steps over which the exploration rate falls linearly, >= 1."""
    life_loss_terminal: bool = True
    """End the return (not the game) where a life is lost, as DQN does."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16", "fp16-master", "fp8"] = "auto"
    """Format of training, docs/precision.md; master weights are fp32 in each. auto: bf16 if native (a CPU with
    AVX-512 BF16 or AMX, a GPU from compute capability 8.0), else fp32."""
    loss_scale: float = 65_536.0
    """Factor on the loss at the start, 1..2**40; fp16 and fp16-master only. Halved where a gradient overflows."""
    loss_scale_period: int = 2_000
    """Updates without overflow after which the factor doubles, >= 1."""
    flat_masters: bool = False
    """Keep the master weights of each group in one flat tensor, which is what the optimiser steps."""
    head_learning_rate_factor: float = 1.0
    """Step size of the last layer, a group of its own, as a multiple of the others', > 0."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the network runs."""
    threads: int = 0
    """Gradient threads on a CPU, each taking a share of the batch; 0: one per core."""
    segment_steps: int = 30_000
    """Agent steps of each environment after which all games restart with a new seed, which bounds what a resume
    replays. More than the longest game lasts (108,000 frames: 27,000 steps at frame_skip 4, 54,000 at 2), or such
    games never end."""
    checkpoint_minutes: float = 10.0
    """Wall-clock minutes between checkpoints, > 0."""
    seed: int = 0
    """Seed of weights, exploration, replay and games, >= 0."""

    def __post_init__(self) -> None:
        for field, low, high in (
            ("steps", 1, 1e9),
            ("num_envs", 1, 1024),
            ("replay_capacity", 1, 1e7),
            ("replay_start", 1, 1e9),
            ("update_period", 1, 1024),
            ("batch_size", 1, 65536),
            ("n_step", 1, 32),
            ("discount", 0, 1),
            ("priority_exponent", 0, 1),
            ("priority_correction", 0, 1),
            ("target_period", 1, 1e9),
            ("learning_rate", 1e-12, 1e3),
            ("learning_rate_final", 1e-12, 1e3),
            ("optimizer_epsilon", 1e-30, 1e3),
            ("averaging", 0, 0.99999),
            ("selection_period", 0, 1e9),
            ("selection_games", 1, 100_000),
            ("max_gradient_norm", 0, 1e9),
            ("epsilon_final", 0, 1),
            ("loss_scale", 1, 2**40),
            ("loss_scale_period", 1, 1e9),
            ("head_learning_rate_factor", 1e-6, 1e6),
            ("epsilon_steps", 1, 1e9),
            ("threads", 0, 1024),
            ("segment_steps", 1, 1e9),
            ("checkpoint_minutes", 1e-3, 1e5),
            ("seed", 0, 2**31 - 1),
        ):
            check_range(self, field, low, high)
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
        if self.steps <= self.replay_start:
            raise UserError(
                f"steps {self.steps} end before the first update: replay_start is {self.replay_start}",
                f"give --steps more than {self.replay_start}, or --replay_start less than {self.steps}",
            )
        if self.dueling and self.initial is not None:
            raise UserError(
                f"dueling with initial {self.initial}: a saved teacher has no streams to go on from",
                "leave one of --dueling and --initial out",
            )
        for name in ("batch_size", "num_envs"):
            if self.precision == "fp8" and getattr(self, name) % 16:
                raise UserError(
                    f"{name} {getattr(self, name)} with precision fp8: FP8 products want a multiple of 16",
                    f"give --{name} a multiple of 16",
                )
        if self.replay_capacity // self.num_envs < 64 + self.n_step:
            raise UserError(
                f"replay_capacity {self.replay_capacity} leaves {self.replay_capacity // self.num_envs} frames "
                f"for each of {self.num_envs} environments, at least {64 + self.n_step} wanted",
                "raise replay_capacity or lower num_envs",
            )

    @property
    def vector_steps_per_round(self) -> int:
        """Vector steps of acting in one round."""
        return max(1, self.update_period // self.num_envs)

    @property
    def updates_per_round(self) -> int:
        """Gradient updates in one round."""
        return max(1, self.num_envs // self.update_period)
