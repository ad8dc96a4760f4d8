"""The table of commands: what each is called, configured by, run by, and fed with."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spikestill.common import artefacts
from spikestill.common.errors import UserError
from spikestill.common.stage import StageResult


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verb:
    """One command of ``spikestill``.

    Attributes:
        name: what the user types.
        summary: one sentence for the list of commands.
        example: a command line that works as it stands, and what it gives.
        config: ``module:class`` of the dataclass that defines its options.
        function: ``module:function`` with the signature ``(config, run_dir, *, resume) -> StageResult``.
        artefact: name of the file that it writes into its run folder.
        positional: the option that a bare word after the verb sets, '' for none.
        writes: True where it leaves an artefact, and so gets a run folder and a copy of its config.
        choose: ``module:function`` of (verb, words after it), which returns the verb for them; '' for none.
    """

    name: str
    summary: str
    example: str
    config: str
    function: str
    artefact: str = ""
    positional: str = ""
    writes: bool = True
    choose: str = ""

    @property
    def inputs(self) -> Mapping[str, str]:
        """Option that names a file, to that file's name in a run folder."""
        return artefacts.INPUTS.get(self.name, {})

    @property
    def resumable(self) -> bool:
        """``--resume`` goes on with what an interrupted run left."""
        return self.name in artefacts.RESUMED_FROM

    @property
    def goes_on(self) -> bool:
        """The same command goes on where an interruption left it: with ``--resume``, ``run`` and ``sweep`` always."""
        return self.resumable or self.name in ("run", "sweep")

    def chosen(self, words: Sequence[str]) -> Verb:
        """Return the verb as it is for these words after it: training differs by environment."""
        if not self.choose:
            return self
        found = _import(self.choose)(self, words)
        assert isinstance(found, Verb)
        return found

    def config_class(self) -> type:
        """Import and return the options' dataclass."""
        found = _import(self.config)
        assert isinstance(found, type)
        return found

    def stage(self) -> Callable[..., StageResult]:
        """Import and return the function that does the work."""
        found = _import(self.function)
        assert callable(found)
        return found

    def run(self, config: Any, run_dir: Path, *, resume: bool = False) -> StageResult:
        """Do the work."""
        return self.stage()(config, run_dir, resume=resume)


def _import(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


CONTROL: dict[str, dict[str, str]] = {
    "teach": {
        "config": "spikestill.configs.control:ControlConfig",
        "function": "spikestill.teacher.control.teach:run",
        "example": "spikestill teach cheetah_run --algorithm sac --precision fp16 --run_dir runs/cheetah\n"
        "    writes runs/cheetah/teacher.safetensors; Ctrl-C saves, --resume goes on\n"
        "spikestill teach half_cheetah --algorithm ddpg --hidden 400,300 --batch_size 64 --seeds 2",
    },
    "record": {
        "config": "spikestill.configs.record:ControlRecordConfig",
        "example": "spikestill record cheetah_run --frames 20000 --run_dir runs/cheetah\n"
        "    writes runs/cheetah/buffer.h5: observations, actions and values of the agent that teach left there",
    },
    "play": {
        "config": "spikestill.configs.play:ControlPlayConfig",
        "example": "spikestill play cheetah_run --run_dir runs/cheetah --record cheetah.mp4 --seconds 20\n"
        "    plays the agent that teach left there, at the task's own rate",
    },
    "evaluate": {
        "config": "spikestill.configs.play:ControlEvaluateConfig",
        "example": "spikestill evaluate cheetah_run --run_dir runs/cheetah\n"
        "    ten games from random starts with the mean action, beside random play",
    },
}
"""What differs where the actions are numbers."""


CONTROL_ALGORITHMS = ("sac", "ddpg")
"""Those of ``teach`` where the actions are numbers."""


def by_environment(verb: Verb, words: Sequence[str]) -> Verb:
    """Return the verb for the environment that the words, their recipe or else their run folder name.

    ``--algorithm sac`` or ``ddpg`` means control.
    """
    given = {name.replace("-", "_"): value for name, value in _options(words)}
    if "config" in given:
        from spikestill.configs.loading import find_recipe, nested, read_recipe

        recipe = nested(read_recipe(find_recipe(given["config"])))
        inner = recipe.get("environment")
        given = {"environment.game": inner.get("game", "") if isinstance(inner, Mapping) else ""} | given
        given = ({"algorithm": str(recipe["algorithm"])} if "algorithm" in recipe else {}) | given
    if given.get("algorithm") in CONTROL_ALGORITHMS:
        return dataclasses.replace(verb, **CONTROL[verb.name])  # type: ignore[arg-type]
    name = str(given.get("environment.game", given.get("game", ""))).replace("-", "_")
    if not name and given.get("run_dir"):
        from spikestill.run_folder import game_of

        # What is wrong with the folder is told where the options are put together.
        with contextlib.suppress(UserError, OSError, RuntimeError):
            name = game_of(Path(given["run_dir"]).expanduser())
    return for_environment(verb, name)


def for_environment(verb: Verb, name: str) -> Verb:
    """Return the verb as it is for the environment called ``name``: with its own options where actions are numbers."""
    from spikestill.common.environment import is_control

    return dataclasses.replace(verb, **CONTROL.get(verb.name, {})) if is_control(name) else verb  # type: ignore[arg-type]


def _options(words: Sequence[str]) -> list[tuple[str, str]]:
    """Return (name, value) of every option in ``words``; a bare word first of all is the environment."""
    found = []
    for index, word in enumerate(words):
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--"):
            following = words[index + 1] if index + 1 < len(words) else ""
            found.append((name, value if equals else following))
        elif index == 0 or not words[index - 1].startswith("--") or "=" in words[index - 1]:
            found.append(("environment.game", word))
    return found


VERBS: dict[str, Verb] = {
    verb.name: verb
    for verb in (
        Verb(
            name="teach",
            summary="train a teacher: a Q-network for an Atari game, SAC or DDPG for a MuJoCo task",
            example="spikestill teach pong --run_dir runs/pong\n"
            "    writes runs/pong/teacher.safetensors; Ctrl-C saves, --resume goes on\n"
            "spikestill teach breakout --config teach-pqn --run_dir runs/breakout\n"
            "    the same by parallelised Q-learning, several times as fast\n"
            "spikestill teach cheetah_run --algorithm sac --precision fp16 --run_dir runs/cheetah\n"
            "    the same for continuous control; spikestill teach cheetah_run --help has its options",
            config="spikestill.configs.teach:TeachConfig",
            function="spikestill.teacher.atari.teach:run",
            artefact=artefacts.TEACHER,
            positional="environment.game",
            choose="spikestill.verbs:by_environment",
        ),
        Verb(
            name="import",
            summary="take an agent of Stable-Baselines3 or CleanRL, or an ONNX or TorchScript network, as the teacher",
            example="spikestill import agent.zip --game breakout --run_dir runs/mine\n"
            "    writes runs/mine/teacher.safetensors, from which `record breakout --run_dir runs/mine` goes on",
            config="spikestill.configs.importing:ImportConfig",
            function="spikestill.teacher.importing:run",
            artefact=artefacts.TEACHER,
            positional="path",
        ),
        Verb(
            name="record",
            summary="let the teacher play and store frames and Q-values in an HDF5 buffer",
            example="spikestill record pong --frames 100000 --run_dir runs/pong\n"
            "    writes runs/pong/buffer.h5 with 100,000 frames of the zoo's Pong teacher",
            config="spikestill.configs.record:RecordConfig",
            function="spikestill.student.rollout:run",
            artefact=artefacts.BUFFER,
            positional="environment.game",
            choose="spikestill.verbs:by_environment",
        ),
        Verb(
            name="distill",
            summary="train a spiking student with ternary weights from a buffer",
            example="spikestill distill --run_dir runs/pong\n"
            "    reads runs/pong/buffer.h5 and writes runs/pong/student.safetensors",
            config="spikestill.configs.distill:DistillConfig",
            function="spikestill.student.distill:run",
            artefact=artefacts.STUDENT,
        ),
        Verb(
            name="map",
            summary="place a student on neurosynaptic cores",
            example="spikestill map --run_dir runs/pong\n"
            "    reads runs/pong/student.safetensors, writes core_map.h5 and prints cores per layer and chip\n"
            "    --also OTHER.h5 adds the recording of another game that the student plays",
            config="spikestill.configs.mapping:MapConfig",
            function="spikestill.deploy.mapping:run",
            artefact=artefacts.CORE_MAP,
        ),
        Verb(
            name="verify",
            summary="check that every backend gives the same spikes, bit for bit",
            example="spikestill verify --run_dir runs/pong\n"
            "    compares on frames of runs/pong/buffer.h5; names the first difference, if any\n"
            "    --also OTHER.h5 adds the recording of another game that the student plays",
            config="spikestill.configs.verify:VerifyConfig",
            function="spikestill.deploy.verify:run",
            artefact=artefacts.VERIFY,
        ),
        Verb(
            name="estimate",
            summary="estimate a decision's operations, memory and energy",
            example="spikestill estimate --run_dir runs/pong\n"
            "    operations as NeuroBench counts them, joules on TrueNorth and Loihi, with what is assumed\n"
            "    --also OTHER.h5 adds the recording of another game that the student plays",
            config="spikestill.configs.estimating:EstimateConfig",
            function="spikestill.deploy.estimate:run",
            artefact=artefacts.ESTIMATE,
        ),
        Verb(
            name="export",
            summary="write a student for RANC, NIR or lava-dl, as a C program or as gates",
            example="spikestill export nir --run_dir runs/pong\n"
            "    reads runs/pong/student.safetensors, writes runs/pong/student.nir; ranc, netx, c and rtl go likewise",
            config="spikestill.configs.exporting:ExportConfig",
            function="spikestill.deploy.export:run",
            positional="to",
        ),
        Verb(
            name="play",
            summary="play in real time, 60 emulator frames a second",
            example="spikestill play pong --seconds 60\n"
            "    the zoo's Pong student on the core simulator; --agent lava|teacher|fp16 for others",
            config="spikestill.configs.play:PlayConfig",
            function="spikestill.runtime.play:run",
            artefact=artefacts.PLAY,
            positional="environment.game",
            choose="spikestill.verbs:by_environment",
        ),
        Verb(
            name="evaluate",
            summary="score an agent over full games, as fast as the machine goes",
            example="spikestill evaluate pong --agent student --episodes 100\n"
            "    gives the mean, its 95 % interval and the percentage of the teacher",
            config="spikestill.configs.play:EvaluateConfig",
            function="spikestill.runtime.evaluate:run",
            artefact=artefacts.EVALUATE,
            positional="environment.game",
            choose="spikestill.verbs:by_environment",
        ),
        Verb(
            name="replay",
            summary="play a recorded trace again, on any backend, and say where it differs",
            example="spikestill replay game.h5 --agent student\n"
            "    plays game.h5, of `spikestill play --trace game.h5`, and compares scores and spikes bit for bit",
            config="spikestill.configs.play:ReplayConfig",
            function="spikestill.runtime.replay:run",
            positional="trace",
            writes=False,
        ),
        Verb(
            name="compare",
            summary="say where two recorded traces first differ",
            example="spikestill compare one.h5 --other two.h5\n"
            "    frame by frame, decision by decision, spike by spike",
            config="spikestill.configs.play:CompareConfig",
            function="spikestill.runtime.replay:compare",
            positional="trace",
            writes=False,
        ),
        Verb(
            name="run",
            summary="run a whole pipeline from one recipe, skipping what is up to date",
            example="spikestill run --config demo\n"
            "    record, distill, map, verify, play and evaluate Pong, then write runs/demo/report.html\n"
            "spikestill run breakout --from import --agent agent.zip --run_dir runs/mine\n"
            "    the same with an agent of Stable-Baselines3; --from teach trains a teacher first\n"
            "spikestill run pong+freeway --run_dir runs/both\n"
            "    one student of both games; recordings, play and scores lie in runs/both/pong and runs/both/freeway",
            config="spikestill.configs.pipeline:RunConfig",
            function="spikestill.pipeline:run",
            artefact=artefacts.REPORT,
            positional="environment.game",
        ),
        Verb(
            name="sweep",
            summary="try options of a chain of stages on a Ray cluster; one table and page of results",
            example="spikestill sweep table2 --set game=pong,distill.steps=2000 --run_dir runs/table2\n"
            "    four temperatures, each a student and its score; the same command goes on after a stop or a kill",
            config="spikestill.configs.sweep:SweepConfig",
            function="spikestill.sweep.schedule:run",
            artefact=artefacts.SWEEP,
            positional="recipe",
        ),
        Verb(
            name="report",
            summary="write an HTML page of what lies in a run folder, made by run or by hand",
            example="spikestill report runs/demo\n"
            "    writes runs/demo/report.html, with a section for each stage that is there",
            config="spikestill.configs.pipeline:ReportConfig",
            function="spikestill.report:run",
            positional="folder",
            writes=False,
        ),
        Verb(
            name="inspect",
            summary="show what is in an artefact or a run folder: a table, and pictures with --html",
            example="spikestill inspect runs/demo/core_map.h5 --html cores.html\n"
            "    prints the core map's table and writes a page with pictures of it",
            config="spikestill.configs.pipeline:InspectConfig",
            function="spikestill.inspection:run",
            positional="path",
            writes=False,
        ),
        Verb(
            name="zoo",
            summary="list the shipped teachers, students and core maps with their scores",
            example="spikestill zoo\n    a table; `spikestill play pong` plays from it",
            config="spikestill.configs.pipeline:ZooConfig",
            function="spikestill.shelf:run",
            positional="game",
            writes=False,
        ),
        Verb(
            name="completion",
            summary="print a script with which bash, zsh or fish completes commands and options",
            example="source <(spikestill completion bash)\n    from then on, Tab completes commands, options, games",
            config="spikestill.configs.pipeline:CompletionConfig",
            function="spikestill.completion:run",
            positional="shell",
            writes=False,
        ),
        Verb(
            name="doctor",
            summary="say what this machine can do, and which command installs what is missing",
            example="spikestill doctor\n    lists cores, vector units, GPU, Lava, memory and disk",
            config="spikestill.configs.pipeline:DoctorConfig",
            function="spikestill.doctor:run",
            writes=False,
        ),
    )
}
