"""The ``sweep`` verb: every stage run of a recipe on a Ray cluster, then one table and one page of what came out.

State lies in the run folder alone: ``stages/NAME/done.json`` says that a stage run is finished and what it gave. A
sweep that was stopped, killed, or lost its head begins again with the same command: what is done is read, what was
under way goes on from its checkpoint.
"""

from __future__ import annotations

import dataclasses
import secrets
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from spikestill.common.artefacts import SWEEP
from spikestill.common.atomic import write_text
from spikestill.common.document import write_document
from spikestill.common.errors import UserError
from spikestill.common.file_lock import take_lock
from spikestill.common.progress import Progress
from spikestill.common.provenance import Provenance
from spikestill.common.stage import StageResult, stop_on_signal
from spikestill.configs.loading import to_yaml
from spikestill.configs.sweep import TOGETHER, SweepConfig, load_sweep
from spikestill.sweep import table
from spikestill.sweep.child import STOP_S
from spikestill.sweep.cluster import Cluster, HeadGoneError, Lost, check_ray, joined
from spikestill.sweep.plan import StageRun, Trial, in_vain, needs, plan, resolved
from spikestill.sweep.worker import (
    DONE,
    FAILED,
    FINISHED,
    LOST,
    OPTIONS,
    STOP,
    STOPPED,
    Job,
    not_run,
    read_outcome,
    run_stage,
    wait_for_ends,
)
from spikestill.verbs import VERBS

VERSION = 1
PAGE = "sweep.html"
STAGES = "stages"
WAIT_S = 1.0
SAVE_S = 30.0
"""For stages to save where the head is gone: Ray ends what it began within a minute then."""


def run(config: SweepConfig, run_dir: Path, *, resume: bool = False) -> StageResult:
    """Run every stage run of the recipe that is not done, and write ``sweep.json`` and ``sweep.html``.

    The same call goes on with what is there, so ``resume`` changes nothing.

    Raises:
        UserError: a recipe that asks for what there is not, no Ray, an address that does not answer, a folder that
            another sweep uses, a stage run that failed (after all others have run).
    """
    recipe = load_sweep(config.recipe, config.set)
    trials, runs = plan(recipe)
    root = run_dir.resolve()
    root.mkdir(parents=True, exist_ok=True)
    with open(root / "lock", "a", encoding="utf-8") as lock:
        try:
            take_lock(lock.fileno(), "exclusive")
        except BlockingIOError as error:
            raise UserError(
                f"{root}: another sweep runs in it", "wait for it, or give another --run_dir"
            ) from error
        found = Sweep(config, root, runs, needs(trials, runs))
        _say(
            f"sweep: {len(trials)} trials, {len(runs)} stage runs, {len(found.outcomes)} of them done before"
        )
        cannot = [run for run in found.unfinished() if run.missing]
        found.refuse(cannot)
        if found.unfinished():
            check_ray()
        if cannot:
            _say(f"sweep: {without_teachers(trials, cannot)}")
        gone = None
        if found.unfinished():
            try:
                with joined(config.address, config.answer_s) as cluster:
                    found.execute(cluster)
            except HeadGoneError as error:
                gone = error
        provenance = Provenance.of(config, 0)
        rows = table.rows(trials, found.outcomes, root)
        cells = table.cells(rows)
        summary = {
            "trials": len(trials),
            "stage_runs": len(runs),
            "done": sum(each["state"] == FINISHED for each in found.outcomes.values()),
            "began_again": found.began_again,
            "page": str(root / PAGE),
            "table": [table.flat(cell) for cell in cells],
        }
        document = {**summary, "recipe": table.described(recipe), "cells": cells, "rows": rows}
        write_document(root / SWEEP, "sweep", VERSION, document, provenance)
        table.write_page(root / PAGE, recipe, cells, rows, summary)
    if gone:
        raise gone
    failed = {key: each for key, each in found.outcomes.items() if each["state"] == FAILED}
    if failed:
        key, first = next(iter(failed.items()))
        raise UserError(
            f"{len(failed)} of {len(runs)} stage runs failed; {runs[key].name}: {first['error']}",
            f"see {root / PAGE} and the log beside each, mend it, and run the same command again",
        )
    return StageResult(root / SWEEP, summary, finished=len(found.outcomes) == len(runs) == summary["done"])


def without_teachers(trials: Sequence[Trial], cannot: Sequence[StageRun]) -> str:
    """Return in a sentence which games' trials cannot run, the game whose teacher they want, and the remedy."""
    keys = {run.key for run in cannot}
    dead = [each for each in trials if any(run.key in keys for own in each.runs.values() for run in own)]
    named = ", ".join(dict.fromkeys(TOGETHER.join(each.games) for each in dead))
    games = ", ".join(dict.fromkeys(game for run in cannot for game in run.missing))
    given = " and ".join(dict.fromkeys(f"{run.stage}.teacher=FILE" for run in cannot))
    return (
        f"the trials of {named} cannot run ({len(dead)} of {len(trials)}), as the zoo has no teacher of {games}, and "
        f"what only they need is not begun: give {given} to a sweep of that game alone, or leave the game out"
    )


class Sweep:
    """The stage runs of a sweep, and what came out of each so far.

    Attributes:
        outcomes: key to the outcome of a stage run that has ended: ``state``, ``summary``, ``seconds``, ``node``.
        began_again: how often one was begun again because its node or process was lost.

    Args:
        config: the options.
        root: the sweep's folder, absolute.
        runs: every stage run by key, parents first.
        needed: the keys of the stage runs that each game of each trial needs.
    """

    def __init__(
        self, config: SweepConfig, root: Path, runs: dict[str, StageRun], needed: Sequence[frozenset[str]]
    ) -> None:
        self.config, self.root, self.runs, self._needed = config, root, runs, needed
        self.outcomes: dict[str, dict[str, Any]] = {}
        self.began_again = 0
        self._given_up: set[str] = set()
        self._note_done()

    def _note_done(self) -> None:
        for key, each in self.runs.items():
            path = self.folder(each) / DONE
            if key not in self.outcomes and path.is_file():
                self.outcomes[key] = read_outcome(path)

    def folder(self, run: StageRun) -> Path:
        """Return the folder of a stage run."""
        return self.root / STAGES / run.name

    def unfinished(self) -> list[StageRun]:
        """Return the stage runs that have no outcome, parents first."""
        return [run for key, run in self.runs.items() if key not in self.outcomes]

    def refuse(self, cannot: Sequence[StageRun]) -> None:
        """Note as failed, unbegun, what cannot run for want of a teacher, and what only its trials need."""
        for run in cannot:
            error = f"the zoo has no teacher of {', '.join(run.missing)}: give {run.stage}.teacher, or leave it out"
            self.outcomes[run.key] = not_run(FAILED, "", error)
        self.give_up([])

    def give_up(self, under_way: Collection[StageRun]) -> None:
        """Note as failed what only trials need in which a stage run failed; ask it to stop where it is under way."""
        failed = [
            key
            for key, each in self.outcomes.items()
            if each["state"] == FAILED and key not in self._given_up
        ]
        vain = in_vain(self._needed, failed) if failed else set()
        running = {run.key for run in under_way}
        for run in self.unfinished():
            if run.key in vain and run.key in running:
                write_text(self.folder(run) / STOP, "stop\n")
            elif run.key in vain:
                cause = next(key for key in failed if any({key, run.key} <= keys for keys in self._needed))
                error = f"not run, as {self.runs[cause].name} failed: {self.outcomes[cause]['error']}"
                self.outcomes[run.key] = not_run(FAILED, "", error)
                self._given_up.add(run.key)

    def execute(self, cluster: Cluster) -> None:
        """Run all that is unfinished, but what only failed trials need. A stop leaves the rest without outcome.

        Raises:
            UserError: the cluster is smaller than a stage run needs.
            HeadGoneError: its head is gone; the stages were asked to save, and what they finished is noted.
        """
        if cluster.most_cores() < self.config.cores:
            raise UserError(
                f"--cores {self.config.cores}: the largest of {cluster.nodes()} nodes has {cluster.most_cores()}",
                f"give --cores {max(1, cluster.most_cores())}",
            )
        if cluster.gpus() < self.config.gpus:
            raise UserError(
                f"--gpus {self.config.gpus:g}: the cluster has {cluster.gpus():g}", "give --gpus 0"
            )
        token = secrets.token_hex(16)
        write_text(self.root / "token", token)
        (self.root / STOP).unlink(missing_ok=True)
        try:
            self._watch(cluster, token)
        except HeadGoneError:
            write_text(self.root / STOP, "stop\n")
            wait_for_ends([self.folder(run) for run in self.unfinished()], SAVE_S)
            self._note_done()
            raise

    def _watch(self, cluster: Cluster, token: str) -> None:
        under_way: dict[Any, StageRun] = {}
        lost: dict[str, int] = {}
        done = len(self.outcomes)
        with stop_on_signal() as stop, Progress("sweep", len(self.runs), "stage runs", done) as bar:
            deadline = None
            while True:
                if stop and deadline is None:
                    write_text(self.root / STOP, "stop\n")
                    deadline = time.monotonic() + STOP_S
                if deadline is None:
                    self.give_up(under_way.values())
                    self._submit(cluster, under_way, token)
                if not under_way or (deadline is not None and time.monotonic() > deadline):
                    break
                for call, outcome in cluster.ended(list(under_way), WAIT_S):
                    each = under_way.pop(call)
                    if isinstance(outcome, dict) and outcome["state"] == LOST:
                        outcome = Lost(outcome["error"])
                    if isinstance(outcome, Lost):
                        lost[each.key] = lost.get(each.key, 0) + 1
                        bar.say(f"{each.name} was lost ({outcome.why}); {cluster.nodes()} nodes are left")
                        if lost[each.key] > self.config.retries:
                            error = f"lost {lost[each.key]} times with its node or process, at last: {outcome.why}"
                            self.outcomes[each.key] = not_run(FAILED, "", error)
                        else:
                            self.began_again += 1
                        continue
                    if outcome["state"] == STOPPED:
                        continue
                    self.outcomes[each.key] = outcome
                    bar.say(
                        f"{each.name}: {outcome['state']} on {outcome['node']}, {outcome['seconds']:,.0f} s"
                    )
                at_once = cluster.cores() // self.config.cores
                if self.config.gpus:
                    at_once = min(at_once, int(cluster.gpus() / self.config.gpus))
                running = min(len(under_way), max(1, at_once))
                bar.advance(len(self.outcomes) - done, running=running, waiting=len(under_way) - running)
                done = len(self.outcomes)

    def _submit(self, cluster: Cluster, under_way: dict[Any, StageRun], token: str) -> None:
        waiting = {run.key for run in under_way.values()}
        for run in self.unfinished():
            if run.key in waiting:
                continue
            if all(self.outcomes.get(parent, {}).get("state") == FINISHED for parent in run.parents):
                job = self._job(run, token)
                under_way[cluster.submit(run_stage, job, self.config.cores, self.config.gpus)] = run

    def _job(self, run: StageRun, token: str) -> Job:
        files = {
            option: [self.folder(self.runs[key]) / VERBS[self.runs[key].stage].artefact for key in keys]
            for option, keys in run.inputs.items()
        }
        folder = self.folder(run)
        (folder / STOP).unlink(missing_ok=True)
        write_text(folder / OPTIONS, to_yaml(with_absolute_files(resolved(run.stage, run.options, files))))
        words = [run.stage, "--config", str(folder / OPTIONS), "--run_dir", str(folder), "--json"]
        if VERBS[run.stage].resumable:
            words.append("--resume")
        return Job(str(self.root), token, str(folder), tuple(words), self.config.cores)


def with_absolute_files(config: Any) -> Any:
    """Return a stage's config with absolute paths of the files that are here: a node has another working folder."""

    def absolute(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(absolute, value))
        return value.absolute() if isinstance(value, Path) and value.is_file() else value

    found = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return dataclasses.replace(config, **{name: absolute(value) for name, value in found.items()})


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
