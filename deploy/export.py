"""The ``export`` stage: a student or its core map in another program's format, as a C program or as gates.

Every export carries some frames and the votes that they must give, so that whoever replays it can check it alone.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from spikestill.common.stage import StageResult
from spikestill.configs.exporting import ExportConfig
from spikestill.deploy.core_map import CoreMap, check_not_stale
from spikestill.deploy.exports import c_program, gates, netx, nir_graph, ranc
from spikestill.deploy.exports.replay import Replay, replay_of
from spikestill.deploy.frames import Frames
from spikestill.deploy.packed_kernel import PackedNet
from spikestill.deploy.simulator import CoreSimulator
from spikestill.deploy.validate import load_valid
from spikestill.student.integer_net import IntegerNet
from spikestill.student.integer_net import load as load_student

NIR, NETX, RANC, C, RTL = "student.nir", "student.net", "ranc", "c", "rtl"
Written = tuple[Path, dict[str, Any]]


def run(config: ExportConfig, run_dir: Path, *, resume: bool = False) -> StageResult:
    """Write ``ranc/``, ``student.nir``, ``student.net``, ``c/`` or ``rtl/`` into ``run_dir``.

    The summary's ``ranges`` say what the net asks of the format's fields, and what they hold.

    An export takes seconds, so ``resume`` does it anew.

    Raises:
        UserError: the student or core map cannot be read, the map breaks a rule of its target, a value does not fit
            the target's fields, the folder holds other files, the package that writes the format is missing, or the
            disk is full.
    """
    began, run_dir = time.monotonic(), Path(run_dir)
    written: Callable[[ExportConfig, Path], Written] = {
        "ranc": _ranc, "nir": _nir, "netx": _netx, "c": _c, "rtl": _rtl,
    }[config.to]  # fmt: skip
    artefact, found = written(config, run_dir)
    alone = artefact.parent == run_dir
    # What a compiler has made there of an earlier export has no suffix, or lies in a folder.
    files = (
        [artefact]
        if alone
        else [file for file in artefact.parent.iterdir() if file.is_file() and file.suffix]
    )
    summary = {"to": config.to, **found, "bytes": sum(file.stat().st_size for file in files)}
    return StageResult(artefact, summary | {"seconds": round(time.monotonic() - began, 2)})


def _ranc(config: ExportConfig, run_dir: Path) -> Written:
    core_map, replay = _map_and_replay(config)
    layout = ranc.write(core_map, replay, run_dir / RANC)
    return run_dir / RANC / ranc.INPUT, {
        "cores": core_map.cores,
        "chips": len(layout["chips"]),
        "frames": layout["frames"],
        "ticks_to_run": layout["ticks_to_run"],
        "verdict": layout["verdict"],
        "ranges": layout["ranges"],
    }


def _nir(config: ExportConfig, run_dir: Path) -> Written:
    net, replay = _net_and_replay(config)
    nir_graph.write(net, run_dir / NIR, config.form, config.dt, config.kernels == "full", replay)
    found = {"layers": len(net.layers), "frames": len(replay), "form": config.form, "kernels": config.kernels}
    return run_dir / NIR, found


def _netx(config: ExportConfig, run_dir: Path) -> Written:
    net, replay = _net_and_replay(config)
    ranges = netx.write(net, run_dir / NETX, replay)
    return run_dir / NETX, {"layers": len(net.layers), "frames": len(replay), "ranges": ranges}


def _actor(config: ExportConfig, agent: Path, run_dir: Path) -> Written:
    from spikestill.deploy.exports import c_actor
    from spikestill.teacher.control import fixed_file

    state = fixed_file.read(agent).state
    drawn_BS = np.random.default_rng(config.seed).normal(size=(config.frames, state.observation_size))
    memory = c_actor.write(state, drawn_BS, run_dir / C)
    return run_dir / C / c_actor.PROGRAM, {
        "observations": config.frames,
        "constant_bytes": memory.constant_bytes,
        "working_bytes": memory.working_bytes,
        "compile": "cc -std=c99 -O2 -o actor actor.c && ./actor --check < frames.bin",
    }


def _c(config: ExportConfig, run_dir: Path) -> Written:
    if config.agent is not None:
        return _actor(config, config.agent, run_dir)
    net, replay = _net_and_replay(config)
    memory = c_program.write(net, replay, run_dir / C)
    return run_dir / C / c_program.PROGRAM, {
        "layers": len(net.layers),
        "frames": len(replay),
        "constant_bytes": memory.constant_bytes,
        "working_bytes": memory.working_bytes,
        "compile": "cc -std=c99 -O2 -o student student.c && ./student --check < frames.bin",
    }


def _accelerator(config: ExportConfig, agent: Path, run_dir: Path) -> Written:
    from spikestill.deploy.accelerator import export
    from spikestill.teacher.control import fixed_file

    folder, size = run_dir / RTL, config.accelerator
    state = fixed_file.read(agent).state
    layout = export.write(state, folder, size, config.frames, config.updates, config.batch_size, config.seed)
    found = ("jobs", "cycles", "compared_lines", "accumulator_bits")
    return folder / "layout.json", {name: layout[name] for name in found} | {"play": "./play.sh"}


def _rtl(config: ExportConfig, run_dir: Path) -> Written:
    if config.agent is not None:
        return _accelerator(config, config.agent, run_dir)
    core_map, replay = _map_and_replay(config)
    layout = gates.write(core_map, replay, run_dir / RTL)
    return run_dir / RTL / gates.LAYOUT, {
        "cores": core_map.cores,
        "crossbars": layout["crossbars"],
        "frames": layout["frames"],
        "cycles_a_tick": layout["cycles_a_tick"],
        "play": layout["play"],
    }


def _net_and_replay(config: ExportConfig) -> tuple[IntegerNet, Replay]:
    net, _ = load_student(config.student)
    with _frames(config, net.game, net.input_shape, config.student) as frames:
        return net, replay_of(frames, PackedNet(net).votes)


def _map_and_replay(config: ExportConfig) -> tuple[CoreMap, Replay]:
    core_map = load_valid(config.core_map)
    check_not_stale(config.core_map, core_map.provenance, config.student)
    with _frames(config, core_map.game, core_map.input_shape, config.core_map) as frames:
        return core_map, replay_of(frames, CoreSimulator(core_map).votes)


def _frames(
    config: ExportConfig, game: str, input_shape: tuple[int, int, int], reader: Path
) -> contextlib.closing[Frames]:
    return contextlib.closing(Frames(config.buffers, config.frames, config.seed, game, input_shape, reader))
