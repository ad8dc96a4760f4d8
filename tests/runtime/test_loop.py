"""The real-time loop on a virtual clock, with the real emulator: what counts as a miss, what is held."""

from __future__ import annotations

import itertools
import os
import threading
import time

import numpy as np
import pytest

from spikestill.common.policy import Decision, Observations
from spikestill.configs.environment import EnvironmentConfig
from spikestill.runtime.clock import STALL_S, FrameTimer, MonotonicClock, real_time_thread, step_back
from spikestill.runtime.emulator import Emulator
from spikestill.runtime.loop import play_live
from spikestill.runtime.session import Session, Tick
from spikestill.runtime.telemetry import Telemetry
from spikestill.runtime.worker import AgentThread
from spikestill.teacher.atari.environment import VectorGames
from tests.runtime.virtual_clock import VirtualClock

FRAME_S = 1 / 60


class TimedAgent:
    """Decides by the stack's content after a given time on the clock."""

    def __init__(self, clock: VirtualClock | MonotonicClock, delays_s: list[float], actions: int) -> None:
        self.clock, self.actions = clock, actions
        self.delays_s = itertools.chain(delays_s[:-1], itertools.repeat(delays_s[-1]))
        self.calls = 0

    def act(self, observations: Observations) -> Decision:
        self.calls += 1
        delay_s = next(self.delays_s)
        if delay_s:
            self.clock.sleep_until(self.clock.now() + delay_s)
        action = content_action(observations["stack"][0], self.actions)
        return Decision(np.array([action]), np.zeros((1, self.actions)))

    def close(self) -> None:
        pass


def content_action(stack_CHW: np.ndarray, actions: int) -> int:
    return int(stack_CHW.astype(np.int64).sum()) // 7 % actions


def play(
    delays_s: list[float], frames: int, environment: EnvironmentConfig, **options: float
) -> tuple[list[Tick], Telemetry, VirtualClock, TimedAgent]:
    clock, telemetry = VirtualClock(), Telemetry()
    emulator = Emulator(environment, 1)
    agent = TimedAgent(clock, delays_s, len(emulator.actions))
    loop = play_live([Session("timed", emulator, agent, clock, telemetry, **options)], clock)
    ticks = [tick for (tick,) in itertools.islice(loop, frames)]
    loop.close()
    emulator.close()
    return ticks, telemetry, clock, agent


class Noting(Telemetry):
    """Telemetry that keeps how long after its deadline each miss was noticed, as well."""

    def __init__(self) -> None:
        super().__init__()
        self.noticed_s: list[float] = []

    def add_miss(self, late_s: float) -> None:
        self.noticed_s.append(late_s)
        super().add_miss(late_s)


PONG = EnvironmentConfig(game="pong")


def test_a_miss_is_told_by_its_deadline() -> None:
    telemetry = Telemetry()
    before = time.time()
    telemetry.add_miss(100.0)
    assert before - 100 - 0.001 <= telemetry.missed_at[0] <= time.time() - 100 + 0.001


def test_an_agent_within_a_frame_plays_the_training_environments_game() -> None:
    environment = EnvironmentConfig(game="space_invaders", frame_skip=3)
    ticks, telemetry, _, _ = play([0.9 * FRAME_S], 7_000, environment)
    live = [sum(tick.reward for tick in ticks if tick.game == game) for game in range(ticks[-1].game)]

    envs = VectorGames(environment, 1, threads=1)
    observation, _ = envs.reset(1)
    offline: list[float] = []
    score, over = 0.0, False
    while len(offline) < len(live):
        action = content_action(observation[0], 6)
        observation, reward, over_N, _, _ = envs.step(np.array([action]))
        score, over = (0.0 if over else score) + float(reward[0]), bool(over_N[0])
        if over:
            offline.append(score)
    envs.close()
    assert len(live) >= 2
    assert live == offline
    assert max(live) > 0
    assert telemetry.misses == 0


def test_an_agent_within_its_period_never_misses() -> None:
    ticks, telemetry, clock, _ = play([3.5 * FRAME_S], 401, PONG)
    assert telemetry.misses == 0
    assert telemetry.decisions == 100
    assert (telemetry.latency.count, telemetry.latency.max_s) == (100, pytest.approx(3.5 * FRAME_S))
    assert telemetry.latency.sum_s == pytest.approx(100 * 3.5 * FRAME_S)
    assert clock.now() == pytest.approx(401 * FRAME_S, abs=4 * FRAME_S)
    assert not any(tick.missed for tick in ticks)


def test_a_slow_agent_misses_and_the_last_action_is_held() -> None:
    # The tenth decision takes 6.5 frames instead of half a frame: one miss, then it is in time again.
    delays_s = [0.5 * FRAME_S] * 9 + [6.5 * FRAME_S] + [0.5 * FRAME_S]
    ticks, telemetry, _, _ = play(delays_s, 201, PONG)
    assert telemetry.misses == 1
    assert [tick.frame for tick in ticks if tick.missed] == [40]
    held = ticks[36].action
    assert [tick.action for tick in ticks[36:43]] == [held] * 7
    late = ticks[43].answer
    assert late is not None
    assert late.number == 9
    assert ticks[43].action == late.decision.action[0]


@pytest.mark.parametrize(("agent_frames", "misses"), [(3.5, 0), (5.5, 1)])
def test_a_game_that_is_late_itself_does_not_make_an_answer_timely(agent_frames: float, misses: int) -> None:
    clock, telemetry, emulator = VirtualClock(), Noting(), Emulator(PONG, 1)
    delays_s = [0.5 * FRAME_S] * 9 + [agent_frames * FRAME_S] + [0.5 * FRAME_S]
    loop = play_live([Session("timed", emulator, TimedAgent(clock, delays_s, 6), clock, telemetry)], clock)
    missed = []
    for (tick,) in itertools.islice(loop, 101):
        missed += [tick.frame] * tick.missed
        if tick.frame == 36:  # the tenth decision: the next tick, and with it the next decision, comes late
            clock.sleep_until(clock.now() + 7 * FRAME_S)
    loop.close()
    emulator.close()
    assert (telemetry.decisions, telemetry.misses, telemetry.lost_s) == (25, misses, 0)
    assert len(missed) == misses
    # Due after four frames, noticed after seven.
    assert telemetry.noticed_s == [pytest.approx(3 * FRAME_S)] * misses


def test_an_agent_slower_than_its_period_misses_every_decision_and_the_game_goes_on() -> None:
    ticks, telemetry, clock, agent = play([9.5 * FRAME_S], 401, PONG)
    assert telemetry.misses == telemetry.decisions == 100
    # It finds the newest stack each time, so that it skips about every other one.
    assert agent.calls == pytest.approx(400 / 9.5, abs=2)
    assert telemetry.unseen == pytest.approx(100 - agent.calls, abs=2)
    assert [tick.frame for tick in ticks] == list(range(401))
    assert clock.now() == pytest.approx(401 * FRAME_S, abs=10 * FRAME_S)
    assert telemetry.lateness.max_s == 0.0


def test_at_frame_skip_one_there_are_sixty_decisions_a_second() -> None:
    _, telemetry, _, _ = play([0.9 * FRAME_S], 601, EnvironmentConfig(game="pong", frame_skip=1))
    assert (telemetry.decisions, telemetry.misses) == (600, 0)
    _, telemetry, _, _ = play([1.1 * FRAME_S], 601, EnvironmentConfig(game="pong", frame_skip=1))
    assert telemetry.misses == telemetry.decisions == 600


def test_exploration_replaces_the_agents_actions() -> None:
    ticks, _, _, _ = play([0.0], 800, PONG, epsilon=1.0, seed=3)
    acted = [tick for tick in ticks if tick.answer is not None]
    actions = {tick.action for tick in acted}
    assert actions == set(range(6))
    assert any(tick.answer and tick.action != tick.answer.decision.action[0] for tick in acted)


def test_what_the_agent_raises_ends_the_loop() -> None:
    class Broken(TimedAgent):
        def act(self, observations: Observations) -> Decision:
            raise ArithmeticError("synapses crossed")

    clock = VirtualClock()
    emulator = Emulator(PONG, 0)
    session = Session("broken", emulator, Broken(clock, [0.0], 6), clock, Telemetry())
    with pytest.raises(ArithmeticError, match="synapses crossed"):
        list(itertools.islice(play_live([session], clock), 10))
    emulator.close()


def test_every_observation_is_answered_or_replaced_and_none_twice() -> None:
    """Two threads swap the slot: what one hands over while the other takes must not be lost or taken twice."""

    class Quick:
        def act(self, observations: Observations) -> Decision:
            return Decision(observations["n"], np.zeros((1, 2)))

    worker = AgentThread(Quick(), MonotonicClock())
    replaced = {n - 1 for n in range(20_000) if not worker.submit(n, {"n": np.array([n])}, 0.0)}
    worker.submit(20_000, {"n": np.array([0])}, 0.0)
    deadline_s = MonotonicClock().now() + 20
    answered: list[int] = []
    while (not answered or answered[-1] < 20_000) and MonotonicClock().now() < deadline_s:
        answered += [answer.number for answer in worker.take()]
    worker.close()
    assert len(set(answered)) == len(answered)
    assert set(answered) | replaced >= set(range(19_999))
    assert not set(answered) & replaced


def test_a_late_tick_is_caught_up_and_a_stall_is_not() -> None:
    clock = VirtualClock()
    timer = FrameTimer(clock, 60)
    timer.wait()
    clock.sleep_until(clock.now() + 3 * FRAME_S)
    assert [round(timer.wait() / FRAME_S) for _ in range(4)] == [2, 1, 0, 0]
    assert clock.now() == pytest.approx(5 * FRAME_S)
    assert timer.lost_s == 0
    clock.sleep_until(clock.now() + STALL_S + 2 * FRAME_S)
    assert timer.wait() == pytest.approx(STALL_S + FRAME_S)
    assert timer.lost_s == pytest.approx(STALL_S + FRAME_S)
    before = clock.now()
    timer.wait()
    assert clock.now() - before == pytest.approx(FRAME_S)


def test_the_virtual_clock_refuses_a_program_in_which_all_wait_for_ever() -> None:
    with pytest.raises(RuntimeError, match="would never go on"):
        VirtualClock().wait(lambda: False)


def test_real_time_ends_where_only_a_privileged_thread_may_clear_its_flag(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """sched(7): reset-on-fork can be set by anyone and cleared with CAP_SYS_NICE alone."""
    policies = [os.SCHED_OTHER]

    def kernel(thread: int, policy: int, parameter: os.sched_param) -> None:
        if policies[-1] & os.SCHED_RESET_ON_FORK and not policy & os.SCHED_RESET_ON_FORK:
            raise PermissionError
        policies.append(policy)

    monkeypatch.setattr(os, "sched_setscheduler", kernel)
    with real_time_thread() as granted:
        assert granted
    assert policies == [
        os.SCHED_OTHER, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK
    ]  # fmt: skip


def test_a_thread_in_real_time_keeps_its_priority_and_what_looks_on_leaves_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program under ``chrt -f 10`` would otherwise be put behind whatever else plays at the least priority."""
    calls = []
    monkeypatch.setattr(os, "sched_getscheduler", lambda thread: os.SCHED_FIFO)
    monkeypatch.setattr(os, "sched_getparam", lambda thread: os.sched_param(10))
    monkeypatch.setattr(os, "setpriority", lambda *arguments: None)
    monkeypatch.setattr(
        os, "sched_setscheduler", lambda thread, policy, found: calls.append((policy, found.sched_priority))
    )
    with real_time_thread() as granted:
        assert granted
    step_back(5)
    assert calls == [
        (os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, 10), (os.SCHED_FIFO, 10), (os.SCHED_OTHER, 0)
    ]  # fmt: skip


def test_the_monotonic_clock_sleeps_no_shorter_than_asked() -> None:
    clock = MonotonicClock()
    for sleep_s in (0.0, 0.0002, 0.003):
        due_s = clock.now() + sleep_s
        clock.sleep_until(due_s)
        assert clock.now() >= due_s
    assert clock.wait(lambda: False, timeout_s=0.001) is False


def test_while_the_monotonic_clock_is_stopped_no_time_passes_and_no_wait_runs_out() -> None:
    clock, waited = MonotonicClock(), []
    waiting = threading.Thread(target=lambda: waited.append(clock.wait(lambda: False, timeout_s=0.2)))
    before_s = clock.now()
    clock.stop()
    stopped_s = clock.now()
    waiting.start()
    time.sleep(0.6)
    assert clock.now() == stopped_s
    assert not waited
    clock.go_on()
    waiting.join(20)
    assert waited == [False]
    assert clock.now() - before_s < time.perf_counter() - before_s - 0.6
