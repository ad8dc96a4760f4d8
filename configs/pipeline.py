"""Options of ``spikestill run``, ``report``, ``inspect`` and ``doctor``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from spikestill.common.artefacts import ALSO, BUFFER, GAME, INPUTS
from spikestill.common.errors import UserError
from spikestill.configs.distill import DistillConfig
from spikestill.configs.environment import GamesConfig
from spikestill.configs.importing import ImportConfig, ProgramOptions
from spikestill.configs.mapping import MapConfig
from spikestill.configs.options import Choices, Options, Range
from spikestill.configs.play import EvaluateConfig, PlayConfig
from spikestill.configs.record import RecordConfig
from spikestill.configs.recordings import Recordings
from spikestill.configs.teach import TeachConfig
from spikestill.configs.verify import VerifyConfig

STAGES = ("record", "distill", "map", "verify", "play", "evaluate")
PLAYING = ("teach", "record", "play", "evaluate")
FIRST = {
    "record": "with a teacher that is there",
    "teach": "with the training of one",
    "import": "with another library's agent, --agent FILE",
}


def _wired(stage: str) -> tuple[str, ...]:
    """Return the options of a stage that the pipeline sets."""
    return (
        *INPUTS.get(stage, ()),
        *(("environment",) if stage in PLAYING else ()),
        *(("record",) if stage == "play" else ()),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig(Options):
    """Record, distill, map, verify, play, evaluate, report: each stage is skipped while it is up to date. With ``--from
    teach`` or ``--from import`` the teacher is made first. Of several games each has a folder in the run folder for its
    teacher, recording, play and score."""

    begin: Annotated[str, Choices(FIRST)] = "record"
    """Where to begin; ``--from`` says the same."""
    environment: GamesConfig = dataclasses.field(default_factory=GamesConfig)
    """The game, or the games, for every stage."""
    teacher: Path | None = None
    """Teacher file; None: ``teacher.safetensors`` of the run folder, of several games of each one's folder there, or
    else the zoo's for the game."""
    agent: Path | None = None
    """Another library's agent, for ``--from import``."""
    importing: ProgramOptions = dataclasses.field(default_factory=ProgramOptions)
    """What is to be known of it."""
    teach: TeachConfig = dataclasses.field(default_factory=TeachConfig)
    """Options of the teacher's training, for ``--from teach``."""
    record: RecordConfig = dataclasses.field(default_factory=RecordConfig)
    """Options of the buffer."""
    distill: DistillConfig = dataclasses.field(default_factory=DistillConfig)
    """Options of the student's training."""
    map: MapConfig = dataclasses.field(default_factory=MapConfig)
    """Options of the mapping."""
    verify: VerifyConfig = dataclasses.field(default_factory=VerifyConfig)
    """Options of the parity ladder."""
    play: PlayConfig = dataclasses.field(default_factory=PlayConfig)
    """Options of the real-time game."""
    evaluate: EvaluateConfig = dataclasses.field(default_factory=EvaluateConfig)
    """Options of the score."""

    HIDDEN: ClassVar[tuple[str, ...]] = tuple(
        f"{stage}.{name}" for stage in ("teach", *STAGES) for name in _wired(stage)
    )
    """Options that the pipeline sets, and so are not the user's."""
    ALIASES: ClassVar[Mapping[str, str]] = {"from": "begin"}
    """Other words for options: ``from`` cannot be the name of a field."""

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages, in their order."""
        return STAGES if self.begin == "record" else (self.begin, *STAGES)

    def _check(self) -> None:
        if len(self.environment.games) > 1:
            self._check_several()
        if self.begin != "record" and self.teacher is not None:
            raise UserError(
                f"from {self.begin} makes the teacher, and teacher is {self.teacher}", "omit one of them"
            )
        if (self.begin == "import") != (self.agent is not None):
            raise UserError(
                f"from is {self.begin} and agent is {self.agent or 'not given'}",
                "give --from import with --agent FILE, or none of the two",
            )
        for stage in ("teach", *STAGES):
            given = getattr(self, stage)
            default = type(given)()
            for name in _wired(stage):
                if getattr(given, name) != getattr(default, name):
                    theirs = f"--{name}" if name in ("environment", "teacher") else "another --run_dir"
                    raise UserError(
                        f"{stage}.{name} is {getattr(given, name)}, but the pipeline sets it",
                        f"omit it, or give {theirs}",
                    )

    def _check_several(self) -> None:
        """Raise UserError where what is asked for goes with one game only."""
        several = f"{self.environment.game} are several games"
        if self.teacher is not None:
            raise UserError(
                f"teacher is {self.teacher}, and {several}",
                "put each game's in the run folder, as GAME/teacher.safetensors; a game without has the zoo's",
            )
        if self.begin == "import":
            raise UserError(
                f"from import makes one teacher, and {several}",
                "import each game's with `spikestill import --run_dir RUN_DIR/GAME`, and omit --from",
            )
        if self.distill.stream:
            raise UserError(
                f"distill.stream is true, and {several}: a stream is of one game", "omit --distill.stream"
            )
        for stage, name in ((each, option) for each in STAGES for option in ALSO.get(each, {}).values()):
            if given := getattr(getattr(self, stage), name):
                raise UserError(
                    f"{stage}.{name} is {', '.join(map(str, given))}, but the pipeline sets it for several games",
                    "omit it",
                )

    def steps(self, run_dir: Path) -> list[tuple[str, str, Path]]:
        """Return each stage, its game and the folder that it writes to, in their order.

        Of several games each has its turn at the stages that play one, and a folder; the other stages' game is ''.
        """
        games = self.environment.games
        if len(games) == 1:
            return [(name, games[0], run_dir) for name in self.stages]
        found = []
        for name in self.stages:
            own = games if name in PLAYING else ("",)
            found += [(name, game, run_dir / game if game else run_dir) for game in own]
        return found

    def stage(self, name: str, game: str, run_dir: Path, teachers: Mapping[str, Path]) -> Any:
        """Return the config of a stage of the games' run in ``run_dir``, with its files.

        Args:
            name: the stage.
            game: that it plays; '' where it is of several.
            run_dir: the run's folder.
            teachers: of each game.
        """
        if name == "import":
            assert self.agent is not None
            known = {
                field.name: getattr(self.importing, field.name)
                for field in dataclasses.fields(self.importing)
            }
            return ImportConfig(path=self.agent, game=self.environment.game, **known)
        own = {each: folder for stage, each, folder in self.steps(run_dir) if stage == "record"}
        files = {
            "buffer": [folder / BUFFER for each, folder in own.items() if game in (each, "")],
            "teacher": [path for each, path in teachers.items() if game in (each, "")],
        }
        wired: dict[str, Any] = {}
        for option, file in INPUTS.get(name, {}).items():
            first, *further = files.get(option, [run_dir / file])
            wired |= {option: first, **({ALSO[name][option]: tuple(further)} if further else {})}
        if name in PLAYING:
            wired["environment"] = self.environment.of(game)
        if name == "play":
            wired["record"] = own[game] / GAME
        if name == "map":
            wired["student"] = str(wired["student"])
        return dataclasses.replace(getattr(self, name), **wired)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportConfig(Options):
    """The page has a section for each stage whose artefact is there; it needs nothing else, and may be sent on."""

    folder: Path
    """The run folder."""
    html: Path | None = None
    """The page to write; None: ``report.html`` in the folder."""

    def _check(self) -> None:
        _check_page(self.html)


def _check_page(html: Path | None) -> None:
    if html is not None and html.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--html is {str(html)!r}, only .html is written", "give a name.html")


@dataclasses.dataclass(frozen=True, kw_only=True)
class InspectConfig(Recordings):
    """The kind of an artefact is read from the file itself; of a folder, what lies in it."""

    path: Path
    """Teacher, student or checkpoint (safetensors), buffer, core map or trace (HDF5), what verify, estimate, evaluate
    or play found (JSON), or a run folder."""
    html: Path | None = None
    """Page with pictures to write; None: only the table."""
    buffer: Path | None = None
    """For a core map's page: buffer whose frames show how much each core fires."""
    also: tuple[Path, ...] = ()
    """Further buffers, of the map's other games: each game that is recorded has its share of the frames."""
    frames: Annotated[int, Range(1, 1e5)] = 100
    """Frames of ``buffer``."""
    quick: bool = False
    """Leave out the check of every frame of a buffer."""

    def _check(self) -> None:
        super()._check()
        _check_page(self.html)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZooConfig(Options):
    """Teachers, students and core maps that this project's own commands trained."""

    game: str = ""
    """Show this game alone; empty: all."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompletionConfig(Options):
    """The script is printed; the comment at its top says where it goes."""

    shell: Literal["bash", "zsh", "fish"]
    """Whose completion."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoctorConfig(Options):
    """Nothing is changed on the machine."""
