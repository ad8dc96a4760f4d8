"""The ``map`` stage: a student onto neurosynaptic cores.

The passes, in order: lower, prune, tile, replicate, place, anneal, route, emit. The finished map is validated
by rules that share no code with them.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import numpy as np

from spikestill.common.artefacts import CORE_MAP
from spikestill.common.errors import UserError
from spikestill.common.provenance import Provenance
from spikestill.common.stage import StageResult
from spikestill.configs.hardware import HardwareSpec, hardware
from spikestill.configs.mapping import MapConfig
from spikestill.deploy.core_map import NONE, CoreMap, save
from spikestill.deploy.equivalence import sources
from spikestill.deploy.frames import Frames
from spikestill.deploy.inspection import summarise
from spikestill.deploy.passes.annealing import SECONDS, anneal, hops, ways
from spikestill.deploy.passes.emission import emit
from spikestill.deploy.passes.lowering import lower
from spikestill.deploy.passes.placement import place
from spikestill.deploy.passes.pruning import prune
from spikestill.deploy.passes.replication import replicate
from spikestill.deploy.passes.routing import route
from spikestill.deploy.passes.tiling import tile
from spikestill.deploy.rates import Rates, firing_rates
from spikestill.deploy.validate import validate
from spikestill.student.integer_net import IntegerNet, load


def map_net(
    net: IntegerNet, spec: HardwareSpec, provenance: Provenance | None = None, anneal_seconds: float = SECONDS
) -> CoreMap:
    """Return ``net`` mapped to the cores of ``spec``, validated; see :func:`map_with_gains`.

    Raises:
        UserError: a layer does not fit a core (it is named, with its fan-in and the limit), a parameter
            does not fit the target's widths, or the target has too few cores.
    """
    return map_with_gains(net, spec, provenance, anneal_seconds=anneal_seconds)[0]


def map_with_gains(
    net: IntegerNet,
    spec: HardwareSpec,
    provenance: Provenance | None = None,
    rates: Rates | None = None,
    anneal_seconds: float = SECONDS,
) -> tuple[CoreMap, dict[str, str]]:
    """Return what :func:`map_net` does, and what each pass gained, in words.

    Args:
        net: the net.
        spec: the target.
        provenance: for the core map.
        rates: mean firing rate (O, H, W) of every layer after the first, which weigh the spikes' ways; None: all 1.
        anneal_seconds: most that the annealing takes; 0: cores stay where they were placed first.
    """
    gains: dict[str, str] = {}
    lowered = lower(net, spec)
    folded = [int((one.layer.weight_OIHW != 0).sum()) for one in lowered]
    written = [int((layer.weight_OIHW != 0).sum()) for layer in net.layers[1:]]
    gains["lower"] = f"{sum(written) - sum(folded):,} of {sum(written):,} weights belong to constant neurons"
    layers = prune(lowered, net.actions)
    every = sum(int(np.prod(layer.lowered.out_shape)) for layer in layers)
    live = sum(int(layer.live_OHW.sum()) for layer in layers)
    gains["prune"] = f"{every - live:,} of {every:,} neurons are read by nothing"
    if live > spec.cores * spec.neurons:
        raise UserError(
            f"the net has {live:,} neurons that are read and at the least needs {-(-live // spec.neurons)} cores, "
            f"{spec.name} has {spec.cores} ({spec.chips} chips)",
            "map a smaller student or choose hardware with more chips",
        )
    cores = replicate(layers, tile(layers, spec), spec)
    filled = sum(int((layer.source_CN != NONE).sum()) for layer in cores)
    relays = sum(layer.cores - layer.computing for layer in cores)
    total = sum(layer.cores for layer in cores)
    gains["tile, replicate"] = (
        f"{total:,} cores, {relays:,} of them splitters; {filled - live:,} copies of neurons"
    )
    placement = place(cores, spec)
    found = ways(cores, placement, rates)
    near, ended = anneal(found, placement, spec, seconds=anneal_seconds)
    (before, crossed), (after, crossing) = (hops(found, each, spec) for each in (placement, near))
    weighed = "measured spikes" if rates is not None else "neurons"
    gains["place, anneal"] = (
        f"{weighed} x hops {before:,.0f} -> {after:,.0f}, across chip borders {crossed:,.0f} -> {crossing:,.0f}"
    )
    gains["anneal"] = ended
    routes = route(cores, near, spec)
    core_map = emit(
        net, cores, near, routes, spec, provenance or Provenance.of({"hardware": spec.name}, seed=0)
    )
    once, axons = single_axons(core_map)
    gains["single axons"] = f"{once:,} inputs of cores take one axon in place of two; {axons:,} axons in use"
    waits = int((core_map.dest_delay_CN > spec.min_delay).sum())
    gains["route"] = f"{waits:,} neurons wait a tick or more, so that all paths are equally long"
    gains["emit"] = f"{len(core_map.crossbar_XNW):,} distinct crossbars for {core_map.cores:,} cores"
    validate(core_map)
    return core_map, gains


def single_axons(core_map: CoreMap) -> tuple[int, int]:
    """Return how many inputs of computing cores take one axon only, and the axons in use there."""
    source_CA = sources(core_map)[~core_map.core_relay_C]
    core, axon = np.nonzero(source_CA != NONE)
    pairs = np.stack([core, source_CA[core, axon]], axis=1)
    times = np.unique(pairs, axis=0, return_counts=True)[1]
    return int((times == 1).sum()), len(core)


def run(config: MapConfig, run_dir: Path, *, resume: bool = False) -> StageResult:
    """Map the student of ``config`` and write ``core_map.h5`` into ``run_dir``; the summary has its tables.

    Mapping takes seconds, so ``resume`` does it anew.

    Raises:
        UserError: the student or the buffer is unreadable, or the student does not fit the target.
    """
    student = config.student
    net, _ = load(student)
    began = time.monotonic()
    parents, rates = {"student": student, **config.recorded}, None
    if config.buffers:
        frames = Frames(config.buffers, config.frames, config.seed, net.game, net.input_shape, student)
        with contextlib.closing(frames):
            rates = firing_rates(net, frames)[1:]
    provenance = Provenance.of(config, seed=config.seed, parents=parents)
    core_map, gains = map_with_gains(net, hardware(config.hardware), provenance, rates, config.anneal_seconds)
    seconds = time.monotonic() - began
    artefact = Path(run_dir) / CORE_MAP
    save(core_map, artefact)
    summary = summarise(core_map)
    summary |= {"passes": gains, "game": net.game, "seconds": round(seconds, 3)}
    return StageResult(artefact, summary)
