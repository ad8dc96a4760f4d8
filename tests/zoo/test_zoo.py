"""What the zoo ships is whole, is what its cards say, and holds the exactness contract on live frames."""

import json
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from spikestill.common.environment import environment
from spikestill.common.provenance import file_sha256
from spikestill.common.zoo import ROOT
from spikestill.configs.environment import EnvironmentConfig
from spikestill.deploy.core_map import load as load_core_map
from spikestill.deploy.packed_kernel import PackedNet
from spikestill.deploy.simulator import CoreSimulator
from spikestill.runtime.agents import agent_files, open_agent
from spikestill.student.integer_net import count_votes, load, naive_forward
from spikestill.student.torch_net import TorchIntegerNet
from spikestill.teacher.atari.environment import VectorGames
from spikestill.teacher.evaluation import evaluate
from spikestill.teacher.policy import load_teacher

TASKS = sorted(
    path.parent.name
    for path in ROOT.glob("*/teacher.json")
    if json.loads(path.read_text())["kind"] == "control agent"
)
STUDENTS = sorted(
    (path.parent.name, path.stem.removeprefix("student-"))
    for path in ROOT.glob("*/student-1chip*.safetensors")
)
"""Game and name of each shipped student: ``1chip``, or with a variant's name, ``1chip-sparse``."""
OFTEN = {("pong", "1chip"), ("pong", "1chip-sparse"), ("freeway+pong", "1chip")}
"""What plays a few frames on every rung in ``make test``; the others, and those of two nets, in ``make test-full``."""


def test_pong_is_shipped():
    assert ("pong", "1chip") in STUDENTS


@pytest.mark.parametrize(
    "card",
    sorted(path for path in ROOT.glob("*/*.json") if not path.name.startswith("verify")),
    ids=lambda path: f"{path.parent.name}-{path.stem}",
)
def test_card_belongs_to_its_file(card):
    document = json.loads(card.read_text())
    assert {"kind", "game"} <= document.keys()
    assert document["game"] == card.parent.name
    scores = document.get("games", {document["game"]: document})
    assert list(scores) == document["game"].split("+")
    for score in scores.values():
        assert {"mean", "ci95", "episodes", "frames"} <= score.keys()
        assert score["ci95"][0] <= score["mean"] <= score["ci95"][1]
    assert file_sha256(card.with_suffix(".safetensors")) == document["sha256"]


@pytest.mark.parametrize(
    "card",
    sorted(ROOT.glob("*/student-1chip*.json")),
    ids=lambda path: f"{path.parent.name}-{path.stem}",
)
def test_the_zoos_page_says_what_a_students_card_says(card):
    document = json.loads(card.read_text())
    page = (ROOT / "README.md").read_text().splitlines()
    for score in document.get("games", {"": document}).values():
        values = [value + 1e-9 for value in (score["mean"], *score["ci95"])]  # halves are rounded up
        wanted = ["{:,.{d}f} ({:,.{d}f}-{:,.{d}f})".format(*values, d=digits) for digits in (0, 2)]
        (row,) = (line for line in page if any(each in line for each in wanted))
        assert f"| {score['percent_of_margin']:.1f} % |" in row
        assert row.endswith(f" {document['cores']:,} |")


@pytest.mark.skipif(find_spec("mujoco") is None, reason="the MuJoCo simulators are not installed")
@pytest.mark.parametrize("task", TASKS)
def test_a_shipped_control_agent_scores_what_its_card_says(task):
    """Two games are few, but random play lies far below."""
    agent = open_agent("teacher", environment(task), agent_files("teacher", task, {}))
    document = json.loads((ROOT / task / "teacher.json").read_text())
    found = evaluate(
        lambda seen: agent.act(seen).action, EnvironmentConfig(game=task), episodes=2, epsilon=0.0, num_envs=2
    )
    assert found.mean > document["random"] + 0.3 * (document["mean"] - document["random"])


@pytest.mark.parametrize(("game", "student"), STUDENTS)
def test_the_ladder_that_is_told_of_is_that_of_the_shipped_files(game, student):
    document = json.loads((ROOT / game / f"verify-{student}.json").read_text())
    assert document["ok"] is True
    assert {(rung["frames"], rung["mismatches"]) for rung in document["rungs"]} == {(10_000, 0)}
    played = game.split("+")
    if len(played) > 1:
        share = 10_000 // len(played)
        assert document["games"] == [{"game": each, "frames": share} for each in played]
    for role, name in (("student", f"student-{student}.safetensors"), ("core_map", f"core_map-{student}.h5")):
        assert document["provenance"]["parents"][role] == file_sha256(ROOT / game / name)


@pytest.mark.parametrize(
    ("game", "student", "played"),
    [
        pytest.param(game, student, played, marks=[] if (game, student) in OFTEN else pytest.mark.slow)
        for game, student in STUDENTS
        for played in game.split("+")
    ],
)
def test_shipped_student_gives_the_same_spikes_on_every_rung(game, student, played):
    net, _ = load(ROOT / game / f"student-{student}.safetensors")
    simulator = CoreSimulator(load_core_map(ROOT / game / f"core_map-{student}.h5"))
    packed, pytorch = PackedNet(net), TorchIntegerNet(net)
    teacher = load_teacher(ROOT / played / "teacher.safetensors")
    envs = VectorGames(EnvironmentConfig(game=played), 2)
    observation, _ = envs.reset(5)
    for step in range(60):
        if step % 6 == 0:
            spikes = pytorch.spikes(torch.from_numpy(observation))
            for index, stack in enumerate(observation):
                naive = naive_forward(net, stack)
                by_words, on_cores = packed.spikes(stack), simulator.spikes(stack)
                for layer in range(len(naive)):
                    np.testing.assert_array_equal(spikes[layer][index].numpy(), naive[layer])
                    np.testing.assert_array_equal(by_words[layer], naive[layer])
                    kept = simulator.kept[layer]
                    np.testing.assert_array_equal(on_cores[layer][kept], naive[layer][kept])
                np.testing.assert_array_equal(simulator.votes(stack), count_votes(naive[-1], net.actions))
        observation, *_ = envs.step(teacher.q_values(observation).argmax(axis=1))
    envs.close()
