"""What an environment is to every stage, and the registry of those there are.

An :class:`EnvironmentSpec` says what an agent sees and does there, how often a second, how to make N of them with
seeds, and how their state is kept. A *family* offers specs by name: ``atari`` (ale-py's games) and those of third
parties, by entry points ``spikestill.environments``; :func:`register` adds a single one.

Axis suffixes: N environments stepped together.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from importlib import import_module, metadata
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from spikestill.common.errors import UserError, nearest
from spikestill.common.legal import TOGETHER

Observations = Mapping[str, npt.NDArray[Any]]
"""Field name to array (N, *shape)."""
ENTRY_POINTS = "spikestill.environments"


@dataclasses.dataclass(frozen=True)
class Field:
    """One named part of an observation.

    Attributes:
        name: an identifier.
        shape: of one observation, without the batch axis.
        dtype: NumPy's name, e.g. ``uint8``.
        low, high: smallest and largest value of any element; infinite where there is no bound.
        stacked: True where axis 0 holds the last frames, oldest first, zero before an episode's first
            (``stacking.py``): a record then keeps the newest frame alone.

    Raises:
        ValueError: the name, shape, dtype or range is impossible.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    low: float
    high: float
    stacked: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(size) for size in self.shape))
        if not self.name.isidentifier():
            raise ValueError(f"field name {self.name!r} is no identifier")
        if any(size < 1 for size in self.shape) or (self.stacked and not self.shape):
            raise ValueError(f"field {self.name} has shape {self.shape}, sizes >= 1 wanted")
        if np.dtype(self.dtype).kind not in "biuf":
            raise ValueError(f"field {self.name} has dtype {self.dtype}, booleans, integers or floats wanted")
        if not self.low < self.high:
            raise ValueError(f"field {self.name} has the range {self.low}..{self.high}, low < high wanted")

    def check(self, values: npt.NDArray[Any]) -> None:
        """Raise ValueError unless ``values`` are of this dtype and of shape (N, *shape)."""
        if values.dtype != np.dtype(self.dtype) or values.shape[1:] != self.shape or not values.ndim:
            raise ValueError(
                f"{self.name} must be {self.dtype} (N, {', '.join(map(str, self.shape))}), "
                f"got {values.dtype} {values.shape}"
            )


@dataclasses.dataclass(frozen=True)
class Discrete:
    """One of A actions a step, int64 0..A - 1.

    Attributes:
        names: A different names; their positions are the action numbers.
    """

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))
        if len(self.names) < 2 or len(set(self.names)) != len(self.names):
            raise ValueError(f"actions are {self.names}, two or more different names wanted")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one action: a scalar."""
        return ()

    @property
    def dtype(self) -> str:
        """NumPy's name of an action's type."""
        return "int64"

    def __len__(self) -> int:
        """A."""
        return len(self.names)

    def sample(self, rng: np.random.Generator, size: int) -> npt.NDArray[np.int64]:
        """Return ``size`` uniformly random actions, int64 (size,)."""
        return rng.integers(0, len(self), size)

    def check(self, actions: npt.NDArray[Any]) -> None:
        """Raise ValueError unless ``actions`` are integers (N,) in range."""
        if actions.ndim != 1 or actions.dtype.kind not in "iu":
            raise ValueError(f"actions must be integers (N,), got {actions.dtype} {actions.shape}")
        if actions.size and not (actions.min() >= 0 and actions.max() < len(self)):
            raise ValueError(f"actions are {actions.min()}..{actions.max()}, 0..{len(self) - 1} wanted")


@dataclasses.dataclass(frozen=True)
class Box:
    """D real numbers a step, float32, each within bounds.

    Attributes:
        low, high: bounds of each number, finite, low < high.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            object.__setattr__(self, name, tuple(float(value) for value in getattr(self, name)))
        pairs = list(zip(self.low, self.high, strict=True))
        if not pairs or not all(np.isfinite(pair).all() and pair[0] < pair[1] for pair in pairs):
            raise ValueError(f"actions have the bounds {pairs}, finite pairs of low < high wanted")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one action, (D,)."""
        return (len(self.low),)

    @property
    def dtype(self) -> str:
        """NumPy's name of an action's type."""
        return "float32"

    def sample(self, rng: np.random.Generator, size: int) -> npt.NDArray[np.float32]:
        """Return ``size`` uniformly random actions, float32 (size, D)."""
        return rng.uniform(self.low, self.high, (size, *self.shape)).astype(np.float32)

    def check(self, actions: npt.NDArray[Any]) -> None:
        """Raise ValueError unless ``actions`` are floats (N, D) within the bounds."""
        if actions.ndim != 2 or actions.shape[1:] != self.shape or actions.dtype.kind != "f":
            raise ValueError(
                f"actions must be floats (N, {len(self.low)}), got {actions.dtype} {actions.shape}"
            )
        low, high = (np.asarray(bound, np.float32) for bound in (self.low, self.high))
        if not ((actions >= low) & (actions <= high)).all():
            raise ValueError(f"actions {actions.min()}..{actions.max()} leave {self.low}..{self.high}")


ActionSpace = Discrete | Box


class Step(NamedTuple):
    """What one step of N environments gave.

    Attributes:
        observations: field name to (N, *shape).
        reward: float (N,), raw.
        terminated, truncated: bool (N,), the episode ended here, by its rules or by a limit of time.
    """

    observations: Observations
    reward: npt.NDArray[np.floating]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]


class VectorEnvironment(Protocol):
    """N environments that step together.

    The step after an episode's end ignores its action and returns the first observation of the next one, with reward 0.
    """

    def reset(
        self, seeds: npt.NDArray[np.int64] | None, mask: npt.NDArray[np.bool_] | None = None
    ) -> Observations:
        """Begin new episodes; return the observations of all N.

        Args:
            seeds: of those that begin, in their order; None: go on with the random numbers there are. The first call
                gives them.
            mask: bool (N,), which begin; None: all.
        """
        ...

    def send(self, actions: npt.NDArray[Any]) -> None:
        """Begin a step with these actions, (N,) or (N, D)."""
        ...

    def receive(self) -> Step:
        """Wait for the step that :meth:`send` began."""
        ...

    def render(self, index: int) -> npt.NDArray[np.uint8]:
        """Return a picture of environment ``index`` as it is now, uint8 (H, W, 3)."""
        ...

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the whole state of all N, where the spec's ``resumes_by`` is ``state``."""
        ...

    def set_state(self, arrays: Mapping[str, npt.NDArray[Any]]) -> Observations:
        """Restore what :meth:`state` returned; return the observations."""
        ...

    def close(self) -> None:
        """Release the environments."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvironmentSpec:
    """An environment as every stage meets it.

    Attributes:
        name: unique, in snake case: ``pong``, ``cheetah_run``.
        family: ``atari``, ``gymnasium``, ``dm_control``, or a third party's.
        fields: what is observed.
        actions: what is done.
        decisions_per_s: of wall clock in real time, > 0.
        make: ``make(options, num_envs, threads)`` returns N of them; ``options`` are those of the command line
            (``EnvironmentConfig``), ``threads`` 0 means one per core.
        resumes_by: ``state`` where :meth:`VectorEnvironment.state` holds all, ``actions`` where only the same actions
            after the same seeds lead back.
        frames_per_decision: simulated frames a decision takes, which scores' ``frames`` count.
    """

    name: str
    family: str
    fields: tuple[Field, ...]
    actions: ActionSpace
    decisions_per_s: float
    make: Callable[[Any, int, int], VectorEnvironment]
    resumes_by: Literal["state", "actions"] = "actions"
    frames_per_decision: Callable[[Any], int] = lambda options: 1

    def __post_init__(self) -> None:
        names = [field.name for field in self.fields]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"environment {self.name} has the fields {names}, different names wanted")
        if not self.decisions_per_s > 0:
            raise ValueError(
                f"environment {self.name} has {self.decisions_per_s} decisions a second, > 0 wanted"
            )

    def field(self, name: str) -> Field:
        """Return the field of that name; KeyError where there is none."""
        return {field.name: field for field in self.fields}[name]

    def check(self, observations: Observations) -> None:
        """Raise ValueError unless ``observations`` have just these fields, each of its dtype and shape."""
        if set(observations) != {field.name for field in self.fields}:
            names = [field.name for field in self.fields]
            raise ValueError(f"{self.name} has the fields {names}, got {sorted(observations)}")
        for field in self.fields:
            field.check(observations[field.name])


class Family(Protocol):
    """Environments of one kind; a module may be one."""

    def names(self) -> tuple[str, ...]:
        """Return the names of all of them; quick, for error messages and completion."""
        ...

    def spec(self, name: str) -> EnvironmentSpec:
        """Return the one called ``name``, one of :meth:`names`."""
        ...


BUILT_IN = {
    "atari": "spikestill.teacher.atari.environment",
    "gymnasium": "spikestill.teacher.control.gymnasium_tasks",
    "dm_control": "spikestill.teacher.control.dm_control_tasks",
}
"""Family to the module that is one. Imported when a name is looked up."""
_registered: dict[str, EnvironmentSpec] = {}


def register(spec: EnvironmentSpec) -> None:
    """Add an environment of one's own to those that every command takes by name.

    Raises:
        ValueError: the name is taken by another one.
    """
    taken = _registered.get(spec.name)
    if taken is not spec and (taken is not None or spec.name in _family_names()):
        raise ValueError(f"environment {spec.name!r} is there already; choose another name")
    _registered[spec.name] = spec
    environment.cache_clear()


@functools.cache
def _families() -> tuple[Family, ...]:
    built_in: list[Any] = [import_module(module) for module in BUILT_IN.values()]
    return (*built_in, *(point.load() for point in metadata.entry_points(group=ENTRY_POINTS)))


@functools.cache
def _family_names() -> dict[str, Family]:
    return {name: family for family in reversed(_families()) for name in family.names()}


def environment_names() -> tuple[str, ...]:
    """Return the names of all environments, sorted."""
    return tuple(sorted({*_registered, *_family_names()}))


def check_environment(name: str) -> str:
    """Return ``name``, which must be an environment's.

    Raises:
        UserError: there is none of that name; the nearest one is named.
    """
    if name in _registered or name in _family_names():
        return name
    known = environment_names()
    games = name.split(TOGETHER)
    if len(games) > 1 and all(game in known for game in games):
        raise UserError(
            f"{name!r} names several games, and one is played at a time",
            f"give one of them, such as {games[0]}, and the files of the student of all with --student and --core_map",
        )
    raise UserError(
        f"unknown environment {name!r}; there are {len(known)}: Atari games such as pong, MuJoCo tasks such as "
        "cheetah_run, and what is installed",
        f"did you mean {nearest(name, known)!r}",
    )


def family_of(name: str) -> str:
    """Return the family of the environment ``name``, without making one where it is one of ours; '' if unknown."""
    if name in _registered:
        return _registered[name].family
    for family, module in BUILT_IN.items():
        if name in import_module(module).names():
            return family
    return _family_names()[name].spec(name).family if name in _family_names() else ""


def is_control(name: str) -> bool:
    """Return whether the actions of the environment ``name`` are numbers."""
    return bool(name) and family_of(name) in ("dm_control", "gymnasium")


@functools.cache
def environment(name: str) -> EnvironmentSpec:
    """Return the environment called ``name``.

    Raises:
        UserError: there is none of that name.
    """
    check_environment(name)
    return _registered[name] if name in _registered else _family_names()[name].spec(name)
