"""The registry of agents: ours, a program's own, and an installed package's."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from spikestill.cli import verb_help
from spikestill.common import agents
from spikestill.common.agents import AgentEntry, register
from spikestill.common.environment import EnvironmentSpec
from spikestill.common.errors import UserError
from spikestill.common.policy import Decision, Observations
from spikestill.configs.environment import EnvironmentConfig
from spikestill.configs.play import EvaluateConfig, PlayConfig
from spikestill.report import _scores, _tiles
from spikestill.runtime import evaluate, play
from spikestill.verbs import VERBS


class UpAndDown:
    """Goes right and left in turn, by what it sees alone."""

    def act(self, observations: Observations) -> Decision:
        sums_B = observations["stack"].reshape(len(observations["stack"]), -1).sum(axis=1, dtype=np.int64)
        return Decision.best(np.eye(6)[2 + sums_B % 2])


def make(files: Mapping[str, Path], environment: EnvironmentSpec) -> UpAndDown:
    assert (dict(files), environment.name) == ({}, "pong")
    return UpAndDown()


ENTRY = AgentEntry(name="up-and-down", help="goes right and left in turn", make=make, batched=True)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "_registered", {})
    register(ENTRY)


def test_every_entry_of_ours_is_made_by_a_function_that_is_there() -> None:
    for name, entry in agents.agents().items():
        assert entry.name == name
        assert callable(entry.maker())
        assert not entry.picture or callable(agents.resolve(entry.picture))
        assert entry.told_as in agents.agents()


@pytest.mark.usefixtures("registered")
def test_a_programs_own_agent_plays_is_scored_is_told_and_stands_in_the_help(tmp_path: Path) -> None:
    config = EvaluateConfig(agent="up-and-down", episodes=2, num_envs=2, compare=False)
    summary = evaluate.run(config, tmp_path).summary
    assert (summary["agent"], len(summary["returns"])) == ("up-and-down", 2)
    assert _scores(summary)["scores"][0]["name"] == "up-and-down"
    environment = EnvironmentConfig(game="pong", frame_skip=2)
    live = PlayConfig(agent="up-and-down", environment=environment, seconds=0.5, view="none")
    played = play.run(live, tmp_path).summary
    assert played["agent"] == "up-and-down"
    assert played["decisions"] > 5
    tiles = _tiles({"evaluate": summary, "play": played, "map": {"cores": 3, "chips": 1}})
    assert tiles[0]["label"].endswith("of agent up-and-down")
    assert "up-and-down  goes right and left in turn" in verb_help(VERBS["play"])


@pytest.mark.usefixtures("registered")
def test_a_name_is_taken_once() -> None:
    register(ENTRY)
    with pytest.raises(ValueError, match="agent 'cores' is there already"):
        register(AgentEntry(name="cores", help="", make=make))


def test_an_installed_package_adds_agents_and_replaces_none_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    impostor = AgentEntry(name="cores", help="an impostor", make=make)

    class Point:
        @staticmethod
        def load() -> list[AgentEntry]:
            return [ENTRY, impostor]

    def entry_points(group: str) -> list[type[Point]]:
        return [Point] if group == agents.ENTRY_POINTS else []

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    agents._installed.cache_clear()
    try:
        assert agents.agent("up-and-down") is ENTRY
        assert agents.agent("cores").help != "an impostor"
    finally:
        monkeypatch.undo()
        agents._installed.cache_clear()


@pytest.mark.parametrize("config", [PlayConfig, EvaluateConfig])
def test_options_refuse_an_unknown_agent_and_name_the_nearest(config: type) -> None:
    with pytest.raises(UserError, match=r"^agent is 'coers'; known: cores.*[Dd]id you mean 'cores'"):
        config(agent="coers")
