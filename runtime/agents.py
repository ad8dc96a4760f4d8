"""The agents that play: each maps a stack to scores of the actions and takes the highest.

``cores``    the core simulator, tick by tick as the chip would.
``lava``     the same student as one fused Lava process.
``student``  the same student as a bit-packed integer net, without the cores.
``teacher``  the teacher's Q-network in fp32; ``fp16`` in half precision.

The first three give the same votes, bit for bit.
"""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from spikestill.common.errors import UserError, nearest
from spikestill.common.zoo import zoo_path
from spikestill.student.game_check import check_file_game

if TYPE_CHECKING:
    from spikestill.deploy.core_map import CoreMap
    from spikestill.teacher.policy import Precision

AGENTS = ("cores", "lava", "student", "teacher", "fp16")
WARM_UP_DECISIONS = 20


@dataclasses.dataclass(frozen=True)
class Decision:
    """What an agent made of a stack: the action (argmax, ties to the lowest) and the scores (A,)."""

    action: int
    scores: npt.NDArray[Any]

    @staticmethod
    def of(scores_A: npt.NDArray[Any]) -> Decision:
        """Return the decision that ``scores_A`` ask for."""
        return Decision(int(np.argmax(scores_A)), scores_A)


class Agent(Protocol):
    """Something that plays. ``act`` is called from one thread at a time, not always the same."""

    @property
    def name(self) -> str:
        """Return the agent's name, one of :data:`AGENTS`."""
        ...

    def act(self, stack_CHW: npt.NDArray[np.uint8]) -> Decision:
        """Decide on a stack, uint8 (4, 84, 84), oldest frame first."""
        ...

    def close(self) -> None:
        """Release what the agent holds; it acts no more."""
        ...


class CoresAgent:
    """A core map on the core simulator."""

    name = "cores"

    def __init__(self, core_map: CoreMap) -> None:
        from spikestill.deploy.simulator import CoreSimulator

        self.core_map = core_map
        self._simulator = CoreSimulator(core_map)

    def act(self, stack_CHW: npt.NDArray[np.uint8]) -> Decision:
        """Send the stack through the cores and count the votes."""
        return Decision.of(self._simulator.votes(stack_CHW))

    def close(self) -> None:
        """Do nothing: the simulator is memory only."""


class StudentAgent:
    """An integer net on the packed kernel, or anything else that gives its votes."""

    def __init__(self, name: str, backend: Any) -> None:
        self.name, self._backend = name, backend

    def act(self, stack_CHW: npt.NDArray[np.uint8]) -> Decision:
        """Count the votes for the stack."""
        return Decision.of(self._backend.votes(stack_CHW))

    def close(self) -> None:
        """Stop the backend where it has processes of its own."""
        if hasattr(self._backend, "close"):
            self._backend.close()


class TeacherAgent:
    """The teacher's Q-network on one thread: at batch 1 more threads cost more than they give."""

    def __init__(self, path: Path, precision: Precision, game: str, actions: int) -> None:
        from spikestill.teacher.policy import load_teacher

        self.name = "teacher" if precision == "fp32" else precision
        self._policy = load_teacher(path, precision)
        check_file_game(path, self._policy.game, self._policy.actions, game, actions)
        self._thread: int | None = None

    def act(self, stack_CHW: npt.NDArray[np.uint8]) -> Decision:
        """Compute the Q-values of the stack."""
        if self._thread != threading.get_ident():
            import torch

            # OpenMP keeps this number for each thread apart.
            torch.set_num_threads(1)
            self._thread = threading.get_ident()
        return Decision.of(self._policy.q_values(stack_CHW[None])[0])

    def close(self) -> None:
        """Do nothing: the network is memory only."""


def agent_file(
    name: str,
    game: str,
    *,
    teacher: Path | None = None,
    student: Path | None = None,
    core_map: Path | None = None,
) -> tuple[str, Path]:
    """Return the role (``teacher``, ``student``, ``core_map``) and path of the one file that an agent needs.

    Args:
        name: one of :data:`AGENTS`.
        game: the game in snake case; what is None comes from its zoo.
        teacher: for ``teacher`` and ``fp16``.
        student: for ``lava`` and ``student``.
        core_map: for ``cores``.

    Raises:
        UserError: unknown name, no such file in the zoo, a student without a map for ``cores``, or a map without a
            student for the others.
    """
    if name == "cores":
        if core_map is None and student is not None:
            raise UserError(
                f"agent cores plays a core map, and only a student is given ({student})",
                "map it with `spikestill map` and give --core_map, or take --agent lava",
            )
        return "core_map", Path(core_map or zoo_path(game, "core_map-1chip.h5"))
    if name in ("lava", "student"):
        if student is None and core_map is not None:
            raise UserError(
                f"agent {name} plays a student, and only a core map is given ({core_map})",
                "give --student, or take --agent cores",
            )
        return "student", Path(student or zoo_path(game, "student-1chip.safetensors"))
    if name in ("teacher", "fp16"):
        return "teacher", Path(teacher or zoo_path(game, "teacher.safetensors"))
    raise UserError(
        f"unknown agent {name!r}; known: {', '.join(AGENTS)}", f"did you mean {nearest(name, AGENTS)!r}"
    )


def refuse_stale_map(name: str, student: Path | None, core_map: Path | None) -> None:
    """Raise UserError where the agent plays a core map of another student than the one that lies beside it."""
    if name == "cores" and student is not None and core_map is not None:
        from spikestill.deploy.core_map import check_not_stale, load

        check_not_stale(core_map, load(core_map).provenance, student)


def make_agent(name: str, path: Path, game: str, actions: int) -> Agent:
    """Return the agent called ``name``, warmed up.

    Args:
        name: one of :data:`AGENTS`.
        path: its file, as :func:`agent_file` gives it.
        game: the game in snake case.
        actions: A, the game's minimal actions.

    Raises:
        UserError: an unreadable file, one for another game, or a core map that breaks a rule of its target.
    """
    agent = _make(name, path, game, actions)
    try:
        rng = np.random.default_rng(0)
        for _ in range(WARM_UP_DECISIONS):
            agent.act(rng.integers(0, 256, (4, 84, 84), dtype=np.uint8))
    except BaseException:
        agent.close()
        raise
    return agent


def _make(name: str, path: Path, game: str, actions: int) -> Agent:
    if name == "cores":
        from spikestill.deploy.validate import load_valid

        loaded = load_valid(path)
        check_file_game(path, loaded.game, loaded.actions, game, actions, loaded.input_shape)
        return CoresAgent(loaded)
    if name in ("lava", "student"):
        from spikestill.student import integer_net

        net, _ = integer_net.load(path)
        check_file_game(path, net.game, net.actions, game, actions, net.input_shape)
        if name == "lava":
            from spikestill.deploy.lava.fused import FusedLava

            return StudentAgent(name, FusedLava(net))
        from spikestill.deploy.packed_kernel import PackedNet

        return StudentAgent(name, PackedNet(net))
    return TeacherAgent(path, "fp32" if name == "teacher" else "fp16", game, actions)
