"""What can be done to an agent while it plays, to see its policy bend and break.

Of what it sees: noise, an occluded part; of what it does: sticky actions (``Session.sticky``); of what it is, where it
is a core map: dead cores, a dead chip, flipped synapses. Everything is drawn from a seed, and 0 undoes it.

Axis suffixes: C cores, N neurons of a core, W words, A axons.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np

from spikestill.common.environment import Field, Observations
from spikestill.deploy.core_map import CoreMap

SIGHT = ("noise", "occlusion")
BODY = ("dead_cores", "dead_chip", "flips")
KINDS = (*SIGHT, "sticky", *BODY)
NEVER = np.iinfo(np.int32).max
NOISE_LEVELS = 128
"""Standard deviation of the noise at amount 1, in grey levels."""


def is_picture(field: Field) -> bool:
    """Return whether a field of an observation is a picture, which a part of can be hidden."""
    return field.dtype == "uint8" and len(field.shape) >= 2


def kinds_for(*, sees_pictures: bool, has_cores: bool) -> list[str]:
    """Return the disturbances that change something for an agent."""
    return [
        kind for kind in KINDS if (sees_pictures or kind != "occlusion") and (has_cores or kind not in BODY)
    ]


def disturbance(kind: str, amount: float, seed: int) -> Callable[[Observations], Observations] | None:
    """Return what changes an observation, None for nothing.

    Args:
        kind: ``noise``, Gaussian, of ``amount`` 128 grey levels; ``occlusion``, a black square whose side is that share
            of the picture's, at its middle. Fields that are no pictures get noise of that share of their range.
        amount: 0..1.
        seed: of the noise.
    """
    if amount <= 0:
        return None
    rng = np.random.default_rng([seed, 7])

    def change(observations: Observations) -> Observations:
        found = {}
        for name, values in observations.items():
            if values.dtype == np.uint8 and values.ndim >= 3:
                found[name] = _picture(values, kind, amount, rng)
            elif kind == "noise" and values.dtype.kind == "f":
                found[name] = (values + amount * rng.standard_normal(values.shape)).astype(values.dtype)
            else:
                found[name] = values
        return found

    return change


def _picture(values: np.ndarray, kind: str, amount: float, rng: np.random.Generator) -> np.ndarray:
    if kind == "noise":
        noise = amount * NOISE_LEVELS * rng.standard_normal(values.shape, np.float32)
        return np.clip(values + noise, 0, 255).astype(np.uint8)
    height, width = values.shape[-2:]
    rows, columns = round(height * amount), round(width * amount)
    top, left = (height - rows) // 2, (width - columns) // 2
    found = values.copy()
    found[..., top : top + rows, left : left + columns] = 0
    return found


def damaged(core_map: CoreMap, kind: str, amount: float, seed: int) -> CoreMap:
    """Return the map with damage: what a chip with faults would play.

    Args:
        core_map: the map.
        kind: ``dead_cores``: that share of all cores never fires; ``dead_chip``: the cores of one chip of those in use;
            ``flips``: that share of the synapses in use is turned over, each core's its own.
        amount: 0..1; a dead chip is dead at any amount above 0.
        seed: of the choice.
    """
    rng = np.random.default_rng([seed, 8])
    if amount <= 0:
        return core_map
    if kind == "flips":
        return _flipped(core_map, amount, rng)
    if kind == "dead_cores":
        dead_C = rng.random(core_map.cores) < amount
    else:
        dead_C = core_map.chip_C == rng.choice(np.unique(core_map.chip_C))
    theta_CN = np.where(dead_C[:, None] & core_map.used_CN, NEVER, core_map.theta_CN).astype(np.int32)
    return dataclasses.replace(core_map, theta_CN=theta_CN)


def _flipped(core_map: CoreMap, share: float, rng: np.random.Generator) -> CoreMap:
    crossbar_CNW = core_map.crossbar_XNW[core_map.core_crossbar_C].copy()
    octets = crossbar_CNW.view(np.uint8)
    # Only synapses that join a driven axon to a used neuron are there to be flipped.
    words = crossbar_CNW.shape[2]
    driven = np.zeros((core_map.cores, words * 64), np.uint8)
    driven[:, : core_map.driven_CA.shape[1]] = core_map.driven_CA
    driven_CW = np.packbits(driven, axis=1, bitorder="little").view(np.uint64)
    for core in range(core_map.cores):
        chosen = np.packbits(rng.random((octets.shape[1], words * 64), np.float32) < share, axis=1).view(
            np.uint64
        )
        used_N = core_map.used_CN[core]
        crossbar_CNW[core, used_N] ^= chosen[used_N] & driven_CW[core]
    return dataclasses.replace(
        core_map,
        crossbar_XNW=crossbar_CNW,
        core_crossbar_C=np.arange(core_map.cores, dtype=core_map.core_crossbar_C.dtype),
    )


def load_damaged(path: Path, kind: str, amount: float, seed: int) -> CoreMap:
    """Return the map at ``path``, damaged.

    Raises:
        UserError: the map cannot be read.
    """
    from spikestill.deploy.validate import load_valid

    return damaged(load_valid(path), kind, amount, seed)
