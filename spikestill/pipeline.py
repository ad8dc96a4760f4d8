"""The ``run`` verb: all stages from one recipe, each skipped while nothing that it depends on has changed.

A stage depends on its resolved options and on the content of the files that it reads. Both are hashed to
its key; ``pipeline.json`` in the run folder remembers the key with which each artefact was made, and the
key with which a stage was begun, so that an interrupted stage is resumed and not begun anew.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spikestill.common.artefacts import GAME, INPUTS, REPORT, RESUMED_FROM, STATE, TEACHER
from spikestill.common.atomic import write_text
from spikestill.common.errors import MALFORMED, UserError
from spikestill.common.json_file import read_object
from spikestill.common.provenance import file_sha256
from spikestill.common.stage import MOVE_AWAY, StageResult, stops_heard
from spikestill.configs.loading import plain
from spikestill.configs.options import unused_newer
from spikestill.configs.pipeline import STAGES, RunConfig
from spikestill.verbs import VERBS

SCHEMA, VERSION = "spikestill.pipeline", 1


class State:
    """What a run folder's stages were made from; every change is on disk before the next step."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / STATE
        self.game: str | None = None
        self.stages: dict[str, dict[str, Any]] = {}
        self._hashes: dict[str, list[Any]] = {}
        if not self.path.exists():
            return
        try:
            saved = read_object(self.path, "a pipeline's state", "give another --run_dir")
            if saved["schema"] != SCHEMA or saved["version"] != VERSION:
                raise UserError(
                    f"{self.path}: schema {saved['schema']} {saved['version']}, {SCHEMA} {VERSION} wanted",
                    "give another --run_dir",
                )
            stages, hashes, self.game = saved["stages"], saved["hashes"], saved.get("game")
            if not isinstance(self.game, str | None) or not all(
                isinstance(held, dict) and all(isinstance(value, kind) for value in held.values())
                for held, kind in ((stages, dict), (hashes, list))
            ):
                raise ValueError("a game, a stage or a hash is not as it is written")
            if any(len(known) != 3 for known in hashes.values()):
                raise ValueError("a hash has not size, time and SHA-256")
            self.stages, self._hashes = stages, hashes
        except UserError:
            raise
        except MALFORMED as error:
            raise UserError(
                f"{self.path}: not a pipeline's state ({error})", "give another --run_dir"
            ) from error

    def called(self, name: str, folder: Path) -> str:
        """Return what a stage that writes to ``folder`` is called: of one game of several, behind the game."""
        return name if folder == self.path.parent else f"{folder.name}/{name}"

    def save(self) -> None:
        """Write everything, atomically."""
        saved = {"schema": SCHEMA, "version": VERSION, "game": self.game, "stages": self.stages}
        saved["hashes"] = self._hashes
        write_text(self.path, json.dumps(saved, indent=1))

    def sha256(self, path: Path) -> str:
        """Return a file's hash; it is computed again only where size or time of change differ."""
        stat = path.stat()
        stamp = [stat.st_size, stat.st_mtime_ns]
        known = self._hashes.get(str(path))
        if known is None or known[:2] != stamp:
            known = [*stamp, file_sha256(path)]
            self._hashes[str(path)] = known
        return str(known[2])


def files_read(name: str, config: Any) -> dict[str, Path]:
    """Return option to file for every file that a stage reads."""
    if name == "evaluate":
        from spikestill.runtime.evaluate import files_read as read

        return read(config)
    files = {option: Path(getattr(config, option)) for option in INPUTS.get(name, ())}
    if name == "play":
        from spikestill.runtime.agents import file_played

        given = {option: getattr(config, option) for option in INPUTS[name]}
        return file_played(config.agent, config.environment.game, given)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, Path):
            files[field.name] = value
        elif isinstance(value, tuple) and all(isinstance(each, Path) for each in value):
            files |= {f"{field.name}[{index}]": each for index, each in enumerate(value)}
    return files


def stage_key(name: str, config: Any, state: State) -> str:
    """Return the hash of what a stage's artefact depends on: options, and content of the files it reads.

    Raises:
        UserError: a file that it reads is missing.
    """
    files = files_read(name, config)
    without = {
        *(option.partition("[")[0] for option in files),
        *INPUTS.get(name, ()),
        *config.WITHOUT_EFFECT,
        *unused_newer(config),
    }
    options = {option: value for option, value in plain(config).items() if option not in without}
    parents = {}
    for option, path in files.items():
        if not path.is_file():
            asked = "agent" if name == "import" else f"{name}.{option.partition('[')[0]}"
            raise UserError(f"{path}: missing; {name} reads it", f"check --{asked}, or begin anew")
        parents[option] = state.sha256(path)
    text = json.dumps({"stage": name, "options": options, "parents": parents}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def up_to_date(name: str, key: str, run_dir: Path, state: State) -> bool:
    """Return True where the stage's artefact was made with ``key`` and has not been changed since."""
    saved = state.stages.get(state.called(name, run_dir), {})
    artefact = run_dir / VERBS[name].artefact
    if name == "play" and not (run_dir / GAME).is_file():
        return False
    return (
        saved.get("finished") is True
        and saved.get("key") == key
        and artefact.is_file()
        and state.sha256(artefact) == saved.get("sha256")
    )


def run(config: RunConfig, run_dir: Path, *, resume: bool = False) -> StageResult:
    """Bring every artefact of ``run_dir`` up to date and write ``report.html``.

    An interrupted stage is always resumed where it can be, so ``resume`` changes nothing.

    Raises:
        UserError: whatever a stage refuses; the line above it names the stage.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    steps = config.steps(run_dir)
    folders = {game: folder for name, game, folder in steps if name == "record"}
    teachers = {game: _teacher(config, game, folder) for game, folder in folders.items()}
    state = State(run_dir)
    _refuse_to_replace(config.environment.game, steps, state)
    for index, (name, game, folder) in enumerate(steps):
        resolved = config.stage(name, game, run_dir, teachers)
        key = stage_key(name, resolved, state)
        heading = f"[{index + 1}/{len(steps) + 1}] {state.called(name, folder)}"
        if up_to_date(name, key, folder, state):
            _say(f"{heading}: up to date")
            continue
        _say(f"{heading}: {VERBS[name].summary}")
        held, state.game = state.game, config.environment.game
        try:
            folder.mkdir(exist_ok=True)
            done = _run_stage(name, resolved, key, folder, state)
        except Exception:
            state.game = held
            state.save()
            raise
        if not done:
            return StageResult(state.path, {"stopped_in": state.called(name, folder)}, finished=False)
    _say(f"[{len(steps) + 1}/{len(steps) + 1}] report")
    from spikestill.report import write_report

    state.game = config.environment.game
    state.save()
    report = run_dir / REPORT
    # The games' pages first, for the whole one leads to them.
    for each in dict.fromkeys((*folders.values(), run_dir)):
        made = {name: state.stages[state.called(name, each)] for name, _, folder in steps
                if folder == each and name in STAGES}  # fmt: skip
        teacher = next((teachers[game] for game, folder in folders.items() if folder == each), None)
        write_report(each, made, teacher, each / REPORT)
    _say(f"report: {report.resolve()}")
    seconds = {name: saved["seconds"] for name, saved in state.stages.items()}
    found = {"report": str(report.resolve()), **_headline(state, folders), "seconds": seconds}
    return StageResult(report, found)


def _teacher(config: RunConfig, game: str, folder: Path) -> Path:
    """Return the teacher of a game: the one that is given, or that lies in its folder or is to, or else the zoo's."""
    from spikestill.common.zoo import zoo_path

    teacher = config.teacher or folder / TEACHER
    if config.begin != "record":
        return teacher
    if config.teacher is None and not teacher.is_file():
        teacher = zoo_path(game, TEACHER)
    if not teacher.is_file():
        raise UserError(
            f"{teacher}: no such teacher",
            "give --teacher a file that `spikestill teach` wrote, or begin with one: --from teach",
        )
    return teacher


def _refuse_to_replace(game: str, steps: Sequence[tuple[str, str, Path]], state: State) -> None:
    """Raise UserError where the run would replace what it has not made, or made of another game."""
    if state.game not in (None, game):
        raise UserError(
            f"{state.path.parent}: holds a run of {state.game}, which one of {game} would replace",
            "give another --run_dir",
        )
    for name, _, folder in steps:
        artefact = folder / VERBS[name].artefact
        if not artefact.exists():
            continue
        saved = state.stages.get(state.called(name, folder))
        if saved is None:
            raise UserError(
                f"{artefact}: is there, and {state.path} does not know it: {name} would replace it",
                MOVE_AWAY,
            )
        # The others are made in minutes, and nobody goes on with one by hand.
        if VERBS[name].resumable and saved.get("finished") and state.sha256(artefact) != saved.get("sha256"):
            raise UserError(
                f"{artefact}: is not what {name} left there, and the run would replace it",
                f"move it away ({' and '.join(_files(name))}), or give another --run_dir",
            )


def _files(name: str) -> tuple[str, ...]:
    """Return the artefact and the checkpoint of a stage that can be resumed; they may be one."""
    return tuple(dict.fromkeys((VERBS[name].artefact, RESUMED_FROM[name])))


def _set_aside(path: Path) -> Path:
    """Rename a file to ``.before``, with a number where there is one already; return where it lies."""
    aside, number = path.with_name(f"{path.name}.before"), 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.before{number}")
    return path.replace(aside)


def _run_stage(name: str, config: Any, key: str, run_dir: Path, state: State) -> bool:
    """Run one stage and remember it; return False where the user stopped it."""
    called = state.called(name, run_dir)
    before = state.stages.get(called, {})
    resumable = VERBS[name].resumable
    resume = resumable and before.get("key") == key and before.get("finished") is False
    spent = before.get("seconds", 0.0) if resume else 0.0
    # What an earlier key left must not be there once this one counts as begun: a kill may come before the stage
    # itself replaces it. Only a stage may refuse to replace what it is to read. The artefact goes first: a checkpoint
    # without it can be resumed. All lie aside, finished or not, until the stage is done.
    read = {path.resolve() for path in files_read(name, config).values()}
    left = [run_dir / file for file in _files(name)] if resumable and not resume else []
    moved = {path: _set_aside(path) for path in left if path.is_file() and path.resolve() not in read}
    if moved:
        kept = ", ".join(f"{path.name} as {aside.name}" for path, aside in moved.items())
        _say(f"    {name} is made anew; until it is done the earlier files lie aside: {kept}")
    state.stages[called] = {"key": key, "finished": False, "seconds": spent, "summary": {}}
    state.save()
    began = time.monotonic()
    try:
        with stops_heard() as stop:
            result = VERBS[name].run(config, run_dir, resume=resume)
    except Exception:
        if moved and not any(path.exists() for path in moved):  # refused before it wrote anything
            for path in reversed(moved):
                moved[path].replace(path)
            state.stages[called] = before
            state.save()
        raise
    seconds = spent + time.monotonic() - began
    state.stages[called] = {
        "key": key,
        "artefact": VERBS[name].artefact,
        "finished": result.finished,
        "seconds": round(seconds, 2),
        "summary": json.loads(json.dumps(dict(result.summary), default=str)),
        "sha256": state.sha256(run_dir / VERBS[name].artefact) if result.finished else "",
    }
    state.save()
    if result.finished and resumable:
        for file in _files(name):
            for aside in run_dir.glob(f"{file}.before*"):
                aside.unlink()
    _say(f"    {called} {'done' if result.finished else 'stopped'} after {seconds:,.0f} s")
    return result.finished and not stop


def _headline(state: State, folders: Mapping[str, Path]) -> dict[str, Any]:
    """Return what the run found; of several games under ``games``, a row for each."""
    shared = {
        "fitted": state.stages["distill"]["summary"].get("fitted"),
        "cores": state.stages["map"]["summary"].get("cores"),
    }
    scores = {game: _score(state, folder) for game, folder in folders.items()}
    if len(scores) == 1:
        return {**scores.popitem()[1], **shared}
    return {"games": [{"game": game, **each} for game, each in scores.items()], **shared}


def _score(state: State, folder: Path) -> dict[str, Any]:
    """Return what was found of the game in ``folder``."""
    evaluation, play = (state.stages[state.called(name, folder)]["summary"] for name in ("evaluate", "play"))
    found = {
        key: evaluation.get(key)
        for key in ("mean", "ci95", "episodes", "percent_of_teacher", "percent_of_margin")
    }
    chance = evaluation.get("random")
    found["random"] = None if chance is None else {"mean": chance["mean"], "ci95": chance["ci95"]}
    return {**found, "misses": play.get("misses")}


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
