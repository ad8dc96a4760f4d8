"""The agents that play: from a name and its files to a policy that is warm and can be closed.

``cores``, ``lava`` and ``student`` give the same votes, bit for bit. :mod:`spikestill.runtime.registry` lists them all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from spikestill.common.agents import AgentEntry, agent
from spikestill.common.artefacts import TEACHER
from spikestill.common.environment import ActionSpace, Discrete, EnvironmentSpec, Field
from spikestill.common.errors import UserError
from spikestill.common.legal import actions_in, own_scores
from spikestill.common.policy import Decision, Observations, Policy
from spikestill.common.spikes import SpikeTrace
from spikestill.common.zoo import zoo_path
from spikestill.student.game_check import check_file_game

if TYPE_CHECKING:
    from spikestill.deploy.core_map import CoreMap
    from spikestill.student.integer_net import IntegerNet
    from spikestill.teacher.policy import Precision

WARM_UP_DECISIONS = 20
ZOO_FILES = {"teacher": TEACHER, "student": "student-1chip.safetensors", "core_map": "core_map-1chip.h5"}
"""Role to the zoo's file, which is played where none is given."""
# A student and its map stand for each other: what to do where only the other one is given.
INSTEAD = {
    "core_map": ("student", "map it with `spikestill map` and give --core_map, or take --agent lava"),
    "student": ("core_map", "give --student, or take --agent cores"),
}


class VotingPolicy:
    """A student: counts votes for one stack after another.

    Args:
        decide: gives a stack's votes (A,) and, where there are any, its spikes.
        legal: which of the actions are the game's own, in its order; None: all are.
        close: releases what it holds.
        layout: what draws its inside needs to know.
        joules: estimates the energy of a decision from its spikes and the seconds until the next; None: nothing does.
    """

    def __init__(
        self,
        decide: Callable[[npt.NDArray[np.uint8]], tuple[npt.NDArray[np.int64], SpikeTrace | None]],
        close: Callable[[], None] = lambda: None,
        layout: Mapping[str, npt.NDArray[Any]] | None = None,
        legal: tuple[int, ...] | None = None,
        joules: Callable[[SpikeTrace, float], float] | None = None,
    ) -> None:
        self._decide, self.close, self.layout, self._legal = decide, close, dict(layout or {}), legal
        self._joules = joules

    def act(self, observations: Observations) -> Decision:
        """Count the votes for each stack; see :class:`spikestill.common.policy.Policy`."""
        found = [self._decide(stack_CHW) for stack_CHW in observations["stack"]]
        traces = [trace for _, trace in found if trace is not None]
        trace = None
        if traces:
            packed_BW = traces[0].packed_BW
            if len(traces) > 1:
                packed_BW = np.concatenate([each.packed_BW for each in traces])
            trace = SpikeTrace(packed_BW, traces[0].layout)
        return Decision.best(own_scores(np.stack([votes_A for votes_A, _ in found]), self._legal), trace)

    def joules(self, decision: Decision, period_s: float) -> float | None:
        """Return the estimated energy of a decision, J, None where nothing is known of it.

        Args:
            decision: of one row.
            period_s: seconds between two decisions.
        """
        trace = decision.trace
        return self._joules(trace, period_s) if self._joules and isinstance(trace, SpikeTrace) else None


class OneThread:
    """A policy of PyTorch on one thread: at batch 1 more threads cost more than they give."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._thread: int | None = None

    def act(self, observations: Observations) -> Decision:
        """Decide as the policy does."""
        if self._thread != threading.get_ident():
            import torch

            # OpenMP keeps this number for each thread apart.
            torch.set_num_threads(1)
            self._thread = threading.get_ident()
        return self._policy.act(observations)


class RandomPolicy:
    """Uniformly random actions, the same ones for the same seed."""

    def __init__(self, actions: ActionSpace, seed: int = 0) -> None:
        self._actions, self._rng = actions, np.random.default_rng([seed, 6])

    def act(self, observations: Observations) -> Decision:
        """Draw an action for each row; the scores are 1 for a chosen action and 0 for the others, or the numbers."""
        rows = len(next(iter(observations.values())))
        action = self._actions.sample(self._rng, rows)
        if isinstance(self._actions, Discrete):
            return Decision(action, np.eye(len(self._actions), dtype=np.int64)[action])
        return Decision(action, action)


def make_cores(files: Mapping[str, Path], environment: EnvironmentSpec) -> Policy:
    """Return the core map on the core simulator."""
    from spikestill.deploy.core_map import check_not_stale
    from spikestill.deploy.validate import load_valid

    path = files["core_map"]
    core_map = load_valid(path)
    check_not_stale(path, core_map.provenance, files.get("student"))
    _check(path, core_map, environment)
    return cores_policy(core_map, environment.name)


def cores_policy(core_map: CoreMap, game: str) -> VotingPolicy:
    """Return a core map, sound or damaged, on the core simulator, playing ``game``."""
    from spikestill.deploy.costs import decision_j
    from spikestill.deploy.simulator import CoreSimulator
    from spikestill.runtime.activity import core_grid

    simulator, chips = CoreSimulator(core_map), core_map.chips
    return VotingPolicy(
        lambda stack_CHW: (simulator.votes(stack_CHW), simulator.trace()),
        layout=core_grid(core_map, simulator.layout),
        legal=actions_in(core_map.legal, game),
        joules=lambda trace, period_s: decision_j(chips, int(trace.events()[0]), period_s),
    )


def make_lava(files: Mapping[str, Path], environment: EnvironmentSpec) -> Policy:
    """Return the student as one fused Lava process."""
    from spikestill.deploy.lava.fused import FusedLava

    net = _student(files["student"], environment)
    backend = FusedLava(net)
    legal = actions_in(net.legal, environment.name)
    return VotingPolicy(lambda stack_CHW: (backend.votes(stack_CHW), None), backend.close, legal=legal)


def make_lava_loihi(files: Mapping[str, Path], environment: EnvironmentSpec) -> Policy:
    """Return the student in stock Lava processes on this machine: as fast as they go, about five decisions a second."""
    from spikestill.deploy.lava.stock import StockLava

    net = _student(files["student"], environment)
    backend = StockLava(net, timeout_s=30.0)
    legal = actions_in(net.legal, environment.name)
    return VotingPolicy(lambda stack_CHW: (backend.votes(stack_CHW), None), backend.close, legal=legal)


def make_student(files: Mapping[str, Path], environment: EnvironmentSpec) -> Policy:
    """Return the student on the packed kernel."""
    from spikestill.deploy.packed_kernel import PackedNet

    net = _student(files["student"], environment)
    return VotingPolicy(PackedNet(net).traced, legal=actions_in(net.legal, environment.name))


def make_teacher(
    files: Mapping[str, Path], environment: EnvironmentSpec, precision: Precision = "fp32"
) -> Policy:
    """Return the teacher's network; where actions are numbers, the control agent's."""
    if not isinstance(environment.actions, Discrete):
        from spikestill.teacher.control.policy import load_policy

        return load_policy(files["teacher"], environment)
    from spikestill.teacher.policy import load_teacher

    policy = load_teacher(files["teacher"], precision)
    check_file_game(files["teacher"], policy.game, policy.actions, environment.name, actions_of(environment))
    return OneThread(policy)


def make_fp16(files: Mapping[str, Path], environment: EnvironmentSpec) -> Policy:
    """Return the teacher's network in half precision."""
    return make_teacher(files, environment, "fp16")


def make_random(files: Mapping[str, Path], environment: EnvironmentSpec) -> Policy:
    """Return random play."""
    return RandomPolicy(environment.actions)


def _student(path: Path, environment: EnvironmentSpec) -> IntegerNet:
    from spikestill.student import integer_net

    net, _ = integer_net.load(path)
    _check(path, net, environment)
    return net


def _check(path: Path, made: IntegerNet | CoreMap, environment: EnvironmentSpec) -> None:
    check_file_game(
        path, made.game, made.actions, environment.name, actions_of(environment), made.input_shape, made.legal
    )


def actions_of(environment: EnvironmentSpec) -> int:
    """Return how many actions there are to choose from.

    Raises:
        UserError: an action is not one of some, but numbers.
    """
    if not isinstance(environment.actions, Discrete):
        raise UserError(
            f"{environment.name} wants {environment.actions.shape[0]} numbers as an action, this agent names one",
            "take an agent that was trained on it",
        )
    return len(environment.actions)


@dataclasses.dataclass(frozen=True)
class Agent:
    """An agent that is ready to play.

    Attributes:
        entry: its entry in the registry.
        policy: what decides.
        path: the file that it plays, None where it needs none.
        words: words of packed spikes that come with a decision, 0 where it has no trace.
    """

    entry: AgentEntry
    policy: Policy
    path: Path | None = None
    words: int = 0

    @property
    def name(self) -> str:
        """The agent's name."""
        return self.entry.name

    @property
    def parents(self) -> dict[str, Path]:
        """Role to the file that it plays, for the provenance of what it makes."""
        return {self.entry.role: self.path} if self.entry.role and self.path else {}

    @property
    def layout(self) -> Mapping[str, npt.NDArray[Any]]:
        """What draws its inside needs to know; {} where nothing does."""
        return getattr(self.policy, "layout", {})

    def act(self, observations: Observations) -> Decision:
        """Decide; see :class:`spikestill.common.policy.Policy`."""
        return self.policy.act(observations)

    def joules(self, decision: Decision, period_s: float) -> float | None:
        """Return the estimated energy of a decision, J; see :meth:`VotingPolicy.joules`."""
        estimate = getattr(self.policy, "joules", None)
        return estimate(decision, period_s) if estimate else None

    def close(self) -> None:
        """Release what the policy holds; it acts no more."""
        if (close := getattr(self.policy, "close", None)) is not None:
            close()


def agent_files(name: str, environment: str, given: Mapping[str, Path | None]) -> dict[str, Path]:
    """Return role to path of the files that an agent is made from: its own one first, then all that are given.

    Args:
        name: the agent's.
        environment: the environment's name; where the agent's own file is not given, it is that of its zoo.
        given: role to path.

    Raises:
        UserError: there is no such agent, no such file in the zoo, or a student is given without the map that the
            agent plays, or a map without the student.
    """
    entry = agent(name)
    files = {role: Path(path) for role, path in given.items() if path is not None}
    if entry.role is None:
        return {}
    if entry.role not in files:
        other, remedy = INSTEAD.get(entry.role, ("", ""))
        if other in files:
            role, other_role = (each.replace("_", " ") for each in (entry.role, other))
            raise UserError(
                f"agent {name} plays a {role}, and only a {other_role} is given ({files[other]})", remedy
            )
        if entry.role not in ZOO_FILES:
            raise UserError(f"agent {name} needs a file", f"give --{entry.role} FILE")
        files[entry.role] = zoo_path(environment, ZOO_FILES[entry.role])
    return {entry.role: files.pop(entry.role), **files}


def open_agent(name: str, environment: EnvironmentSpec, files: Mapping[str, Path]) -> Agent:
    """Return the agent called ``name``, warmed up.

    Args:
        name: its name in the registry.
        environment: what it is to play.
        files: role to path, as :func:`agent_files` gives them.

    Raises:
        UserError: an unreadable file, one for another game, or a core map that breaks a rule of its target.
    """
    entry = agent(name)
    made = Agent(entry, entry.maker()(files, environment), files.get(entry.role or ""))
    with contextlib.ExitStack() as stack:
        stack.callback(made.close)
        rng = np.random.default_rng(0)
        for _ in range(WARM_UP_DECISIONS):
            decision = made.act({field.name: _arbitrary(field, rng) for field in environment.fields})
        stack.pop_all()
    words = 0 if decision.trace is None else decision.trace.packed_BW.shape[1]
    return dataclasses.replace(made, words=words)


def file_played(name: str, environment: str, given: Mapping[str, Path | None]) -> dict[str, Path]:
    """Return role to path of the one file that an agent plays, {} where it needs none; see :func:`agent_files`."""
    return dict(list(agent_files(name, environment, given).items())[:1])


def _arbitrary(field: Field, rng: np.random.Generator) -> npt.NDArray[Any]:
    """Return one random observation of a field, within its range."""
    if np.dtype(field.dtype).kind in "iu":
        return rng.integers(int(field.low), int(field.high), (1, *field.shape), np.dtype(field.dtype), True)
    low, high = max(field.low, -1.0), min(field.high, 1.0)
    return rng.uniform(low, high, (1, *field.shape)).astype(field.dtype)
