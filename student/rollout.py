"""The ``record`` verb: the teacher plays, or teacher and student play side by side.

Recording knows nothing of students (imports point down); here one is made into a player for it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from spikestill.common.legal import actions_in, own_scores
from spikestill.common.stage import StageResult
from spikestill.configs.record import RecordConfig
from spikestill.dataset import recorder
from spikestill.teacher.atari.environment import action_meanings


def student_player(path: Path, game: str) -> recorder.Player:
    """Return the player that takes the student's actions: the argmax of its votes, ties to the lowest.

    Raises:
        UserError: the file cannot be read, or its student cannot play the game.
    """
    import torch

    from spikestill.common.precision.formats import number_format
    from spikestill.student.game_check import check_file_game
    from spikestill.student.integer_net import load
    from spikestill.student.torch_net import TorchIntegerNet

    net, _ = load(path)
    check_file_game(path, net.game, net.actions, game, len(action_meanings(game)), net.input_shape, net.legal)
    player = TorchIntegerNet(net, dtype=number_format("auto", torch.device("cpu")).body)

    def play(stacks_BCHW: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        # PyTorch's argmax promises no order among equals, NumPy's takes the lowest.
        stacks = torch.from_numpy(np.ascontiguousarray(stacks_BCHW))
        votes = own_scores(player.votes(stacks).numpy(), actions_in(net.legal, game))
        return np.asarray(votes.argmax(axis=1), np.int64)

    return play


def run(config: RecordConfig, run_dir: Path, *, resume: bool = False) -> StageResult:
    """Record ``buffer.h5`` in ``run_dir``.

    Raises:
        UserError: see :func:`record`; teacher or student cannot be read.
    """
    player = None
    if config.student is not None:
        player = student_player(config.student, config.environment.game)
    return recorder.run(config, run_dir, resume=resume, player=player)
