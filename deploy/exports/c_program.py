"""An integer net as one C99 file without allocation, and some frames with the votes that it must give for them.

The parts of the program lie beside this module, in ``c/``: the transduction layer, what the binary layers share, one
binary layer, the votes and ``main``. Here their tables are made and the parts put together. A layer is a function with
its sizes as constants, so that the compiler sees the length of every loop.

Axis suffixes: O output features, W words of a patch, B frames, A actions.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spikestill.common.atomic import write_bytes, write_text
from spikestill.common.legal import LegalActions
from spikestill.deploy.exports.folder import own
from spikestill.deploy.exports.replay import Replay
from spikestill.deploy.packed_kernel import WORD_BITS, pack_weights, patch_words, words_for
from spikestill.deploy.transduction import plan_transduction
from spikestill.student.integer_net import IntegerLayer, IntegerNet, effective_theta

PROGRAM, FRAMES = "student.c", "frames.bin"
BUILT = "student"
"""What the compiler makes of it, by the command in the program's first lines."""
PARTS = Path(__file__).parent / "c"
INT32_MAX = int(np.iinfo(np.int32).max)
VECTOR = 32
"""As ``T_VECTOR`` in ``c/head.c``."""

NARROW = "patch[tap / $per_word * GROUPS + group] |= field(pixel, group * PER_IN, PER_IN) << tap % $per_word * PER_IN;"
WIDE = """for (word = 0; word < $group_words; word++)
    patch[(tap * $group_words + word) * GROUPS + group] =
        field(pixel, group * PER_IN + 64 * word, PER_IN - 64 * word < 64 ? PER_IN - 64 * word : 64);"""


@dataclasses.dataclass(frozen=True)
class Memory:
    """What the program takes of a board's memory, without ``main``.

    Attributes:
        constant_bytes: tables.
        working_bytes: static variables.
    """

    constant_bytes: int
    working_bytes: int


def write(net: IntegerNet, replay: Replay, folder: Path) -> Memory:
    """Write ``student.c`` and ``frames.bin`` into ``folder``; return what the program takes.

    Args:
        net: any integer net; within the limits of its size its sums fit 32 bits.
        replay: frames, written to ``frames.bin``, and their votes, written into the program.
        folder: made if absent.

    Raises:
        UserError: the folder holds files that are not this export's; the disk
            is full.
    """
    own(folder, (PROGRAM, FRAMES, BUILT))
    text, memory = program(net, replay.votes_BA)
    write_text(folder / PROGRAM, text)
    write_bytes(folder / FRAMES, replay.stacks_BCHW.tobytes())
    return memory


def program(net: IntegerNet, votes_BA: npt.NDArray[np.int64]) -> tuple[str, Memory]:
    """Return the C file's text and what it takes of memory; the arguments and errors are :func:`write`'s."""
    parts, tables = [_head(net)], [_transduction_tables(net)]
    if len(net.layers) > 1:
        parts.append(_binary(net))
        count_bytes = np.dtype(_count_type(net)).itemsize
        for index in range(1, len(net.layers)):
            part, words, lanes = _layer(net, index)
            parts.append(part)
            tables.append(
                {
                    f"minus_{index}": 8 * words,
                    f"used_{index}": 8 * words,
                    f"least_{index}": lanes * count_bytes,
                }
            )
    own = _own_actions(net)
    tables.append({"own_actions": 2 * len(own.actions), "own_bounds": 2 * len(own.bounds)})
    constants = {name: size for table in tables for name, size in table.items()}
    working = _working(net)
    memory = Memory(sum(constants.values()), sum(working.values()))
    shape = net.shapes()[-1]
    main = {
        "positions": shape[1] * shape[2],
        "features": shape[0],
        "last_start": _starts(net)[-2],
        "calls": "\n".join(f"    layer_{index}();" for index in range(1, len(net.layers))),
        "own_actions": table(np.array(own.actions), "d"),
        "own_bounds": table(np.array(own.bounds), "d"),
        "games": len(own.names),
        "game_names": ", ".join(json.dumps(name) for name in own.names),
        "frames": len(votes_BA),
        "expected": table(votes_BA.reshape(-1), "d"),
        "constant_sizes": " + ".join(f"sizeof {name}" for name in constants),
        "working_sizes": " + ".join(f"sizeof {name}" for name in working),
    }
    parts.append(fill("main.c", main))
    text = "".join(parts)
    text = text.replace("@constant_bytes@", f"{memory.constant_bytes:,}")
    return text.replace("@working_bytes@", f"{memory.working_bytes:,}"), memory


class _OwnActions(NamedTuple):
    """The games, and the head's actions that are each one's own: ``bounds[g]`` to ``bounds[g + 1]`` of ``actions``."""

    names: list[str]
    actions: list[int]
    bounds: list[int]


def _own_actions(net: IntegerNet) -> _OwnActions:
    games = net.legal or (LegalActions(net.game, tuple(range(net.actions))),)
    bounds = np.cumsum([0, *(len(each.actions) for each in games)]).tolist()
    return _OwnActions([each.game for each in games], [a for each in games for a in each.actions], bounds)


def _head(net: IntegerNet) -> str:
    plan = plan_transduction(net.layers[0], net.input_shape)
    stride, pad, plane_height, plane_width, out_height, out_width = plan.geometry.tolist()
    channels, height, width = net.input_shape
    names = _own_actions(net).names
    several = ", ".join(f"{index} {name}" for index, name in enumerate(names))
    return fill("head.c", {
        "games": f"The games: {several}." if net.legal else "There is one game, 0.",
        "option": f" --game {names[0]}" if net.legal else "",
        "title": f"The spiking student{f' of {net.game}' if net.game else ''}: frames in, votes out.",
        "version": metadata.version("spikestill"), "constant_bytes": "@constant_bytes@",
        "working_bytes": "@working_bytes@", "channels": channels, "height": height, "width": width,
        "actions": net.actions, "spike_words": _starts(net)[-1], "t_features": net.layers[0].features,
        "t_stride": stride, "t_pad": pad, "t_plane_height": plane_height, "t_plane_width": plane_width,
        "t_out_height": out_height, "t_out_width": out_width, "tap_type": _c_type(_tap_type(net)),
        "taps": table(plan.offsets, "d"), "tap_bounds": table(plan.bounds.reshape(-1), "d"),
        "t_theta": table(_int32(plan.theta_O), "d"),
    })  # fmt: skip


def _transduction_tables(net: IntegerNet) -> dict[str, int]:
    plan = plan_transduction(net.layers[0], net.input_shape)
    taps = max(1, len(plan.offsets)) * np.dtype(_tap_type(net)).itemsize
    return {"taps": taps, "tap_bounds": 4 * plan.bounds.size, "t_theta": 4 * len(plan.theta_O)}


def _binary(net: IntegerNet) -> str:
    return fill("binary.c", {
        "count_type": _c_type(_count_type(net)), "patch_words": _patch_words(net), "counts": _lanes(net),
    })  # fmt: skip


def _layer(net: IntegerNet, index: int) -> tuple[str, int, int]:
    """Return a binary layer's text, the words of each of its two masks and its number of lanes."""
    layer, starts = net.layers[index], _starts(net)
    before, after = net.shapes()[index - 1], net.shapes()[index]
    minus, used = masks(layer)
    per_in = layer.in_channels // layer.groups
    gather = Template(NARROW if per_in <= WORD_BITS else WIDE).substitute(
        per_word=max(1, WORD_BITS // per_in), group_words=words_for(per_in)
    )
    text = fill("layer.c", {
        "index": index, "in_channels": before[0], "in_height": before[1], "in_width": before[2],
        "in_words": words_for(before[0]), "features": after[0], "out_height": after[1], "out_width": after[2],
        "out_words": words_for(after[0]), "kernel": layer.kernel, "stride": layer.stride, "pad": layer.pad,
        "groups": layer.groups, "per_in": per_in, "per_out": layer.features // layer.groups,
        "words": patch_words(layer), "in_start": starts[index - 1], "out_start": starts[index],
        "gather": "\n".join(" " * 24 + line for line in gather.splitlines()),
        "minus": table(minus.reshape(-1), "x"), "used": table(used.reshape(-1), "x"),
        "least": table(least(layer, _count_type(net)), "d"),
    })  # fmt: skip
    return text, minus.size, minus.shape[1]


def masks(layer: IntegerLayer) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Return the masks of the weights -1 and of those that are not 0, uint64 (W, lanes), zero past the last feature."""
    plus, minus = (mask.transpose(1, 0, 2).reshape(mask.shape[1], -1) for mask in pack_weights(layer))
    return minus, plus | minus


def least(layer: IntegerLayer, dtype: type[np.unsignedinteger[Any]]) -> npt.NDArray[np.unsignedinteger[Any]]:
    """Return theta plus the number of weights -1, the ones that a neuron wants, (lanes,); the most in lanes past O."""
    minus_O = (layer.weight_OIHW == -1).sum(axis=(1, 2, 3), dtype=np.int64)
    found = np.full(words_for(layer.features) * WORD_BITS, np.iinfo(dtype).max, dtype)
    wanted = np.maximum(effective_theta(layer, first=False) + minus_O, 0)
    found[: layer.features] = wanted
    return found


def _starts(net: IntegerNet) -> list[int]:
    """Return the first word of every layer's spikes, and their number of all."""
    sizes = [height * width * words_for(features) for features, height, width in net.shapes()]
    return [0, *np.cumsum(sizes).tolist()]


def _patch_words(net: IntegerNet) -> int:
    return max(patch_words(layer) * layer.groups for layer in net.layers[1:])


def _lanes(net: IntegerNet) -> int:
    return max(words_for(layer.features) * WORD_BITS for layer in net.layers[1:])


def _working(net: IntegerNet) -> dict[str, int]:
    """Return the bytes of every static variable."""
    plan = plan_transduction(net.layers[0], net.input_shape)
    stride, _, plane_height, plane_width, out_height, out_width = plan.geometry.tolist()
    length = -(-((out_height - 1) * plane_width + out_width) // VECTOR) * VECTOR
    found = {
        "student_spikes": 8 * _starts(net)[-1],
        "planes": net.input_shape[0] * stride * stride * plane_height * plane_width + VECTOR,
        "t_part": 2 * length,
        "t_sum": 4 * length,
    }
    if len(net.layers) > 1:
        found |= {"patch": 8 * _patch_words(net), "counts": np.dtype(_count_type(net)).itemsize * _lanes(net)}
    return found


def _count_type(net: IntegerNet) -> type[np.unsignedinteger[Any]]:
    """Return the narrowest type that tells every count of ones, 0..fan-in, and 'never' apart."""
    most = max(layer.fan_in for layer in net.layers[1:]) + 1
    return np.uint16 if most < np.iinfo(np.uint16).max else np.uint32


def _tap_type(net: IntegerNet) -> type[np.unsignedinteger[Any]]:
    offsets = plan_transduction(net.layers[0], net.input_shape).offsets
    return np.uint16 if offsets.max(initial=0) <= np.iinfo(np.uint16).max else np.uint32


def _c_type(dtype: type[np.unsignedinteger[Any]]) -> str:
    return f"{np.dtype(dtype).name}_t"


def _int32(theta_O: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return thresholds that C can write: -2**31 is an expression there, and as good as one more."""
    return np.maximum(theta_O, -INT32_MAX)


def table(values: npt.NDArray[Any], form: str) -> str:
    """Return the inside of an initialiser, at most 120 characters a line; a 0 where there are no values."""
    return "\n".join(
        _lines([f"{value:#x}" if form == "x" else f"{value}" for value in values.tolist()] or ["0"])
    )


def _lines(words: list[str]) -> Iterator[str]:
    line = "   "
    for word in words:
        if len(line) + len(word) + 2 > 120:
            yield line
            line = "   "
        line += f" {word},"
    yield line


def fill(part: str, values: dict[str, Any]) -> str:
    """Return a part of a program, of ``c/``, with its values in."""
    return Template((PARTS / part).read_text(encoding="ascii")).substitute(values)
