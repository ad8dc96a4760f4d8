"""Packed spikes: which bit of which word is which neuron, and what a decision's words say.

Axis suffixes: B batch, W words, N neurons of a layer, L layers, O features, U units (cores).
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)
DISAGREE = 2
"""Stands for a neuron whose copies do not fire alike."""


@dataclasses.dataclass(frozen=True)
class SpikeLayout:
    """Where the spikes of a network lie in the words that its agent keeps.

    Attributes:
        shapes: (O, H, W) of each layer.
        bits: per layer, int64 (N,): the bit, counted from the first word's lowest, of each neuron or copy of one.
        places: per layer, int64 (N,): the neuron's flat place in (O, H, W).
        layer_W: int64 (W,), the layer of each word's neurons, -1 none.
        mask_W: uint64 (W,), one bit for each neuron of a layer, whatever copies there are of it.
        unit_W: int64 (W,), the core of each word, -1 none.
        planes_PW: uint64 (P, W): a bit that stands for n neurons of its core is set in the planes of n's binary digits.
        neurons_U: int64 (U,), neurons of each core.
        event_planes_PW: uint64 (P, W): a bit whose spikes meet n crosspoints is set in the planes of n's binary digits;
            no plane where there are no cores.
    """

    shapes: tuple[tuple[int, int, int], ...]
    bits: tuple[npt.NDArray[np.int64], ...]
    places: tuple[npt.NDArray[np.int64], ...]
    layer_W: npt.NDArray[np.int64]
    mask_W: npt.NDArray[np.uint64]
    unit_W: npt.NDArray[np.int64]
    planes_PW: npt.NDArray[np.uint64]
    neurons_U: npt.NDArray[np.int64]
    event_planes_PW: npt.NDArray[np.uint64]


def ones(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
    """Return the set bits of each word, uint8."""
    if hasattr(np, "bitwise_count"):  # NumPy 2
        return np.asarray(np.bitwise_count(words), np.uint8)
    octets = np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, 8)
    return np.asarray(ONES[octets].sum(axis=-1, dtype=np.uint8))


def ones_by(
    group_W: npt.NDArray[np.int64], groups: int, words_BW: npt.NDArray[np.uint64]
) -> npt.NDArray[np.int64]:
    """Return the set bits of the words of each group, int64 (B, groups); words of group -1 are left out."""
    ones_BW = ones(words_BW)
    inside = group_W >= 0
    found = [np.bincount(group_W[inside], ones_W[inside], groups) for ones_W in ones_BW]
    return np.array(found, np.int64).reshape(len(words_BW), groups)


@dataclasses.dataclass(frozen=True)
class SpikeTrace:
    """The packed spikes of B decisions; see :class:`spikestill.common.policy.Trace`."""

    packed_BW: npt.NDArray[np.uint64]
    layout: SpikeLayout

    def spikes(self) -> list[npt.NDArray[np.uint8]]:
        """Return every layer's spikes, uint8 (B, O, H, W); 0 for neurons left out, 2 where copies differ."""
        layout = self.layout
        found: list[npt.NDArray[np.uint8]] = []
        for shape, bit_N, place_N in zip(layout.shapes, layout.bits, layout.places, strict=True):
            words = self.packed_BW[:, bit_N >> 6]
            fired = ((words >> (bit_N & 63).astype(np.uint64)) & np.uint64(1)).astype(np.uint8)
            spikes = np.zeros((len(words), int(np.prod(shape))), np.uint8)
            spikes[:, place_N] = fired
            row, copy = np.nonzero(spikes[:, place_N] != fired)
            spikes[row, place_N[copy]] = DISAGREE
            found.append(spikes.reshape(-1, *shape))
        return found

    def counts(self) -> npt.NDArray[np.int64]:
        """Return how many neurons of each layer fired, int64 (B, L)."""
        layout = self.layout
        return ones_by(layout.layer_W, len(layout.shapes), self.packed_BW & layout.mask_W)

    def activity(self) -> npt.NDArray[np.float64]:
        """Return the share of each core's neurons that fired, float64 (B, U), 0..1."""
        return activity(self.layout.unit_W, self.layout.planes_PW, self.layout.neurons_U, self.packed_BW)

    def events(self) -> npt.NDArray[np.int64]:
        """Return how many crosspoints the spikes meet, int64 (B,): the synaptic events of each decision."""
        found = np.zeros(len(self.packed_BW), np.int64)
        for digit, plane_W in enumerate(self.layout.event_planes_PW):
            found += ones(self.packed_BW & plane_W).sum(axis=1, dtype=np.int64) << digit
        return found


def activity(
    unit_W: npt.NDArray[np.int64],
    planes_PW: npt.NDArray[np.uint64],
    neurons_U: npt.NDArray[np.int64],
    packed_BW: npt.NDArray[np.uint64],
) -> npt.NDArray[np.float64]:
    """Return the share of each core's neurons that fired, float64 (B, U), 0..1; see :class:`SpikeLayout`."""
    fired_BU = sum(
        ones_by(unit_W, len(neurons_U), packed_BW & plane_W) << digit
        for digit, plane_W in enumerate(planes_PW)
    )
    return np.asarray(fired_BU / np.maximum(neurons_U, 1), np.float64)


def neuron_mask(
    bits: tuple[npt.NDArray[np.int64], ...], places: tuple[npt.NDArray[np.int64], ...], words: int
) -> npt.NDArray[np.uint64]:
    """Return one bit for each neuron, that of its first copy, uint64 (W,); the arguments are a layout's."""
    flags = np.zeros(words * 64, np.uint8)
    for bit_N, place_N in zip(bits, places, strict=True):
        _, first = np.unique(place_N, return_index=True)
        flags[bit_N[first]] = 1
    return packed_flags(flags)


def binary_planes(times: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Return the planes of each bit's number, uint64 (P, W): plane p has the digit 2**p of a multiple of 64 numbers."""
    digits = range(int(times.max(initial=1)).bit_length())
    return np.stack([packed_flags(times >> digit & 1) for digit in digits])


def packed_flags(flags: npt.NDArray[np.integer]) -> npt.NDArray[np.uint64]:
    """Return 0/1 values, a multiple of 64 of them, as words, the first in the lowest bit."""
    return np.packbits(flags.astype(np.uint8), bitorder="little").view(np.uint64)
