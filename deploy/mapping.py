"""The ``map`` stage: a student onto neurosynaptic cores.

The passes, in order: lower, prune, tile, replicate, place, route, emit. The finished map is validated
by rules that share no code with them.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from configs.hardware import HardwareSpec, hardware
from configs.mapping import MapConfig
from configs.provenance import Provenance
from configs.stage import StageResult
from deploy.core_map import CoreMap, save
from deploy.inspection import format_tables, summarise
from deploy.passes.emission import emit
from deploy.passes.lowering import lower
from deploy.passes.placement import place
from deploy.passes.pruning import prune
from deploy.passes.replication import replicate
from deploy.passes.routing import route
from deploy.passes.tiling import tile
from deploy.validate import validate
from student.integer_net import IntegerNet, load

ARTEFACT = "core_map.h5"


def map_net(net: IntegerNet, spec: HardwareSpec, provenance: Provenance | None = None) -> CoreMap:
    """Return ``net`` mapped to the cores of ``spec``, validated.

    Raises:
        UserError: a layer does not fit a core (it is named, with its fan-in and the limit), a parameter
            does not fit the target's widths, or the target has too few cores.
    """
    layers = prune(lower(net, spec), net.actions)
    cores = replicate(layers, tile(layers, spec), spec)
    placement = place(cores, spec)
    routes = route(cores, placement, spec)
    provenance = provenance or Provenance.of({"hardware": spec.name}, seed=0)
    core_map = emit(net, cores, placement, routes, spec, provenance)
    validate(core_map)
    return core_map


def run(config: MapConfig, run_dir: Path, *, resume: bool = False) -> StageResult:
    """Map the student of ``config`` and write ``core_map.h5`` into ``run_dir``; print its tables.

    Mapping takes seconds, so ``resume`` does it anew.

    Raises:
        UserError: the student is unreadable, or it does not fit the target.
    """
    student = Path(config.student) if config.student else Path(run_dir) / "student.safetensors"
    net, _ = load(student)
    began = time.monotonic()
    provenance = Provenance.of(config, seed=0, parents={"student": student})
    core_map = map_net(net, hardware(config.hardware), provenance)
    seconds = time.monotonic() - began
    artefact = Path(run_dir) / ARTEFACT
    save(core_map, artefact)
    summary = summarise(core_map)
    print(format_tables(summary), file=sys.stderr)
    return StageResult(artefact, {**summary, "game": net.game, "seconds": round(seconds, 3)})
