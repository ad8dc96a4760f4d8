"""Traces: played again exactly, on another backend too; damage is refused, differences are named."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from spikestill.common.errors import UserError
from spikestill.common.provenance import Provenance
from spikestill.configs.environment import EnvironmentConfig
from spikestill.configs.play import CompareConfig, PlayConfig, ReplayConfig
from spikestill.runtime import play, replay
from spikestill.runtime.trace import load, save
from tests.runtime.artefacts import Files


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory, pong: Files) -> Path:
    folder = tmp_path_factory.mktemp("trace")
    config = PlayConfig(
        environment=EnvironmentConfig(game="pong", sticky=0.25), agent="cores,teacher", lockstep=True,
        seconds=3.0, view="none", epsilon=0.2, max_speed=True, seed=5, teacher=pong.teacher,
        core_map=pong.core_map, trace=folder / "trace.h5",
    )  # fmt: skip
    assert play.run(config, folder).finished
    return folder / "trace.h5"


@pytest.mark.parametrize(
    ("agent", "index", "spikes"), [(None, 0, True), ("student", 0, True), (None, 1, False)]
)
def test_a_trace_plays_again_exactly_on_its_own_and_on_another_backend(
    agent: str | None, index: int, spikes: bool, trace: Path, pong: Files, tmp_path: Path
) -> None:
    files = {"teacher": pong.teacher, "student": pong.student, "core_map": pong.core_map}
    if agent == "student":
        del files["core_map"]
    summary = replay.run(ReplayConfig(trace=trace, agent=agent, index=index, **files), tmp_path).summary
    assert summary["same"], summary
    assert summary["frames"] > 100
    assert summary["decisions"] > 20
    assert (summary["spikes"] > 20) == spikes


@pytest.mark.lava
@pytest.mark.slow
def test_the_game_that_stock_lava_plays_is_the_students(pong: Files, tmp_path: Path) -> None:
    config = PlayConfig(
        agent="lava-loihi", student=pong.student, seconds=10.0, view="none", max_speed=True, epsilon=0.2,
        trace=tmp_path / "trace.h5",
    )  # fmt: skip
    played = play.run(config, tmp_path).summary
    assert (played["misses"], played["agents"][0]["state"]) == (0, "playing")
    found = replay.run(
        ReplayConfig(trace=tmp_path / "trace.h5", agent="student", student=pong.student), tmp_path
    )
    assert found.summary["same"], found.summary
    assert found.summary["decisions"] > 10


def test_another_agent_differs_and_where_is_named(trace: Path, pong: Files, tmp_path: Path) -> None:
    config = ReplayConfig(trace=trace, agent="random")
    summary = replay.run(config, tmp_path).summary
    assert not summary["same"]
    assert summary["first_difference"].startswith("the ")


def test_a_flipped_spike_is_found_by_layer_and_neuron(trace: Path, tmp_path: Path) -> None:
    whole = load(trace)
    agent = whole.agents[0]
    at = int(np.flatnonzero(np.unpackbits(agent.kept, bitorder="little"))[-1])
    spikes = agent.spikes.copy()
    spikes[7, at // 8] ^= 1 << at % 8
    changed = dataclasses.replace(whole, agents=(dataclasses.replace(agent, spikes=spikes), whole.agents[1]))
    save(tmp_path / "other.h5", changed, Provenance.of({}, 0))
    same = replay.compare(CompareConfig(trace=trace, other=trace), tmp_path).summary
    assert (same["same"], same["first_difference"]) == (True, None)
    found = replay.compare(CompareConfig(trace=trace, other=tmp_path / "other.h5"), tmp_path).summary
    assert not found["same"]
    assert found["first_difference"].startswith(
        f"decision {agent.number[7]}, layer {len(agent.shapes) - 1}, "
    )


def test_a_damaged_trace_is_refused(trace: Path, tmp_path: Path) -> None:
    content = bytearray(trace.read_bytes())
    (tmp_path / "cut.h5").write_bytes(content[: len(content) // 2])
    content[len(content) // 2] ^= 255
    (tmp_path / "turned.h5").write_bytes(content)
    for name in ("cut.h5", "turned.h5", "none.h5"):
        with pytest.raises(UserError, match=name):
            load(tmp_path / name)
    with pytest.raises(UserError, match="has no agent 2; it has cores, teacher"):
        replay.run(ReplayConfig(trace=trace, index=2), tmp_path)
