"""Options of ``spikestill import``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from configs.environment import EnvironmentConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportConfig:
    """Another library's Atari agent as a teacher: what it scores actions by becomes the Q-values."""

    path: Path
    """The file: a Stable-Baselines3 ``.zip``, or a PyTorch state dict that CleanRL saved."""
    environment: EnvironmentConfig = dataclasses.field(default_factory=EnvironmentConfig)
    """The game that the agent plays; the file does not say."""
    library: Literal["auto", "sb3", "cleanrl"] = "auto"
    """Who wrote it: Stable-Baselines3 (DQN, QR-DQN, PPO, A2C with ``CnnPolicy``), CleanRL (``dqn_atari``,
    ``ppo_atari``); auto: told from the file."""
