"""The ``verify`` stage: the parity ladder of a student on given frames.

naive NumPy = PyTorch = packed kernel = core simulator, frame by frame and pipelined = Lava fused = Lava
stock Processes, by ``np.array_equal`` at every layer that a rung shows, on the votes and on the action. Beside them
the core map is read back, without any frame, and compared with the student (``deploy/equivalence.py``).
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from spikestill.common.artefacts import VERIFY
from spikestill.common.document import write_document
from spikestill.common.errors import UserError
from spikestill.common.progress import Progress
from spikestill.common.provenance import Provenance
from spikestill.common.stage import StageResult, stop_on_signal
from spikestill.configs.hardware import hardware
from spikestill.configs.verify import VerifyConfig
from spikestill.deploy.core_map import CoreMap, check_mapped_from, load
from spikestill.deploy.equivalence import first_deviation
from spikestill.deploy.frames import Frames
from spikestill.deploy.ladder import (
    REFERENCE,
    Difference,
    Rung,
    core_rungs,
    lava_rungs,
    naive_rung,
    packed_rung,
    reference_player,
)
from spikestill.deploy.lava.loader import require_loihi2
from spikestill.deploy.mapping import map_net
from spikestill.deploy.simulator import CoreSimulator
from spikestill.deploy.validate import violations
from spikestill.student.integer_net import IntegerNet
from spikestill.student.integer_net import load as load_student

VERSION = 1
CHUNK_FRAMES = 32
CHUNK_NEURONS = 1 << 24
"""Most neurons times frames of a chunk: their spikes are held as bytes."""


def run(config: VerifyConfig, run_dir: Path, *, resume: bool = False) -> StageResult:
    """Compare every rung with the reference on the frames of ``config`` and write ``verify.json`` into ``run_dir``.

    There is no checkpoint, so ``resume`` starts anew. An interrupted run writes nothing.

    Raises:
        UserError: an input is unreadable or does not fit the student, or a rung differs (after
            ``verify.json`` is written): the first layer, neuron and frame are named.
    """
    if config.stock_target == "loihi2":
        require_loihi2()
    net, _ = load_student(config.student)
    frames = Frames(config.buffers, config.frames, config.seed, net.game, net.input_shape, config.student)
    with contextlib.closing(frames):
        return _verify(config, net, frames, Path(run_dir) / VERIFY)


def _verify(config: VerifyConfig, net: IntegerNet, frames: Frames, artefact: Path) -> StageResult:
    core_map, unmapped = _core_map(config, net)
    parents = {"student": config.student, "core_map": config.core_map, **config.recorded}
    provenance = Provenance.of(config, config.seed, parents)
    deviation = first_deviation(core_map, net) if core_map is not None else None
    rungs = [naive_rung(net, config.naive_frames), packed_rung(net, len(frames))]
    if config.naive_frames == 0 and not rungs[0].skipped:
        rungs[0].skipped = "its number of frames is 0"
    playable = core_map
    if core_map is not None and deviation is not None and next(violations(core_map), None) is not None:
        playable, unmapped = None, deviation
    if playable is None:
        rungs += [Rung(name, None, 0, skipped=unmapped) for name in ("cores", "cores-pipelined")]
    else:
        rungs += core_rungs(CoreSimulator(playable), len(frames))
    stock = (config.stock_frames, config.stock_synapses, config.stock_target)
    with lava_rungs(net, config.lava_frames, *stock) as lava:
        rungs += lava
        seconds, done = _climb(net, frames, rungs)
    differences = [rung.first for rung in rungs if rung.first is not None]
    reference = {"name": REFERENCE, "frames": done, "mismatches": 0, "seconds": round(seconds, 3)}
    summary: dict[str, Any] = {
        "ok": not differences and deviation is None,
        "frames": done,
        "source": frames.source,
        "games": frames.games(done),
        "rungs": [reference, *(rung.report() for rung in rungs)],
        "difference": _plain(differences[0], frames) if differences else None,
        "core_map": None if core_map is None else deviation or "computes the student for every input",
    }
    if done < len(frames) and summary["ok"]:
        return StageResult(artefact, summary, finished=False)
    found = summary | {"differences": [_plain(difference, frames) for difference in differences]}
    write_document(artefact, "verify", VERSION, found, provenance)
    if not summary["ok"]:
        causes = [str(differences[0])] if differences else []
        mapped = "the core map" if config.core_map is None else f"the core map {config.core_map}"
        causes += [f"{mapped} departs from the student: {deviation}"] if deviation is not None else []
        raise UserError(
            f"{config.student}: the ladder does not hold: {'; '.join(causes)}{_stranger(config, core_map)}",
            f"map the student again; if it still differs, report it with {artefact}",
        )
    return StageResult(artefact, summary)


def _core_map(config: VerifyConfig, net: IntegerNet) -> tuple[CoreMap | None, str]:
    """Return the core map, or None and why the student has none."""
    if config.core_map is None:
        try:
            return map_net(net, hardware("truenorth"), anneal_seconds=0), ""
        except UserError as error:
            return None, f"it does not map to truenorth: {error}"
    core_map = load(config.core_map)
    wanted = [list(shape) for shape in net.shapes()]
    theirs = core_map.game, core_map.input_shape, core_map.layer_shape_L3.tolist(), core_map.actions
    ours = net.game, net.input_shape, wanted, net.actions
    if theirs != ours:
        raise UserError(
            "{}: maps a net of {}, input {}, layers {} with {} actions".format(config.core_map, *theirs)
            + ", {} is of {}, input {}, layers {} with {}".format(config.student, *ours),
            "map this student with `spikestill map`, or give the student that was mapped",
        )
    return core_map, ""


def _stranger(config: VerifyConfig, core_map: CoreMap | None) -> str:
    """Return a hint where the core map was made from another student file."""
    if config.core_map is None or core_map is None:
        return ""
    try:
        check_mapped_from(config.core_map, core_map.provenance, config.student)
    except UserError as error:
        return f" ({error.what})"
    return ""


def _climb(net: IntegerNet, frames: Frames, rungs: list[Rung]) -> tuple[float, int]:
    """Play all frames on all rungs; return the reference's seconds and the frames done."""
    reference, seconds, done = reference_player(net), 0.0, 0
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


def _plain(difference: Difference, frames: Frames) -> dict[str, Any]:
    """Return a difference as JSON values, with the frame's buffer and its index there."""
    buffer, index = frames.origin(difference.frame) if frames.source == "buffer" else (None, None)
    return {
        "rung": difference.rung,
        "frame": difference.frame,
        "buffer": buffer,
        "buffer_index": index,
        "where": difference.where,
        "layer": difference.layer,
        "neuron": list(difference.neuron) if difference.neuron is not None else None,
        "expected": difference.expected,
        "found": difference.found,
    }
