"""Files that are whole and of the wrong kind, of another game, or of another net: each is refused by name."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from spikestill import cli
from spikestill.common.provenance import Provenance
from spikestill.configs.hardware import hardware
from spikestill.deploy.core_map import save as save_core_map
from spikestill.deploy.mapping import map_net
from spikestill.student import integer_net
from spikestill.teacher.atari.q_network import initial_weights
from spikestill.teacher.checkpoint import save_teacher

FEW = ["--frames", "2", "--naive_frames", "1", "--lava_frames", "0", "--stock_frames", "0"]
ONE = ["--episodes", "1", "--num_envs", "1", "--compare", "false"]
SHORT = ["--seconds", "0.1", "--max_speed", "--view", "none"]
KINDS = {
    "student": "student.safetensors", "teacher": "teacher.safetensors", "core_map": "core_map.h5",
    "buffer": "buffer.h5", "recipe": "map.config.yaml",
}  # fmt: skip
# Command, the option that names a file, and what kind it should be of.
OPTIONS = [
    (["map"], "student", "student"),
    (["verify", *FEW], "student", "student"),
    (["export", "ranc"], "core_map", "core_map"),
    (["export", "nir"], "student", "student"),
    (["record", "pong", "--frames", "8", "--num_envs", "2"], "teacher", "teacher"),
    (["record", "pong", "--frames", "8", "--num_envs", "2"], "student", "student"),
    (["distill", "--steps", "1"], "buffer", "buffer"),
    (["teach", "pong", "--steps", "30000"], "initial", "teacher"),
    (["evaluate", "pong", "--agent", "student", *ONE], "student", "student"),
    (["evaluate", "pong", "--agent", "teacher", *ONE], "teacher", "teacher"),
    (["evaluate", "pong", "--agent", "cores", *ONE], "core_map", "core_map"),
    (["play", "pong", "--agent", "cores", *SHORT], "core_map", "core_map"),
    (["play", "pong", "--agent", "fixed", *SHORT], "buffer", "buffer"),
    (["replay"], "trace", "none"),
    (["compare", "--other", "nothing.h5"], "trace", "none"),
    (["import", "--game", "pong"], "path", "none"),
]  # fmt: skip


def refused(words: list[str], path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a command says; it must fail, naming the file, in words of its own."""
    status, told = cli.main(words), capsys.readouterr().err
    assert status in (cli.FAILED, cli.BAD_ARGUMENTS), f"{words}: status {status}"
    assert "unexpected" not in told, told
    assert "Traceback" not in told, told
    assert path.name in told, told
    return told


@pytest.mark.parametrize(("words", "option", "wanted"), OPTIONS, ids=[f"{o[0][0]}-{o[1]}" for o in OPTIONS])
def test_a_whole_file_of_another_kind_is_refused_by_name(words, option, wanted, copied, tmp_path, capsys):
    folder = copied("student")
    for kind, name in KINDS.items():
        if kind != wanted:
            where = (
                ["--run_dir", str(tmp_path / "runs" / kind)] if words[0] not in ("replay", "compare") else []
            )
            refused([*words, f"--{option}", str(folder / name), *where], folder / name, capsys)
            assert not [path for path in (tmp_path / "runs" / kind).glob("*") if path.suffix != ".json"]


@pytest.fixture
def others(tmp_path: Path, copied) -> dict[str, Path]:
    """A student, its map and a teacher for Breakout, which has four actions, and a map of another net for Pong."""
    folder = copied("student")
    provenance = Provenance.of({}, 0)
    net, _ = integer_net.load(folder / "student.safetensors")
    other = dataclasses.replace(net, game="breakout", actions=4)
    found = {
        name: tmp_path / f"breakout-{name}"
        for name in ("student.safetensors", "core_map.h5", "teacher.safetensors")
    }
    integer_net.save(other, found["student.safetensors"], provenance)
    save_core_map(map_net(other, hardware("ns1e"), provenance), found["core_map.h5"])
    weights = initial_weights(4, torch.Generator().manual_seed(0))
    save_teacher(found["teacher.safetensors"], weights, "breakout", 4, provenance)
    return found


@pytest.mark.parametrize(
    ("words", "option", "name"),
    [
        (["play", "pong", "--agent", "cores", *SHORT], "core_map", "core_map.h5"),
        (["play", "pong", "--agent", "student", *SHORT], "student", "student.safetensors"),
        (["play", "pong", "--agent", "teacher", *SHORT], "teacher", "teacher.safetensors"),
        (["play", "pong", "--agent", "fixed", *SHORT], "teacher", "teacher.safetensors"),
        (["evaluate", "pong", "--agent", "cores", *ONE], "core_map", "core_map.h5"),
        (["evaluate", "pong", "--agent", "student", *ONE], "student", "student.safetensors"),
        (["evaluate", "pong", "--agent", "fp16", *ONE], "teacher", "teacher.safetensors"),
        (["record", "pong", "--frames", "8", "--num_envs", "2"], "student", "student.safetensors"),
        (["distill", "--steps", "1"], "teacher", "teacher.safetensors"),
        (["verify", *FEW], "student", "student.safetensors"),
        (["verify", *FEW], "core_map", "core_map.h5"),
    ],
)  # fmt: skip
def test_what_is_of_another_game_is_refused_by_name(words, option, name, others, copied, tmp_path, capsys):
    folder = tmp_path / "student"
    run_dir = tmp_path / "run" if words[0] in ("record", "distill", "play", "evaluate") else folder
    given = ["--buffer", str(folder / "buffer.h5")] if words[0] == "distill" else []
    told = refused(
        [*words, *given, f"--{option}", str(others[name]), "--run_dir", str(run_dir)], others[name], capsys
    )
    assert "breakout" in told or "another student" in told or "actions" in told


def test_a_map_of_another_net_is_refused(copied, capsys):
    folder = copied("student")
    net, provenance = integer_net.load(folder / "student.safetensors")
    layer = dataclasses.replace(net.layers[0], theta_O=net.layers[0].theta_O + 1)
    integer_net.save(
        dataclasses.replace(net, layers=(layer, *net.layers[1:])), folder / "student.safetensors", provenance
    )
    for words in (
        ["verify", *FEW],
        ["play", "pong", "--agent", "cores", *SHORT],
        ["evaluate", "pong", "--agent", "cores", *ONE],
    ):
        told = refused([*words, "--run_dir", str(folder)], folder / "core_map.h5", capsys)
        assert "was mapped from another student file" in told
