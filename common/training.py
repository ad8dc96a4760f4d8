"""What trainings of every stage share: checkpoints that refuse other options, and the sittings in which they go on."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from spikestill.common import curve
from spikestill.common.errors import UserError, restoring
from spikestill.common.progress import Progress
from spikestill.common.provenance import Provenance
from spikestill.common.stage import stop_on_signal
from spikestill.common.tensor_file import open_tensor_file

if TYPE_CHECKING:
    from torch import Tensor

BEGIN_ANEW = "start again in another --run_dir"


@contextlib.contextmanager
def going_on_from(path: Path | None) -> Iterator[None]:
    """Let errors of a training name the file that it went on from, or began with; None: there is none."""
    try:
        yield
    except UserError as error:
        if path is None or str(path) in error.what:
            raise
        raise UserError(f"{error.what}; it went on from {path}", error.remedy) from error


class Checkpoint(NamedTuple):
    """What a training left: its tensors, its counters (plain JSON values), the hashes of the files it began with."""

    tensors: dict[str, Tensor]
    counters: dict[str, Any]
    parents: dict[str, str]


def write_checkpoint(
    path: Path,
    schema: str,
    tensors: Mapping[str, Tensor],
    counters: Mapping[str, Any],
    options: Mapping[str, Any],
    provenance: Provenance,
) -> None:
    """Write a training's whole state to a safetensors file, atomically.

    Args:
        path: the file.
        schema: which kind of training it is.
        tensors: by name.
        counters: all else, plain JSON values; ``precision`` names the number format.
        options: the training's, plain values.
        provenance: where the training comes from.
    """
    from spikestill.common.tensors import write_tensors

    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    texts = {"counters": json.dumps(dict(counters)), "config": json.dumps(dict(options))}
    write_tensors(path, contiguous, schema, provenance, **texts)


def read_checkpoint(
    path: Path,
    schema: str,
    options: Mapping[str, Any],
    defaults: Mapping[str, Any],
    free: tuple[str, ...],
    number_format: str,
) -> Checkpoint:
    """Read what :func:`write_checkpoint` wrote, for a training that goes on with ``options``.

    Args:
        path: the file.
        schema: as it was written with.
        options: of now, plain values.
        defaults: of every option; one that is newer than the checkpoint had its default then.
        free: options that may differ.
        number_format: the name of the format that this training computes in.

    Raises:
        UserError: the file cannot be read, or was written with other options or in another format.
    """
    from spikestill.common.tensors import read_tensors

    tensors, metadata = read_tensors(path, schema, BEGIN_ANEW)
    with restoring(path, BEGIN_ANEW):
        check_same_options(filled(json.loads(metadata["config"]), defaults), options, path, free)
        counters = dict(json.loads(metadata["counters"]))
        parents = dict(Provenance.from_json(metadata["provenance"]).parents)
    # Checkpoints from before 2026-11-22 do not say their format.
    saved = counters.get("precision")
    if saved is not None and saved != number_format:
        raise UserError(
            f"{path}: was trained in {saved}; --precision {options['precision']} is {number_format} on this machine",
            f"give --precision {saved}, or {BEGIN_ANEW}",
        )
    return Checkpoint(tensors, counters, parents)


def made_before(checkpoint: Path, schema: str) -> Provenance:
    """Return the ``checkpoint``'s record: who trained it, and with which options.

    For a finished training that is resumed: nothing is trained, so other options are not what made it. Its files are
    written with the same bytes again, so the hashes that later stages took of them still hold.

    Raises:
        UserError: the file cannot be read.
    """
    from spikestill.common.tensors import VERSION

    with open_tensor_file(checkpoint, schema, VERSION, BEGIN_ANEW, noun="checkpoint") as (_, metadata):
        return Provenance.from_json(metadata["provenance"])


def check_arrays(found: Mapping[str, Any], like: Mapping[str, Any]) -> None:
    """Raise unless a checkpoint's arrays are such as a training that begins has.

    Args:
        found: the checkpoint's, NumPy's or PyTorch's, by name.
        like: a fresh training's: a dtype and a shape for each; what is a real number is finite.

    Raises:
        ValueError, KeyError: one is missing, of another shape or dtype, or not finite.
    """
    for name, wanted in like.items():
        given = found[name]
        if tuple(given.shape) != tuple(wanted.shape) or given.dtype != wanted.dtype:
            raise ValueError(
                f"{name} is {given.dtype} {tuple(given.shape)}, {wanted.dtype} {tuple(wanted.shape)} wanted"
            )
        if "float" in str(given.dtype) and not bool((abs(given) < math.inf).all()):
            raise ValueError(f"{name} holds values that are not finite")


def check_counters(found: Mapping[str, Any], like: Mapping[str, Any]) -> None:
    """Raise unless a checkpoint's counters are such as a training that begins has.

    Args:
        found: the checkpoint's.
        like: a fresh training's: whole numbers are from 0 to 2^62, numbers finite, in lists and groups too.

    Raises:
        ValueError, KeyError: one is missing, of another type or out of range.
    """
    for name, value in like.items():
        given = found[name]
        if isinstance(value, int):
            if type(given) is not int or not 0 <= given <= 1 << 62:
                raise ValueError(f"{name} is {str(given)[:60]!r}, a whole number from 0 wanted")
            continue
        if not isinstance(given, type(value)):
            raise ValueError(f"{name} is {type(given).__name__}, {type(value).__name__} wanted")
        inner = (
            given.values() if isinstance(given, Mapping) else given if isinstance(given, list) else [given]
        )
        if not all(type(each) in (int, float) and abs(each) < math.inf for each in inner):
            raise ValueError(f"{name} is {str(given)[:60]}, finite numbers wanted")


def filled(saved: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``saved`` with what it lacks taken from ``defaults``, nested groups too; TypeError if no mapping."""
    if not isinstance(saved, Mapping):
        raise TypeError(f"options are {type(saved).__name__}, a mapping wanted")
    whole = {**defaults, **saved}
    for name, value in defaults.items():
        if isinstance(value, Mapping) and isinstance(saved.get(name), Mapping):
            whole[name] = filled(saved[name], value)
    return whole


def check_same_options(
    saved: Mapping[str, Any], given: Mapping[str, Any], path: Path, free: tuple[str, ...]
) -> None:
    """Raise UserError unless both agree in every option of ``given`` but the ``free`` ones."""
    for name, value in given.items():
        if isinstance(value, Mapping) and isinstance(saved.get(name), Mapping):
            theirs, ours = (
                {f"{name}.{key}": each for key, each in group.items()} for group in (saved[name], value)
            )
            check_same_options(theirs, ours, path, free)
        elif name not in free and saved.get(name) != value:
            raise UserError(
                f"{path}: was written with {name} {saved.get(name)!r}, now it is {value!r}",
                f"resume with the same --{name}, or start in another --run_dir",
            )


class Sitting:
    """One sitting of a training: its progress bar, learning curve, checkpoints in time, and the user's wish to stop.

    A context: on leaving it in peace the training is saved.

    Args:
        stage: the command, which names the bar and the curve ``STAGE.jsonl``.
        run_dir: where the curve goes.
        step: returns how far the training is.
        steps: how far it is to go.
        unit: what a step is.
        save: writes the training's files.
        checkpoint_minutes: wall-clock minutes between two calls of ``save``.
        resumed: the training goes on from a checkpoint; else a curve from before its first one is deleted.
    """

    def __init__(
        self,
        stage: str,
        run_dir: Path,
        *,
        step: Callable[[], int],
        steps: int,
        unit: str,
        save: Callable[[], None],
        checkpoint_minutes: float,
        resumed: bool,
    ) -> None:
        self._curve = run_dir / f"{stage}.jsonl"
        self._step, self._save, self._period_s = step, save, 60.0 * checkpoint_minutes
        self._first = self._shown = step()
        self._spent_s = curve.cut(self._curve, self._first) if resumed else 0.0
        if not resumed:
            self._curve.unlink(missing_ok=True)
        self._stopping = stop_on_signal()
        self._label, self._steps, self._unit = stage, steps, unit
        self._began = self._saved = time.monotonic()
        self._ended: float | None = None

    def __enter__(self) -> Sitting:
        self.stop = self._stopping.__enter__()
        self.bar = Progress(self._label, self._steps, self._unit, self._first)
        self._began = self._saved = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = time.monotonic()
        try:
            self.bar.close()
            if kind is None:
                self._save()
        finally:
            self._stopping.__exit__(kind, error, trace)

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of this sitting."""
        return (time.monotonic() if self._ended is None else self._ended) - self._began

    @property
    def total_seconds(self) -> float:
        """Wall-clock seconds of all sittings, to a millisecond."""
        return round(self._spent_s + self.seconds, 3)

    @property
    def rate(self) -> float:
        """Steps a second of this sitting."""
        return (self._step() - self._first) / max(self.seconds, 1e-9)

    def advance(self, **shown: object) -> None:
        """Show how far the training is, and ``shown`` beside it; save where it is time to.

        Raises:
            UserError: the disk is full, or the training refuses to save its state.
        """
        self.bar.advance(self._step() - self._shown, **shown)
        self._shown = self._step()
        if time.monotonic() - self._saved >= self._period_s:
            self._save()
            self._saved = time.monotonic()

    def log(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Add a line to the learning curve: ``step``, ``seconds`` of all sittings, and ``values``; return it.

        Raises:
            UserError: the disk is full.
        """
        line = {"step": self._step(), "seconds": self.total_seconds, **values}
        curve.append(self._curve, line)
        return line
