"""The core map: a student as it lies on neurosynaptic cores, and its HDF5 format (docs/core-map.md).

Dynamics of a neuron n of core c in tick t, with x_a(t) = 1 where a spike arrives at axon a in tick t:

    V = sum_a crossbar[n, a] * weight[type_a] * x_a(t) - theta_n,    n fires in tick t iff V >= 0,

and V is forgotten (leak -theta, both thresholds 0, reset to 0: RANC's and TrueNorth's memoryless unit).
A firing in tick t arrives at the neuron's one destination axon in tick t + delay, 1 <= delay <= 15.
The host sends the transduction layer's spikes of a frame in tick t0 by the input table, with delays of
their own; the frame's votes are the firings of the output neurons in tick t0 + ``ticks``. Delays are
equal along all paths, so a new frame may enter at every tick.

Axis suffixes: C cores, N neurons of a core, A axons of a core, W 64-bit words of a crossbar row,
X distinct crossbars, Y axon types, L layers, E input entries, S transducer outputs, V voting neurons.
"""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.common.atomic import write_bytes
from spikestill.common.errors import MALFORMED, UserError
from spikestill.common.hdf5 import Hdf5File
from spikestill.common.legal import LegalActions, check_legal, legal_of_plain, legal_to_plain
from spikestill.common.limits import CORES, HDF5_EXTRA, HDF5_FACTOR
from spikestill.common.provenance import Provenance, check_content, check_schema, content_sha256, file_sha256
from spikestill.configs.hardware import HardwareSpec
from spikestill.student.integer_net import IntegerLayer, check_input_shape, pack_ternary, unpack_ternary

SCHEMA = "spikestill.core_map"
VERSION = 2
SINGLE_GAME_VERSION = 1
"""The last version that knew one game only; a map of one game is written so."""
NONE = -1
"""Marks a neuron that is not used (feature) or drives no axon (destination core)."""
WORD_BITS = 64
REMEDY = "give a core map that `spikestill map` wrote"


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class CoreMap:
    """One net on the cores of one target.

    Attributes:
        spec: the target's limits.
        transduction: layer 0, computed on the host from the uint8 stack.
        layer_shape_L3: int32 (L, 3), the (O, H, W) of every layer of the net, transduction first.
        layer_tick_L: int32 (L,), the tick in which a layer's spikes of a frame that enters in tick 0 fire.
        actions: A, the number of actions.
        input_shape: (C, H, W) of the uint8 stack.
        game: the game in snake case, several joined by ``+``, '' if none.
        crossbar_XNW: uint64 (X, N, W), bit a % 64 of word a // 64 is 1 where axon a meets the neuron.
        weight_Y: int16 (Y,), every neuron's weight for each axon type.
        core_crossbar_C: int32 (C,), index of the core's crossbar.
        core_layer_C: int16 (C,), index of the layer whose spikes the core computes or relays, >= 1.
        core_relay_C: bool (C,), True where the core only copies spikes of its layer (a splitter).
        axon_type_CA: uint8 (C, A), the type of every axon. A 64-axon word has one type.
        theta_CN: int32 (C, N), threshold; the hardware's leak is -theta. 0 where the neuron is unused.
        feature_CN: int32 (C, N), the output feature that the neuron computes, -1 where it is unused.
        row_CN, column_CN: int16 (C, N), its position in the layer's output, -1 where it is unused.
        dest_core_CN: int32 (C, N), the core whose axon it drives, -1 for none (output neurons).
        dest_axon_CN: int16 (C, N), that axon, -1 for none.
        dest_delay_CN: uint8 (C, N), ticks from firing to integration, 0 for none.
        chip_C, x_C, y_C: int16 (C,), the chip, and the core's place on it.
        input_start_S: int64 (S + 1,), transducer output s (flat index o*H*W + h*W + w of layer 0) goes to
            the entries input_start_S[s] : input_start_S[s + 1].
        input_core_E: int32 (E,), core of each entry.
        input_axon_E: int16 (E,), axon of each entry.
        input_delay_E: uint8 (E,), ticks from the host's tick to integration.
        output_core_V: int32 (V,), core of each voting neuron.
        output_neuron_V: int16 (V,), its index in the core.
        output_action_V: int16 (V,), the action that it votes for (its feature modulo A).
        provenance: where the map comes from.
        legal: which of the actions each game takes, where there are several games; () for one.
    """

    spec: HardwareSpec
    transduction: IntegerLayer
    layer_shape_L3: npt.NDArray[np.int32]
    layer_tick_L: npt.NDArray[np.int32]
    actions: int
    input_shape: tuple[int, int, int]
    game: str
    crossbar_XNW: npt.NDArray[np.uint64]
    weight_Y: npt.NDArray[np.int16]
    core_crossbar_C: npt.NDArray[np.int32]
    core_layer_C: npt.NDArray[np.int16]
    core_relay_C: npt.NDArray[np.bool_]
    axon_type_CA: npt.NDArray[np.uint8]
    theta_CN: npt.NDArray[np.int32]
    feature_CN: npt.NDArray[np.int32]
    row_CN: npt.NDArray[np.int16]
    column_CN: npt.NDArray[np.int16]
    dest_core_CN: npt.NDArray[np.int32]
    dest_axon_CN: npt.NDArray[np.int16]
    dest_delay_CN: npt.NDArray[np.uint8]
    chip_C: npt.NDArray[np.int16]
    x_C: npt.NDArray[np.int16]
    y_C: npt.NDArray[np.int16]
    input_start_S: npt.NDArray[np.int64]
    input_core_E: npt.NDArray[np.int32]
    input_axon_E: npt.NDArray[np.int16]
    input_delay_E: npt.NDArray[np.uint8]
    output_core_V: npt.NDArray[np.int32]
    output_neuron_V: npt.NDArray[np.int16]
    output_action_V: npt.NDArray[np.int16]
    provenance: Provenance
    legal: tuple[LegalActions, ...] = ()

    def __post_init__(self) -> None:
        check_legal(self.legal, self.game, self.actions)
        if not len(self.layer_shape_L3):
            raise ValueError("it has no layer")
        sizes = self._sizes()
        for name, (dtype, axes) in ARRAYS.items():
            array, shape = getattr(self, name), tuple(sizes[axis] for axis in axes)
            if array.dtype != dtype or array.shape != shape:
                raise ValueError(f"{name} is {array.dtype} {array.shape}, {dtype} {shape} wanted")
        cores, axons, neurons = sizes["C"], self.spec.axons, self.spec.neurons
        check_input_shape(self.input_shape)
        transducer = self.transduction.output_shape(self.input_shape)
        if tuple(self.layer_shape_L3[0]) != transducer:
            raise ValueError(
                f"layer 0 is {self.layer_shape_L3[0]}, the transduction layer gives {transducer}"
            )
        for name, low, high in (
            ("core_crossbar_C", 0, sizes["X"] - 1),
            ("core_layer_C", 1, sizes["L"] - 1),
            ("axon_type_CA", 0, sizes["Y"] - 1),
            ("feature_CN", NONE, int(self.layer_shape_L3[:, 0].max()) - 1),
            ("row_CN", NONE, int(self.layer_shape_L3[:, 1].max()) - 1),
            ("column_CN", NONE, int(self.layer_shape_L3[:, 2].max()) - 1),
            ("dest_core_CN", NONE, cores - 1),
            ("dest_axon_CN", NONE, axons - 1),
            ("input_start_S", 0, sizes["E"]),
            ("input_core_E", 0, cores - 1),
            ("input_axon_E", 0, axons - 1),
            ("output_core_V", 0, cores - 1),
            ("output_neuron_V", 0, neurons - 1),
            ("output_action_V", 0, self.actions - 1),
            ("layer_shape_L3", 1, 1 << 20),
            ("layer_tick_L", 0, 1 << 20),
        ):
            array = getattr(self, name)
            if array.size and (array.min() < low or array.max() > high):
                raise ValueError(f"{name} spans {array.min()}..{array.max()}, its range is {low}..{high}")
        words = self.axon_type_CA[:, : axons - axons % WORD_BITS].reshape(cores, -1, WORD_BITS)
        if (words != words[:, :, :1]).any():
            raise ValueError("axon_type_CA has two types in one word of 64 axons")
        start = self.input_start_S
        if start[0] != 0 or start[-1] != sizes["E"] or (np.diff(start) < 0).any():
            raise ValueError(f"input_start_S must rise from 0 to {sizes['E']}, it ends at {start[-1]}")

    def _sizes(self) -> dict[str, int]:
        return {
            "C": len(self.core_layer_C), "N": self.spec.neurons, "A": self.spec.axons,
            "W": -(-self.spec.axons // WORD_BITS), "X": len(self.crossbar_XNW), "Y": len(self.weight_Y),
            "L": len(self.layer_shape_L3), "3": 3, "E": len(self.input_core_E),
            "S": int(np.prod(self.layer_shape_L3[0], dtype=np.int64)) + 1, "V": len(self.output_core_V),
        }  # fmt: skip

    @property
    def cores(self) -> int:
        """Cores in use."""
        return len(self.core_layer_C)

    @property
    def chips(self) -> int:
        """Chips in use."""
        return len(np.unique(self.chip_C))

    @property
    def ticks(self) -> int:
        """Ticks from a frame's entry to its votes."""
        return int(self.layer_tick_L[-1])

    @property
    def input_source_E(self) -> npt.NDArray[np.int64]:
        """Transducer output (flat index o*H*W + h*W + w of layer 0) of each input entry, (E,)."""
        return np.repeat(np.arange(len(self.input_start_S) - 1), np.diff(self.input_start_S))

    @property
    def driven_CA(self) -> npt.NDArray[np.bool_]:
        """True for every axon that a neuron or an input entry drives, (C, A)."""
        driven = np.zeros(self.axon_type_CA.shape, np.bool_)
        core, neuron = np.nonzero(self.dest_core_CN != NONE)
        driven[self.dest_core_CN[core, neuron], self.dest_axon_CN[core, neuron]] = True
        driven[self.input_core_E, self.input_axon_E] = True
        return driven

    @property
    def used_CN(self) -> npt.NDArray[np.bool_]:
        """True for every neuron in use, (C, N)."""
        return self.feature_CN != NONE


# Every dataset of the file: dtype and axes. "S" is the number of transducer outputs plus one.
ARRAYS: dict[str, tuple[str, str]] = {
    "layer_shape_L3": ("int32", "L3"),
    "layer_tick_L": ("int32", "L"),
    "crossbar_XNW": ("uint64", "XNW"),
    "weight_Y": ("int16", "Y"),
    "core_crossbar_C": ("int32", "C"),
    "core_layer_C": ("int16", "C"),
    "core_relay_C": ("bool", "C"),
    "axon_type_CA": ("uint8", "CA"),
    "theta_CN": ("int32", "CN"),
    "feature_CN": ("int32", "CN"),
    "row_CN": ("int16", "CN"),
    "column_CN": ("int16", "CN"),
    "dest_core_CN": ("int32", "CN"),
    "dest_axon_CN": ("int16", "CN"),
    "dest_delay_CN": ("uint8", "CN"),
    "chip_C": ("int16", "C"),
    "x_C": ("int16", "C"),
    "y_C": ("int16", "C"),
    "input_start_S": ("int64", "S"),
    "input_core_E": ("int32", "E"),
    "input_axon_E": ("int16", "E"),
    "input_delay_E": ("uint8", "E"),
    "output_core_V": ("int32", "V"),
    "output_neuron_V": ("int16", "V"),
    "output_action_V": ("int16", "V"),
}
TRANSDUCTION = {"transduction_weight": "uint8", "transduction_theta_O": "int32"}


def met_crosspoints(core_map: CoreMap) -> npt.NDArray[np.int64]:
    """Return how many crosspoints a spike on each axon meets, int64 (C, A)."""
    crossbar_XNW = core_map.crossbar_XNW.astype("<u8").view(np.uint8)
    met_XA = [
        # One at a time: all their bits as bytes would take hundreds of MB.
        np.unpackbits(crossbar_NW, axis=1, bitorder="little").sum(axis=0, dtype=np.int64)
        for crossbar_NW in crossbar_XNW
    ]
    return np.stack(met_XA)[:, : core_map.spec.axons][core_map.core_crossbar_C]


def save(core_map: CoreMap, path: Path) -> None:
    """Write ``core_map`` to an HDF5 file at ``path``, compressed losslessly, atomically.

    Raises:
        UserError: the disk is full.
    """
    import h5py

    arrays = {name: getattr(core_map, name) for name in ARRAYS}
    layer = core_map.transduction
    arrays["transduction_weight"] = pack_ternary(layer.weight_OIHW)
    arrays["transduction_theta_O"] = layer.theta_O
    description = json.dumps(
        {
            "actions": core_map.actions,
            "game": core_map.game,
            **({"games": legal_to_plain(core_map.legal)} if core_map.legal else {}),
            "input_shape": list(core_map.input_shape),
            "spec": _spec_fields(core_map.spec),
            "sizes": core_map._sizes(),
            "transduction": {
                "shape": list(layer.weight_OIHW.shape),
                "stride": layer.stride,
                "pad": layer.pad,
                "groups": layer.groups,
            },
        },
        sort_keys=True,
    )
    provenance = core_map.provenance.to_json()
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        file.attrs["schema"] = SCHEMA
        file.attrs["version"] = VERSION if core_map.legal else SINGLE_GAME_VERSION
        file.attrs["description"] = description
        file.attrs["provenance"] = provenance
        file.attrs["sha256"] = content_sha256((description, provenance), arrays)
        for name, array in arrays.items():
            if array.size > 64:
                file.create_dataset(name, data=array, compression="gzip", compression_opts=4, shuffle=True)
            else:
                file.create_dataset(name, data=array)
    write_bytes(path, content.getvalue())


def load(path: Path) -> CoreMap:
    """Read a core map, checking schema, version, sizes, dtypes, index ranges and the content's hash.

    Whether the map obeys the hardware's rules is :func:`validate`'s to say.

    Raises:
        UserError: the file is missing, truncated, foreign, newer, altered, or declares impossible sizes.
    """
    path = Path(path)
    try:
        with Hdf5File(path, "core map", REMEDY) as file:
            return _read(file, path)
    except UserError:
        raise
    except MALFORMED as error:
        raise UserError(f"{path}: not a readable core map: {error}", REMEDY) from error


def check_mapped_from(path: Path, provenance: Provenance, student: Path) -> None:
    """Raise UserError where the core map at ``path`` was mapped from another file than ``student``."""
    mapped = provenance.parents.get("student")
    if mapped is not None and mapped != file_sha256(student):
        raise UserError(
            f"{path} was mapped from another student file than {student}",
            "map the student again with `spikestill map`, or give the student that was mapped",
        )


def check_not_stale(path: Path, provenance: Provenance, student: Path | None) -> None:
    """Raise UserError where another student lies beside the core map at ``path`` than the one that was mapped."""
    if student is not None and student.is_file() and student.resolve().parent == path.resolve().parent:
        check_mapped_from(path, provenance, student)


def _read(file: Hdf5File, path: Path) -> CoreMap:
    attributes = file.attributes
    check_schema(path, attributes, SCHEMA, VERSION, REMEDY)
    description = json.loads(attributes["description"])
    spec = _read_spec(description["spec"])
    sizes = {axis: int(size) for axis, size in description["sizes"].items()}
    if not 1 <= sizes["C"] <= CORES:
        raise ValueError(f"it declares {sizes['C']} cores, the range is 1..{CORES}")
    _check_declared(file, sizes)
    arrays = file.read((*ARRAYS, *TRANSDUCTION), HDF5_EXTRA + HDF5_FACTOR * file.size)
    texts = attributes["description"], attributes["provenance"]
    check_content(texts, arrays, str(attributes["sha256"]))
    layer = description["transduction"]
    transduction = IntegerLayer(
        weight_OIHW=unpack_ternary(arrays.pop("transduction_weight"), tuple(layer["shape"])),
        theta_O=arrays.pop("transduction_theta_O"),
        stride=int(layer["stride"]),
        pad=int(layer["pad"]),
        groups=int(layer["groups"]),
    )
    return CoreMap(
        spec=spec,
        transduction=transduction,
        actions=int(description["actions"]),
        input_shape=tuple(map(int, description["input_shape"])),  # type: ignore[arg-type]
        game=str(description["game"]),
        legal=legal_of_plain(description.get("games")),
        provenance=Provenance.from_json(attributes["provenance"]),
        **arrays,
    )


def _spec_fields(spec: HardwareSpec) -> dict[str, Any]:
    """Return the target's limits as the file has them: ``max_offset`` always, others where the target has them."""
    fields = dataclasses.asdict(spec)
    return {name: value for name, value in fields.items() if value is not None or name == "max_offset"}


def _read_spec(fields: Mapping[str, Any]) -> HardwareSpec:
    unknown = sorted(set(fields) - {field.name for field in dataclasses.fields(HardwareSpec)})
    if unknown:
        raise ValueError(f"its hardware has an unknown field {unknown[0]!r}")
    spec = HardwareSpec(**fields)
    for name, value in fields.items():
        if name == "name" or (name == "max_offset" and value is None):
            continue
        if type(value) is not int or not 0 < value < 1 << 20:
            raise ValueError(f"its hardware has {name} {value!r}, the range is 1..{(1 << 20) - 1}")
    return spec


def _check_declared(file: Hdf5File, sizes: Mapping[str, int]) -> None:
    """Compare every dataset's declared dtype and shape with the header's before anything is allocated."""
    for name in (*ARRAYS, *TRANSDUCTION):
        declared = file.dataset(name)
        if name in ARRAYS:
            dtype, axes = ARRAYS[name]
            shape: tuple[int, ...] | None = tuple(sizes[axis] for axis in axes)
        else:
            dtype, shape = TRANSDUCTION[name], None
        if declared.dtype != np.dtype(dtype):
            raise ValueError(f"{name} is {declared.dtype}, {dtype} wanted")
        if declared.shape != shape and not (shape is None and len(declared.shape) == 1):
            raise ValueError(f"{name} has shape {declared.shape}, its header declares {shape}")
