"""What viewers' commands do to the sessions and to time, between two frames."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from spikestill.common.environment import Discrete, Observations
from spikestill.runtime.agents import Agent, cores_policy
from spikestill.runtime.controls import Command
from spikestill.runtime.loop import Pace
from spikestill.runtime.perturb import BODY, SIGHT, disturbance, load_damaged
from spikestill.runtime.session import Session
from spikestill.runtime.worker import in_background


class Desk:
    """Does the commands.

    Args:
        sessions: whom they are about.
        pace: how time passes.
        reopen: makes an agent by its name.
        seed: of what is drawn.

    Attributes:
        notes: what has been done to each agent, for viewers.
        game: the game that was asked for last, '' for none.
    """

    def __init__(
        self, sessions: Sequence[Session], pace: Pace, reopen: Callable[[str], Agent], seed: int
    ) -> None:
        self.sessions, self.pace, self.game = sessions, pace, ""
        self._reopen, self._seed = reopen, seed
        self._done: list[dict[str, float]] = [{} for _ in sessions]
        self._coming: dict[int, tuple[Future[Any], str, dict[str, float]]] = {}
        self._notice, self._changed = "", False

    @property
    def notes(self) -> list[str]:
        """What has been done to each agent, for viewers."""
        return [", ".join(f"{kind} {amount:g}" for kind, amount in done.items()) for done in self._done]

    def changed(self) -> tuple[bool, str]:
        """Return whether viewers are to be told who plays, since the last call, and a notice for them."""
        for index, (opening, name, done) in list(self._coming.items()):
            if not opening.done():
                continue
            del self._coming[index]
            error = opening.exception()
            if error is None:
                self.sessions[index].name, self._done[index] = name, done
            else:
                self._notice = f"{name}: {error}"
            self._changed = True
        found, self._changed = (self._changed, self._notice), False
        self._notice = ""
        return found

    def apply(self, command: Command) -> None:
        """Do one command, as ``controls.checked`` gives it."""
        do = command["do"]
        if do == "pause":
            self.pace.paused, self.pace.steps = command["on"], 0
        elif do == "speed":
            self.pace.speed = float(command["value"])
        elif do == "step":
            self.pace.steps += 1
        elif do == "force":
            self._force(self.sessions[command["agent"]], command["action"])
        elif do == "agent":
            self._replace(
                command["agent"], command["name"], {}, functools.partial(self._reopen, command["name"])
            )
        elif do == "game":
            self.game = command["name"]
        else:
            self._perturb(
                self.sessions[command["agent"]], command["agent"], command["kind"], command["amount"]
            )

    def tell(self, notice: str) -> None:
        """Let viewers know."""
        self._notice, self._changed = notice, True

    def _force(self, session: Session, action: int | None) -> None:
        """Let a person's action take the place of the agent's, where the game that is played now has it."""
        actions = session.game.spec.actions
        if action is not None and not (isinstance(actions, Discrete) and action < len(actions)):
            self.tell(f"{session.game.spec.name} has no action {action} to take over with")
            return
        session.forced = action

    def _replace(self, index: int, name: str, done: dict[str, float], make: Callable[[], Any]) -> None:
        opening = in_background(make)
        self.sessions[index].replace(opening)
        self._coming[index] = (opening, name, done)

    def _perturb(self, session: Session, index: int, kind: str, amount: float) -> None:
        done = {name: value for name, value in self._done[index].items() if name != kind}
        if amount:
            done[kind] = amount
        if kind in BODY:
            agent = session.agent
            if not isinstance(agent, Agent) or agent.entry.role != "core_map" or agent.path is None:
                self.tell(f"{session.name} has no cores to damage")
                return
            # One kind of damage at a time: the map is read anew.
            done = {name: value for name, value in done.items() if name not in BODY or name == kind}
            self._replace(
                index,
                session.name,
                done,
                functools.partial(_damaged, agent, session.game.spec.name, kind, amount, self._seed),
            )
            return
        if kind == "sticky":
            session.sticky = amount
        self._done[index] = done
        if kind in SIGHT:
            changes = [disturbance(each, done[each], self._seed) for each in SIGHT if each in done]
            session.disturb = (
                functools.partial(_all, [change for change in changes if change]) if changes else None
            )
        self._changed = True


def _all(
    changes: Sequence[Callable[[Observations], Observations]], observations: Observations
) -> Observations:
    for change in changes:
        observations = change(observations)
    return observations


def _damaged(agent: Agent, game: str, kind: str, amount: float, seed: int) -> Agent:
    """Return the agent on cores, with damage; warm."""
    assert agent.path is not None
    policy = cores_policy(load_damaged(agent.path, kind, amount, seed), game)
    policy.act({"stack": np.zeros((1, 4, 84, 84), np.uint8)})
    decision = policy.act({"stack": np.zeros((1, 4, 84, 84), np.uint8)})
    words = 0 if decision.trace is None else decision.trace.packed_BW.shape[1]
    return dataclasses.replace(agent, policy=policy, words=words)
