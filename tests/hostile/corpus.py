"""Small good files of every format, made by the program's own commands: a folder for each set that is read together."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.recipes import SHORT_RUN


def spikestill(*words: str | Path) -> None:
    """Run a command that must succeed, in this process."""
    from spikestill import cli

    told = io.StringIO()
    with contextlib.redirect_stderr(told), contextlib.redirect_stdout(io.StringIO()):
        status = cli.main([str(word) for word in words])
    assert status == 0, f"{words}: {told.getvalue()[-2000:]}"


def student(folder: Path) -> None:
    """A student of three layers, its core map, a teacher, a buffer of Pong: what a run folder holds."""
    import torch

    from spikestill.common.provenance import Provenance
    from spikestill.student.architectures import LayerSpec
    from spikestill.student.integer_net import save
    from spikestill.teacher.atari.q_network import initial_weights
    from spikestill.teacher.checkpoint import save_teacher
    from tests.nets import random_net

    layers = (LayerSpec(8, 8, 8, 0, 1), LayerSpec(16, 4, 3, 1, 2), LayerSpec(24, 1, 1, 0, 2))
    provenance = Provenance.of({"recipe": "fuzz"}, 0)
    save(random_net(layers, 3), folder / "student.safetensors", provenance)
    weights = initial_weights(6, torch.Generator().manual_seed(0))
    save_teacher(folder / "teacher.safetensors", weights, "pong", 6, provenance, half=True)
    spikestill("map", "--hardware", "ns1e", "--run_dir", folder)
    spikestill("record", "pong", "--frames", 192, "--num_envs", 2, "--flush_every", 64, "--run_dir", folder)


def games(folder: Path) -> None:
    """A student of two games and its core map."""
    from spikestill.common.provenance import Provenance
    from spikestill.student.integer_net import save
    from tests.student.test_games import joint

    save(joint(), folder / "student.safetensors", Provenance.of({"recipe": "fuzz"}, 0))
    spikestill("map", "--hardware", "ns1e", "--run_dir", folder)


def trace(folder: Path) -> None:
    """Two traces of a game that a core map played and a teacher watched."""
    student(folder)
    for name in ("trace.h5", "other.h5"):
        spikestill(
            "play", "pong", "--agent", "cores,teacher", "--lockstep", "--seconds", 2, "--max_speed", "--view", "none",
            "--epsilon", 0.3, "--trace", folder / name, "--run_dir", folder,
        )  # fmt: skip


def numbers(folder: Path) -> None:
    """A buffer of version 2, of a task whose observations and actions are numbers."""
    spikestill(
        "record", "cartpole_swingup", "--agent", "random", "--frames", 128, "--num_envs", 2, "--flush_every", 64,
        "--run_dir",
        folder,
    )  # fmt: skip


def journal(folder: Path) -> None:
    """A buffer whose writer was killed while it committed: the journal is whole, the buffer not yet."""
    from spikestill.dataset import journal as journals
    from spikestill.dataset.format import BufferWriter
    from tests.dataset.test_format import fill, write_buffer

    path = write_buffer(folder / "buffer.h5", 40)
    before = journals._apply

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    writer = BufferWriter.append(path)
    setattr(journals, "_apply", killed)  # noqa: B010
    try:
        fill(writer, 70)
        writer.commit()
    except Killed:
        pass
    finally:
        setattr(journals, "_apply", before)  # noqa: B010
        writer.close()
    assert journals.journal_path(path).exists()


def agents(folder: Path) -> None:
    """The agents and networks of others."""
    import torch
    from torch import nn

    from spikestill.teacher.atari.q_network import initial_weights
    from spikestill.teacher.importing import CLEANRL_LAYERS, SB3_LAYERS

    weights = initial_weights(6, torch.Generator().manual_seed(0))

    def state(layers: dict[str, str], prefix: str, head: str) -> dict[str, Any]:
        names = {ours: f"{prefix}{theirs}" for theirs, ours in layers.items()} | {"head": head}
        split = {name: name.partition(".") for name in weights}
        return {f"{names[layer]}.{part}": weights[name] for name, (layer, _, part) in split.items()}

    torch.save(state(CLEANRL_LAYERS, "", "network.9"), folder / "agent.pth")
    policy = io.BytesIO()
    torch.save(state(SB3_LAYERS, "q_net.features_extractor.", "q_net.q_net.0"), policy)
    with zipfile.ZipFile(folder / "agent.zip", "w") as file:
        file.writestr("data", json.dumps({"action_space": {":type:": "Discrete", "n": 6}}))
        file.writestr("policy.pth", policy.getvalue())
        file.writestr("_stable_baselines3_version", "2.3.0")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(4, 6, 8, 8), nn.ReLU(), nn.Flatten(), nn.Linear(600, 6)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(net, torch.zeros(2, 4, 84, 84)).save(str(folder / "net.ts"))
    (folder / "net.onnx").write_bytes(
        onnx_network({name: each.numpy() for name, each in net.state_dict().items()})
    )
    for name in ("net.ts", "net.onnx"):
        made = folder / Path(name).suffix[1:]
        spikestill("import", folder / name, "--game", "pong", "--run_dir", made)
        (made / "teacher.safetensors").rename(folder / f"teacher-{made.name}.safetensors")


def onnx_network(state: dict[str, np.ndarray]) -> bytes:
    """Return a convolution and a linear layer as ONNX."""
    from onnx import TensorProto, helper, numpy_helper

    names = {"0.weight": "w0", "0.bias": "b0", "3.weight": "w3", "3.bias": "b3"}
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w0", "b0"], ["a"], strides=[8, 8]), helper.make_node("Relu", ["a"], ["b"]),
            helper.make_node("Flatten", ["b"], ["c"]), helper.make_node("Gemm", ["c", "w3", "b3"], ["y"], transB=1),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", 4, 84, 84])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(state[name], short) for name, short in names.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return bytes(model.SerializeToString())


def teach(folder: Path) -> None:
    """A training of a Q-network that goes on."""
    from spikestill.configs.loading import to_yaml
    from tests.teacher.test_teach import SHORT

    (folder / "recipe.yaml").write_text(to_yaml(SHORT))
    spikestill("teach", "--config", folder / "recipe.yaml", "--run_dir", folder)


def distill(folder: Path) -> None:
    """A distillation that goes on."""
    student(folder)
    (folder / "student.safetensors").unlink()
    spikestill("distill", *DISTILL, "--steps", 2, "--run_dir", folder)


DISTILL = (
    "--batch_size",
    8,
    "--log_steps",
    1,
    "--hint_components",
    4,
    "--recalibration_batches",
    2,
    "--validation",
    0.1,
)


def control(folder: Path, **options: Any) -> None:
    """A control agent whose training goes on."""
    from spikestill.configs.loading import to_yaml
    from tests.teacher.control.test_teach import config_of

    small = {
        "steps": 120,
        "seed_steps": 60,
        "evaluation_period": 10_000,
        "replay_capacity": 400,
        "threads": 1,
    }
    (folder / "recipe.yaml").write_text(to_yaml(config_of("cartpole_swingup", **(small | options))))
    spikestill("teach", "cartpole_swingup", "--config", folder / "recipe.yaml", "--run_dir", folder)


def fixed(folder: Path) -> None:
    """A control agent in fixed point whose training goes on."""
    from tests.teacher.control.test_teach import FIXAR

    control(folder, **(FIXAR | {"quantisation_delay": 40}))


def pipeline(folder: Path) -> None:
    """A run folder in which every stage is up to date."""
    student(folder)
    for path in folder.iterdir():
        if path.name != "teacher.safetensors":
            path.unlink()
    (folder / "pipeline.yaml").write_text(SHORT_RUN)
    spikestill("run", "pong", "--config", folder / "pipeline.yaml", "--run_dir", folder)
    spikestill("estimate", "--run_dir", folder)


def recipes(folder: Path) -> None:
    """Recipes of a stage and of a sweep."""
    (folder / "recipe.yaml").write_text(
        "frames: 1000\nnum_envs: 4\nenvironment:\n  game: pong\nseed: 3\nepsilon: 0.05\n"
    )
    (folder / "control.yaml").write_text(
        "environment:\n  game: cartpole_swingup\nalgorithm: sac\nhidden: [24, 24]\nprecision: fp16\nsteps: 400\n"
    )
    (folder / "sweep.yaml").write_text(
        "about: Two temperatures.\nstages: [record, distill, evaluate]\noptions:\n  record: {frames: 2000}\n"
        "  distill: {loss: kl, architecture: 1chip}\ngrid:\n  game: [breakout, pong]\n"
        "  distill.temperature: [0.05, 0.01]\n"
    )


MAKERS: dict[str, Callable[[Path], None]] = {
    maker.__name__: maker
    for maker in (
        student, games, trace, numbers, journal, agents, teach, distill, control, fixed, pipeline, recipes,
    )
}  # fmt: skip


def make(name: str, root: Path) -> Path:
    """Return the folder of a set, made where it is not there yet."""
    folder = root / name
    if not folder.exists():
        folder.mkdir()
        MAKERS[name](folder)
        for left in folder.glob(".lock*"):
            left.unlink()
    return folder


if __name__ == "__main__":
    import time

    for each in sys.argv[2:] or MAKERS:
        began = time.process_time()
        made = make(each, Path(sys.argv[1]))
        print(
            f"{each} {time.process_time() - began:.1f} s:",
            {path.name: path.stat().st_size for path in made.iterdir()},
        )
