"""The recordings that a stage after ``distill`` takes frames from."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from spikestill.common.artefacts import numbered
from spikestill.common.errors import UserError
from spikestill.configs.options import Options


class Recordings(Options):
    """Base of the options of a stage that reads ``buffer``, and ``also`` those of a student's other games."""

    buffer: Path | None
    also: tuple[Path, ...]

    NEWER: ClassVar[tuple[str, ...]] = ("also",)

    @property
    def buffers(self) -> tuple[Path, ...]:
        """All of them; none: random pixels."""
        return () if self.buffer is None else (self.buffer, *self.also)

    @property
    def recorded(self) -> dict[str, Path]:
        """What a provenance calls each of them: ``buffer``, ``buffer2``, ..."""
        return {numbered("buffer", index): path for index, path in enumerate(self.buffers)}

    def _check(self) -> None:
        if self.also and self.buffer is None:
            raise UserError(
                f"also is {', '.join(map(str, self.also))}, and buffer is null",
                "give the first recording by --buffer",
            )
