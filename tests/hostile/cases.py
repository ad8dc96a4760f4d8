"""What is damaged, how, and who reads it: every format with every verb that takes it."""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec

from tests.hostile import damage
from tests.hostile.damage import Damage
from tests.hostile.readers import (
    Reader,
    buffer,
    compare,
    control_agent,
    control_resume,
    core_map,
    distill_buffer,
    distill_initial,
    distill_resume,
    doubted,
    estimate,
    evaluate,
    evaluate_control,
    export,
    import_,
    inspect,
    inspect_folder,
    inspect_html,
    inspected_journal,
    journalled,
    map_,
    onnx_teacher,
    play,
    play_control,
    record,
    record_numbers,
    record_teacher,
    replay,
    report,
    run,
    student,
    sweep_plan,
    teach_initial,
    teach_resume,
    teacher,
    torchscript_teacher,
    trace,
    verify,
)

CONTROL = find_spec("mujoco") is not None and find_spec("dm_control") is not None
ONNX = find_spec("onnx") is not None and find_spec("onnxruntime") is not None


@dataclasses.dataclass(frozen=True)
class Subject:
    """A file that is damaged, and who reads it.

    Attributes:
        corpus: the set that it lies in.
        file: its name.
        reader: reads it.
        seal: alters its content and gives it a valid hash; None where the format has no such thing.
        weight: how often it comes up: what is quick comes up often.
        named: a word of the messages that refuse it; '' where any will do.
    """

    corpus: str
    file: str
    reader: Reader
    seal: Damage | None
    weight: float
    named: str

    @property
    def name(self) -> str:
        """What findings call it."""
        return f"{self.corpus}/{self.file} {self.reader.__name__}"


def subjects() -> list[Subject]:
    """Return all that is read."""
    found: list[Subject] = []

    def add(
        corpus: str, file: str, seal: Damage | None, *readers: tuple[Reader, float], named: str | None = None
    ) -> None:
        found.extend(
            Subject(corpus, file, reader, seal, weight, file if named is None else named)
            for reader, weight in readers
        )

    add(
        "student", "student.safetensors", damage.tensors, (student, 40), (inspect("student.safetensors"), 20),
        (map_, 6),
        (evaluate("student"), 2), (export("nir"), 4), (export("netx"), 4), (export("c"), 4), (estimate, 4), (verify, 4),
        (play("student"), 3),
    )  # fmt: skip
    add(
        "student", "core_map.h5", damage.hdf5, (core_map, 20), (inspect("core_map.h5"), 8), (inspect_html, 4),
        (verify, 6),
        (evaluate("cores"), 2), (estimate, 4), (export("ranc"), 4), (export("rtl"), 3), (play("cores"), 4),
    )  # fmt: skip
    add(
        "student", "buffer.h5", damage.hdf5, (buffer, 20), (inspect("buffer.h5"), 8), (record, 3), (distill_buffer, 1),
        (verify, 4), (export("ranc"), 3),
    )  # fmt: skip
    add(
        "student",
        "teacher.safetensors",
        damage.tensors,
        (teacher, 20),
        (inspect("teacher.safetensors"), 10),
        (record_teacher, 3),
    )
    add("student", "teacher.safetensors", damage.tensors, (play("teacher"), 2), (play("fixed"), 1))
    add(
        "games", "student.safetensors", damage.tensors, (student, 10), (inspect("student.safetensors"), 6), (map_, 2)
    )  # fmt: skip
    add("trace", "trace.h5", damage.hdf5, (trace, 20), (replay, 4), (compare, 6), named="")
    add("journal", "buffer.h5.journal", damage.journal, (journalled, 15), (inspected_journal, 8), named="")
    add("agents", "agent.pth", damage.archive, (import_("agent.pth"), 8))
    add("agents", "agent.zip", damage.archive, (import_("agent.zip"), 8))
    add("agents", "net.ts", damage.archive, (import_("net.ts"), 1.5))
    add(
        "agents",
        "teacher-ts.safetensors",
        damage.tensors,
        (torchscript_teacher, 1.5),
        (inspect("teacher-ts.safetensors"), 4),
    )
    if ONNX:
        add("agents", "net.onnx", None, (import_("net.onnx"), 2))
        add("agents", "teacher-onnx.safetensors", damage.tensors, (onnx_teacher, 2))
    add(
        "teach",
        "teach-checkpoint.safetensors",
        damage.tensors,
        (teach_resume, 4),
        (inspect("teach-checkpoint.safetensors"), 6),
    )
    add("teach", "teacher.safetensors", damage.tensors, (teach_initial, 3), named="initial.safetensors")
    add("teach", "teach.jsonl", damage.lines, (teach_resume, 1), named="")
    add(
        "distill",
        "distill-checkpoint.safetensors",
        damage.tensors,
        (distill_resume, 2),
        (inspect("distill-checkpoint.safetensors"), 6),
    )
    add(
        "distill",
        "distill-checkpoint.safetensors",
        damage.tensors,
        (distill_initial, 1),
        named="initial.safetensors",
    )
    if CONTROL:
        for corpus in ("control", "fixed"):
            add(
                corpus, "teacher.safetensors", damage.tensors, (control_agent, 12), (inspect("teacher.safetensors"), 8),
                (play_control, 2), (evaluate_control, 1),
            )  # fmt: skip
            add(
                corpus, "teach-checkpoint.safetensors", damage.tensors, (control_resume, 4),
                (inspect("teach-checkpoint.safetensors"), 6),
            )  # fmt: skip
        add("numbers", "buffer.h5", damage.hdf5, (buffer, 10), (inspect("buffer.h5"), 5), (record_numbers, 2))
    add("pipeline", "pipeline.json", damage.document, (run, 8), (report, 2), named="")
    add("pipeline", "distill.jsonl", damage.lines, (report, 2))
    add("pipeline", "run.config.yaml", damage.recipe, (report, 1))
    for name in ("verify.json", "play.json", "evaluate.json", "estimate.json"):
        add("pipeline", name, damage.document, (report, 2), (inspect_folder, 2), named="")
    add("recipes", "recipe.yaml", damage.recipe, (doubted("record"), 30), named="")
    add("recipes", "sweep.yaml", damage.recipe, (sweep_plan, 20), named="")
    add("recipes", "control.yaml", damage.recipe, (doubted("teach"), 15), named="")
    return found
