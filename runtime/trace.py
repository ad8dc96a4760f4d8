"""A trace: what was played, well enough to play it again: seed, every action, and every decision with its spikes.

An HDF5 file. Root attributes: ``schema``, ``version``, ``description`` (JSON: game, options of the environment, seed,
and for each agent its name, its leader's number or None, and its layers' shapes), ``provenance``, ``sha256``. Datasets
of agent i begin with ``i_``:

    i_game     int32 (F,)          game of each frame; a frame that begins a game plays no action
    i_action   int64 (F,) or float32 (F, D), the action in effect
    i_reward   float64 (F,)
    i_number   int64 (M,)          observations that were decided on, counted from 0
    i_frame    int64 (M,)          the frame at which the answer was known
    i_chosen   int64 (M,) or float32 (M, D), what the agent chose
    i_scores   float64 (M, A)
    i_kept     uint8 (K,)          a bit a neuron, 1 where the agent computes it; layers one after another
    i_spikes   uint8 (S, K)        a bit a neuron of the first S decisions

Axis suffixes: F frames, M decisions, A scores, D numbers of an action, K bytes.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.common.atomic import write_bytes
from spikestill.common.errors import MALFORMED, UserError
from spikestill.common.hdf5 import MAGIC, Hdf5File
from spikestill.common.limits import HDF5_EXTRA, HDF5_FACTOR, NET_VALUES
from spikestill.common.policy import Trace
from spikestill.common.provenance import Provenance, check_content, check_schema, content_sha256
from spikestill.common.spikes import DISAGREE, SpikeTrace
from spikestill.common.targets import check_target
from spikestill.configs.environment import EnvironmentConfig
from spikestill.runtime.session import Session, Tick

SCHEMA, VERSION = "spikestill.trace", 1
REMEDY = "give a file that `spikestill play --trace` wrote"
MOST_SPIKE_BYTES = 256_000_000
"""Spikes of later decisions are left out."""
ARRAYS = ("game", "action", "reward", "number", "frame", "chosen", "scores", "kept", "spikes")


@dataclasses.dataclass(frozen=True)
class AgentTrace:
    """One agent's part; arrays as in the module's docstring.

    Attributes:
        name: the agent's.
        leader: number of the agent whose game it watched, None where it played its own.
        shapes: (O, H, W) of each layer, () without spikes.
    """

    name: str
    leader: int | None
    shapes: tuple[tuple[int, int, int], ...]
    game: npt.NDArray[np.int32]
    action: npt.NDArray[Any]
    reward: npt.NDArray[np.float64]
    number: npt.NDArray[np.int64]
    frame: npt.NDArray[np.int64]
    chosen: npt.NDArray[Any]
    scores: npt.NDArray[np.float64]
    kept: npt.NDArray[np.uint8]
    spikes: npt.NDArray[np.uint8]


@dataclasses.dataclass(frozen=True)
class PlayTrace:
    """What a file holds; ``provenance`` is None before it is written."""

    environment: EnvironmentConfig
    seed: int
    agents: tuple[AgentTrace, ...]
    provenance: Provenance | None = None


def packed_spikes(layers: Sequence[npt.NDArray[np.uint8]]) -> npt.NDArray[np.uint8]:
    """Return the spikes of one decision, each (1, O, H, W), as bits, layers one after another, uint8 (K,).

    Raises:
        ValueError: copies of a neuron differ, which no bit can say.
    """
    flat = np.concatenate([layer.reshape(-1) for layer in layers])
    if (flat == DISAGREE).any():
        raise ValueError("copies of a neuron do not fire alike: the core map is faulty")
    return np.packbits(flat, bitorder="little")


def kept_neurons(trace: Trace) -> npt.NDArray[np.uint8]:
    """Return which neurons the agent computes, as :func:`packed_spikes` has them."""
    assert isinstance(trace, SpikeTrace)
    layout = trace.layout
    flags = []
    for shape, place_N in zip(layout.shapes, layout.places, strict=True):
        kept = np.zeros(int(np.prod(shape)), np.uint8)
        kept[place_N] = 1
        flags.append(kept)
    return np.packbits(np.concatenate(flags), bitorder="little")


class _Part:
    """What one session's trace is made from while it plays."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, Any, float]] = []
        self.decisions: list[tuple[int, int, Any, npt.NDArray[Any]]] = []
        self.spikes: list[Future[npt.NDArray[np.uint8]]] = []
        self.bytes = 0
        self.first: Trace | None = None


class TraceRecorder:
    """Takes in frame after frame; writes the file at the end. Spikes are unpacked in a thread of its own.

    Args:
        path: the file; an earlier trace is replaced.
        environment: the game's options.
        seed: of the games.
        provenance: of the play.

    Raises:
        UserError: it cannot be written, or what is there is no trace.
    """

    def __init__(self, path: Path, environment: EnvironmentConfig, seed: int, provenance: Provenance) -> None:
        check_target(path, "trace", _is_trace)
        self._path, self._environment, self._seed, self._provenance = path, environment, seed, provenance
        self._parts: list[_Part] = []
        self._pool = ThreadPoolExecutor(1, "trace")

    def add(self, sessions: Sequence[Session], ticks: Sequence[Tick]) -> None:
        """Take in a frame."""
        if not self._parts:
            self._parts = [_Part() for _ in sessions]
        for part, tick in zip(self._parts, ticks, strict=True):
            part.frames.append((tick.game, tick.action, tick.reward))
            answer = tick.answer
            if answer is None or (part.decisions and part.decisions[-1][0] == answer.number):
                continue
            decision = answer.decision
            part.decisions.append((answer.number, tick.frame, decision.action[0], decision.scores[0]))
            trace = decision.trace
            if trace is None or part.bytes > MOST_SPIKE_BYTES or len(part.spikes) < len(part.decisions) - 1:
                continue
            part.first = part.first or trace
            part.bytes += sum(int(np.prod(shape)) for shape in _shapes(trace)) // 8
            part.spikes.append(self._pool.submit(_unpacked, trace))

    def write(self, sessions: Sequence[Session]) -> None:
        """Write the file.

        Raises:
            UserError: the disk is full.
        """
        found = []
        for part, session in zip(self._parts, sessions, strict=True):
            leader = None if session.leader is None else list(sessions).index(session.leader)
            found.append(_finished(part, session.name, leader))
        self._pool.shutdown()
        save(self._path, PlayTrace(self._environment, self._seed, tuple(found)), self._provenance)


def _is_trace(path: Path, head: bytes) -> bool:
    if not head.startswith(MAGIC):
        return False
    try:
        with Hdf5File(path, "trace", REMEDY) as file:
            return bool(file.attributes.get("schema") == SCHEMA)
    except MALFORMED:
        return False


def _unpacked(trace: Trace) -> npt.NDArray[np.uint8]:
    return packed_spikes(trace.spikes())


def _shapes(trace: Trace | None) -> tuple[tuple[int, int, int], ...]:
    return trace.layout.shapes if isinstance(trace, SpikeTrace) else ()


def _finished(part: _Part, name: str, leader: int | None) -> AgentTrace:
    game, action, reward = zip(*part.frames, strict=True) if part.frames else ((), (), ())
    number, frame, chosen, scores = zip(*part.decisions, strict=True) if part.decisions else ((), (), (), ())
    spikes = [future.result() for future in part.spikes]
    kept = kept_neurons(part.first) if part.first is not None else np.zeros(0, np.uint8)
    return AgentTrace(
        name,
        leader,
        _shapes(part.first),
        np.array(game, np.int32),
        np.array(action),
        np.array(reward, np.float64),
        np.array(number, np.int64),
        np.array(frame, np.int64),
        np.array(chosen),
        np.array(scores, np.float64).reshape(len(number), -1 if number else 0),
        kept,
        np.stack(spikes) if spikes else np.zeros((0, len(kept)), np.uint8),
    )


def save(path: Path, trace: PlayTrace, provenance: Provenance) -> None:
    """Write a trace.

    Raises:
        UserError: the disk is full.
    """
    import h5py

    arrays = {
        f"{index}_{name}": getattr(agent, name) for index, agent in enumerate(trace.agents) for name in ARRAYS
    }
    description = json.dumps(
        {
            "environment": dataclasses.asdict(trace.environment),
            "seed": trace.seed,
            "agents": [
                {"name": agent.name, "leader": agent.leader, "shapes": agent.shapes} for agent in trace.agents
            ],
        }
    )
    texts = description, provenance.to_json()
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        file.attrs["schema"], file.attrs["version"] = SCHEMA, VERSION
        file.attrs["description"], file.attrs["provenance"] = texts
        file.attrs["sha256"] = content_sha256(texts, arrays)
        for name, array in arrays.items():
            packed = {"compression": "gzip", "compression_opts": 1} if array.size else {}
            file.create_dataset(name, data=array, **packed)
    write_bytes(path, content.getvalue())


def load(path: Path) -> PlayTrace:
    """Read a trace, checking schema, version, sizes and the content's hash.

    Raises:
        UserError: the file is missing, damaged, foreign or newer.
    """
    try:
        with Hdf5File(path, "trace", REMEDY) as file:
            return _read(file, path)
    except UserError as error:
        if str(path) in error.what:
            raise
        raise UserError(f"{path}: not a readable trace: {error.what}", REMEDY) from error
    except MALFORMED as error:
        raise UserError(f"{path}: not a readable trace: {error}", REMEDY) from error


def _read(file: Hdf5File, path: Path) -> PlayTrace:
    attributes = file.attributes
    check_schema(path, attributes, SCHEMA, VERSION, REMEDY)
    texts = attributes["description"], attributes["provenance"]
    description = json.loads(texts[0])
    names = [f"{index}_{name}" for index in range(len(description["agents"])) for name in ARRAYS]
    arrays = file.read(names, HDF5_EXTRA + HDF5_FACTOR * file.size)
    check_content(texts, arrays, str(attributes["sha256"]))
    agents = []
    for index, agent in enumerate(description["agents"]):
        shapes = tuple((int(o), int(h), int(w)) for o, h, w in agent["shapes"])
        found = {name: arrays[f"{index}_{name}"] for name in ARRAYS}
        made = AgentTrace(str(agent["name"]), agent["leader"], shapes, **found)
        _check(made, index, len(description["agents"]))
        agents.append(made)
    seed = int(description["seed"])
    if not 0 <= seed < 1 << 63:
        raise ValueError(f"seed is {seed}, 0..2^63 - 1 wanted")
    environment = EnvironmentConfig(**description["environment"])
    return PlayTrace(environment, seed, tuple(agents), Provenance.from_json(texts[1]))


def _check(agent: AgentTrace, index: int, agents: int) -> None:
    """Raise ValueError unless an agent's arrays go together as the module's docstring has them."""
    frames, decisions = len(agent.reward), len(agent.number)
    neurons = sum(math.prod(shape) for shape in agent.shapes)
    if (
        any(not 1 <= side <= NET_VALUES for shape in agent.shapes for side in shape)
        or neurons > 8 * NET_VALUES
    ):
        raise ValueError(
            f"agent {index} has layers of {str(agent.shapes)[:200]}, {neurons:,} neurons; sides of 1..{NET_VALUES:,} "
            f"and at most {8 * NET_VALUES:,} neurons wanted"
        )
    packed = -(-neurons // 8)
    lengths = dict.fromkeys(("game", "action", "reward"), frames)
    lengths |= dict.fromkeys(("number", "frame", "chosen", "scores"), decisions) | {"kept": packed}
    kinds = {
        "game": "i",
        "reward": "f",
        "number": "i",
        "frame": "i",
        "scores": "f",
        "kept": "u",
        "spikes": "u",
    }
    axes = {"action": (1, 2), "chosen": (1, 2), "scores": (2,), "spikes": (2,)}
    for name in ARRAYS:
        found: npt.NDArray[Any] = getattr(agent, name)
        if found.ndim not in axes.get(name, (1,)) or found.dtype.kind not in kinds.get(name, "iuf"):
            kind, number = kinds.get(name, "iuf"), " or ".join(map(str, axes.get(name, (1,))))
            raise ValueError(
                f"{index}_{name} is {found.dtype} {found.shape}, numbers of kind {' or '.join(kind)} with {number} "
                "axes wanted"
            )
        if len(found) != lengths.get(name, len(found)):
            raise ValueError(f"{index}_{name} has {len(found)} rows, {lengths[name]} wanted")
        if name in ("action", "reward") and not np.isfinite(found).all():
            wrong = found[~np.isfinite(found)].flat[0]
            raise ValueError(f"{index}_{name} holds {wrong}, finite numbers wanted")
    if agent.spikes.shape[1] != packed or len(agent.spikes) > decisions:
        raise ValueError(
            f"{index}_spikes is {agent.spikes.shape}, at most {decisions} rows of {packed} bytes wanted"
        )
    if decisions and (agent.number[0] < 0 or (np.diff(agent.number) <= 0).any()):
        at = int(np.argmax(np.diff(agent.number, prepend=-1) <= 0))
        raise ValueError(
            f"{index}_number does not rise from 0: decision {at} has {agent.number[at]}, more than the one before it "
            "wanted"
        )
    if decisions and not 0 <= agent.frame.min() <= agent.frame.max() < max(1, frames):
        raise ValueError(
            f"{index}_frame is {agent.frame.min()}..{agent.frame.max()}, 0..{max(0, frames - 1)} wanted"
        )
    leader = agent.leader
    if leader is not None and not (type(leader) is int and 0 <= leader < agents and leader != index):
        raise ValueError(
            f"agent {index} watched agent {str(leader)[:60]!r} of {agents}, another's number 0..{agents - 1} or none "
            "wanted"
        )
