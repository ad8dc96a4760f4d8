"""A session: one agent at one game, with what it measures, and what happens when the agent fails.

At every frame that completes an observation the agent, in a thread of its own, gets the newest one. Its action takes
effect at the next frame after it is ready, so that an agent quicker than one frame plays exactly the game that it was
trained on. An action that is not ready when the next decision is due is a miss, be the game's own thread late or not:
the last action is held until one arrives, and the game never waits. A busy agent finds only the newest observation
when it is done; those it skipped are misses too.

An agent that raises, gives an action that is none, or does not answer for :data:`STALL_ANSWER_S` is *contained*: its
last action is held, its decisions are misses, the session says so, and where restarts are left it is made anew beside
the game. Threads cannot be killed: one that hangs is left behind.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Literal

import numpy as np

from spikestill.common.environment import ActionSpace, Box, Discrete, Observations
from spikestill.common.policy import Policy
from spikestill.runtime.clock import Clock, FrameTimer
from spikestill.runtime.live import LiveGame
from spikestill.runtime.telemetry import Telemetry
from spikestill.runtime.worker import CLOSE_TIMEOUT_S, AgentAtHand, AgentThread, Answer, in_background

STALL_ANSWER_S = 2.0
"""An agent that thinks longer than this about one observation is called stalled."""
REMEMBERED = 256
"""Decisions kept for comparing agents that see the same game."""
State = Literal["playing", "starting", "stalled", "failed"]


@dataclasses.dataclass(frozen=True)
class Tick:
    """One frame of the running game.

    Attributes:
        frame: index of the frame since play began.
        game: index of the game since play began.
        action: the action in effect during this frame: its number, or its numbers.
        reward: raw reward of this frame.
        score: raw score of the game so far.
        over: True at the last frame of a game.
        missed: True where a decision's time ran out at this frame.
        answer: the agent's newest answer, None before the first of a game.
    """

    frame: int
    game: int
    action: Any
    reward: float
    score: float
    over: bool
    missed: bool
    answer: Answer | None


class Session:
    """One agent at one game.

    Args:
        name: of the agent, for what is shown.
        game: what it plays; reset here.
        agent: acts in a thread of its own; closed by the caller.
        clock: the clock that paces the game.
        telemetry: filled as play goes on.
        epsilon: probability that a decision is a uniformly random action.
        seed: seed of those.
        leader: the session whose game this one watches without playing it; None: it plays ``game`` itself.
        reopen: makes the agent anew after it failed; None: it stays out.
        restarts: times that it does.
        at_hand: the agent acts in the game's own thread; for play that waits for every answer.

    Attributes:
        state: ``playing``; ``stalled``, no answer for a while; ``starting``, being made anew; ``failed``, for good.
        error: what went wrong last, None where nothing did.
        agreed, compared: decisions that were the reference's too, and all that were compared.
        forced: an action played in place of the agent's, as by a person at the keyboard; None: the agent's.
        sticky: probability that a decision changes nothing.
        disturb: what is done to an observation before the agent gets it; None: nothing.
    """

    def __init__(
        self,
        name: str,
        game: LiveGame,
        agent: Policy,
        clock: Clock,
        telemetry: Telemetry,
        *,
        epsilon: float = 0.0,
        seed: int = 0,
        leader: Session | None = None,
        reopen: Callable[[], Policy] | None = None,
        restarts: int = 0,
        at_hand: bool = False,
    ) -> None:
        self.name, self.game, self.agent, self.telemetry = name, game, agent, telemetry
        self.leader, self.reference = leader, None if leader is None else leader
        self.state: State = "playing"
        self.error: BaseException | None = None
        self.agreed = self.compared = 0
        self.forced: Any = None
        self.sticky = 0.0
        self.disturb: Callable[[Observations], Observations] | None = None
        self._period_s = game.frames_per_decision / game.rate_hz
        self._clock, self._epsilon, self._rng = clock, epsilon, np.random.default_rng([seed, 5])
        self._reopen, self.restarts = reopen, restarts
        self._opening: Future[Policy] | None = None
        self._at_hand = at_hand
        self._worker: AgentThread | AgentAtHand | None = self._employ(agent)
        self._explored: dict[int, Any] = {}
        self._number, self._first_of_game, self._game, self._watched = -1, 0, -1, -1
        self.last_reward = self.sensed_s = 0.0
        self.action = self._played = neutral(game.spec.actions)
        self.newest: Answer | None = None
        self._waiting, self._deadline_s = False, 0.0
        self.decided: dict[int, Any] = {}
        self._pending: deque[int] = deque(maxlen=REMEMBERED)

    def tick(self, frame: int, timer: FrameTimer) -> Tick:
        """Play one frame, as ``frame`` of the loop."""
        self.telemetry.ticks += 1
        missed = self._settle()
        reward, sensed_s = self._play(timer)
        if self.game.decision_due and not self.game.over:
            missed |= self._decide(timer, sensed_s)
        self._compare()
        return Tick(
            frame, self._game, self._played, reward, self.game.score, self.game.over, missed, self.newest
        )

    def settled(self) -> bool:
        """Return True where the agent has answered what it was asked last, or will not."""
        worker = self._worker
        return not self._waiting or worker is None or worker.settled() or self.state in ("failed", "starting")

    def give_up(self, error: BaseException) -> None:
        """Take the agent out, and have it made anew where restarts are left."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close(timeout_s=0.0)
        self.error, self.state = error, "failed"
        if self._reopen is not None and self.restarts > 0:
            self.restarts -= 1
            self.state, self._opening = "starting", in_background(self._reopen)

    def replace(self, opening: Future[Policy]) -> None:
        """Have the agent's place taken by another one as soon as that is made; this one plays until then."""
        self._opening = opening

    def move(self, game: LiveGame, agent: Policy) -> None:
        """Go over to another game with another agent, at once; the ones before are closed."""
        if self._worker is not None:
            self._worker.close(0.0 if self.state == "stalled" else CLOSE_TIMEOUT_S)
        self.release()
        self.game, self.agent, self.state, self.error = game, agent, "playing", None
        self._period_s = game.frames_per_decision / game.rate_hz
        self._worker = self._employ(agent)
        self._explored, self.decided, self.forced = {}, {}, None
        self._pending.clear()
        self._watched, self._waiting = -1, False
        self.action, self.newest = neutral(game.spec.actions), None

    def release(self) -> None:
        """Close the game that it plays and the agent."""
        if self.leader is None:
            self.game.close()
        if (close := getattr(self.agent, "close", None)) is not None:
            close()

    def close(self) -> None:
        """End the agent's thread."""
        if self._worker is not None:
            self._worker.close(0.0 if self.state == "stalled" else CLOSE_TIMEOUT_S)
        if self._opening is not None:
            with contextlib.suppress(Exception):
                close = getattr(self._opening.result(CLOSE_TIMEOUT_S), "close", None)
                if close:
                    close()

    def _employ(self, agent: Policy) -> AgentThread | AgentAtHand:
        if self._at_hand:
            return AgentAtHand(agent, self._clock)
        return AgentThread(agent, self._clock, f"agent {self.name}")

    def _settle(self) -> bool:
        """Take the agent's answers, and notice what is wrong with it; return whether one came too late."""
        if self._opening is not None and self._opening.done():
            self._take_place()
        worker = self._worker
        if worker is None:
            return False
        missed = False
        try:
            for answer in worker.take():
                missed |= self._take(answer)
        except Exception as error:
            self.give_up(error)
            return missed
        began_s = worker.began_s
        if began_s is not None and self._clock.now() - began_s > STALL_ANSWER_S:
            if self._reopen is not None and self.restarts > 0:
                self.give_up(TimeoutError(f"no answer for {STALL_ANSWER_S:g} s"))
            else:
                self.state = "stalled"
        elif self.state == "stalled":
            self.state = "playing"
        return missed

    def _take_place(self) -> None:
        """Let the agent that was made take the place of the one before."""
        assert self._opening is not None
        opening, self._opening = self._opening, None
        try:
            fresh = opening.result()
        except Exception as error:
            if self._worker is None:
                self.give_up(error)
            self.error = error
            return
        old, worker = self.agent, self._worker
        if worker is not None:
            worker.close()
            if (close := getattr(old, "close", None)) is not None:
                close()
        self.agent, self.state, self.error = fresh, "playing", None
        self._worker = self._employ(fresh)

    def _take(self, answer: Answer) -> bool:
        """Let an answer take effect; return whether it came too late.

        Raises:
            ValueError: its action is none of the game's.
        """
        telemetry, actions = self.telemetry, self.game.spec.actions
        telemetry.add_latency(answer.latency_s)
        estimate = getattr(self.agent, "joules", None)
        telemetry.add_saturated(answer.decision.saturated)
        telemetry.add_energy(estimate(answer.decision, self._period_s) if estimate else None)
        actions.check(np.asarray(answer.decision.action))
        chosen = answer.decision.action[0]
        forced = self._explored.pop(answer.number, None)
        if answer.number < self._first_of_game:
            return False
        self.newest = answer
        self.decided[answer.number] = chosen
        self._pending.append(answer.number)
        if len(self.decided) > REMEMBERED:
            del self.decided[next(iter(self.decided))]
        if not (self.sticky and self._rng.random() < self.sticky):
            self.action = chosen if forced is None else forced
        if isinstance(actions, Discrete):
            self.action = int(self.action)
        if not (self._waiting and answer.number == self._number):
            return False
        telemetry.decisions += 1
        self._waiting = False
        late = answer.ready_s > self._deadline_s
        if late:
            telemetry.add_miss(self._clock.now() - self._deadline_s)
        return late

    def _play(self, timer: FrameTimer) -> tuple[float, float]:
        """Advance the game by a frame; return its reward and when it was sensed."""
        if self.leader is not None:
            if self.leader._game != self._watched:
                self._watched = self.leader._game
                self._begin_game()
            self._played = self.action
            return self.leader.last_reward, self.leader.sensed_s
        if self.game.over:
            self.game.reset()
            self._begin_game()
            self._played = self.action
            reward, self.sensed_s = 0.0, self._clock.now()
        else:
            self.sensed_s = self._clock.now()
            self._played = self.action if self.forced is None else self.forced
            reward = self.game.step(self._played)
        self.last_reward = reward
        return reward, self.sensed_s

    def _begin_game(self) -> None:
        self._game, self.action, self.newest = self._game + 1, neutral(self.game.spec.actions), None
        self._first_of_game, self._waiting = self._number + 1, False

    def _decide(self, timer: FrameTimer, sensed_s: float) -> bool:
        """Hand the new observation to the agent; return whether it had not answered the last one."""
        missed = self._waiting
        if missed:
            self.telemetry.decisions += 1
            self.telemetry.add_miss(self._clock.now() - self._deadline_s)
        self._number, self._waiting = self._number + 1, True
        self._deadline_s = timer.due_s(self.game.frames_per_decision)
        if self._rng.random() < self._epsilon:
            self._explored[self._number] = self.game.spec.actions.sample(self._rng, 1)[0]
        observations = self.game.observations()
        if self.disturb is not None:
            observations = self.disturb(observations)
        if self._worker is not None and not self._worker.submit(self._number, observations, sensed_s):
            self.telemetry.unseen += missed
        return missed

    def _compare(self) -> None:
        """Count the decisions that are the reference's too: both see the same game. Numbers never are, to the last bit,
        and are not counted."""
        reference = self.reference
        if reference is None or reference is self:
            return
        if isinstance(self.game.spec.actions, Box):
            self._pending.clear()
            return
        for _ in range(len(self._pending)):
            number = self._pending.popleft()
            if number in reference.decided and number in self.decided:
                self.compared += 1
                self.agreed += bool(np.array_equal(reference.decided[number], self.decided[number]))
            elif number > reference._number - REMEMBERED:
                self._pending.append(number)


def neutral(actions: ActionSpace) -> Any:
    """Return the action of an agent that has not decided: the first one, or the numbers nearest to zero."""
    if isinstance(actions, Discrete):
        return 0
    return np.clip(np.zeros(actions.shape, np.float32), actions.low, actions.high).astype(np.float32)
