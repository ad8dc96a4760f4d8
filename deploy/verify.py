"""The ``verify`` stage: the parity ladder of a student on given frames.

naive NumPy = PyTorch = packed kernel = core simulator, frame by frame and pipelined = Lava fused = Lava
stock Processes, by ``np.array_equal`` at every layer that a rung shows, on the votes and on the action.
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from configs.artefacts import VERIFY
from configs.atomic import write_text
from configs.errors import UserError
from configs.hardware import hardware
from configs.progress import Progress
from configs.provenance import Provenance, file_sha256
from configs.stage import StageResult, stop_on_signal
from configs.verify import VerifyConfig
from deploy.core_map import CoreMap, load
from deploy.ladder import (
    REFERENCE,
    Difference,
    Rung,
    core_rungs,
    lava_rungs,
    naive_rung,
    packed_rung,
    torch_player,
)
from deploy.mapping import map_net
from deploy.simulator import CoreSimulator
from student.integer_net import STACK_SHAPE, IntegerNet
from student.integer_net import load as load_student

SCHEMA = "spikestill.verify"
VERSION = 1
CHUNK_FRAMES = 32
CHUNK_NEURONS = 1 << 24
"""Most neurons times frames of a chunk: their spikes are held as bytes."""


def run(config: VerifyConfig, run_dir: Path, *, resume: bool = False) -> StageResult:
    """Compare every rung with PyTorch on the frames of ``config`` and write ``verify.json`` into ``run_dir``.

    There is no checkpoint, so ``resume`` starts anew. An interrupted run writes nothing.

    Raises:
        UserError: an input is unreadable or does not fit the student, or a rung differs (after
            ``verify.json`` is written): the first layer, neuron and frame are named.
    """
    net, _ = load_student(config.student)
    with contextlib.closing(_Frames(config, net)) as frames:
        return _verify(config, net, frames, Path(run_dir) / VERIFY)


def _verify(config: VerifyConfig, net: IntegerNet, frames: _Frames, artefact: Path) -> StageResult:
    core_map, unmapped = _core_map(config, net)
    rungs = [naive_rung(net, config.naive_frames), packed_rung(net, len(frames))]
    if config.naive_frames == 0:
        rungs[0].skipped = "its number of frames is 0"
    if core_map is None:
        rungs += [Rung(name, None, 0, skipped=unmapped) for name in ("cores", "cores-pipelined")]
    else:
        rungs += core_rungs(CoreSimulator(core_map), len(frames))
    with lava_rungs(net, config.lava_frames, config.stock_frames, config.stock_synapses) as lava:
        rungs += lava
        seconds, done = _climb(net, frames, rungs)
    differences = [rung.first for rung in rungs if rung.first is not None]
    reference = {"name": REFERENCE, "frames": done, "mismatches": 0, "seconds": round(seconds, 3)}
    summary: dict[str, Any] = {
        "ok": not differences,
        "frames": done,
        "source": frames.source,
        "rungs": [reference, *(rung.report() for rung in rungs)],
        "difference": _plain(differences[0], frames) if differences else None,
    }
    if done < len(frames) and not differences:
        return StageResult(artefact, summary, finished=False)
    parents = {"student": config.student, "core_map": config.core_map, "buffer": config.buffer}
    provenance = Provenance.of(
        config, config.seed, {role: path for role, path in parents.items() if path is not None}
    )
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        **summary,
        "differences": [_plain(difference, frames) for difference in differences],
        "provenance": json.loads(provenance.to_json()),
    }
    write_text(artefact, json.dumps(document, indent=1) + "\n")
    if differences:
        raise UserError(
            f"the ladder does not hold: {differences[0]}{_stranger(config, core_map)}",
            f"map the student again; if it still differs, report it with {artefact}",
        )
    return StageResult(artefact, summary)


class _Frames:
    """The stacks to compare on: from a buffer, drawn without repetition, or random pixels."""

    def __init__(self, config: VerifyConfig, net: IntegerNet) -> None:
        self._reader: Any = None
        self._seed, self._shape = config.seed, tuple(net.input_shape)
        self.indices: npt.NDArray[np.int64] = np.arange(config.frames, dtype=np.int64)
        if config.buffer is None:
            self.source = "random"
            return
        if net.input_shape != STACK_SHAPE:
            raise UserError(
                f"{config.student} reads input of shape {net.input_shape}, a buffer has {STACK_SHAPE}",
                "leave --buffer away: random frames are used",
            )
        from dataset.reader import BufferReader

        self.source = "buffer"
        self._reader = BufferReader(config.buffer)
        available = len(self._reader)
        rng = np.random.default_rng(config.seed)
        self.indices = np.sort(rng.choice(available, min(config.frames, available), replace=False))

    def __len__(self) -> int:
        return len(self.indices)

    def stacks(self, begin: int, end: int) -> npt.NDArray[np.uint8]:
        """Return frames ``begin`` to ``end``, uint8 (B, C, H, W)."""
        if self._reader is None:
            return np.stack(
                [
                    np.random.default_rng([self._seed, index]).integers(0, 256, self._shape, np.uint8)
                    for index in self.indices[begin:end].tolist()
                ]
            )
        return np.asarray(self._reader.stacks(self.indices[begin:end]))

    def close(self) -> None:
        """Close the buffer."""
        if self._reader is not None:
            self._reader.close()


def _core_map(config: VerifyConfig, net: IntegerNet) -> tuple[CoreMap | None, str]:
    """Return the core map, or None and why the student has none."""
    if config.core_map is None:
        try:
            return map_net(net, hardware("truenorth")), ""
        except UserError as error:
            return None, f"it does not map to truenorth: {error}"
    core_map = load(config.core_map)
    wanted = [list(shape) for shape in net.shapes()]
    if core_map.layer_shape_L3.tolist() != wanted or core_map.actions != net.actions:
        raise UserError(
            f"{config.core_map}: maps a net of layers {core_map.layer_shape_L3.tolist()} with "
            f"{core_map.actions} actions, {config.student} has {wanted} with {net.actions}",
            "map this student with `spikestill map`, or give the student that was mapped",
        )
    return core_map, ""


def _stranger(config: VerifyConfig, core_map: CoreMap | None) -> str:
    """Return a hint where the core map was made from another student file."""
    parent = core_map.provenance.parents.get("student") if core_map is not None else None
    if config.core_map is None or parent is None or parent == file_sha256(config.student):
        return ""
    return f" ({config.core_map} was mapped from another student file than {config.student})"


def _climb(net: IntegerNet, frames: _Frames, rungs: list[Rung]) -> tuple[float, int]:
    """Play all frames on all rungs; return the reference's seconds and the frames done."""
    reference, seconds, done = torch_player(net), 0.0, 0
    size = max(1, min(CHUNK_FRAMES, CHUNK_NEURONS // net.neurons()))
    with stop_on_signal() as stop, Progress("verify", len(frames), "frames") as progress:
        while done < len(frames) and not stop:
            stacks_BCHW = frames.stacks(done, min(done + size, len(frames)))
            began = time.perf_counter()
            played = reference(stacks_BCHW)
            seconds += time.perf_counter() - began
            for rung in rungs:
                rung.compare(stacks_BCHW, played)
            done += len(stacks_BCHW)
            progress.advance(len(stacks_BCHW), differ=sum(rung.mismatches for rung in rungs))
    return seconds, done


def _plain(difference: Difference, frames: _Frames) -> dict[str, Any]:
    """Return a difference as JSON values, with the frame's index in the buffer."""
    return {
        "rung": difference.rung,
        "frame": difference.frame,
        "buffer_index": int(frames.indices[difference.frame]) if frames.source == "buffer" else None,
        "where": difference.where,
        "layer": difference.layer,
        "neuron": list(difference.neuron) if difference.neuron is not None else None,
        "expected": difference.expected,
        "found": difference.found,
    }
