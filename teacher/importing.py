"""The ``import`` stage: agents of Stable-Baselines3 and CleanRL, ONNX and TorchScript networks as teachers.

The first two's are the Nature network (Mnih 2015) under other names, or become it exactly:

    DQN      Q-values as they are
    QR-DQN   Q(s, a) = mean over the N quantiles, a mean of the head's rows (Dabney 2018)
    PPO, A2C the policy's logits stand for Q-values: distil them with ``--temperature 1``

An ONNX or TorchScript network stays the program that it is (``teacher/program.py``). Nothing is unpickled: PyTorch
reads the tensors with ``weights_only``, which refuses everything else.
"""

from __future__ import annotations

import io
import json
import pickle
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from spikestill.common.archives import check_archive
from spikestill.common.artefacts import TEACHER
from spikestill.common.errors import MALFORMED, UserError
from spikestill.common.limits import AGENT_BYTES, ENTRY_JSON_BYTES, regular_file
from spikestill.common.provenance import Provenance
from spikestill.common.stage import StageResult, refuse_to_replace
from spikestill.configs.importing import ImportConfig
from spikestill.teacher.atari import q_network
from spikestill.teacher.atari.environment import action_meanings
from spikestill.teacher.atari.q_network import Weights
from spikestill.teacher.checkpoint import save_teacher
from spikestill.teacher.onnx_weights import with_its_weights
from spikestill.teacher.program import Program, probe, save_program, start
from spikestill.teacher.pytorch_file import MoreThanTensors, NoPickle, allowed_file

# What PyTorch's files before version 1.6 begin with, pickled.
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C.to_bytes(10, "little")
SB3_LAYERS = {"cnn.0": "conv1", "cnn.2": "conv2", "cnn.4": "conv3", "linear.0": "hidden"}
CLEANRL_LAYERS = {"network.0": "conv1", "network.2": "conv2", "network.4": "conv3", "network.7": "hidden"}
# What distinguishes an agent: kind, prefix of its feature extractor, its head.
SB3_KINDS = (
    ("DQN", "q_net.features_extractor.", "q_net.q_net.0"),
    ("QR-DQN", "quantile_net.features_extractor.", "quantile_net.quantile_net.0"),
    ("actor-critic", "pi_features_extractor.", "action_net"),
    ("actor-critic", "features_extractor.", "action_net"),
)
CLEANRL_KINDS = (("DQN", "", "network.9"), ("actor-critic", "", "actor"))
# Parts that have no say in which action is taken.
NOT_READ = (
    "q_net_target.", "quantile_net_target.", "features_extractor.", "vf_features_extractor.",
    "mlp_extractor.value_net.", "value_net.", "critic.",
)  # fmt: skip


def run(config: ImportConfig, run_dir: Path, *, resume: bool = False) -> StageResult:
    """Write ``teacher.safetensors`` into ``run_dir``; the summary has ``kind``, ``library`` and ``actions``.

    Raises:
        UserError: the file cannot be read safely, is none of these agents, or plays with another number of actions;
            a teacher is in ``run_dir`` already.
    """
    refuse_to_replace(Path(run_dir) / TEACHER, "import")
    game = config.game
    path = Path(config.path)
    content = read_content(path)
    check_archive(path, content)
    library = told_from(path, content) if config.library == "auto" else config.library
    config.check_library(library)
    provenance = Provenance.of(config, seed=0, parents={"source": path})
    artefact, actions = Path(run_dir) / TEACHER, len(action_meanings(game))
    summary: dict[str, Any] = {"library": library, "game": game, "actions": actions}
    if library == "onnx" or library == "torchscript":
        whole = with_its_weights(path, content, check_size) if library == "onnx" else content
        program = Program(whole, library, config.divide_by, config.output)
        scores = probe(start(program, str(path)), str(path))
        if scores.shape[1] != actions:
            raise UserError(
                f"{path}: scores {scores.shape[1]} actions, {game} has {actions}",
                "give --game the game that it plays, or --output another output",
            )
        save_program(artefact, program, game, actions, provenance)
        summary |= {"kind": "program", "scores_of_noise": [float(scores.min()), float(scores.max())]}
        summary["note"] = "where its scores are logits (a policy), distil with --temperature 1"
        return StageResult(artefact, summary)
    state = read_state(path, content, library)
    told = sb3_actions(content) if library == "sb3" else None
    if told is not None and told != actions:
        raise UserError(
            f"{path}: plays with {told} actions, {game} has {actions}", "give --game the game that it plays"
        )
    summary["kind"], weights = nature_weights(path, state, library, actions, game)
    save_teacher(artefact, weights, game, actions, provenance)
    if summary["kind"] == "actor-critic":
        summary["note"] = "its Q-values are logits: distil with --temperature 1"
    return StageResult(artefact, summary)


def read_content(path: Path) -> bytes:
    """Return the file's bytes.

    Raises:
        UserError: missing or too large.
    """
    remedy = "give a Stable-Baselines3 .zip, a CleanRL state dict, an ONNX or a TorchScript file"
    check_size(path, regular_file(path, "file", remedy))
    return path.read_bytes()


def check_size(path: Path, size: int) -> None:
    """Raise UserError if the ``size`` bytes of ``path``, with what belongs to it, are more than are read."""
    if size > AGENT_BYTES:
        raise UserError(f"{path}: {size:,} bytes, at most {AGENT_BYTES:,} are read", "is it an agent?")


def told_from(path: Path, content: bytes) -> Literal["sb3", "cleanrl", "onnx", "torchscript"]:
    """Return who wrote a file, from its content.

    Raises:
        UserError: a ``torch.export`` archive, whose weights PyTorch reads by unpickling.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError):
        return "onnx" if path.suffix == ".onnx" else "cleanrl"
    if "policy.pth" in names:
        return "sb3"
    if any("/code/" in name for name in names):
        return "torchscript"
    if any(
        name.endswith(("serialized_exported_program.json", "archive_format", "models/model.json"))
        for name in names
    ):
        raise UserError(
            f"{path}: a torch.export archive, which PyTorch reads by unpickling, and that can run any code",
            'where you trust it, make it ONNX: python -c "import torch; program = torch.export.load('
            f"'{path.name}'); torch.onnx.export(program, f='{path.stem}.onnx')\", and import that",
        )
    return "cleanrl"


def read_state(path: Path, content: bytes, library: str) -> Mapping[str, Tensor]:
    """Return the tensors by name of a file's ``content``.

    Raises:
        UserError: not of that library, or holding more than tensors.
    """
    if library == "sb3":
        content = _sb3_policy(path, content)
        check_archive(path, content)
    try:
        content_of_tensors = allowed_file(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickle protocols, before it refuses them
            state = torch.load(io.BytesIO(content_of_tensors), map_location="cpu", weights_only=True)
    except NoPickle as error:
        raise UserError(
            f"{path}: not a readable PyTorch file, and no other agent", "save it again"
        ) from error
    except (MoreThanTensors, pickle.UnpicklingError) as error:
        raise UserError(
            f"{path}: holds more than tensors, which would have to be unpickled, and that can run any code",
            "save it again with Stable-Baselines3" if library == "sb3" else _conversion(path.name, content),
        ) from error
    except Exception as error:  # what PyTorch raises on damaged bytes has no common base
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path}: not a readable PyTorch file: {reason}", "save it again") from error
    if not isinstance(state, Mapping) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in state.items()
    ):
        shown = (
            f" of {', '.join(str(name) for name in list(state)[:3])} ..."
            if isinstance(state, Mapping)
            else ""
        )
        raise UserError(
            f"{path}: holds a {type(state).__name__}{shown}, a state dict wanted", "save agent.state_dict()"
        )
    return state


def _conversion(name: str, content: bytes) -> str:
    """Return the remedy for a file that must be unpickled: the command that saves its tensors alone."""
    of_pytorch = zipfile.is_zipfile(io.BytesIO(content)) or LEGACY_MAGIC in content[:32]
    agent = (
        f"torch.load('{name}', weights_only=False)" if of_pytorch else f"pickle.load(open('{name}', 'rb'))"
    )
    return (
        f'where you trust it, save its tensors alone: python -c "import pickle, torch; agent = {agent}; '
        "state = agent.state_dict() if hasattr(agent, 'state_dict') else agent; "
        "torch.save({name: value for name, value in state.items() if torch.is_tensor(value)}, 'agent-tensors.pth')\""
    )


def _sb3_policy(path: Path, content: bytes) -> bytes:
    """Return ``policy.pth`` of a Stable-Baselines3 file.

    Raises:
        UserError: it has none, it is damaged, or too large.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if "policy.pth" in archive.namelist():
                check_size(path, archive.getinfo("policy.pth").file_size)
                return archive.read("policy.pth")
    except UserError:
        raise
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        OSError,
        ValueError,
        NotImplementedError,
        RuntimeError,
    ) as error:
        if zipfile.is_zipfile(io.BytesIO(content)):
            raise UserError(f"{path}: a damaged archive: {error}", "copy it or save it again") from error
    raise UserError(
        f"{path}: has no policy.pth, so it is not from Stable-Baselines3", "try --library cleanrl"
    )


def sb3_actions(content: bytes) -> int | None:
    """Return how many actions a Stable-Baselines3 file says that its agent has, None where it does not say."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if archive.getinfo("data").file_size > ENTRY_JSON_BYTES:
                return None
            return int(json.loads(archive.read("data"))["action_space"]["n"])
    except (zipfile.BadZipFile, zlib.error, *MALFORMED):
        return None


def nature_weights(
    path: Path, state: Mapping[str, Tensor], library: str, actions: int, game: str
) -> tuple[str, Weights]:
    """Return (kind of agent, weights of the Nature network that scores actions as it does).

    Raises:
        UserError: no known agent, another architecture, another number of actions, or a weight that is not finite.
    """
    kinds, layers = (SB3_KINDS, SB3_LAYERS) if library == "sb3" else (CLEANRL_KINDS, CLEANRL_LAYERS)
    remedy = "read are DQN, QR-DQN, PPO and A2C with CnnPolicy, and CleanRL's dqn_atari and ppo_atari"
    first = next(iter(layers))
    found = [each for each in kinds if f"{each[2]}.weight" in state and f"{each[1]}{first}.weight" in state]
    if not found:
        shown = ", ".join(list(state)[:3]) or "nothing"
        raise UserError(f"{path}: no agent of {library} that is known here (it holds {shown} ...)", remedy)
    kind, prefix, head = found[0]
    names = {f"{prefix}{theirs}": ours for theirs, ours in layers.items()} | {head: "head"}
    weights: Weights = {}
    for theirs, ours in names.items():
        for part in ("weight", "bias"):
            if f"{theirs}.{part}" not in state:
                raise UserError(f"{path}: {theirs}.{part} is missing", remedy)
            if state[f"{theirs}.{part}"].numel() > AGENT_BYTES // 4:
                raise UserError(f"{path}: {theirs}.{part} declares more values than a file holds", remedy)
            weights[f"{ours}.{part}"] = _dense(state[f"{theirs}.{part}"], f"{path}: {theirs}.{part}", remedy)
    others = [name for name in state if name.rpartition(".")[0] not in names]
    unknown = [
        name for name in others if not name.startswith(NOT_READ) or (prefix and name.startswith(prefix))
    ]
    if unknown:
        raise UserError(
            f"{path}: {unknown[0]} has no place in the Nature network; the agent has layers of its own",
            remedy,
        )
    if kind == "QR-DQN":
        weights |= mean_of_quantiles(weights, actions, path)
    scored = int(weights["head.bias"].numel())
    if scored != actions:
        raise UserError(
            f"{path}: scores {scored} actions, {game} has {actions}",
            "give --game the game that it plays; agents that model distributions (C51) are not read",
        )
    for name, shape in q_network.shapes(actions).items():
        if tuple(weights[name].shape) != shape:
            raise UserError(
                f"{path}: {name} is {tuple(weights[name].shape)}, the Nature network's is {shape}", remedy
            )
        if not torch.isfinite(weights[name]).all():
            raise UserError(f"{path}: {name} holds NaN or infinite values", "train it again")
    return kind, weights


def _dense(tensor: Tensor, name: str, remedy: str) -> Tensor:
    """Return a copy in fp32.

    Raises:
        UserError: sparse, quantised, or no real floating-point numbers.
    """
    if tensor.device.type != "cpu":
        raise UserError(f"{name} is a tensor without content (device {tensor.device})", "save its values")
    if tensor.layout != torch.strided or tensor.is_quantized or not tensor.is_floating_point():
        raise UserError(f"{name} is {tensor.dtype} in layout {tensor.layout}, dense floats wanted", remedy)
    if not tensor.is_contiguous() and 0 in tensor.stride():
        raise UserError(
            f"{name} repeats its values by strides of 0", "save it again, as `tensor.contiguous()`"
        )
    return tensor.float().clone()


def mean_of_quantiles(weights: Weights, actions: int, path: Path) -> Weights:
    """Return the head whose outputs are the means over quantiles; row q A + a is quantile q of action a.

    Raises:
        UserError: the rows are no multiple of the actions, or the head is no linear layer.
    """
    shape, rows = tuple(weights["head.weight"].shape), weights["head.bias"].numel()
    if len(shape) != 2 or shape[0] != rows:
        raise UserError(
            f"{path}: its quantiles have weights {shape} and {rows} biases, which is no linear layer",
            "save it again",
        )
    if rows == 0 or rows % actions:
        raise UserError(
            f"{path}: {rows} quantiles in all are no multiple of {actions} actions",
            "give --game the game that it plays",
        )
    return {
        "head.weight": weights["head.weight"].view(-1, actions, weights["head.weight"].shape[1]).mean(dim=0),
        "head.bias": weights["head.bias"].view(-1, actions).mean(dim=0),
    }
