"""The exported C of a fixed-point actor is compiled with every warning an error and played beside the agent."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from spikestill.common.errors import UserError
from spikestill.common.provenance import Provenance
from spikestill.configs.exporting import ExportConfig
from spikestill.configs.fixed_point import FixedPointConfig
from spikestill.deploy.export import run
from spikestill.deploy.exports import c_actor
from spikestill.teacher.control import fixed_file
from spikestill.teacher.control.fixed_ddpg import Batch, FixedState, act, initial_state, update

CC = shutil.which("cc")
pytestmark = pytest.mark.skipif(CC is None, reason="no C compiler: apt-get install gcc")
STRICT = ("-std=c99", "-O2", "-Wall", "-Wextra", "-pedantic", "-Werror")
SANITISED = (*STRICT, "-fsanitize=address,undefined", "-fno-sanitize-recover")


def agent(variant: str, hidden: tuple[int, ...] = (40, 30)) -> FixedState:
    """Return an agent after some updates, with 16-bit activations in the variant that has them."""
    state = initial_state(
        FixedPointConfig(variant=variant, quantisation_delay=4, hidden=hidden, learning_rate=1e-3),
        11,
        3,
        seed=1,
    )
    rng = np.random.default_rng(2)
    for _ in range(6):
        batch = Batch(
            rng.normal(size=(16, 11)) * 3, rng.uniform(-1, 1, (16, 3)), rng.normal(size=16), np.ones(16),
            rng.normal(size=(16, 11)) * 3,
        )  # fmt: skip
        state, _ = update(state, batch)
    assert state.quantised == (variant == "fixar")
    # A new agent's last layer is so small that its actions are all alike.
    weight_N = state.actor.weight_N.copy()
    weight_N[-(hidden[-1] + 1) * 3 :] *= 64
    return dataclasses.replace(state, actor=dataclasses.replace(state.actor, weight_N=weight_N))


def played(
    folder: Path, flags: tuple[str, ...], *words: str, frames: bytes
) -> subprocess.CompletedProcess[str]:
    """Compile ``actor.c`` and run it on frames."""
    command = [str(CC), *flags, "-o", "actor", "actor.c"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    ran = subprocess.run(["./actor", *words], input=frames, cwd=folder, capture_output=True, check=False)
    return subprocess.CompletedProcess(words, ran.returncode, ran.stdout.decode(), ran.stderr.decode())


@pytest.mark.parametrize("variant", ["fixed32", "fixar", "fixed16"])
@pytest.mark.parametrize("scale", [1.0, 1e4], ids=["usual observations", "saturated ones"])
def test_the_actor_in_c_gives_the_agents_integers(tmp_path: Path, variant: str, scale: float) -> None:
    state = agent(variant)
    obs = np.random.default_rng(3).normal(size=(200, 11)) * scale
    memory = c_actor.write(state, obs, tmp_path)
    frames = (tmp_path / "frames.bin").read_bytes()
    done = played(tmp_path, SANITISED, frames=frames)
    found = np.array([list(map(int, line.split())) for line in done.stdout.splitlines()])
    word = state.formats.word(state.formats.activation)
    _, wanted = act(state, obs, noise=False)
    assert np.array_equal(word.real(found).astype(np.float32), wanted)
    assert len(np.unique(found)) > (20 if scale == 1 else 1)
    assert played(tmp_path, STRICT, "--check", frames=frames).stdout == "200 observations, 0 differ\n"
    told = f"constants {memory.constant_bytes} bytes, working memory {memory.working_bytes} bytes\n"
    assert played(tmp_path, STRICT, "--memory", frames=b"").stdout == told


def test_the_command_writes_an_agents_actor(tmp_path: Path) -> None:
    fixed_file.save(tmp_path / "agent.safetensors", agent("fixar"), "hopper", Provenance.of({}, 0))
    result = run(ExportConfig(to="c", agent=tmp_path / "agent.safetensors", frames=7), tmp_path)
    assert result.artefact == tmp_path / "c" / "actor.c"
    frames = (tmp_path / "c" / "frames.bin").read_bytes()
    done = played(tmp_path / "c", STRICT, "--check", frames=frames)
    assert done.stdout == "7 observations, 0 differ\n"


def test_the_check_finds_an_observation_that_is_answered_otherwise(tmp_path: Path) -> None:
    c_actor.write(agent("fixar"), np.random.default_rng(4).normal(size=(5, 11)), tmp_path)
    frames = (tmp_path / "frames.bin").read_bytes()
    done = played(tmp_path, STRICT, "--check", frames=frames[44:88] + frames[44:])
    assert (done.returncode, done.stdout) == (1, "5 observations, 1 differ\n")
    assert done.stderr == "the action for observation 0 differs from that expected\n"


def test_an_observation_cut_short_is_told(tmp_path: Path) -> None:
    c_actor.write(agent("fixed32"), np.zeros((1, 11)), tmp_path)
    done = played(tmp_path, STRICT, frames=bytes(4 * 11 + 4 * 3))
    assert (done.returncode, done.stderr) == (1, "observation 1 has 3 integers, 11 are wanted\n")


def test_sums_that_may_not_fit_are_refused(tmp_path: Path) -> None:
    state = dataclasses.replace(agent("fixed32"), observation_size=40_000)
    with pytest.raises(UserError, match=r"layer 0: 40000 inputs, the program's 64-bit sums hold 32768"):
        c_actor.write(state, np.zeros((1, 40_000)), tmp_path / "c")
    assert not (tmp_path / "c").exists()
