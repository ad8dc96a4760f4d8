"""Options of ``spikestill run``, ``report``, ``inspect`` and ``doctor``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from spikestill.common.artefacts import GAME, INPUTS
from spikestill.common.errors import UserError
from spikestill.configs.distill import DistillConfig
from spikestill.configs.environment import EnvironmentConfig
from spikestill.configs.importing import ImportConfig, ProgramOptions
from spikestill.configs.mapping import MapConfig
from spikestill.configs.options import Choices, Options, Range
from spikestill.configs.play import EvaluateConfig, PlayConfig
from spikestill.configs.record import RecordConfig
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
    teach`` or ``--from import`` the teacher is made first."""

    begin: Annotated[str, Choices(FIRST)] = "record"
    """Where to begin; ``--from`` says the same."""
    environment: EnvironmentConfig = dataclasses.field(default_factory=EnvironmentConfig)
    """The game, for every stage."""
    teacher: Path | None = None
    """Teacher file; None: ``teacher.safetensors`` of the run folder, or else the zoo's for the game."""
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

    def stage(self, name: str, run_dir: Path, teacher: Path) -> Any:
        """Return the config of a stage with its files in ``run_dir``."""
        if name == "import":
            assert self.agent is not None
            known = {
                field.name: getattr(self.importing, field.name)
                for field in dataclasses.fields(self.importing)
            }
            return ImportConfig(path=self.agent, game=self.environment.game, **known)
        wired: dict[str, Any] = {
            option: run_dir / file if option != "teacher" else teacher
            for option, file in INPUTS.get(name, {}).items()
        }
        if name in PLAYING:
            wired["environment"] = self.environment
        if name == "play":
            wired["record"] = run_dir / GAME
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
class InspectConfig(Options):
    """The kind of an artefact is read from the file itself; of a folder, what lies in it."""

    path: Path
    """Teacher, student or checkpoint (safetensors), buffer, core map or trace (HDF5), what verify, estimate, evaluate
    or play found (JSON), or a run folder."""
    html: Path | None = None
    """Page with pictures to write; None: only the table."""
    buffer: Path | None = None
    """For a core map's page: buffer whose frames show how much each core fires."""
    frames: Annotated[int, Range(1, 1e5)] = 100
    """Frames of ``buffer``."""
    quick: bool = False
    """Leave out the check of every frame of a buffer."""

    def _check(self) -> None:
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
