"""Every agent against the reference of what it plays, and the errors of wrong files."""

from __future__ import annotations

import dataclasses
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from spikestill.common.environment import environment
from spikestill.common.errors import UserError
from spikestill.common.legal import actions_in
from spikestill.common.policy import Decision
from spikestill.common.provenance import Provenance
from spikestill.common.zoo import ROOT, zoo_files, zoo_path
from spikestill.configs.hardware import hardware
from spikestill.configs.play import EvaluateConfig, PlayConfig
from spikestill.deploy import core_map
from spikestill.deploy.mapping import map_net
from spikestill.deploy.simulator import CoreSimulator
from spikestill.runtime import evaluate, play
from spikestill.runtime.agents import agent_files, open_agent
from spikestill.student import integer_net
from spikestill.student.architectures import LayerSpec
from spikestill.student.integer_net import choose, count_votes, naive_forward
from spikestill.teacher.policy import load_teacher
from tests.nets import random_net, random_stack
from tests.runtime.artefacts import Files


@pytest.mark.parametrize("name", ["cores", "student", pytest.param("lava", marks=pytest.mark.lava)])
def test_the_students_agents_give_the_naive_votes_from_any_thread(name: str, pong: Files) -> None:
    agent = open_agent(name, environment("pong"), {"core_map": pong.core_map, "student": pong.student})
    found: list[Decision] = []
    stacks = [random_stack(seed) for seed in range(3)]
    thread = threading.Thread(
        target=lambda: found.extend(agent.act({"stack": stack[None]}) for stack in stacks)
    )
    thread.start()
    thread.join()
    agent.close()
    assert agent.name == name
    for stack, decision in zip(stacks, found, strict=True):
        votes = count_votes(naive_forward(pong.net, stack)[-1], 6)
        np.testing.assert_array_equal(decision.scores, votes[None])
        assert decision.action.tolist() == [choose(votes)]


@pytest.mark.parametrize("name", ["cores", "student", pytest.param("lava", marks=pytest.mark.lava)])
@pytest.mark.parametrize("game", ["freeway", "pong"])
def test_a_student_of_two_games_plays_each_by_that_games_own_actions(name: str, game: str) -> None:
    folder = ROOT / "freeway+pong"
    files = {"student": folder / "student-1chip.safetensors", "core_map": folder / "core_map-1chip.h5"}
    net, _ = integer_net.load(files["student"])
    own = actions_in(net.legal, game)
    assert own is not None
    agent = open_agent(name, environment(game), files)
    for seed in range(3):
        votes = count_votes(naive_forward(net, random_stack(seed))[-1], net.actions)
        decision = agent.act({"stack": random_stack(seed)[None]})
        np.testing.assert_array_equal(decision.scores, votes[None, list(own)])
        assert decision.action.tolist() == [choose(votes[list(own)])]
    agent.close()


@pytest.mark.parametrize(("name", "precision"), [("teacher", "fp32"), ("fp16", "fp16")])
def test_the_teachers_agents_give_its_q_values(name: str, precision: str, pong: Files) -> None:
    agent = open_agent(name, environment("pong"), {"teacher": pong.teacher})
    policy = load_teacher(pong.teacher, precision)
    for seed in range(3):
        q_BA = policy.q_values(random_stack(seed)[None])
        decision = agent.act({"stack": random_stack(seed)[None]})
        np.testing.assert_array_equal(decision.scores, q_BA)
        assert decision.action.tolist() == [int(q_BA.argmax())]
    agent.close()


def test_half_precision_is_not_single_precision(pong: Files) -> None:
    seen = {"stack": random_stack(0)[None]}
    single = open_agent("teacher", environment("pong"), {"teacher": pong.teacher}).act(seen).scores
    half = open_agent("fp16", environment("pong"), {"teacher": pong.teacher}).act(seen).scores
    assert not np.array_equal(single, half)
    np.testing.assert_allclose(single, half, atol=0.02)


@pytest.mark.parametrize("name", ["cores", "student", "teacher"])
def test_a_file_of_another_game_is_refused(name: str, pong: Files) -> None:
    files = {"core_map": pong.core_map, "student": pong.student, "teacher": pong.teacher}
    with pytest.raises(UserError, match="is for pong with 6 actions, the game is breakout with 4"):
        open_agent(name, environment("breakout"), files)


def test_an_unknown_agent_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"unknown agent 'coers'.*[Dd]id you mean 'cores'"):
        agent_files("coers", "pong", {})


def test_cores_with_a_student_alone_says_to_map_it(pong: Files) -> None:
    with pytest.raises(UserError, match=r"agent cores plays a core map.*spikestill map"):
        agent_files("cores", "pong", {"student": pong.student})
    with pytest.raises(UserError, match="agent student plays a student, and only a core map is given"):
        agent_files("student", "pong", {"core_map": pong.core_map})


def test_a_core_map_of_another_student_than_the_one_beside_it_is_refused(tmp_path: Path, pong: Files) -> None:
    student, path = tmp_path / "student.safetensors", tmp_path / "core_map.h5"
    shutil.copyfile(pong.student, student)
    mapped = Provenance.of({}, 0, parents={"student": student})
    core_map.save(dataclasses.replace(core_map.load(pong.core_map), provenance=mapped), path)
    files = {"student": student, "core_map": path}
    open_agent("cores", environment("pong"), files)
    integer_net.save(dataclasses.replace(pong.net), student, Provenance.of({}, 1))
    with pytest.raises(
        UserError, match=r"core_map\.h5 was mapped from another student file than .*spikestill map"
    ):
        evaluate.run(EvaluateConfig(agent="cores", **files), tmp_path)
    with pytest.raises(UserError, match=r"was mapped from another student file"):
        play.run(PlayConfig(agent="cores", view="none", **files), tmp_path)
    open_agent("student", environment("pong"), files)
    open_agent("cores", environment("pong"), {**files, "student": pong.student})


def test_the_zoo_names_what_it_has(tmp_path: Path) -> None:
    both = "freeway+pong/core_map-1chip.h5"
    for name in ("pong/teacher.safetensors", "pong/teacher.json", "qbert/core_map-1chip.h5", both):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert zoo_path("pong", "teacher.safetensors", tmp_path) == tmp_path / "pong" / "teacher.safetensors"
    assert zoo_files(tmp_path) == {
        "freeway+pong": ["core_map-1chip.h5"],
        "pong": ["teacher.safetensors"],
        "qbert": ["core_map-1chip.h5"],
    }
    with pytest.raises(
        UserError, match=r"has no core_map-1chip\.h5 for pong; it has that of qbert\. Make one with .*map`"
    ):
        zoo_path("pong", "core_map-1chip.h5", tmp_path)
    with pytest.raises(UserError, match=r"has no core_map-9\.h5 for pong\. Make one"):
        zoo_path("pong", "core_map-9.h5", tmp_path)
    with pytest.raises(UserError, match="unknown environment 'pnog'"):
        zoo_path("pnog", "teacher.safetensors", tmp_path)


@pytest.mark.parametrize("name", ["cores", "student"])
def test_a_net_that_reads_another_input_is_refused(name: str, tmp_path: Path) -> None:
    net = random_net((LayerSpec(12, 8, 8, 0, 1), LayerSpec(12, 1, 1, 0, 1)), 0, input_shape=(2, 40, 40))
    if name == "student":
        integer_net.save(net, tmp_path / "net", Provenance.of({}, 0))
    else:
        core_map.save(map_net(net, hardware("truenorth")), tmp_path / "net")
    with pytest.raises(UserError, match=r"net reads input of shape \(2, 40, 40\), the games give"):
        open_agent(name, environment("pong"), dict.fromkeys(("core_map", "student"), tmp_path / "net"))


def test_a_core_map_that_breaks_a_rule_does_not_play(tmp_path: Path, pong: Files) -> None:
    good = core_map.load(pong.core_map)
    row = good.row_CN.copy()
    row[tuple(np.argwhere(good.used_CN)[0])] = -1
    core_map.save(dataclasses.replace(good, row_CN=row), tmp_path / "map.h5")
    with pytest.raises(UserError, match=r"map\.h5: core map breaks the rule 'neuron identity'"):
        open_agent("cores", environment("pong"), {"core_map": tmp_path / "map.h5"})


@pytest.mark.parametrize("name", ["cores", "student"])
def test_a_decisions_trace_has_the_spikes_that_gave_it_however_late_it_is_read(
    name: str, pong: Files
) -> None:
    agent = open_agent(name, environment("pong"), {"core_map": pong.core_map, "student": pong.student})
    stacks = np.stack([random_stack(seed) for seed in range(2)])
    trace = agent.act({"stack": stacks}).trace
    agent.act({"stack": stacks[:1] // 2})
    assert trace is not None
    assert trace.packed_BW.shape == (2, agent.words)
    found, counts = trace.spikes(), trace.counts()
    kept = CoreSimulator(core_map.load(pong.core_map)).kept if name == "cores" else None
    for row, stack in enumerate(stacks):
        for layer, spikes in enumerate(naive_forward(pong.net, stack)):
            wanted = spikes if kept is None else spikes * kept[layer]
            np.testing.assert_array_equal(found[layer][row], wanted)
            assert counts[row, layer] == wanted.sum()
