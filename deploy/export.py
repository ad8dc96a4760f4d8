"""The ``export`` stage: a student or its core map in another program's format."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from spikestill.common.stage import StageResult
from spikestill.configs.exporting import ExportConfig
from spikestill.deploy.core_map import check_not_stale
from spikestill.deploy.exports import netx, nir_graph, ranc
from spikestill.deploy.frames import Frames
from spikestill.deploy.validate import load_valid
from spikestill.student.integer_net import load as load_student

NIR, NETX, RANC = "student.nir", "student.net", "ranc"


def run(config: ExportConfig, run_dir: Path, *, resume: bool = False) -> StageResult:
    """Write ``ranc/``, ``student.nir`` or ``student.net`` into ``run_dir``.

    The summary's ``ranges`` say what the net asks of the format's fields, and what they hold.

    An export takes seconds, so ``resume`` does it anew.

    Raises:
        UserError: the student or core map cannot be read, the map breaks a rule of its target, a value does not fit
            the target's fields, the package that writes the format is missing, or the disk is full.
    """
    began, run_dir = time.monotonic(), Path(run_dir)
    summary: dict[str, Any] = {"to": config.to}
    if config.to == "ranc":
        core_map = load_valid(config.core_map)
        check_not_stale(config.core_map, core_map.provenance, config.student)
        drawn = config.buffer, config.frames, config.seed
        frames = Frames(*drawn, core_map.game, core_map.input_shape, config.core_map)
        with contextlib.closing(frames):
            stacks_BCHW = frames.stacks(0, len(frames))
        layout = ranc.write(core_map, stacks_BCHW, run_dir / RANC)
        artefact = run_dir / RANC / ranc.INPUT
        summary |= {
            "cores": core_map.cores,
            "chips": len(layout["chips"]),
            "frames": layout["frames"],
            "ticks_to_run": layout["ticks_to_run"],
            "ranges": layout["ranges"],
        }
    else:
        net, _ = load_student(config.student)
        summary["layers"] = len(net.layers)
        if config.to == "nir":
            artefact = run_dir / NIR
            nir_graph.write(net, artefact, config.form, config.dt, config.kernels == "full")
            summary |= {"form": config.form, "kernels": config.kernels}
        else:
            artefact = run_dir / NETX
            summary["ranges"] = netx.write(net, artefact)
    summary |= {"bytes": artefact.stat().st_size, "seconds": round(time.monotonic() - began, 2)}
    return StageResult(artefact, summary)
