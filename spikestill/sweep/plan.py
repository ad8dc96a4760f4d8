"""What a sweep runs: its trials, and the stage runs that they share.

A trial is one choice for every axis. Each of its stages is a *stage run*, known by the hash of its options and of what
it reads: trials that agree so far share it, and so does a later sweep in the same folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.util
import itertools
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from spikestill.common.agents import agent
from spikestill.common.artefacts import ALSO, INPUTS
from spikestill.common.errors import UserError
from spikestill.common.provenance import file_sha256
from spikestill.common.zoo import zoo_path
from spikestill.configs.loading import build, find_recipe, nested, overlaid, plain, read_recipe
from spikestill.configs.options import unused_newer
from spikestill.configs.sweep import (
    CHANGE,
    GAME,
    PER_GAME,
    SEED,
    SEEDED,
    TOGETHER,
    UNCHANGED,
    SweepRecipe,
    changes_in,
)
from spikestill.verbs import VERBS, for_environment

STREAMING = "distill"
"""The stage that may play its game itself."""


@dataclasses.dataclass(frozen=True)
class StageRun:
    """One run of one stage.

    Attributes:
        key: hash of all that its artefact depends on.
        stage: its name.
        games: what it plays or learns.
        options: nested, for its YAML; without the files that other stage runs write.
        inputs: option to the keys of the stage runs whose artefact it reads.
        missing: games whose teacher it would take from the zoo, which has none: it cannot run.
    """

    key: str
    stage: str
    games: tuple[str, ...]
    options: Mapping[str, Any]
    inputs: Mapping[str, tuple[str, ...]]
    missing: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the name of its folder."""
        return f"{self.stage}-{'-'.join(self.games)[:40]}-{self.key[:12]}"

    @property
    def parents(self) -> tuple[str, ...]:
        """Return the keys of the stage runs that must be done before."""
        return tuple(dict.fromkeys(itertools.chain(*self.inputs.values())))


@dataclasses.dataclass(frozen=True)
class Trial:
    """One choice of every axis, and its stage runs.

    Attributes:
        values: axis to value; ``seed`` among them where there are several.
        games: the games of the trial.
        runs: stage to its stage runs, one for each game where the stage plays.
    """

    values: Mapping[str, Any]
    games: tuple[str, ...]
    runs: Mapping[str, tuple[StageRun, ...]]


def plan(recipe: SweepRecipe) -> tuple[list[Trial], dict[str, StageRun]]:
    """Return the trials, and every stage run by key, parents first.

    Raises:
        UserError: an option that the stage does not know, or a value that it refuses; the trial is named.
    """
    runs: dict[str, StageRun] = {}
    hashes: dict[Path, str] = {}
    trials = []
    for values in choices(recipe):
        try:
            trials.append(_trial(recipe, values, runs, hashes))
        except UserError as error:
            chosen = ", ".join(f"{axis}={value}" for axis, value in values.items())
            raise UserError(
                f"{error.what} (the trial {chosen})" if values else error.what, error.remedy
            ) from error
    used = frozenset().union(*needs(trials, runs))
    return trials, {key: run for key, run in runs.items() if key in used}


def needs(trials: Sequence[Trial], runs: Mapping[str, StageRun]) -> list[frozenset[str]]:
    """Return the keys of the stage runs that each game of each trial needs: its own, and all that those read."""
    above: dict[str, frozenset[str]] = {}
    for key, run in runs.items():
        above[key] = frozenset({key}).union(*(above[parent] for parent in run.parents))
    return [
        frozenset().union(
            *(above[run.key] for own in trial.runs.values() for run in own if game in run.games)
        )
        for trial in trials
        for game in trial.games
    ]


def in_vain(needed: Iterable[frozenset[str]], failed: Collection[str]) -> set[str]:
    """Return the keys of the stage runs that nothing needs any more but what needs a failed one too."""
    wanted: set[str] = set()
    every: set[str] = set()
    for keys in needed:
        every |= keys
        if keys.isdisjoint(failed):
            wanted |= keys
    return every - wanted


def choices(recipe: SweepRecipe) -> Iterable[dict[str, Any]]:
    """Yield the values of every trial: the grid's cells; in each no change and every ``ablate`` by itself; ``samples``
    draws and ``seeds`` in each.

    Draw i of every cell is the same, and the same again however many there are.
    """
    draws = [
        {name: each.at(share) for (name, each), share in zip(recipe.search.items(), shares, strict=True)}
        for shares in np.random.default_rng(0).random((recipe.samples, len(recipe.search))).tolist()
    ]
    changes = [{CHANGE: change} for change in (UNCHANGED, *recipe.ablate)] if recipe.ablate else [{}]
    for cell, change, draw in itertools.product(itertools.product(*recipe.grid.values()), changes, draws):
        for seed in range(recipe.seeds):
            values = dict(zip(recipe.grid, cell, strict=True)) | change | draw
            yield values | ({SEED: seed} if recipe.seeds > 1 else {})


def _trial(
    recipe: SweepRecipe, values: dict[str, Any], runs: dict[str, StageRun], hashes: dict[Path, str]
) -> Trial:
    games = tuple(str(values.get(GAME, recipe.game)).split(TOGETHER))
    made: dict[str, tuple[StageRun, ...]] = {}
    for stage in recipe.stages:
        each_game = [(game,) for game in games] if stage in PER_GAME else [games]
        found = []
        for chosen in each_game:
            options = _options(recipe, stage, values, chosen)
            inputs = _inputs(stage, chosen, made)
            if stage == STREAMING and resolved(stage, options, {}).stream:
                options |= {"stream_game": _only(chosen)}
                inputs.pop("buffer", None)  # its teacher plays meanwhile
            if stage == "evaluate" and "teach" in made:
                _check_player(resolved(stage, options, {}), inputs)
            if stage == "evaluate" and (compared := _compared(chosen, options, inputs, hashes)) is not None:
                runs.setdefault(compared.key, compared)
                inputs["scored"] = (compared.key,)
            run = _stage_run(stage, chosen, options, inputs, hashes)
            found.append(runs.setdefault(run.key, run))
        made[stage] = tuple(found)
    read = {key for own in made.values() for run in own for key in run.parents}
    if STREAMING in made and not any(run.key in read for run in made.get("record", ())):
        made.pop("record", None)
    return Trial(values, games, made)


def _options(
    recipe: SweepRecipe, stage: str, values: dict[str, Any], games: tuple[str, ...]
) -> dict[str, Any]:
    given = nested(recipe.options.get(stage, {}))
    chosen = values | (dict(changes_in(values[CHANGE])) if values.get(CHANGE, UNCHANGED) != UNCHANGED else {})
    own = {name.partition(".")[2]: value for name, value in chosen.items() if name.startswith(f"{stage}.")}
    given = overlaid(given, nested(own))
    base = given.pop("config", None)
    if base is not None:
        given = overlaid(read_recipe(find_recipe(str(base))), given)
    if stage in SEEDED and SEED in values:
        given[SEED] = values[SEED]
    if stage in PER_GAME:
        given = overlaid(given, {"environment": {GAME: games[0]}})
    return given


def _check_player(config: Any, inputs: Mapping[str, tuple[str, ...]]) -> None:
    """Raise UserError where a trial that trains a teacher would score a student of the zoo."""
    role = agent(config.agent).role
    if role is None or role in ("teacher", *inputs) or getattr(config, role) is not None:
        return
    raise UserError(
        f"evaluate: agent {config.agent} plays the zoo's {role}, and no stage before trains one",
        f"give evaluate.agent=teacher or evaluate.{role}, or put distill among the stages",
    )


def _only(games: tuple[str, ...]) -> str:
    """Return the one game of a trial that streams."""
    if len(games) > 1:
        raise UserError(
            f"distill: stream is true, and a trial plays {TOGETHER.join(games)}: a stream is of one game",
            "give one game to a trial, or distill.stream=false and a record stage",
        )
    return games[0]


def _inputs(
    stage: str, games: tuple[str, ...], made: Mapping[str, tuple[StageRun, ...]]
) -> dict[str, tuple[str, ...]]:
    """Return which earlier stage runs of the trial write the files that a stage reads.

    A stage that takes one file is given its own game's, or the first game's; one that takes further ones has them all.
    """
    found: dict[str, tuple[str, ...]] = {}
    for option, file in INPUTS.get(stage, {}).items():
        for earlier in reversed(list(made)):
            if VERBS[earlier].artefact == file:
                writers = [run for run in made[earlier] if len(run.games) > 1 or set(run.games) & set(games)]
                read = writers if option in ALSO.get(stage, {}) else writers[:1]
                found[option] = tuple(run.key for run in read)
                break
    return found


def _compared(
    games: tuple[str, ...],
    options: Mapping[str, Any],
    inputs: Mapping[str, tuple[str, ...]],
    hashes: dict[Path, str],
) -> StageRun | None:
    """Return what scores the teacher and random play for an evaluation, once for all trials; None: nothing does."""
    stage = "evaluate"
    config = resolved(stage, options, {option: [Path(f"{option}.safetensors")] for option in inputs})
    if not config.compare or config.scored is not None or config.agent in ("teacher", "random"):
        return None
    if importlib.util.find_spec("torch") is None:
        return None
    own = {
        name: value
        for name, value in options.items()
        if name not in ("agent", "student", "core_map", "buffer")
    }
    read = {option: keys for option, keys in inputs.items() if option == "teacher"}
    return _stage_run(stage, games, {**own, "agent": "teacher"}, read, hashes)


def _stage_run(
    stage: str,
    games: tuple[str, ...],
    options: dict[str, Any],
    inputs: dict[str, tuple[str, ...]],
    hashes: dict[Path, str],
) -> StageRun:
    config = resolved(stage, options, {option: [Path(f"{option}.safetensors")] * len(keys)
                                       for option, keys in inputs.items()})  # fmt: skip
    further = {also for option, also in ALSO.get(stage, {}).items() if option in inputs}
    free = {*inputs, *further, *getattr(config, "WITHOUT_EFFECT", ()), *unused_newer(config)}
    files = {}
    zoo = _zoo_files(stage, games, config)
    for field in dataclasses.fields(config):
        given = getattr(config, field.name)
        if field.name in free:
            continue
        if given is None:
            given = zoo.get(field.name)
        paths = given if isinstance(given, tuple) else (given,)
        if given and all(isinstance(path, Path) and path.is_file() for path in paths):
            for path in paths:
                if path not in hashes:
                    hashes[path] = file_sha256(path)
            found = [hashes[path] for path in paths]
            files[field.name] = found if isinstance(given, tuple) else found[0]
    kept = {name: value for name, value in plain(config).items() if name not in free and name not in files}
    text = json.dumps([stage, games, kept, files, inputs], sort_keys=True, default=str)
    missing = _missing_teachers(stage, games, config, inputs)
    return StageRun(hashlib.sha256(text.encode()).hexdigest(), stage, games, options, inputs, missing)


def _missing_teachers(
    stage: str, games: tuple[str, ...], config: Any, inputs: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    """Return the games whose teacher a stage would take from the zoo, which has none."""
    if "teacher" in inputs:
        return ()
    if stage == STREAMING:
        reads = config.stream or ("buffer" in inputs and (config.hinted or config.own_play))
    elif stage == "evaluate":
        compares = config.compare and importlib.util.find_spec("torch") is not None
        reads = compares or agent(config.agent).role == "teacher"
    else:
        reads = stage == "record" and config.agent == "teacher"
    if not reads:
        return ()
    given = itertools.chain([config.teacher], getattr(config, "also_teachers", ()), itertools.repeat(None))
    return tuple(
        game for game, path in zip(games, given, strict=False) if path is None and _zoo_teacher(game) is None
    )


def _zoo_files(stage: str, games: tuple[str, ...], config: Any) -> dict[str, Path]:
    """Return option to file of what a stage reads of the zoo where the option is None."""
    teacher = _zoo_teacher(games[0]) if "teacher" in INPUTS.get(stage, {}) and len(games) == 1 else None
    found = {} if teacher is None else {"teacher": teacher}
    if stage == "evaluate":
        from spikestill.runtime.evaluate import files_read

        with contextlib.suppress(UserError):  # what the zoo has not, the stage run itself refuses
            found |= files_read(config)
    return found


def _zoo_teacher(game: str) -> Path | None:
    try:
        return zoo_path(game, "teacher.safetensors")
    except UserError:
        return None


def with_inputs(stage: str, options: Mapping[str, Any], inputs: Mapping[str, list[Path]]) -> dict[str, Any]:
    """Return a stage's options with the files that it reads in them; those of further games under their own option."""
    given, also = dict(options), ALSO.get(stage, {})
    for option, paths in inputs.items():
        given[option] = str(paths[0])
        if len(paths) > 1 and option in also:
            given[also[option]] = [str(path) for path in paths[1:]]
    return given


def resolved(stage: str, options: Mapping[str, Any], inputs: Mapping[str, list[Path]]) -> Any:
    """Return the stage's config.

    Raises:
        UserError: an option that the stage does not know, or a value that it refuses; the stage is named.
    """
    try:
        verb = (
            for_environment(VERBS[stage], options["environment"][GAME]) if stage in PER_GAME else VERBS[stage]
        )
        return build(verb.config_class(), with_inputs(stage, options, inputs))
    except UserError as error:
        raise UserError(f"{stage}: {error.what}", error.remedy) from error
