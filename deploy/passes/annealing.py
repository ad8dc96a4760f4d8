"""Anneal: move cores on their chips so that spikes have less far to go.

Cost: the sum over neurons of rate x (|dx| + |dy| + BORDER_HOPS x chip borders crossed), from the neuron's core to the
one that it drives; rate is the neuron's mean firing rate where frames were given, else 1. Simulated annealing
(Kirkpatrick 1983) from the curve's placement: a core changes places with another one, or with an empty site, nearby;
what lengthens the ways by d is done with probability exp(-d / T), T falling to 0 with what is done of the proposals, or
of the time where that is further: a run that time ends has cooled too. It ends early where the cold half gains nothing
any more. The same seed, the same placement, unless time cuts the run short.

Axis suffixes: C cores, S sites of the grid, E edges.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from spikestill.common.compiling import njit
from spikestill.configs.hardware import HardwareSpec
from spikestill.deploy.core_map import NONE
from spikestill.deploy.passes.placement import Placement
from spikestill.deploy.passes.replication import LayerCores

BORDER_HOPS = 32
"""Hops that a chip's border counts for: spikes leave a chip through few, shared links."""
PROPOSALS_PER_CORE = 1_500
MAX_PROPOSALS = 30_000_000
START_SHARE = 1.0
"""Temperature at the start, in mean costs of a core."""
SECONDS = 60.0
"""Most seconds, where nothing else is said."""
PARTS = 200
"""Parts of a run; after each, the time and the gain are looked at."""
PATIENCE, LEAST_GAIN = 10, 1e-3
"""The run ends where so many parts of its cold half together lower the cost by less than this share."""


@dataclasses.dataclass(frozen=True)
class Ways:
    """Where spikes go: edges between cores, numbered through the layers.

    Attributes:
        source_E, target_E: int64, cores.
        rate_E: spikes a frame on the edge.
    """

    source_E: npt.NDArray[np.int64]
    target_E: npt.NDArray[np.int64]
    rate_E: npt.NDArray[np.float64]


def ways(
    layers: tuple[LayerCores, ...],
    placement: Placement,
    rates: Sequence[npt.NDArray[np.float64]] | None = None,
) -> Ways:
    """Return the traffic between cores.

    Args:
        layers: the cores of every layer on cores.
        placement: for the numbering of the cores.
        rates: mean firing rate (O, H, W) of each of these layers; None: 1 for every neuron.
    """
    sources, targets, weights = [], [], []
    for index, layer in enumerate(layers):
        core, neuron = np.nonzero(layer.dest_core_CN != NONE)
        own, following = placement.first_core_L[index], placement.first_core_L[index + 1]
        base = np.where(layer.to_splitter_CN[core, neuron], own, following)
        sources.append(core + own)
        targets.append(layer.dest_core_CN[core, neuron] + base)
        flat = layer.source_CN[core, neuron]
        weights.append(np.ones(len(core)) if rates is None else rates[index].reshape(-1)[flat])
    source, target = np.concatenate(sources), np.concatenate(targets)
    cores = int(placement.first_core_L[-1])
    edge, place = np.unique(source * cores + target, return_inverse=True)
    rate = np.bincount(place.reshape(-1), np.concatenate(weights), len(edge)).astype(np.float64)
    return Ways(edge // cores, edge % cores, rate)


def hops(found: Ways, placement: Placement, spec: HardwareSpec) -> tuple[float, float]:
    """Return (spikes x hops, spikes across chip borders) of a frame."""
    x, y = spec.on_grid(placement.chip_C, placement.x_C, placement.y_C)
    chip = placement.chip_C.astype(np.int64)
    a, b = found.source_E, found.target_E
    steps = np.abs(x[a] - x[b]) + np.abs(y[a] - y[b])
    crossed = np.abs(chip[a] % spec.chips_x - chip[b] % spec.chips_x)
    crossed += np.abs(chip[a] // spec.chips_x - chip[b] // spec.chips_x)
    return float((found.rate_E * steps).sum()), float((found.rate_E * crossed).sum())


def anneal(
    found: Ways,
    placement: Placement,
    spec: HardwareSpec,
    seed: int = 0,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Placement, str]:
    """Return a placement with shorter ways on the chips that ``placement`` uses, and why the run ended, in words.

    Args:
        found: the traffic.
        placement: where the cores lie.
        spec: the target.
        seed: of the proposals.
        seconds: most that it takes, after compiling; 0: nothing is moved.
        clock: seconds that pass.
    """
    if not seconds:
        return placement, "left out"
    cores = len(placement.chip_C)
    x, y = spec.on_grid(placement.chip_C, placement.x_C, placement.y_C)
    width, height = spec.cores_x * spec.chips_x, spec.cores_y * spec.chips_y
    allowed = np.zeros((height, width), np.bool_)
    for chip in np.unique(placement.chip_C).tolist():
        top, left = chip // spec.chips_x * spec.cores_y, chip % spec.chips_x * spec.cores_x
        allowed[top : top + spec.cores_y, left : left + spec.cores_x] = True
    core_at = np.full((height, width), NONE, np.int64)
    core_at[y, x] = np.arange(cores)
    both = np.concatenate([found.source_E, found.target_E])
    other = np.concatenate([found.target_E, found.source_E])
    order = np.argsort(both, kind="stable")
    start = np.concatenate([[0], np.cumsum(np.bincount(both, minlength=cores))])
    rate = np.concatenate([found.rate_E, found.rate_E])[order]
    total, across = hops(found, placement, spec)
    temperature = START_SHARE * 2 * (total + BORDER_HOPS * across) / max(cores, 1)
    grid = start, other[order], rate, x, y, core_at, allowed, spec.cores_x, spec.cores_y, BORDER_HOPS
    proposals = min(MAX_PROPOSALS, PROPOSALS_PER_CORE * cores)
    part = -(-proposals // PARTS)
    _seed(seed)
    _anneal(*grid, temperature, 0, 0.0, 0.0)  # compiles
    done, cost, began, ended = 0, [total + BORDER_HOPS * across], clock(), "all proposals made"
    while done < proposals:
        passed = (clock() - began) / seconds
        if passed >= 1:
            ended = f"ended by time at {done / proposals:.0%} of its proposals"
            break
        share = max(done / proposals, passed)
        cost.append(cost[-1] + _anneal(*grid, temperature, part, share, min(1.0, share + part / proposals)))
        done += part
        if share > 0.5 and len(cost) > PATIENCE and cost[-PATIENCE - 1] - cost[-1] <= LEAST_GAIN * cost[-1]:
            ended = f"ended at {done / proposals:.0%} of its proposals, which gained nothing more"
            break
    chip = y // spec.cores_y * spec.chips_x + x // spec.cores_x
    moved = dataclasses.replace(
        placement,
        chip_C=chip.astype(np.int16),
        x_C=(x % spec.cores_x).astype(np.int16),
        y_C=(y % spec.cores_y).astype(np.int16),
    )
    after = hops(found, moved, spec)
    better = after[0] + BORDER_HOPS * after[1] < total + BORDER_HOPS * across
    return (moved if better else placement), ended


@njit(cache=True, nogil=True)
def _cost(core, at_x, at_y, skip, start, other, rate, x, y, cores_x, cores_y, border):  # type: ignore[no-untyped-def]
    """Return the cost of a core's edges were it at (at_x, at_y); edges with ``skip`` are left out."""
    total = 0.0
    for edge in range(start[core], start[core + 1]):
        mate = other[edge]
        if mate in (skip, core):
            continue
        steps = abs(at_x - x[mate]) + abs(at_y - y[mate])
        crossed = abs(at_x // cores_x - x[mate] // cores_x) + abs(at_y // cores_y - y[mate] // cores_y)
        total += rate[edge] * (steps + border * crossed)
    return total


@njit(cache=True, nogil=True)
def _seed(seed):  # type: ignore[no-untyped-def]
    np.random.seed(seed)  # noqa: NPY002 - numba's own generator


@njit(cache=True, nogil=True)
def _anneal(  # type: ignore[no-untyped-def]
    start, other, rate, x, y, core_at, allowed, cores_x, cores_y, border, temperature, proposals, first, last
):
    """Change x, y (C,) and core_at (height, width) in place; return by how much the cost changed.

    ``first`` and ``last`` are the shares of the run that are done before and after these proposals.
    """
    height, width = core_at.shape
    cores = len(x)
    widest = max(height, width)
    total = 0.0
    for proposal in range(proposals):
        done = first + (last - first) * proposal / proposals
        heat = temperature * (1.0 - done) ** 3
        radius = max(1, int(widest * (1.0 - done) ** 2 / 2))
        core = np.random.randint(cores)  # noqa: NPY002
        to_x = x[core] + np.random.randint(-radius, radius + 1)  # noqa: NPY002
        to_y = y[core] + np.random.randint(-radius, radius + 1)  # noqa: NPY002
        if to_x < 0 or to_x >= width or to_y < 0 or to_y >= height or not allowed[to_y, to_x]:
            continue
        mate = core_at[to_y, to_x]
        if mate == core:
            continue
        from_x, from_y = x[core], y[core]
        change = _cost(core, to_x, to_y, mate, start, other, rate, x, y, cores_x, cores_y, border)
        change -= _cost(core, from_x, from_y, mate, start, other, rate, x, y, cores_x, cores_y, border)
        if mate >= 0:
            change += _cost(mate, from_x, from_y, core, start, other, rate, x, y, cores_x, cores_y, border)
            change -= _cost(mate, to_x, to_y, core, start, other, rate, x, y, cores_x, cores_y, border)
        if change <= 0 or (heat > 0 and np.random.random() < np.exp(-change / heat)):  # noqa: NPY002
            total += change
            x[core], y[core] = to_x, to_y
            core_at[to_y, to_x] = core
            core_at[from_y, from_x] = mate
            if mate >= 0:
                x[mate], y[mate] = from_x, from_y
    return total
