"""The example of every help page runs: typed as it stands, in one folder, on less where it would take long."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from spikestill import cli
from spikestill.verbs import CONTROL, VERBS

LITTLE_TEACHING = "--steps 64 --num_envs 4 --replay_start 32 --replay_capacity 1000"
LITTLE_LADDER = "--frames 4 --naive_frames 1 --lava_frames 0 --stock_frames 0"
LITTLE_RUN = (
    "--record.frames 320 --record.num_envs 4 --distill.steps 2 --distill.batch_size 8 --verify.frames 4 "
    "--verify.naive_frames 1 --verify.lava_frames 0 --verify.stock_frames 0 --play.episodes null --play.seconds 1 "
    "--evaluate.episodes 1 --evaluate.num_envs 1 --evaluate.compare false"
)
# Examples that go on from each other's files run in one folder, one after another.
CHAINS = {
    "stages": ("teach pong", "record", "distill", "map", "verify", "estimate", "export"),
    "games": ("play pong", "evaluate pong", "replay", "compare"),
    "pipelines": ("import", "run", "report", "inspect"),
    "rollouts": ("teach breakout",),
    "control": ("teach cheetah_run", "teach half_cheetah", "play cheetah_run", "evaluate cheetah_run"),
    "sweeps": ("sweep",),
    "lists": ("zoo", "completion", "doctor"),
}
# What each chain leaves.
MADE = {
    "stages": ("runs/pong/teacher.safetensors", "runs/pong/core_map.h5", "runs/pong/student.nir"),
    "games": ("game.h5",),
    "pipelines": ("runs/demo/report.html", "runs/mine/report.html", "runs/both/report.html", "cores.html"),
    "rollouts": ("runs/breakout/teacher.safetensors",),
    "control": ("runs/cheetah/teacher.safetensors", "cheetah.mp4"),
    "sweeps": ("runs/table2/sweep.html",),
    "lists": (),
}
# How an example begins, what is replaced in it, and what is added to it.
SHORTER = (
    ("teach pong", "", "", LITTLE_TEACHING),
    (
        "teach breakout",
        "",
        "",
        "--steps 96 --num_envs 4 --rollout_steps 8 --batch_size 16 --replay_start 33 --epsilon_steps 50",
    ),
    (
        "teach cheetah_run",
        "",
        "",
        "--steps 40 --seed_steps 20 --batch_size 8 --hidden 16 --evaluation_games 1",
    ),
    ("teach half_cheetah", "", "", "--steps 40 --seed_steps 20 --evaluation_games 1 --replay_capacity 1000"),
    ("record pong", "--frames 100000", "--frames 512 --num_envs 4", ""),
    ("distill", "", "", "--steps 2 --batch_size 8 --log_steps 1"),
    ("map", "", "", "--anneal_seconds 1"),
    ("verify", "", "", LITTLE_LADDER),
    ("estimate", "", "", "--frames 4"),
    ("play pong", "--seconds 60", "--seconds 2", "--trace game.h5"),
    ("evaluate pong", "--episodes 100", "--episodes 1", "--compare false"),
    ("play cheetah_run", "--seconds 20", "--seconds 1", ""),
    ("evaluate cheetah_run", "", "", "--episodes 1"),
    ("run --config demo", "", "", LITTLE_RUN),
    ("run breakout", "", "", LITTLE_RUN),
    ("run pong+freeway", "", "", LITTLE_RUN),
    (
        "sweep table2",
        "distill.steps=2000",
        "distill.steps=2,distill.temperature=0.01,record.frames=320,evaluate.episodes=1",
        "",
    ),
)


def examples() -> list[str]:
    """Return the commands of all help pages, each once, in the order of the stages, those of control after them."""
    control = (VERBS[name].chosen(["cheetah_run"]) for name in CONTROL)
    lines = (line for verb in (*VERBS.values(), *control) for line in verb.example.splitlines())
    typed = (line.replace("source <(", "").replace(")", "") for line in lines if not line.startswith(" "))
    return list(dict.fromkeys(typed))


def short(line: str) -> str:
    """Return an example on less."""
    for begin, long, less, more in SHORTER:
        if line.startswith(f"spikestill {begin}"):
            assert long in line
            return f"{line.replace(long, less)} {more}"
    return line


def agent_zip(path: Path) -> None:
    """Write an untrained agent of Stable-Baselines3 for Breakout's four actions."""
    import gymnasium
    import numpy as np
    import stable_baselines3

    class Frames(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
        action_space = gymnasium.spaces.Discrete(4)

    stable_baselines3.DQN("CnnPolicy", Frames(), buffer_size=10, seed=0).save(path)


@pytest.mark.parametrize("line", examples())
def test_an_example_is_a_command_with_valid_options(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line)
    assert words[0] == "spikestill"
    assert cli.main([*words[1:], "--print_config"]) == 0, capsys.readouterr().err


def test_every_help_page_shows_an_example_of_its_own_command() -> None:
    for name, verb in VERBS.items():
        assert re.match(rf"(source <\()?spikestill {name}\b", verb.example), name


def chain(name: str) -> list[str]:
    """Return the examples of one chain, in the order in which they run."""
    begins = tuple(f"spikestill {begin}" for begin in CHAINS[name])
    return [line for line in examples() if line.startswith(begins)]


def test_every_example_is_in_one_chain() -> None:
    assert sorted(line for name in CHAINS for line in chain(name)) == sorted(examples())
    assert [
        verb for verb in VERBS if not any(f"spikestill {verb} " in f"{line} " for line in examples())
    ] == []


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "lists" else pytest.mark.slow) for name in CHAINS]
)
@pytest.mark.timeout(1800)
def test_the_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "control":
        pytest.importorskip("dm_control")
    if name == "sweeps":
        pytest.importorskip("ray")
    monkeypatch.chdir(tmp_path)
    if name == "pipelines":
        agent_zip(tmp_path / "agent.zip")
    for line in chain(name):
        if line.startswith("spikestill run breakout"):
            # Another example has made this folder's teacher.
            shutil.rmtree("runs/mine")
        assert cli.main(shlex.split(short(line))[1:]) == 0, short(line)
        if "--trace game.h5" in short(line):
            for copy in ("one.h5", "two.h5"):
                shutil.copy("game.h5", copy)
    assert [made for made in MADE[name] if not Path(made).is_file()] == []
