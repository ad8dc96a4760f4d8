"""Options of ``spikestill sweep``, and the recipe that says what it tries."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from spikestill.common.environment import check_environment, family_of
from spikestill.common.errors import UserError, nearest
from spikestill.common.limits import SWEEP_TRIALS
from spikestill.configs import options
from spikestill.configs.loading import read_recipe, unknown
from spikestill.configs.options import Options

SWEEPS = Path(__file__).resolve().parent / "sweeps"
STAGES = ("teach", "record", "distill", "map", "estimate", "verify", "evaluate")
"""Stages that a sweep can chain, in the order in which one reads what another wrote."""
PER_GAME = ("teach", "record", "evaluate")
"""Stages that run once for each game; the others once for all games of a trial."""
SEEDED = ("teach", "distill")
"""Stages whose ``seed`` is the trial's."""
KEYS = ("about", "stages", "game", "options", "grid", "ablate", "search", "samples", "seeds")
GAME, SEED, CHANGE = "game", "seed", "change"
UNCHANGED = "none"
TOGETHER = "+"
"""Joins the games of one trial: ``pong+qbert``."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepConfig(Options):
    """Try options of a chain of stages, on this machine or on a Ray cluster (`pip install 'spikestill[sweep]'`). What
    trials have in common runs once. The same command goes on where a sweep was stopped or killed."""

    recipe: str
    """YAML file, or the name of a shipped one: ``stages``, ``options`` by stage, and what to try: ``grid`` (every
    combination), ``ablate`` (one change at a time), ``search`` (drawn from ranges), ``seeds``. docs/sweeps.md shows
    one."""
    set: tuple[str, ...] = ()
    """``STAGE.OPTION=VALUE`` in place of what the recipe says; ``STAGE.OPTION=A|B|C`` tries each. Also ``game``,
    ``seeds``, ``samples``."""
    address: str | None = None
    """Ray cluster, ``HOST:PORT`` of its head or ``auto``; this machine must be one of its nodes, and all must see
    ``--run_dir``. None: this machine alone."""
    cores: Annotated[int, options.Range(1, 1024)] = 1
    """Cores of each stage run; as many run at a time as the cluster's cores allow."""
    gpus: Annotated[float, options.Range(0, 16)] = 0.0
    """GPUs of each stage run; 0.25: four share one; above 1 a whole number."""
    retries: Annotated[int, options.Range(0, 1000)] = 3
    """Times that a stage run is begun again where its node or process was lost; it goes on from its
    checkpoint. One that fails by itself is not."""
    answer_s: Annotated[float, options.Range(1, 600)] = 15.0
    """Seconds that ``address`` has to answer."""

    def _check(self) -> None:
        if self.gpus > 1 and not float(self.gpus).is_integer():
            raise UserError(
                f"--gpus is {self.gpus:g}, and only one GPU can be shared",
                f"give --gpus {math.ceil(self.gpus)}",
            )
        if self.address is not None and self.address != "auto":
            host, _, port = self.address.rpartition(":")
            if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 65536:
                raise UserError(
                    f"--address is {self.address!r}, HOST:PORT or auto wanted",
                    "give the address that `ray start --head` printed",
                )


@dataclasses.dataclass(frozen=True)
class Range:
    """Values to draw from, low..high; evenly on a log scale where ``log``; whole numbers where ``whole``."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def at(self, share: float) -> float | int:
        """Return the value at ``share`` (0..1) of the range."""
        if self.log:
            value = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + share * (self.high - self.low)
        return round(value) if self.whole else float(f"{value:.6g}")


@dataclasses.dataclass(frozen=True)
class SweepRecipe:
    """What a sweep tries.

    Attributes:
        stages: in the order in which they run.
        game: the game, or several joined by ``+``, of a trial that no axis gives one.
        options: stage to its options; ``config`` among them names a recipe of that stage to begin with.
        grid: axis (``game`` or ``STAGE.OPTION``) to its values: every combination is tried.
        ablate: ``STAGE.OPTION=VALUE``, or several joined by spaces; each tried by itself in every cell of the grid,
            beside the cell without any.
        search: ``STAGE.OPTION`` to the range that it is drawn from.
        samples: draws in each cell of the grid; 1 where there is no ``search``.
        seeds: seeds 0 .. ``seeds`` - 1 are tried in each cell; above 1 no training is given a ``seed`` besides.
        about: a sentence for the page.
    """

    stages: tuple[str, ...]
    game: str
    options: Mapping[str, Mapping[str, Any]]
    grid: Mapping[str, tuple[Any, ...]]
    search: Mapping[str, Range]
    samples: int
    seeds: int
    about: str = ""
    ablate: tuple[str, ...] = ()


def find_sweep(name: str) -> Path:
    """Return the path of a sweep's recipe: a file, or the name of one that is shipped.

    Raises:
        UserError: there is neither.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return path
    shipped = {entry.stem: entry for entry in sorted(SWEEPS.glob("*.yaml"))}
    if name in shipped:
        return shipped[name]
    raise UserError(
        f"{name}: no such recipe of a sweep; shipped: {', '.join(shipped)}",
        f"did you mean {nearest(path.stem, list(shipped))!r}",
    )


def load_sweep(name: str, changes: tuple[str, ...] = ()) -> SweepRecipe:
    """Read the recipe called ``name`` with ``changes`` (``STAGE.OPTION=VALUE`` or ``=A|B``) in it.

    Raises:
        UserError: it cannot be read, or asks for what there is not; the file is named.
    """
    path = find_sweep(name)
    # Dots in the keys of an axis are its name: only what read_recipe nested is laid flat again.
    given = read_recipe(path)
    try:
        return _changed(given, changes)
    except UserError as error:
        raise UserError(f"{path}: {error.what}", error.remedy) from error


def _whole(changes: tuple[str, ...]) -> list[str]:
    """Return the changes with lists in one piece: what has no ``=`` belongs to what is before it."""
    found: list[str] = []
    for change in changes:
        if found and "=" not in change:
            found[-1] += f",{change}"
        else:
            found.append(change)
    return found


def _changed(given: dict[str, Any], changes: tuple[str, ...]) -> SweepRecipe:
    for key in given:
        if key not in KEYS:
            raise unknown(key, KEYS, "key")
    named = _mapping(given.get("options", {}), "options")
    own_options = {stage: dict(_mapping(named.get(stage), f"options.{stage}")) for stage in STAGES}
    for stage in named:
        if stage not in STAGES:
            raise unknown(stage, STAGES, "stage")
    grid = _flat(_mapping(given.get("grid", {}), "grid"))
    search = _flat(_mapping(given.get("search", {}), "search"), leaf=("low", "high"))
    top = {key: given.get(key) for key in (GAME, "samples", "seeds")}
    for change in _whole(changes):
        name, equals, text = change.partition("=")
        if not equals:
            raise UserError(f"--set {change}: no value", "give STAGE.OPTION=VALUE")
        values = text.split("|")
        search.pop(name, None)
        grid.pop(name, None)
        if len(values) > 1:
            grid[name] = values
        elif name in top:
            top[name] = text
        elif name.partition(".")[0] in STAGES:
            stage, _, option = name.partition(".")
            own_options[stage][option] = text
        else:
            raise unknown(name, [*top, *STAGES], "option")
    stages = given.get("stages")
    if not isinstance(stages, list) or not stages:
        raise UserError("stages are missing", f"give a list of {', '.join(STAGES)}")
    for stage in stages:
        if stage not in STAGES:
            raise unknown(str(stage), STAGES, "stage")
    if [STAGES.index(stage) for stage in stages] != sorted({STAGES.index(stage) for stage in stages}):
        raise UserError(f"stages are {', '.join(stages)}", f"each once, in the order of {', '.join(STAGES)}")
    recipe = SweepRecipe(
        stages=tuple(stages),
        game=str(top[GAME] or "pong"),
        options={stage: own for stage, own in own_options.items() if own},
        grid={name: _values(name, values) for name, values in grid.items()},
        search={name: _range(name, values) for name, values in search.items()},
        samples=_count("samples", top["samples"]),
        seeds=_count("seeds", top["seeds"]),
        about=str(given.get("about", "")),
        ablate=_changes(given.get("ablate")),
    )
    _check(recipe)
    return recipe


def _check(recipe: SweepRecipe) -> None:
    trials = math.prod(
        [recipe.samples, recipe.seeds, 1 + len(recipe.ablate), *map(len, recipe.grid.values())]
    )
    if trials > SWEEP_TRIALS:
        raise UserError(
            f"it asks for {trials:,} trials, at most {SWEEP_TRIALS:,} are planned",
            "give fewer values, samples or seeds",
        )
    changed = [name for change in recipe.ablate for name, _ in changes_in(change)]
    for name in (*recipe.grid, *recipe.search, *changed):
        stage, dot, _ = name.partition(".")
        if (name != GAME or name in changed) and (not dot or stage not in recipe.stages):
            raise UserError(
                f"{name} is no axis: the stages are {', '.join(recipe.stages)}",
                f"give game or STAGE.OPTION, {recipe.stages[0]}.seed for example",
            )
    for stage in recipe.options:
        if stage not in recipe.stages:
            raise UserError(
                f"options of {stage}, which is not one of the stages {', '.join(recipe.stages)}",
                "leave them out, or add the stage",
            )
    for game in [recipe.game, *map(str, recipe.grid.get(GAME, ()))]:
        for each in game.split(TOGETHER):
            check_environment(each)
            beyond = [stage for stage in recipe.stages if stage not in PER_GAME]
            if beyond and family_of(each) != "atari":
                raise UserError(
                    f"{beyond[0]} with {each}: students are of Atari games",
                    f"leave {', '.join(beyond)} out of the stages",
                )
    if recipe.seeds > 1 and not set(SEEDED) & set(recipe.stages):
        raise UserError(
            f"seeds {recipe.seeds}: none of {', '.join(recipe.stages)} is a training",
            f"give the grid {recipe.stages[-1]}.seed",
        )
    given = [f"{stage}.{option}" for stage, own in recipe.options.items() for option in own]
    given += [*recipe.grid, *recipe.search, *changed]
    for name in [f"{stage}.{SEED}" for stage in SEEDED]:
        if recipe.seeds > 1 and name in given:
            raise UserError(
                f"seeds is {recipe.seeds}, and {name} is given too: seeds would take its place",
                f"leave {name} out, or give seeds 1",
            )
    if recipe.samples > 1 and not recipe.search:
        raise UserError(f"samples {recipe.samples} without a search", "give search, or leave samples out")


def _mapping(value: Any, name: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UserError(f"{name} is {value!r}, a mapping wanted", "correct the file")
    return value


def _flat(values: Mapping[str, Any], prefix: str = "", leaf: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return nested mappings with dotted keys; a mapping with all keys of ``leaf`` is a value."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and not (leaf and set(leaf) <= set(value)):
            found |= _flat(value, f"{prefix}{key}.", leaf)
        else:
            found[f"{prefix}{key}"] = value
    return found


def _values(name: str, values: Any) -> tuple[Any, ...]:
    if not isinstance(values, list) or not values:
        raise UserError(f"grid {name} is {values!r}, a list of values wanted", f"give {name}: [A, B]")
    return tuple(values)


def changes_in(change: str) -> list[tuple[str, str]]:
    """Return (``STAGE.OPTION``, value) of what a change of ``ablate`` changes together."""
    return [(name, value) for name, _, value in (part.partition("=") for part in change.split())]


def _changes(values: Any) -> tuple[str, ...]:
    if values is None:
        return ()
    texts = values if isinstance(values, list) else [None]
    if not all(
        isinstance(text, str) and text.strip() and all("=" in part for part in text.split()) for text in texts
    ):
        raise UserError(
            f"ablate is {values!r}", "give a list of STAGE.OPTION=VALUE; spaces join what changes together"
        )
    if len(set(values)) < len(values):
        raise UserError(f"ablate is {values!r}: a change comes twice", "give each once")
    return tuple(values)


def _range(name: str, values: Any) -> Range:
    try:
        found = Range(float(values["low"]), float(values["high"]), bool(values.get("log", False)),
                      all(isinstance(values[end], int) for end in ("low", "high")))  # fmt: skip
        wrong = set(values) - {"low", "high", "log"}
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"search {name} is {values!r}", "give {low: A, high: B}, and log: true") from error
    if wrong or not -math.inf < found.low < found.high < math.inf or (found.log and found.low <= 0):
        raise UserError(
            f"search {name} is {values!r}", "give {low: A, high: B} with A < B, above 0 where log: true"
        )
    return found


def _count(name: str, value: Any) -> int:
    text = "1" if value is None else str(value)
    if not text.isdecimal() or not 1 <= int(text) <= 10_000:
        raise UserError(f"{name} is {value!r}, its range is 1..10000", f"give {name}: 1")
    return int(text)
