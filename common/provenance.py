"""Where an artefact comes from: the resolved config, commit, seed, versions and its parents' hashes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.common.errors import UserError, printable

_warned: set[Path] = set()
_SCHEMAS = {
    "spikestill.buffer": "a recording",
    "spikestill.control-agent": "an agent of a control task",
    "spikestill.control-checkpoint": "a checkpoint of a control task's training",
    "spikestill.core_map": "a core map",
    "spikestill.distill-checkpoint": "a checkpoint of a student's training",
    "spikestill.fixed-agent": "an agent of a control task, in fixed point",
    "spikestill.student": "a student",
    "spikestill.teach-checkpoint": "a checkpoint of a teacher's training",
    "spikestill.teacher": "a game's teacher",
    "spikestill.trace": "a trace of a game played",
}
PACKAGES = (
    "spikestill", "torch", "numpy", "ale-py", "mujoco", "dm_control", "gymnasium", "h5py", "numba", "safetensors",
    "lava-nc",
)  # fmt: skip


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of the file at ``path`` as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def content_sha256(texts: Sequence[str], arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """Return the SHA-256 of header texts, a newline after each, and of every array's name, dtype, shape and bytes."""
    digest = hashlib.sha256("".join(f"{text}\n" for text in texts).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def check_content(texts: Sequence[str], arrays: Mapping[str, npt.NDArray[Any]], written: str) -> None:
    """Raise ValueError unless the content hashes to what was ``written`` with it."""
    found = content_sha256(texts, arrays)
    if found != written:
        raise ValueError(f"its content hashes to {found[:12]}, {written[:12]} was written")


def check_schema(path: Path, header: Mapping[str, Any], schema: str, newest: int, remedy: str) -> int:
    """Return the format version of the file at ``path``, by its ``header``: ``schema``, and 1 to ``newest``.

    Raises:
        UserError: the file is of another schema, or newer.
        KeyError, ValueError, TypeError: the header names no version.
    """
    if (found := header.get("schema")) != schema:
        kind = _SCHEMAS.get(found) if isinstance(found, str) else None
        raise UserError(
            f"{path}: schema {found!r}, {schema!r} wanted" + (f"; it is {kind}" if kind else ""), remedy
        )
    version = int(header["version"])
    if not 1 <= version <= newest:
        raise UserError(
            f"{path}: format version {version}, this program reads up to {newest}", "update spikestill"
        )
    return version


def warn_unchecked(path: Path, what: str = "format version 1") -> None:
    """Say, once for each file, that ``what`` it has is without a hash: damage in it cannot be seen."""
    if path not in _warned:
        _warned.add(path)
        print(
            f"warning: {printable(str(path))} has {what}, without a hash, which newer files have: damage in it would "
            "not be noticed. Make it again with this version.",
            file=sys.stderr, flush=True,
        )  # fmt: skip


def git_commit() -> str:
    """Return the commit of the source tree, with ``+dirty`` where it has changes; '' outside a checkout."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():  # installed, perhaps below another project's checkout
        return ""
    try:
        run = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--abbrev=12", "--dirty=+dirty"],
            capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return run.stdout.strip()


def processor() -> str:
    """Return the CPU's model name as the system reports it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="ignore").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def machine() -> str:
    """Return the processor, its cores, and the GPU where PyTorch is loaded and sees one."""
    found = f"{processor()}, {os.cpu_count()} cores"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        found += f", {torch.cuda.get_device_name()}"
    return found


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that can change an artefact's content."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


_KINDS = {
    "config": dict,
    "seed": int,
    "commit": str,
    "versions": dict,
    "parents": dict,
    "created": str,
    "machine": str,
}


@dataclasses.dataclass(frozen=True)
class Provenance:
    """The record that every artefact carries.

    Attributes:
        config: the resolved configuration of the stage, as plain JSON values.
        seed: the seed of the run.
        commit: the git commit of the code, ``+dirty`` appended where it had changes, '' if unknown.
        versions: package name to version.
        parents: role (``teacher``, ``buffer``, ``student``) to the SHA-256 of that file.
        created: UTC time, ISO 8601.
        machine: the processor, and the GPU where there is one; '' in files from before 2026-11-22.
    """

    config: Mapping[str, Any]
    seed: int
    commit: str
    versions: Mapping[str, str]
    parents: Mapping[str, str]
    created: str
    machine: str = ""

    @staticmethod
    def of(config: Any, seed: int, parents: Mapping[str, Path | None] | None = None) -> Provenance:
        """Return the provenance of a run that begins now.

        Args:
            config: a dataclass or a mapping.
            seed: the run's.
            parents: role to file; a role whose file is None is left out.
        """
        plain = dataclasses.asdict(config) if dataclasses.is_dataclass(config) else dict(config)  # type: ignore[arg-type]
        return Provenance(
            config=json.loads(json.dumps(plain, default=str)),
            seed=seed,
            commit=git_commit(),
            versions=versions(),
            parents={
                role: file_sha256(Path(path)) for role, path in (parents or {}).items() if path is not None
            },
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            machine=machine(),
        )

    def to_json(self) -> str:
        """Return the record as a JSON object."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Provenance:
        """Return the record that :meth:`to_json` wrote.

        Raises:
            ValueError: ``text`` is not such a record.
        """
        try:
            fields = json.loads(text)
            unknown = sorted(set(fields) - {field.name for field in dataclasses.fields(Provenance)})
            if unknown:
                raise ValueError(f"not a provenance record: it has an unknown field {unknown[0]!r}")
            found = Provenance(**fields)
            for name, kind in _KINDS.items():
                if not isinstance(getattr(found, name), kind):
                    value = str(getattr(found, name))[:60]
                    raise ValueError(
                        f"not a provenance record: {name} is {value!r}, a {kind.__name__} wanted"
                    )
            for name in ("versions", "parents"):
                if not all(isinstance(value, str) for value in getattr(found, name).values()):
                    raise ValueError(f"not a provenance record: {name} has what is no text")
            return found
        except (TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"not a provenance record: {error}") from error
