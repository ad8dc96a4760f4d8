"""The registry of agents: one entry each, which ``play``, ``evaluate``, ``report`` and ``--help`` read.

Our own entries are in ``spikestill.runtime.registry``. An installed package adds its own by the entry-point group
``spikestill.agents``, each point an :class:`AgentEntry` or a list of them; a program adds one by :func:`register`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from spikestill.common.environment import EnvironmentSpec
from spikestill.common.errors import UserError, nearest
from spikestill.common.policy import Policy

ENTRY_POINTS = "spikestill.agents"
BUILT_IN = "spikestill.runtime.registry"
"""The module whose ``ENTRIES`` are our own agents; imported when an agent is looked up."""
Maker = Callable[[Mapping[str, Path], EnvironmentSpec], Policy]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentEntry:
    """What there is to know of an agent before it plays.

    Attributes:
        name: an identifier, what ``--agent`` takes.
        help: one sentence for ``--help``, without a full stop.
        make: ``make(files, environment)`` returns the policy, ready to act; or ``module:function``, imported when it
            is made. ``files`` has role to path of what is given, with the agent's own ``role`` always;
            ``environment`` is the :class:`EnvironmentSpec`. It raises UserError where a file is not for it.
        role: the option that names the file it plays: ``teacher``, ``student``, ``core_map``; None where it needs none.
        batched: it decides on many rows at once, asked by several threads; otherwise ``evaluate`` makes one a
            processor.
        scored_as: the agent that gives the same actions, under whose name its scores are told; '' its own.
        evaluated: ``evaluate`` may score it; False for those that need a person or the wall clock.
        picture: ``module:function``, a function of the policy's ``layout`` (name to array) that returns what draws its
            inside, as :mod:`spikestill.runtime.panel` has it; '' draws what the agent sees. It draws in a process of
            its own, from the decision's packed spikes.
    """

    name: str
    help: str
    make: str | Maker
    role: str | None = None
    batched: bool = False
    scored_as: str = ""
    evaluated: bool = True
    picture: str = ""

    def __post_init__(self) -> None:
        if not self.name.replace("-", "_").isidentifier():
            raise ValueError(f"agent name {self.name!r}: letters, digits, _ and - wanted")

    def maker(self) -> Maker:
        """Return what makes the policy."""
        return resolve(self.make)

    @property
    def told_as(self) -> str:
        """The name under which its scores are told."""
        return self.scored_as or self.name


def resolve(target: str | Callable[..., Any]) -> Callable[..., Any]:
    """Return a callable that is given as such or as ``module:function``."""
    if not isinstance(target, str):
        return target
    module, _, name = target.partition(":")
    found = getattr(import_module(module), name)
    assert callable(found)
    return found


_registered: dict[str, AgentEntry] = {}


def register(entry: AgentEntry) -> None:
    """Add an agent of one's own to those that every command takes by name.

    Raises:
        ValueError: the name is taken by another one.
    """
    taken = {**_installed(), **_registered}.get(entry.name)
    if taken is not None and taken is not entry:
        raise ValueError(f"agent {entry.name!r} is there already; choose another name")
    _registered[entry.name] = entry


@functools.cache
def _installed() -> dict[str, AgentEntry]:
    entries: list[AgentEntry] = list(import_module(BUILT_IN).ENTRIES)
    for point in metadata.entry_points(group=ENTRY_POINTS):
        found = point.load()
        entries += [found] if isinstance(found, AgentEntry) else list(found)
    # The first of a name stays: an installed package cannot take the place of one of ours.
    return {entry.name: entry for entry in reversed(entries)}


def agents() -> dict[str, AgentEntry]:
    """Return every agent by name, in the order of ``--help``."""
    ours = _installed()
    order = [entry.name for entry in import_module(BUILT_IN).ENTRIES]
    return {name: ours[name] for name in dict.fromkeys([*order, *ours])} | _registered


def agent(name: str) -> AgentEntry:
    """Return the agent called ``name``.

    Raises:
        UserError: there is none of that name; the nearest one is named.
    """
    known = agents()
    if name not in known:
        raise UserError(
            f"unknown agent {name!r}; known: {', '.join(known)}",
            f"did you mean {nearest(name, tuple(known))!r}",
        )
    return known[name]


def live_agents() -> dict[str, str]:
    """Return what each agent of ``play`` is, by name."""
    return {name: entry.help for name, entry in agents().items()}


def scored_agents() -> dict[str, str]:
    """Return what each agent of ``evaluate`` is, by name."""
    return {name: entry.help for name, entry in agents().items() if entry.evaluated}
