"""The verbs ``replay`` and ``compare``: a trace played again, and two traces side by side.

Axis suffixes as in ``trace``: F frames, M decisions, K bytes of packed spikes.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.common.environment import Box, EnvironmentSpec, environment
from spikestill.common.errors import UserError, restoring
from spikestill.common.stage import StageResult
from spikestill.configs.play import CompareConfig, ReplayConfig
from spikestill.runtime.agents import Agent, agent_files, open_agent
from spikestill.runtime.crew import ROLES
from spikestill.runtime.live import open_game
from spikestill.runtime.trace import REMEDY, AgentTrace, PlayTrace, kept_neurons, load, packed_spikes


def run(config: ReplayConfig, run_dir: Path, *, resume: bool = False) -> StageResult:
    """Play a trace again and compare with it.

    The summary has ``frames``, ``decisions`` and ``spikes`` (decisions whose spikes were compared), ``same`` and, where
    they are not, ``first_difference``.

    Raises:
        UserError: a file cannot be read, or the trace has no such agent.
    """
    trace = load(config.trace)
    recorded = _agent(trace, config.index, config.trace)
    name = config.agent or recorded.name
    with restoring(config.trace, REMEDY):
        spec = environment(trace.environment.game)
        _check_actions(trace, config.index, spec)
    given = {role: getattr(config, role) for role in ROLES}
    with contextlib.closing(open_agent(name, spec, agent_files(name, spec.name, given))) as agent:
        played = play_again(trace, config.index, agent)
    summary: dict[str, Any] = {"trace": str(config.trace), "played_by": recorded.name, "agent": name}
    summary |= _differences(recorded, played)
    return StageResult(config.trace, summary)


def compare(config: CompareConfig, run_dir: Path, *, resume: bool = False) -> StageResult:
    """Set two traces side by side; the summary is as of :func:`run`.

    Raises:
        UserError: a file cannot be read, or has no such agent.
    """
    first = _agent(load(config.trace), config.index, config.trace)
    second = _agent(load(config.other), config.other_index, config.other)
    summary: dict[str, Any] = {"trace": str(config.trace), "other": str(config.other)}
    summary |= {"agents": [first.name, second.name], **_differences(first, second)}
    return StageResult(config.trace, summary)


def play_again(trace: PlayTrace, index: int, agent: Agent) -> AgentTrace:
    """Return what comes of the recorded actions in a new game of the same seed, with ``agent`` asked as the one was."""
    recorded = trace.agents[index]
    # Who watched saw the game of its leader.
    player = recorded if recorded.leader is None else trace.agents[recorded.leader]
    asked = set(recorded.number.tolist())
    game = open_game(trace.environment, trace.seed, drawn=False)
    rewards: list[float] = []
    chosen: list[Any] = []
    scores: list[npt.NDArray[Any]] = []
    spikes: list[npt.NDArray[np.uint8]] = []
    kept: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)
    number = -1
    shapes: tuple[tuple[int, int, int], ...] = ()
    with contextlib.closing(game):
        for action in player.action:
            if game.over:
                game.reset()
                rewards.append(0.0)
            else:
                rewards.append(game.step(action))
            if not game.decision_due or game.over:
                continue
            number += 1
            if number not in asked:
                continue
            decision = agent.act(game.observations())
            chosen.append(decision.action[0])
            scores.append(decision.scores[0])
            if decision.trace is not None and len(spikes) < len(recorded.spikes):
                if not len(kept):
                    kept = kept_neurons(decision.trace)
                    shapes = tuple(layer.shape[1:] for layer in decision.trace.spikes())  # type: ignore[misc]
                spikes.append(packed_spikes(decision.trace.spikes()))
    return AgentTrace(
        name=agent.name,
        leader=recorded.leader,
        shapes=shapes,
        game=recorded.game,
        action=recorded.action,
        reward=np.array(rewards, np.float64),
        number=recorded.number[: len(chosen)],
        frame=recorded.frame[: len(chosen)],
        chosen=np.array(chosen),
        scores=np.array(scores, np.float64).reshape(len(chosen), -1),
        kept=kept,
        spikes=np.stack(spikes) if spikes else np.zeros((0, len(kept)), np.uint8),
    )


def _check_actions(trace: PlayTrace, index: int, spec: EnvironmentSpec) -> None:
    """Raise ValueError where the actions that are to be played are none of the environment's."""
    leader = trace.agents[index].leader
    action = trace.agents[index if leader is None else leader].action
    if not len(action):
        return
    if isinstance(spec.actions, Box):
        fits = action.shape[1:] == spec.actions.shape and action.dtype.kind == "f"
    else:
        fits = (
            action.ndim == 1
            and action.dtype.kind in "iu"
            and 0 <= action.min() <= action.max() < len(spec.actions.names)
        )
    if not fits:
        raise ValueError(f"its actions are {action.dtype} {action.shape}, not those of {spec.name}")


def _agent(trace: PlayTrace, index: int, path: Path) -> AgentTrace:
    if index >= len(trace.agents):
        names = ", ".join(agent.name for agent in trace.agents)
        raise UserError(f"{path}: has no agent {index}; it has {names}", f"give 0..{len(trace.agents) - 1}")
    return trace.agents[index]


def _differences(first: AgentTrace, second: AgentTrace) -> dict[str, Any]:
    """Return how much of two agents' traces was compared, and the first difference in the order of play."""
    frames = min(len(first.reward), len(second.reward))
    numbers, ours, theirs = np.intersect1d(first.number, second.number, return_indices=True)
    found: list[tuple[int, str]] = []
    for name in ("action", "reward"):
        one, other = getattr(first, name)[:frames], getattr(second, name)[:frames]
        differ = (
            np.flatnonzero((one != other).reshape(frames, -1).any(axis=1)) if frames else np.zeros(0, int)
        )
        if len(differ):
            found.append((int(differ[0]), f"the {name} of frame {differ[0]}"))
    for name in ("chosen", "scores"):
        one, other = getattr(first, name)[ours], getattr(second, name)[theirs]
        if one.shape != other.shape:
            found.append((0, f"the {name}: {one.shape[1:]} and {other.shape[1:]}"))
        elif len(one) and (differ := np.flatnonzero((one != other).reshape(len(one), -1).any(axis=1))).size:
            number = int(numbers[differ[0]])
            found.append((int(first.frame[ours[differ[0]]]), f"the {name} of decision {number}"))
    compared = 0
    if first.shapes and first.shapes == second.shapes:
        both = first.kept & second.kept
        rows = (ours < len(first.spikes)) & (theirs < len(second.spikes))
        compared = int(rows.sum())
        differ_MK = (first.spikes[ours[rows]] ^ second.spikes[theirs[rows]]) & both
        hit = np.flatnonzero(differ_MK.any(axis=1))
        if len(hit):
            neuron = int(np.flatnonzero(np.unpackbits(differ_MK[hit[0]], bitorder="little"))[0])
            place = int(first.frame[ours[rows][hit[0]]])
            found.append((place, f"decision {numbers[rows][hit[0]]}, {_neuron(first.shapes, neuron)}"))
    return {
        "frames": frames,
        "decisions": len(numbers),
        "spikes": compared,
        "same": not found,
        "first_difference": min(found)[1] if found else None,
    }


def _neuron(shapes: tuple[tuple[int, int, int], ...], neuron: int) -> str:
    """Return layer and place of a neuron that is counted through all layers."""
    for layer, shape in enumerate(shapes):
        size = int(np.prod(shape))
        if neuron < size:
            feature, row, column = np.unravel_index(neuron, shape)
            return f"layer {layer}, feature {feature}, row {row}, column {column}"
        neuron -= size
    raise AssertionError("a neuron of no layer")
