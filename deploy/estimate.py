"""The ``estimate`` stage: what a decision of a student costs, as JSON and as a table."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import Any

from spikestill.common.artefacts import ESTIMATE
from spikestill.common.document import write_document
from spikestill.common.errors import UserError
from spikestill.common.provenance import Provenance
from spikestill.common.stage import StageResult
from spikestill.configs.estimating import EstimateConfig
from spikestill.configs.hardware import hardware
from spikestill.deploy import costs
from spikestill.deploy.core_map import check_mapped_from
from spikestill.deploy.frames import Frames
from spikestill.deploy.rates import firing_rates
from spikestill.deploy.validate import load_valid
from spikestill.student.integer_net import load as load_student

VERSION = 1
LOIHI = ("loihi", "loihi2")


def run(config: EstimateConfig, run_dir: Path, *, resume: bool = False) -> StageResult:
    """Estimate on the frames of ``config`` and write ``estimate.json`` into ``run_dir``; print the assumptions.

    The summary has ``operations`` (NeuroBench), ``truenorth``, ``loihi`` and ``loihi2`` (energy of a decision,
    cores), and ``assumptions``. ``resume`` does it anew.

    Raises:
        UserError: a file cannot be read, the core map breaks a rule of its target, or is of another student.
    """
    if config.agent is not None:
        return _accelerator(config, config.agent, Path(run_dir))
    net, _ = load_student(config.student)
    core_map = load_valid(config.core_map)
    check_mapped_from(config.core_map, core_map.provenance, config.student)
    if core_map.layer_shape_L3.tolist() != [list(shape) for shape in net.shapes()]:
        raise UserError(
            f"{config.core_map}: maps a net of layers {core_map.layer_shape_L3.tolist()}, {config.student} has "
            f"{net.shapes()}",
            "give the student that was mapped",
        )
    frames = Frames(config.buffers, config.frames, config.seed, net.game, net.input_shape, config.student)
    parents = {"student": config.student, "core_map": config.core_map, **config.recorded}
    provenance = Provenance.of(config, config.seed, parents)
    with contextlib.closing(frames):
        rates = firing_rates(net, frames)
        parts = [(costs.operations(net, part), len(part)) for part in frames.chunks()]
    operations = _mean(*zip(*parts, strict=True))
    summary: dict[str, Any] = {
        "frames": len(frames),
        "source": frames.source,
        "games": frames.games(),
        "operations": dataclasses.asdict(operations),
        "truenorth": dataclasses.asdict(costs.truenorth(core_map, rates, config.period_ms / 1e3)),
    }
    energy = costs.loihi_energy(rates, operations.effective_acs)
    for name in LOIHI:
        partition = costs.loihi_partition(net, hardware(name))
        summary[name] = {
            "total_j": energy if name == "loihi" else None,
            "cores": sum(row.cores for row in partition),
            "cores_shared": sum(row.cores_shared for row in partition),
            "layers": [dataclasses.asdict(row) for row in partition],
        }
    summary["assumptions"] = list(costs.ASSUMPTIONS)
    artefact = Path(run_dir) / ESTIMATE
    write_document(artefact, "estimate", VERSION, summary, provenance)
    print("Assumed: " + "\n         ".join(costs.ASSUMPTIONS), file=sys.stderr)
    return StageResult(artefact, summary)


def _accelerator(config: EstimateConfig, agent: Path, run_dir: Path) -> StageResult:
    """Estimate a fixed-point agent on FIXAR's accelerator."""
    from spikestill.deploy.accelerator import costs as accelerator
    from spikestill.teacher.control import fixed_file

    found = fixed_file.read(agent)
    summary = {"environment": found.environment, **accelerator.estimate(found.state, config.accelerator)}
    artefact = run_dir / ESTIMATE
    provenance = Provenance.of(config, config.seed, {"agent": agent})
    write_document(artefact, "estimate", VERSION, summary, provenance)
    print("Assumed: " + "\n         ".join(accelerator.ASSUMPTIONS), file=sys.stderr)
    print("The paper:\n         " + "\n         ".join(accelerator.INCONSISTENCIES), file=sys.stderr)
    return StageResult(artefact, summary)


def _mean(parts: tuple[costs.Operations, ...], sizes: tuple[int, ...]) -> costs.Operations:
    """Return the frame-weighted mean of the parts' metrics."""
    shares = [size / sum(sizes) for size in sizes]
    pairs = list(zip(shares, parts, strict=True))
    return dataclasses.replace(
        parts[0],
        activation_sparsity=sum(share * part.activation_sparsity for share, part in pairs),
        effective_macs=sum(share * part.effective_macs for share, part in pairs),
        effective_acs=sum(share * part.effective_acs for share, part in pairs),
    )
