"""Agents side by side: lockstep, containment of one that fails, restarts, speed; environments of one's own."""

from __future__ import annotations

import functools
import itertools
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spikestill.common import agents, environment
from spikestill.common.agents import AgentEntry
from spikestill.common.environment import (
    ActionSpace,
    Box,
    Discrete,
    EnvironmentSpec,
    Field,
    Observations,
    Step,
)
from spikestill.common.policy import Decision, Policy
from spikestill.configs.environment import EnvironmentConfig
from spikestill.configs.play import PlayConfig
from spikestill.runtime import play
from spikestill.runtime.clock import MonotonicClock
from spikestill.runtime.emulator import Emulator
from spikestill.runtime.loop import Pace, play_live
from spikestill.runtime.session import Session, Tick
from spikestill.runtime.telemetry import Telemetry
from tests.runtime.artefacts import Files
from tests.runtime.virtual_clock import VirtualClock

PONG = EnvironmentConfig(game="pong")


class Scripted:
    """Chooses the ``action`` always; from its n-th decision on it does what ``then`` says."""

    def __init__(self, action: int = 2, after: int = 10**9, then: Any = None) -> None:
        self.action, self.after, self.then, self.calls = action, after, then, 0

    def act(self, observations: Observations) -> Decision:
        self.calls += 1
        if self.calls > self.after:
            self.then()
        return Decision(np.array([self.action]), np.eye(6)[[self.action % 6]])


def crash() -> None:
    raise ArithmeticError("synapses crossed")


def session(agent: Policy, clock: Any, leader: Session | None = None, **options: Any) -> Session:
    game = Emulator(PONG, 1) if leader is None else leader.game
    return Session("scripted", game, agent, clock, Telemetry(), leader=leader, **options)


def run(sessions: list[Session], clock: Any, frames: int, pace: Pace | None = None) -> list[list[Tick]]:
    loop = play_live(sessions, clock, pace)
    found = list(itertools.islice((ticks for ticks in loop if ticks), frames))
    loop.close()
    return found


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        (Scripted(after=5, then=crash), "synapses crossed"),
        (Scripted(action=6), r"actions are 6\.\.6, 0\.\.5 wanted"),
    ],
)
def test_an_agent_that_fails_is_contained_and_the_others_play_on(broken: Scripted, text: str) -> None:
    clock = VirtualClock()
    sessions = [session(broken, clock), session(Scripted(), clock)]
    ticks = run(sessions, clock, 200)
    assert sessions[0].state == "failed"
    with pytest.raises(Exception, match=text):
        raise sessions[0].error or AssertionError
    assert sessions[1].state == "playing"
    assert sessions[1].telemetry.misses == 0
    assert sessions[0].telemetry.misses > 40
    assert ticks[-1][0].frame == ticks[-1][1].frame == 199


def test_an_agent_that_failed_is_made_anew_as_often_as_asked() -> None:
    clock = MonotonicClock()
    made: list[Scripted] = []

    def make() -> Scripted:
        made.append(Scripted(after=3, then=crash))
        return made[-1]

    sessions = [session(make(), clock, reopen=make, restarts=2), session(Scripted(), clock)]
    run(sessions, clock, 120)
    assert len(made) == 3
    assert (sessions[0].state, sessions[0].restarts) == ("failed", 0)


def test_an_agent_that_hangs_is_told_and_the_game_keeps_its_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spikestill.runtime.session.STALL_ANSWER_S", 0.2)
    clock, release = MonotonicClock(), threading.Event()
    hanging = Scripted(after=4, then=lambda: release.wait(20))
    sessions = [session(hanging, clock), session(Scripted(), clock)]
    began_s = clock.now()
    loop = play_live(sessions, clock)
    for _ in itertools.islice(loop, 90):
        pass
    seconds = clock.now() - began_s - sessions[0].telemetry.lost_s
    assert sessions[0].state == "stalled"
    assert 1.4 < seconds < 2.5
    release.set()
    for _ in itertools.islice(loop, 30):
        pass
    assert sessions[0].state == "playing"
    loop.close()


def test_in_lockstep_all_see_the_leaders_game_and_agreement_is_counted() -> None:
    clock = VirtualClock()
    leader = session(Scripted(2), clock)
    same, other = session(Scripted(2), clock, leader), session(Scripted(3), clock, leader)
    ticks = run([leader, same, other], clock, 400)
    assert {tick.score for tick in ticks[-1]} == {ticks[-1][0].score}
    assert same.agreed == same.compared > 90
    assert (other.agreed, other.compared) == (0, same.compared)
    assert leader.compared == 0


def test_unpaced_play_is_the_game_that_a_quick_agent_plays_live() -> None:
    found = []
    for pace, at_hand in ((Pace(), False), (Pace(unpaced=True), False), (Pace(unpaced=True), True)):
        clock = VirtualClock()
        one = session(Scripted(2), clock, epsilon=0.5, at_hand=at_hand)
        found.append([(tick.reward, tick.score, tick.over) for (tick,) in run([one], clock, 1500, pace)])
        assert one.telemetry.misses == 0
    assert found[0][1:] == found[1][1:] == found[2][1:]
    assert any(reward for reward, *_ in found[0])


def test_an_agent_at_hand_that_raises_is_taken_out_too() -> None:
    clock = VirtualClock()
    one = session(Scripted(after=5, then=crash), clock, at_hand=True)
    with pytest.raises(ArithmeticError, match="synapses crossed"):
        run([one], clock, 100, Pace(unpaced=True))
    assert (one.state, one.telemetry.latency.count) == ("failed", 5)


def test_time_stands_still_while_paused_and_a_step_is_one_decision() -> None:
    clock, pace = VirtualClock(), Pace()
    agent = Scripted()
    one = session(agent, clock)
    loop = play_live([one], clock, pace)
    list(itertools.islice(loop, 9))
    pace.paused = True
    before = one.telemetry.ticks
    assert [next(loop) for _ in range(20)] == [[]] * 20
    pace.steps = 2
    played = [ticks for ticks in itertools.islice(loop, 40) if ticks]
    assert len(played) == one.telemetry.ticks - before == 8
    pace.paused = False
    assert len([ticks for ticks in itertools.islice(loop, 12) if ticks]) == 12
    loop.close()


class Lights:
    """Two fields of other shapes: a row of lamps and a clock; reward for the action that the lit lamp names."""

    def __init__(self, actions: Any) -> None:
        self._rng, self._actions, self._step = np.random.default_rng(0), actions, 0

    def reset(self, seeds: Any, mask: Any = None) -> Observations:
        if seeds is not None:
            self._rng = np.random.default_rng(int(seeds[0]))
        self._step = 0
        return self._observe()

    def _observe(self) -> Observations:
        self._lit = int(self._rng.integers(3))
        lamps = np.eye(3, dtype=np.float32)[[self._lit]]
        return {"lamps": lamps, "clock": np.array([[[self._step, 0], [0, 1]]], np.int16)}

    def send(self, actions: Any) -> None:
        self._chosen = actions[0]

    def receive(self) -> Step:
        self._step += 1
        right = self._chosen == self._lit if self._actions == 3 else float(-abs(self._chosen[0]))
        over = np.array([self._step == 20])
        return Step(self._observe(), np.array([float(right)]), over, np.zeros(1, bool))

    def render(self, index: int) -> Any:
        return np.full((30, 40, 3), 60 * self._lit, np.uint8)

    def close(self) -> None:
        pass


FIELDS = (Field("lamps", (3,), "float32", 0, 1), Field("clock", (2, 2), "int16", 0, 100))


@pytest.fixture
def lights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two environments and an agent for each, known to the registries as a program of a user's would make them."""
    monkeypatch.setattr(environment, "_registered", {})
    monkeypatch.setattr(agents, "_registered", {})
    spaces: dict[str, ActionSpace] = {
        "lamps": Discrete(("left", "middle", "right")),
        "dial": Box((-1.0, -2.0), (1.0, 2.0)),
    }
    for name, space in spaces.items():
        count = len(space) if isinstance(space, Discrete) else 0
        spec = EnvironmentSpec(
            name=name,
            family="tests",
            fields=FIELDS,
            actions=space,
            decisions_per_s=50.0,
            make=functools.partial(lambda count, *_: Lights(count), count),
        )
        environment.register(spec)

    class Reader:
        def act(self, observations: Observations) -> Decision:
            return Decision.best(observations["lamps"])

    class Still:
        def act(self, observations: Observations) -> Decision:
            assert observations["clock"].shape == (1, 2, 2)
            return Decision(np.zeros((1, 2), np.float32), np.zeros((1, 2), np.float32))

    def make(files: Mapping[str, Path], spec: EnvironmentSpec) -> Policy:
        return Reader() if spec.name == "lamps" else Still()

    agents.register(AgentEntry(name="reader", help="does what it sees", make=make, batched=True))


@pytest.mark.usefixtures("lights")
@pytest.mark.parametrize(("name", "best"), [("lamps", 20.0), ("dial", 0.0)])
def test_an_environment_and_an_agent_of_ones_own_play_live_beside_another(
    name: str, best: float, tmp_path: Path
) -> None:
    config = PlayConfig(
        environment=EnvironmentConfig(game=name), agent="reader,random", episodes=3, max_speed=True,
        record=tmp_path / "lights.gif", view="none", telemetry=tmp_path / "log.jsonl",
    )  # fmt: skip
    summary = play.run(config, tmp_path).summary
    assert summary["scores"] == [best] * 3
    reader, chance = summary["agents"]
    assert (reader["agent"], chance["agent"], chance["misses"]) == ("reader", "random", 0)
    assert np.mean(chance["scores"]) < best
    assert summary["rate_hz"] == 50
    assert (tmp_path / "lights.gif").read_bytes()[:6] == b"GIF89a"
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert {line["agent"] for line in lines} == {"reader", "random"}
    assert reader["decisions"] >= 60


def test_four_agents_play_pong_side_by_side(tmp_path: Path, pong: Files) -> None:
    config = PlayConfig(
        environment=PONG, agent="cores,student,teacher,random", lockstep=True, seconds=2.0, view="none",
        teacher=pong.teacher, student=pong.student, core_map=pong.core_map, record=tmp_path / "four.mp4",
    )  # fmt: skip
    summary = play.run(config, tmp_path).summary
    told = {each["agent"]: each for each in summary["agents"]}
    assert list(told) == ["cores", "student", "teacher", "random"]
    assert all(each["state"] == "playing" and each["decisions"] > 10 for each in told.values())
    assert told["cores"]["agreement"] == told["student"]["agreement"] is not None
    assert summary["video_frames"] > 0
