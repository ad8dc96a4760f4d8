"""What a viewer may ask of the loop: checked when it comes in, done between two frames.

A command is a JSON object with ``do`` and its arguments:

    {"do": "pause", "on": true}                      {"do": "speed", "value": 0.5}
    {"do": "step"}                                   {"do": "force", "agent": 0, "action": 2 or null}
    {"do": "agent", "agent": 0, "name": "teacher"}   {"do": "game", "name": "breakout"}
    {"do": "perturb", "agent": 0, "kind": "noise", "amount": 0.3}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from spikestill.common.agents import live_agents
from spikestill.common.environment import environment_names
from spikestill.common.errors import UserError, nearest
from spikestill.runtime.loop import SPEEDS
from spikestill.runtime.perturb import KINDS

Command = Mapping[str, Any]


def checked(command: Any, agents: int, actions: int) -> dict[str, Any]:
    """Return the command with only what belongs to it.

    Args:
        command: what a viewer sent, parsed.
        agents: how many there are.
        actions: how many there are to choose from.

    Raises:
        UserError: it is no command, or an argument is missing or out of its range.
    """
    if not isinstance(command, dict) or not isinstance(command.get("do"), str):
        raise UserError("a command is an object with the key 'do'", "see runtime/controls.py")
    do = command["do"]
    wanted: dict[str, dict[str, Callable[[Any], bool]]] = {
        "pause": {"on": lambda value: isinstance(value, bool)},
        "speed": {"value": lambda value: _number(value, *SPEEDS)},
        "step": {},
        "force": {
            "agent": lambda value: _index(value, agents),
            "action": lambda value: value is None or _index(value, actions),
        },
        "agent": {
            "agent": lambda value: _index(value, agents),
            "name": lambda value: isinstance(value, str) and value in live_agents(),
        },
        "game": {"name": lambda value: isinstance(value, str) and value in environment_names()},
        "perturb": {
            "agent": lambda value: _index(value, agents),
            "kind": lambda value: isinstance(value, str) and value in KINDS,
            "amount": lambda value: _number(value, 0, 1),
        },
    }
    if do not in wanted:
        raise UserError(f"unknown command {do!r}", f"did you mean {nearest(do, tuple(wanted))!r}")
    found = {"do": do}
    for name, fits in wanted[do].items():
        if name not in command or not fits(command[name]):
            given = repr(command.get(name, "missing"))[:60]
            raise UserError(f"command {do}: {name} is {given}", "give one that is there, in its range")
        found[name] = command[name]
    return found


def _number(value: Any, low: float, high: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def _index(value: Any, count: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < count
