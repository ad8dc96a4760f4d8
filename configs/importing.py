"""Options of ``spikestill import``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from spikestill.common.atari import check_game
from spikestill.common.errors import UserError
from spikestill.configs.options import Options, Range


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgramOptions(Options):
    """What is to be known of another library's agent beside its file and its game."""

    library: Literal["auto", "sb3", "cleanrl", "onnx", "torchscript"] = "auto"
    """Who wrote it: Stable-Baselines3 (DQN, QR-DQN, PPO, A2C with ``CnnPolicy``), CleanRL (``dqn_atari``,
    ``ppo_atari``), or any network as ONNX or TorchScript, which stays the program that it is; auto: told from
    the file."""
    divide_by: Annotated[float, Range(1e-6, 1e6)] = 1.0
    """What pixels (0..255) are divided by before an ONNX or TorchScript network sees them: 1 where it divides
    them itself, 255 where it takes 0..1."""
    output: Annotated[int, Range(0, 63)] = 0
    """Which output of an ONNX or TorchScript network has the Q-values or logits."""

    def _check(self) -> None:
        self.check_library(self.library)

    def check_library(self, library: str) -> None:
        """Raise UserError where an option is given that ``library`` has no use for."""
        for name in ("divide_by", "output"):
            if library in ("sb3", "cleanrl") and getattr(self, name) != getattr(ProgramOptions, name):
                raise UserError(
                    f"{name} is {getattr(self, name)}, and is for ONNX and TorchScript networks, not for {library}",
                    f"omit --{name}",
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportConfig(ProgramOptions):
    """Another library's Atari agent as a teacher: what it scores actions by becomes the Q-values."""

    path: Path
    """The file: a Stable-Baselines3 ``.zip``, a PyTorch state dict that CleanRL saved, ONNX or TorchScript."""
    game: str
    """The game that the agent plays, one of the ten of McKinstry 2018 in snake case; the file does not say."""

    def _check(self) -> None:
        check_game(self.game)
        super()._check()
