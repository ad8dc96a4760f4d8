"""The names of the files in a run folder, which stage reads which, and what the parents of a provenance call them."""

from __future__ import annotations

TEACHER = "teacher.safetensors"
BUFFER = "buffer.h5"
STUDENT = "student.safetensors"
CORE_MAP = "core_map.h5"
VERIFY = "verify.json"
ESTIMATE = "estimate.json"
PLAY = "play.json"
GAME = "game.mp4"
SMALL_GAME = "game-small.mp4"
EVALUATE = "evaluate.json"
REPORT = "report.html"
DIVERGED = "teach-diverged.json"
"""What a training leaves that diverged: why, and its provenance."""
SWEEP = "sweep.json"
STATE = "pipeline.json"
"""What `spikestill run` keeps of its stages."""

INPUTS: dict[str, dict[str, str]] = {
    "record": {"teacher": TEACHER},
    "distill": {"buffer": BUFFER, "teacher": TEACHER},
    "map": {"student": STUDENT, "buffer": BUFFER},
    "verify": {"student": STUDENT, "core_map": CORE_MAP, "buffer": BUFFER},
    "estimate": {"student": STUDENT, "core_map": CORE_MAP, "buffer": BUFFER},
    "export": {"student": STUDENT, "core_map": CORE_MAP, "buffer": BUFFER},
    "play": {"teacher": TEACHER, "student": STUDENT, "core_map": CORE_MAP},
    "evaluate": {"teacher": TEACHER, "student": STUDENT, "core_map": CORE_MAP},
}
"""Stage to (option that names a file, that file's name in a run folder)."""

ALSO: dict[str, dict[str, str]] = {
    "distill": {"buffer": "also", "teacher": "also_teachers"},
    **{stage: {"buffer": "also"} for stage in ("map", "estimate", "verify", "export")},
}
"""Stage to (option of one file to the option of those of further games)."""

RESUMED_FROM = {
    "teach": "teach-checkpoint.safetensors", "record": BUFFER, "distill": "distill-checkpoint.safetensors",
}  # fmt: skip
"""Stage to the file from which ``--resume`` goes on."""


def numbered(name: str, index: int) -> str:
    """Return what the parents of a provenance call the files of one kind: ``name``, ``name2``, ``name3``, ..."""
    return f"{name}{index + 1 if index else ''}"
