"""Who plays what: from the options of ``play`` to agents, games and sessions, and the scene that they make."""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
from collections.abc import Iterator, Sequence

from spikestill.common.environment import Box, environment
from spikestill.configs.play import PlayConfig
from spikestill.runtime.agents import Agent, agent_files, open_agent
from spikestill.runtime.clock import Clock
from spikestill.runtime.live import LiveGame, open_game
from spikestill.runtime.perturb import is_picture
from spikestill.runtime.scene import Actor, Scene
from spikestill.runtime.session import Session
from spikestill.runtime.telemetry import Telemetry

ROLES = ("teacher", "student", "core_map", "buffer")


@contextlib.contextmanager
def opened(config: PlayConfig, name: str) -> Iterator[Agent]:
    """Yield the agent called ``name`` with the files of ``config``, warm."""
    print(f"play: loads agent {name}", file=sys.stderr, flush=True)
    agent = reopened(config, name)
    with contextlib.closing(agent):
        yield agent


def reopened(config: PlayConfig, name: str) -> Agent:
    """Return the agent called ``name`` with the files of ``config``, warm."""
    game = config.environment.game
    files = agent_files(name, game, {role: getattr(config, role) for role in ROLES})
    return open_agent(name, environment(game), files)


def make_sessions(
    config: PlayConfig, team: list[Agent], clock: Clock, stack: contextlib.ExitStack, *, drawn: bool
) -> list[Session]:
    """Return a session for each agent; ``stack`` closes their games.

    Each has its own game from the same seed; in lockstep the first one's is everyone's.
    """
    sessions: list[Session] = []
    game: LiveGame | None = None
    for agent in team:
        if game is None or not config.lockstep:
            game = open_game(
                config.environment, config.seed, drawn=drawn, paced=not config.max_speed,
                recorded=bool(config.record),
            )  # fmt: skip
        leader = sessions[0] if sessions and config.lockstep else None
        name = agent.name
        session = Session(
            name, game, agent, clock, Telemetry(), epsilon=config.epsilon, seed=config.seed, leader=leader,
            reopen=functools.partial(reopened, config, name), restarts=config.restarts,
            # Side by side they think at the same time, each in a thread of its own.
            at_hand=config.max_speed and len(team) == 1,
        )  # fmt: skip
        sessions.append(session)
        # Another game or agent may have taken its place by then.
        stack.callback(session.release)
    teacher = next((session for session in sessions if session.name == "teacher"), None)
    for session in sessions if config.lockstep else ():
        # The teacher is what a student is compared with; without one, who plays.
        session.reference = teacher or sessions[0]
    return sessions


def scene_of(sessions: list[Session], notes: Sequence[str] = (), notice: str = "") -> Scene:
    """Return who plays what, for those who look on, with what has been done to each."""
    game = sessions[0].game
    box = game.spec.actions
    actors = []
    for session, note in itertools.zip_longest(sessions, notes, fillvalue=""):
        assert isinstance(session, Session)
        agent = session.agent
        layout = agent.layout if isinstance(agent, Agent) else {}
        picture = agent.entry.picture if isinstance(agent, Agent) and layout else ""
        actors.append(Actor(session.name, picture, layout, str(note)))
    return Scene(
        game.spec.name,
        tuple(game.actions),
        game.rate_hz,
        game.frames_per_decision,
        tuple(actors),
        atari=game.spec.family == "atari",
        notice=notice,
        bounds=tuple(zip(box.low, box.high, strict=True)) if isinstance(box, Box) else (),
        sees_pictures=any(is_picture(field) for field in game.spec.fields),
    )


def words_of(sessions: list[Session]) -> int:
    """Return the words of packed spikes that are shown, at most."""
    shown = (session.agent for session in sessions)
    return max((agent.words for agent in shown if isinstance(agent, Agent) and agent.layout), default=0)
