"""Readers of every format, directly and by every verb that takes it.

A reader gets the folder of a case, in which one file is damaged, and returns a hash of what it read; '' where there is
nothing to compare.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.hostile.corpus import DISTILL

Reader = Callable[[Path], str]
UNEXPECTED = re.compile(r"unexpected \w+: .*--debug", re.S)
"""What the command line says to an exception that nobody thought of. Python has "unexpected end of data"."""


def digest(*values: Any) -> str:
    """Return a hash of arrays and JSON values."""
    told = hashlib.sha256()
    for value in values:
        told.update(
            value.tobytes() if isinstance(value, np.ndarray) else json.dumps(value, default=str).encode()
        )
    return told.hexdigest()


def called(name: str, reader: Reader) -> Reader:
    """Return the reader under a name that findings show."""
    reader.__name__ = name
    return reader


class Refused(Exception):  # noqa: N818
    """A command ended with an error; the message is what it said."""


class Interrupting(io.StringIO):
    """Standard error that presses Ctrl-C where a pipeline begins a stage."""

    def write(self, text: str) -> int:
        if re.match(r"\[[1-6]/7\] \w+: (?!up to date)", text):
            os.kill(os.getpid(), signal.SIGINT)
        return super().write(text)


def told(*words: str | Path, interrupting: bool = False) -> dict[str, Any]:
    """Run a command in this process and return its summary.

    Raises:
        Refused: it ended with an error.
        AssertionError: it said what no command says.
    """
    from spikestill import cli

    errors, out = (Interrupting() if interrupting else io.StringIO()), io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(out):
        status = cli.main([*map(str, words), "--json"])
    said = errors.getvalue()
    assert not UNEXPECTED.search(said), said[-600:]
    assert "Traceback" not in said, said[-900:]
    assert status in (0, 1, 2, 130), f"status {status}"
    if status in (1, 2):
        raise Refused(said)
    return dict(json.loads(out.getvalue().splitlines()[-1])) if status == 0 else {}


def without(summary: dict[str, Any], *names: str) -> str:
    """Return a hash of a summary without what differs from run to run."""
    return digest(
        {key: value for key, value in summary.items() if key not in (*names, "path", "artefact", "bytes")}
    )


# --- readers of one format


def student(folder: Path) -> str:
    from spikestill.student.integer_net import load

    net, provenance = load(folder / "student.safetensors")
    parts = [
        part for layer in net.layers for part in (layer.weight_OIHW, layer.theta_O, layer.stride, layer.pad)
    ]
    named = list(net.input_shape), net.game, str(net.legal)
    return digest(*parts, net.actions, *named, dataclasses.asdict(provenance))


def teacher(folder: Path) -> str:
    from spikestill.teacher.checkpoint import read_teacher

    weights, game, actions, provenance = read_teacher(folder / "teacher.safetensors")
    return digest(
        *(weights[name].numpy() for name in sorted(weights)), game, actions, dataclasses.asdict(provenance)
    )


def core_map(folder: Path) -> str:
    from spikestill.deploy.core_map import ARRAYS, load

    return _core_map(load(folder / "core_map.h5"), ARRAYS)


def _core_map(found: Any, names: Any) -> str:
    return digest(*(getattr(found, name) for name in names), found.game, found.actions, str(found.spec))


def buffer(folder: Path) -> str:
    from spikestill.dataset.format import BufferFile

    with BufferFile(folder / "buffer.h5") as file:
        file.check_frames()
        columns = file.steps.columns()
        frames = []
        if file.header.version == 1:
            frames = [
                file.decode(chunk, stream)
                for chunk in range(len(file._offset))
                for stream in range(file.header.streams)
            ]
        return digest(
            *(columns[name] for name in sorted(columns)),
            *frames,
            file.header.game,
            file.header.action_names,
            file.rows,
        )


def journalled(folder: Path) -> str:
    """The buffer as it was before its last commit, or as it is after it; nothing between."""
    from tests.dataset.test_format import check_content

    try:
        return str(check_content(folder / "buffer.h5") in (40, 70))
    except AssertionError:
        return "neither"


def trace(folder: Path) -> str:
    from spikestill.runtime.trace import ARRAYS, load

    found = load(folder / "trace.h5")
    return digest(
        *(getattr(agent, name) for agent in found.agents for name in ARRAYS),
        found.seed,
        str(found.environment),
    )


def control_agent(folder: Path) -> str:
    from spikestill.common.environment import environment
    from spikestill.teacher.control.policy import load_policy

    spec = environment("cartpole_swingup")
    policy = load_policy(folder / "teacher.safetensors", spec)
    rng = np.random.default_rng(0)
    row = {field.name: rng.uniform(-1, 1, (1, *field.shape)).astype(field.dtype) for field in spec.fields}
    decision = policy.act(row)
    return digest(decision.action, decision.scores)


def program(folder: Path, name: str) -> str:
    from spikestill.teacher.policy import load_teacher

    policy = load_teacher(folder / name)
    return digest(policy.q_values(np.random.default_rng(0).integers(0, 256, (1, 4, 84, 84), np.uint8)))


def onnx_teacher(folder: Path) -> str:
    return program(folder, "teacher-onnx.safetensors")


def torchscript_teacher(folder: Path) -> str:
    return program(folder, "teacher-ts.safetensors")


# --- verbs


def inspect(name: str) -> Reader:
    return called("inspect", lambda folder: without(told("inspect", folder / name)))


def inspected_journal(folder: Path) -> str:
    told("inspect", folder / "buffer.h5")
    return ""


def inspect_html(folder: Path) -> str:
    told("inspect", folder / "core_map.h5", "--html", folder / "page.html")
    return ""


def inspect_folder(folder: Path) -> str:
    told("inspect", folder)
    return ""


def map_(folder: Path) -> str:
    from spikestill.deploy.core_map import ARRAYS, load

    (folder / "core_map.h5").unlink()
    told("map", "--hardware", "ns1e", "--run_dir", folder)
    return _core_map(load(folder / "core_map.h5"), ARRAYS)


def verify(folder: Path) -> str:
    few = ("--frames", 4, "--naive_frames", 1, "--lava_frames", 0, "--stock_frames", 0)
    return digest(told("verify", *few, "--run_dir", folder)["ok"])


def estimate(folder: Path) -> str:
    return without(told("estimate", "--run_dir", folder), "seconds", "provenance")


def export(to: str) -> Reader:
    def export_(folder: Path) -> str:
        told("export", to, "--frames", 2, "--run_dir", folder)
        return ""

    return called(f"export {to}", export_)


def evaluate(agent: str) -> Reader:
    def evaluate_(folder: Path) -> str:
        few = ("--episodes", 1, "--num_envs", 1, "--compare", "false")
        return digest(told("evaluate", "pong", "--agent", agent, *few, "--run_dir", folder)["mean"])

    return called(f"evaluate {agent}", evaluate_)


def play(agent: str) -> Reader:
    def play_(folder: Path) -> str:
        quick = ("--seconds", 0.5, "--max_speed", "--view", "none")
        told("play", "pong", "--agent", agent, *quick, "--run_dir", folder)
        return ""  # how far it comes in half a second differs

    return called(f"play {agent}", play_)


def play_control(folder: Path) -> str:
    quick = ("--seconds", 0.5, "--max_speed", "--view", "none")
    told("play", "cartpole_swingup", *quick, "--run_dir", folder)
    return ""


def evaluate_control(folder: Path) -> str:
    few = ("--episodes", 1, "--num_envs", 1, "--compare", "false")
    return digest(told("evaluate", "cartpole_swingup", *few, "--run_dir", folder)["mean"])


def replay(folder: Path) -> str:
    return without(
        told("replay", folder / "trace.h5", "--run_dir", folder, "--core_map", folder / "core_map.h5"),
        "trace",
    )


def compare(folder: Path) -> str:
    return without(told("compare", folder / "trace.h5", "--other", folder / "other.h5"), "trace", "other")


def record(folder: Path) -> str:
    told("record", "pong", "--frames", 64, "--num_envs", 2, "--resume", "--run_dir", folder)
    return ""


def record_numbers(folder: Path) -> str:
    told(
        "record",
        "cartpole_swingup",
        "--agent",
        "random",
        "--frames",
        64,
        "--num_envs",
        2,
        "--resume",
        "--run_dir",
        folder,
    )
    return ""


def record_teacher(folder: Path) -> str:
    (folder / "buffer.h5").unlink()
    told("record", "pong", "--frames", 32, "--num_envs", 2, "--run_dir", folder)
    return buffer_steps(folder)


def buffer_steps(folder: Path) -> str:
    from spikestill.dataset.format import BufferFile

    with BufferFile(folder / "buffer.h5") as file:
        return digest(file.steps.q_values, file.steps.action)


def distill_buffer(folder: Path) -> str:
    for name in ("student.safetensors", "core_map.h5"):
        (folder / name).unlink()
    told("distill", *DISTILL, "--steps", 1, "--run_dir", folder)
    return ""


def distill_resume(folder: Path) -> str:
    told("distill", *DISTILL, "--steps", 3, "--resume", "--run_dir", folder)
    return student(folder)


def distill_initial(folder: Path) -> str:
    (folder / "distill-checkpoint.safetensors").rename(folder / "initial.safetensors")
    (folder / "student.safetensors").unlink()
    told("distill", *DISTILL, "--steps", 1, "--initial", folder / "initial.safetensors", "--run_dir", folder)
    return student_weights(folder)


def student_weights(folder: Path) -> str:
    from spikestill.student.integer_net import load

    net, _ = load(folder / "student.safetensors")
    return digest(*(part for layer in net.layers for part in (layer.weight_OIHW, layer.theta_O)))


def teach_resume(folder: Path) -> str:
    told("teach", "--config", folder / "recipe.yaml", "--steps", 152, "--resume", "--run_dir", folder)
    return teacher_weights(folder)


def teacher_weights(folder: Path) -> str:
    from spikestill.teacher.checkpoint import read_teacher

    weights, *_ = read_teacher(folder / "teacher.safetensors")
    return digest(*(weights[name].numpy() for name in sorted(weights)))


def teach_initial(folder: Path) -> str:
    (folder / "teach-checkpoint.safetensors").unlink()
    (folder / "teacher.safetensors").rename(folder / "initial.safetensors")
    told(
        "teach",
        "--config",
        folder / "recipe.yaml",
        "--initial",
        folder / "initial.safetensors",
        "--steps",
        136,
        "--run_dir",
        folder,
    )
    return ""


def control_resume(folder: Path) -> str:
    told(
        "teach",
        "cartpole_swingup",
        "--config",
        folder / "recipe.yaml",
        "--steps",
        140,
        "--resume",
        "--run_dir",
        folder,
    )
    return control_agent(folder)


def import_(name: str) -> Reader:
    def import__(folder: Path) -> str:
        told("import", folder / name, "--game", "pong", "--run_dir", folder / "made")
        made = folder / "made" / "teacher.safetensors"
        if name in ("agent.pth", "agent.zip"):
            return teacher_weights(folder / "made")
        # ONNX has no checksum: other weights are another network.
        hashed = program(made.parent, made.name)
        return "" if name == "net.onnx" else hashed

    return called("import", import__)


def run(folder: Path) -> str:
    told("run", "pong", "--config", folder / "pipeline.yaml", "--run_dir", folder, interrupting=True)
    return ""


def report(folder: Path) -> str:
    told("report", folder)
    return ""


def doubted(verb: str, *more: str) -> Reader:
    def print_config(folder: Path) -> str:
        told_yaml(
            verb,
            *more,
            "--config",
            folder / ("control.yaml" if verb == "teach" else "recipe.yaml"),
            "--print_config",
        )
        return ""

    return called(f"{verb} --print_config", print_config)


def sweep_plan(folder: Path) -> str:
    from spikestill.configs.sweep import load_sweep
    from spikestill.sweep.plan import plan

    plan(load_sweep(str(folder / "sweep.yaml")))
    return ""


def told_yaml(*words: str | Path) -> None:
    with contextlib.suppress(IndexError, json.JSONDecodeError):  # it prints YAML
        told(*words)
