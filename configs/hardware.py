"""The hardware model: every limit of a neurosynaptic chip, written once."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from spikestill.common.errors import UserError, nearest

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ints = npt.NDArray[np.signedinteger[Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HardwareSpec:
    """The limits of a target that is made of neurosynaptic cores.

    A ternary input takes two axons of a core, one of type +1 and one of type -1, because a crosspoint
    is one bit and its sign comes from the axon's type. Sources: Merolla 2014; Esser 2016; figures of
    RANC's simulator; Davies 2018 for Loihi.
    """

    name: str
    """Preset name."""
    axons: int = 256
    """Axons (input lines) of a core."""
    neurons: int = 256
    """Neurons (output lines) of a core."""
    axon_types: int = 4
    """Distinct axon types; a neuron has one signed weight for each."""
    weight_bits: int = 9
    """Width of a neuron's weight for one axon type, signed, bits."""
    leak_bits: int = 9
    """Width of a neuron's leak, signed, bits; the threshold unit stores -theta there."""
    potential_bits: int = 20
    """Width of a membrane potential, signed, bits."""
    min_delay: int = 1
    """Least ticks from a firing to its integration."""
    max_delay: int = 15
    """Most ticks from a firing to its integration."""
    max_offset: int | None = None
    """Largest |dx| and |dy| in cores between a neuron and its destination; None: no limit."""
    cores_x: int = 64
    """Cores of a chip in x."""
    cores_y: int = 64
    """Cores of a chip in y."""
    chips_x: int = 1
    """Chips in x."""
    chips_y: int = 1
    """Chips in y."""
    synapse_bytes: int | None = None
    """Memory of a core for its synapses, bytes; None: it has a crossbar."""
    synapse_bits: int | None = None
    """Bits that a synapse takes there; None: it has a crossbar."""
    activation_bits: int | None = None
    """Width of what Lava's fixed-point neuron takes in from its synapses, signed, bits; None: not a target of Lava."""
    groups_bits: int | None = None
    """Width of a convolution's number of groups in Lava, signed, bits; None: not a target of Lava."""

    @property
    def cores_per_chip(self) -> int:
        """Cores of one chip."""
        return self.cores_x * self.cores_y

    @property
    def chips(self) -> int:
        """Chips of the whole system."""
        return self.chips_x * self.chips_y

    @property
    def cores(self) -> int:
        """Cores of the whole system."""
        return self.cores_per_chip * self.chips

    def on_grid(self, chip: Ints, x: Ints, y: Ints) -> tuple[Ints, Ints]:
        """Return x and y, int64, on one grid of all chips side by side, for places on chips."""
        wide = chip.astype("int64")
        return wide % self.chips_x * self.cores_x + x, wide // self.chips_x * self.cores_y + y

    @property
    def max_fan_in(self) -> int:
        """Most ternary inputs of a neuron: two axons each."""
        return self.axons // 2


LOIHI: dict[str, Any] = {
    "axons": 4096, "weight_bits": 8, "leak_bits": 13, "potential_bits": 23, "max_delay": 62,
    "cores_x": 16, "cores_y": 8, "synapse_bytes": 128 * 1024, "synapse_bits": 16,
    "activation_bits": 16, "groups_bits": 8,
}  # fmt: skip
"""What both generations have, as far as this project needs it. Source: Davies 2018; Lava 0.10.0."""

PRESETS: dict[str, HardwareSpec] = {
    spec.name: spec
    for spec in (
        # TrueNorth cores, as many chips as a Table 1 net asks for (NS16e boards tile 4 x 4).
        HardwareSpec(name="truenorth", chips_x=4, chips_y=4),
        HardwareSpec(name="ns1e"),
        HardwareSpec(name="ns16e", chips_x=4, chips_y=4),
        # RANC's own grid is free; its RTL holds 9-bit potentials and 9-bit signed core offsets, delays 0-14.
        HardwareSpec(name="ranc", potential_bits=9, min_delay=1, max_delay=15, max_offset=255),
        # Our own gates (deploy/rtl): 16 bits name a core, and there is no way between cores that could be too long.
        HardwareSpec(name="gates", cores_x=256, cores_y=256),
        # Loihi's cores are not crossbars: these give the mapper's, the partition estimate's and netx's limits. Weights,
        # biases (our leaks) and states are the widths of Loihi's compartments.
        HardwareSpec(name="loihi", neurons=1024, **LOIHI),
        HardwareSpec(name="loihi2", neurons=8192, **LOIHI),
    )
}


def hardware(name: str) -> HardwareSpec:
    """Return the preset called ``name``.

    Raises:
        UserError: no such preset; the nearest one is named.
    """
    if name not in PRESETS:
        raise UserError(
            f"unknown hardware {name!r}; known: {', '.join(PRESETS)}",
            f"did you mean {nearest(name, list(PRESETS))!r}",
        )
    return PRESETS[name]


def signed(bits: int) -> tuple[int, int]:
    """Return the least and the greatest number of a signed field of ``bits`` bits."""
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1
