"""Two environments and an agent for each, made here alone, go through every command that plays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from spikestill import cli
from spikestill.common import agents as agent_registry
from spikestill.common import environment as environment_registry
from spikestill.common.agents import AgentEntry
from spikestill.common.environment import Box, Discrete, EnvironmentSpec, Field, Observations, Step
from spikestill.common.policy import Decision
from spikestill.common.stacking import push
from spikestill.dataset.reader import BufferReader

LENGTH, LIMIT = 12, 40


class Corridor:
    """A walk to the right end: a position, and the last two pictures of it; LEFT, STAY, RIGHT."""

    def __init__(self, options: Any, num_envs: int, threads: int) -> None:
        self._place = np.zeros(num_envs, np.int64)
        self._steps = np.zeros(num_envs, np.int64)
        self._over = np.zeros(num_envs, np.bool_)
        self._pictures = np.zeros((num_envs, 2, 3, LENGTH), np.uint8)

    def reset(
        self, seeds: npt.NDArray[np.int64] | None, mask: npt.NDArray[np.bool_] | None = None
    ) -> Observations:
        chosen = np.ones(len(self._place), np.bool_) if mask is None else mask
        self._begin(chosen, np.zeros(int(chosen.sum()), np.int64) if seeds is None else seeds)
        return self._observe()

    def _begin(self, chosen: npt.NDArray[np.bool_], seeds: npt.NDArray[np.int64]) -> None:
        self._place[chosen], self._steps[chosen], self._over[chosen] = seeds % 3, 0, False
        self._pictures[chosen] = 0
        self._draw(chosen)

    def _draw(self, chosen: npt.NDArray[np.bool_]) -> None:
        for index in np.flatnonzero(chosen):
            newest = push(self._pictures[index])
            newest[:] = 0
            newest[:, self._place[index]] = 255

    def send(self, actions: npt.NDArray[Any]) -> None:
        playing = ~self._over
        self._place[playing] = np.clip(self._place + actions - 1, 0, LENGTH - 1)[playing]
        self._steps[playing] += 1
        self._draw(playing)
        self._reward = np.where(playing & (self._place == LENGTH - 1), 1.0, 0.0)
        self._terminated = playing & (self._place == LENGTH - 1)
        self._truncated = playing & ~self._terminated & (self._steps >= LIMIT)
        if (~playing).any():
            self._begin(~playing, self._place[~playing])
        self._over = self._terminated | self._truncated

    def receive(self) -> Step:
        return Step(self._observe(), self._reward, self._terminated, self._truncated)

    def _observe(self) -> Observations:
        position = np.stack([self._place, LENGTH - 1 - self._place], axis=1).astype(np.float32)
        return {"position": position, "pictures": self._pictures.copy()}

    def render(self, index: int) -> npt.NDArray[np.uint8]:
        return np.repeat(self._pictures[index, -1][:, :, None], 3, axis=2)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        raise NotImplementedError

    def set_state(self, arrays: Mapping[str, npt.NDArray[Any]]) -> Observations:
        raise NotImplementedError

    def close(self) -> None:
        pass


class Spring:
    """A mass on a spring, pushed by two forces towards rest; reward: minus its distance from it."""

    def __init__(self, options: Any, num_envs: int, threads: int) -> None:
        self._state: npt.NDArray[Any] = np.zeros((num_envs, 2))
        self._steps: npt.NDArray[Any] = np.zeros(num_envs, np.int64)

    def reset(
        self, seeds: npt.NDArray[np.int64] | None, mask: npt.NDArray[np.bool_] | None = None
    ) -> Observations:
        chosen = np.ones(len(self._steps), np.bool_) if mask is None else mask
        seeds = np.zeros(int(chosen.sum()), np.int64) if seeds is None else seeds
        self._state[chosen] = [[1.0 + seed % 5, 0.0] for seed in seeds]
        self._steps[chosen] = 0
        return {"state": self._state.copy()}

    def send(self, actions: npt.NDArray[Any]) -> None:
        again = self._steps >= LIMIT
        place, speed = self._state.T
        speed = speed + 0.1 * (actions.sum(axis=1) - place)
        self._state = np.stack([place + 0.1 * speed, speed], axis=1)
        self._steps += 1
        self._state[again], self._steps[again] = [1.0, 0.0], 0
        self._reward = np.where(again, 0.0, -np.abs(self._state[:, 0]))

    def receive(self) -> Step:
        none = np.zeros(len(self._steps), np.bool_)
        return Step({"state": self._state.copy()}, self._reward, none, self._steps >= LIMIT)

    def render(self, index: int) -> npt.NDArray[np.uint8]:
        picture = np.zeros((20, 30, 3), np.uint8)
        picture[10, int(np.clip(15 + 2 * self._state[index, 0], 0, 29))] = 255
        return picture

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return {"state": self._state.copy(), "steps": self._steps.copy()}

    def set_state(self, arrays: Mapping[str, npt.NDArray[Any]]) -> Observations:
        self._state, self._steps = arrays["state"].copy(), arrays["steps"].copy()
        return {"state": self._state.copy()}

    def close(self) -> None:
        pass


class Walker:
    """Walks right; the scores are made of both fields."""

    def act(self, observations: Observations) -> Decision:
        pictures = observations["pictures"].reshape(len(observations["pictures"]), -1).mean(axis=1)
        scores = np.stack([-pictures, np.zeros_like(pictures), 1 + observations["position"][:, 1]], axis=1)
        return Decision.best(scores)


class Damper:
    """Pushes against place and speed, with both forces alike."""

    def act(self, observations: Observations) -> Decision:
        place, speed = observations["state"].T
        force = np.clip(-0.5 * place - speed, -1, 1).astype(np.float32)
        action = np.stack([force, force], axis=1)
        return Decision(action, np.stack([action[:, 0], speed, place], axis=1))


SPECS = {
    "corridor": EnvironmentSpec(
        name="corridor",
        family="tests",
        fields=(
            Field("position", (2,), "float32", 0, LENGTH),
            Field("pictures", (2, 3, LENGTH), "uint8", 0, 255, stacked=True),
        ),
        actions=Discrete(("LEFT", "STAY", "RIGHT")),
        decisions_per_s=50,
        make=Corridor,
    ),
    "spring": EnvironmentSpec(
        name="spring",
        family="tests",
        fields=(Field("state", (2,), "float64", -np.inf, np.inf),),
        actions=Box((-1, -1), (1, 1)),
        decisions_per_s=40,
        make=Spring,
        resumes_by="state",
    ),
}
ENTRIES = {
    "corridor": AgentEntry(name="walker", help="walks right", make=lambda files, spec: Walker()),
    "spring": AgentEntry(
        name="damper", help="brings it to rest", make=lambda files, spec: Damper(), batched=True
    ),
}


@pytest.fixture(params=["corridor", "spring"])
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an environment that is registered, with its agent, for the test."""
    monkeypatch.setattr(environment_registry, "_registered", {})
    monkeypatch.setattr(agent_registry, "_registered", {})
    environment_registry.environment.cache_clear()
    environment_registry.register(SPECS[request.param])
    agent_registry.register(ENTRIES[request.param])
    return str(request.param)


def run(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    """Run a command; return the summary that it prints."""
    assert cli.main([*map(str, words), "--json"]) == 0, capsys.readouterr().err
    return dict(json.loads(capsys.readouterr().out.splitlines()[-1]))


def test_it_is_recorded_and_read_back_exactly(name, tmp_path, capsys):
    spec, entry = SPECS[name], ENTRIES[name]
    summary = run(
        capsys, "record", name, "--agent", entry.name, "--frames", 300, "--num_envs", 3, "--epsilon", 0.2,
        "--run_dir", tmp_path,
    )  # fmt: skip
    assert summary["frames"] == 300
    assert summary["episodes"] > 3
    policy: Any = entry.maker()({}, spec)
    with BufferReader(tmp_path / "buffer.h5") as reader:
        assert (reader.header.game, reader.header.space) == (name, spec.actions)
        indices = np.arange(len(reader))
        observed = reader.observations(indices)
        spec.check(observed)
        decision = policy.act(observed)
        # What was read is what the agent saw: it decides the same on it.
        np.testing.assert_array_equal(reader.q_values(indices), decision.scores.astype(np.float32))
        played = reader.played(indices)
        spec.actions.check(played)
        same = (played == decision.action).reshape(len(indices), -1).all(axis=1)
        assert 0.7 < same.mean() < 0.98, "one in five explores"


def test_a_stopped_recording_goes_on(name, tmp_path, capsys):
    words = ["record", name, "--agent", ENTRIES[name].name, "--num_envs", 2, "--run_dir", tmp_path]
    run(capsys, *words, "--frames", 100)
    run(capsys, *words, "--frames", 260, "--resume")
    with BufferReader(tmp_path / "buffer.h5") as reader:
        assert len(reader.header.sessions) == 2
        assert len(reader) > 200


def test_it_is_evaluated_whatever_the_number_of_environments(name, tmp_path, capsys):
    words = ["evaluate", name, "--agent", ENTRIES[name].name, "--episodes", 5, "--compare", "false"]
    found = [run(capsys, *words, "--num_envs", n, "--run_dir", tmp_path / str(n)) for n in (1, 5)]
    assert found[0]["returns"] == found[1]["returns"]
    chance = run(
        capsys,
        "evaluate",
        name,
        "--agent",
        "random",
        "--episodes",
        5,
        "--compare",
        "false",
        "--run_dir",
        tmp_path,
    )
    assert found[0]["mean"] >= chance["mean"]
    assert min(found[0]["returns"]) == 1 if name == "corridor" else found[0]["mean"] > -LIMIT


def test_it_is_played_in_real_time(name, tmp_path, capsys):
    summary = run(
        capsys, "play", name, "--agent", ENTRIES[name].name, "--seconds", 1.5, "--view", "none",
        "--record", tmp_path / "game.mp4", "--run_dir", tmp_path,
    )  # fmt: skip
    rate = SPECS[name].decisions_per_s
    assert 0.8 * rate < summary["decisions"] < 1.7 * rate
    assert summary["games"] >= 1
    assert (tmp_path / "game.mp4").stat().st_size > 1000


def test_the_buffer_is_inspected(name, tmp_path, capsys):
    run(
        capsys,
        "record",
        name,
        "--agent",
        ENTRIES[name].name,
        "--frames",
        64,
        "--num_envs",
        2,
        "--run_dir",
        tmp_path,
    )
    assert cli.main(["inspect", str(tmp_path / "buffer.h5"), "--html", str(tmp_path / "page.html")]) == 0
    assert name in capsys.readouterr().out
    assert name in (tmp_path / "page.html").read_text()


def test_distil_says_that_it_wants_stacks(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(environment_registry, "_registered", {"spring": SPECS["spring"]})
    monkeypatch.setattr(agent_registry, "_registered", {"damper": ENTRIES["spring"]})
    environment_registry.environment.cache_clear()
    run(capsys, "record", "spring", "--agent", "damper", "--frames", 64, "--run_dir", tmp_path)
    for hints in ("0", "1"):
        words = ["distill", "--run_dir", str(tmp_path), "--hint_weight", hints, "--steps", "1"]
        assert cli.main(words) == 1
        error = capsys.readouterr().err
        assert (
            "buffer.h5: the buffer is of spring, which shows state (2,); stacks (4, 84, 84) are wanted"
            in error
        )
