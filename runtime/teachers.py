"""A teacher's Q-network in other forms: integers only, and ONNX Runtime.

Axis suffixes: B batch, A actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from spikestill.common.environment import EnvironmentSpec, Observations
from spikestill.common.errors import UserError
from spikestill.common.extras import install_command
from spikestill.common.policy import Decision, Policy
from spikestill.configs.environment import EnvironmentConfig
from spikestill.student.game_check import check_file_game

if TYPE_CHECKING:
    from spikestill.teacher.atari.fixed_network import Bits
    from spikestill.teacher.atari.q_network import Weights

CALIBRATION_FRAMES = 512
CALIBRATION_GAMES = 8
CALIBRATION_EPSILON = 0.05


class FixedPolicy:
    """The network in integer arithmetic; scores are its sums as Q-values."""

    def __init__(self, weights: Weights, stacks_BCHW: npt.NDArray[np.uint8], bits: Bits) -> None:
        from spikestill.teacher.atari.fixed_kernel import FixedKernel
        from spikestill.teacher.atari.fixed_network import calibrate, q_values

        self._kernel, self._q_values = FixedKernel(calibrate(weights, stacks_BCHW, bits)), q_values

    def act(self, observations: Observations) -> Decision:
        """Take the action of the largest advantage; see :class:`spikestill.common.policy.Policy`."""
        sums_BO = self._kernel(observations["stack"])
        return Decision(np.argmax(sums_BO[:, :-1], axis=1), self._q_values(self._kernel.layers, sums_BO))


class OnnxPolicy:
    """The network run by ONNX Runtime."""

    def __init__(self, network: Any) -> None:
        self._network = network

    def act(self, observations: Observations) -> Decision:
        """Take the action of the highest Q-value; see :class:`spikestill.common.policy.Policy`."""
        return Decision.best(self._network(observations["stack"]))


def make_fixed(files: Mapping[str, Path], environment: EnvironmentSpec, bits: Bits = 16) -> Policy:
    """Return the teacher in 16-bit integers, calibrated on ``files["buffer"]``, else on frames that it plays.

    Raises:
        UserError: a teacher with layer norm.
    """
    from spikestill.teacher.atari.q_network import is_normalised
    from spikestill.teacher.checkpoint import nature_network, read_teacher_file

    path = files["teacher"]
    weights, game, actions, _ = nature_network(path, read_teacher_file(path))
    _check(path, game, actions, environment)
    if is_normalised(weights):
        raise UserError(
            f"{path}: a network with layer norm divides by a deviation of its own at every place, which the "
            "integers of fixed do not",
            "take --agent teacher, fp16 or onnx, or a teacher that was trained with --layer_norm false",
        )
    stacks = _recorded(files["buffer"], environment) if "buffer" in files else _played(path, environment)
    return FixedPolicy(weights, stacks, bits)


def make_fixed8(files: Mapping[str, Path], environment: EnvironmentSpec) -> Policy:
    """Return the teacher in 8-bit integers."""
    return make_fixed(files, environment, 8)


def make_onnx(files: Mapping[str, Path], environment: EnvironmentSpec) -> Policy:
    """Return the teacher on ONNX Runtime: an imported ONNX program as it is, a network of ours as ONNX.

    Raises:
        UserError: ONNX or its runtime is not installed, or the teacher is a TorchScript program.
    """
    from spikestill.teacher.checkpoint import nature_network, read_teacher_file
    from spikestill.teacher.program import LANGUAGES, Program, program_of, start

    path = files["teacher"]
    file = read_teacher_file(path)
    _check(path, file.game, file.actions, environment)
    if file.architecture in LANGUAGES:
        program = program_of(path, file)
        if program.language != "onnx":
            raise UserError(
                f"{path}: is a {program.language} program, not an ONNX one", "take --agent teacher"
            )
    else:
        weights, *_ = nature_network(path, file)
        program = Program(as_onnx(weights), "onnx", 255.0, 0)
    return OnnxPolicy(start(program, str(path)))


def as_onnx(weights: Weights) -> bytes:
    """Return the Nature network as an ONNX model: stacks (B, 4, 84, 84) float32 in 0..1 to Q-values (B, A).

    Raises:
        UserError: the package ``onnx`` is not installed.
    """
    try:
        from onnx import TensorProto, helper, numpy_helper
    except ImportError as error:
        raise UserError(
            "agent onnx needs the package onnx", f"`{install_command('onnx')}` installs it"
        ) from error
    from spikestill.teacher.atari import q_network

    plain = {name: tensor.float().numpy() for name, tensor in q_network.plain(weights).items()}
    normalised = q_network.is_normalised(plain)
    before = "normal" if normalised else "sum"

    def normalise(layer: str, given: str, found: str) -> Any:
        inputs = [given, f"{layer}.gain", f"{layer}.shift"]
        return helper.make_node("LayerNormalization", inputs, [found], epsilon=q_network.EPSILON)

    nodes, last = [], "stacks"
    for name, _, _, _, stride in q_network.CONVOLUTIONS:
        inputs = [last, f"{name}.weight", f"{name}.bias"]
        nodes.append(helper.make_node("Conv", inputs, [f"{name}.sum"], strides=[stride, stride]))
        if normalised:
            # ONNX normalises the last axis.
            nodes += [
                helper.make_node("Transpose", [f"{name}.sum"], [f"{name}.sum_last"], perm=[0, 2, 3, 1]),
                normalise(name, f"{name}.sum_last", f"{name}.normal_last"),
                helper.make_node("Transpose", [f"{name}.normal_last"], [f"{name}.normal"], perm=[0, 3, 1, 2]),
            ]
        nodes.append(helper.make_node("Relu", [f"{name}.{before}"], [f"{name}.out"]))
        last = f"{name}.out"
    nodes += [
        helper.make_node("Flatten", [last], ["flat"], axis=1),
        helper.make_node("Gemm", ["flat", "hidden.weight", "hidden.bias"], ["hidden.sum"], transB=1),
        *([normalise("hidden", "hidden.sum", "hidden.normal")] if normalised else []),
        helper.make_node("Relu", [f"hidden.{before}"], ["hidden.out"]),
        helper.make_node("Gemm", ["hidden.out", "head.weight", "head.bias"], ["q"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "nature",
        [helper.make_tensor_value_info("stacks", TensorProto.FLOAT, ["B", 4, 84, 84])],
        [helper.make_tensor_value_info("q", TensorProto.FLOAT, ["B", len(plain["head.bias"])])],
        [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in plain.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def _check(path: Path, game: str, actions: int, environment: EnvironmentSpec) -> None:
    from spikestill.runtime.agents import actions_of

    check_file_game(path, game, actions, environment.name, actions_of(environment))


def _recorded(buffer: Path, environment: EnvironmentSpec) -> npt.NDArray[np.uint8]:
    """Return frames of a buffer, spread over all of it.

    Raises:
        UserError: the buffer cannot be read, is of another game or is empty.
    """
    from spikestill.deploy.frames import Frames

    shape = environment.field("stack").shape
    frames = Frames(
        (buffer,), CALIBRATION_FRAMES, 0, environment.name, (shape[0], shape[1], shape[2]), buffer
    )
    stacks = [np.array(stack) for stack in frames]
    frames.close()
    if not stacks:
        raise UserError(f"{buffer}: holds no frames", "give a buffer that `spikestill record` finished")
    return np.stack(stacks)


def _played(teacher: Path, environment: EnvironmentSpec) -> npt.NDArray[np.uint8]:
    """Return frames of games that the teacher plays, the same ones every time."""
    from spikestill.teacher.evaluation import in_fixed_batches
    from spikestill.teacher.policy import load_teacher

    rng = np.random.default_rng(0)
    policy = load_teacher(teacher)
    games = environment.make(EnvironmentConfig(game=environment.name), CALIBRATION_GAMES, 0)
    try:
        observations = games.reset(np.arange(CALIBRATION_GAMES, dtype=np.int64))
        stacks = []
        with in_fixed_batches(lambda shown: policy.act(shown).action) as choose:
            # Four times as many as are kept: one in four, so that they differ.
            for step in range(4 * CALIBRATION_FRAMES // CALIBRATION_GAMES):
                if step % 4 == 0:
                    stacks.append(observations["stack"].copy())
                actions = choose(observations)
                explore = rng.random(CALIBRATION_GAMES) < CALIBRATION_EPSILON
                actions = np.where(explore, environment.actions.sample(rng, CALIBRATION_GAMES), actions)
                games.send(actions)
                observations = games.receive().observations
    finally:
        games.close()
    return np.concatenate(stacks)
