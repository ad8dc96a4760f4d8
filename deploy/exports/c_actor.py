"""A fixed-point agent's actor as one C99 file without allocation or floating point, the agent's integers bit for bit.

The program is ``c/actor.c``; here its tables are made. Its arithmetic is that of ``common/precision/fixed.py``:
products in two 64-bit sums, rounding to nearest, saturation, 16-bit activations where the agent has them, tanh by
table.

Axis suffixes: B observations, S numbers of one, A numbers of an action.
"""

from __future__ import annotations

import itertools
from importlib import metadata
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spikestill.common.atomic import write_bytes, write_text
from spikestill.common.errors import UserError
from spikestill.common.precision import fixed_reference
from spikestill.common.precision.fixed import AFFINE_SHIFT, HALF, TERMS, Affine, Int32, tanh, tanh_table
from spikestill.deploy.exports.c_program import FRAMES, Memory, fill, table
from spikestill.deploy.exports.folder import own
from spikestill.teacher.control import fixed_network
from spikestill.teacher.control.fixed_ddpg import ACTOR, FixedState

PROGRAM, BUILT = "actor.c", "actor"
LAYER_BYTES = 7 * 4
MOST_SHIFT = 62


def write(state: FixedState, obs_BS: npt.NDArray[np.float64], folder: Path) -> Memory:
    """Write ``actor.c`` and ``frames.bin`` into ``folder``; return what the program takes.

    Args:
        state: the agent.
        obs_BS: observations, real numbers: ``frames.bin`` has their integers, the program the actions for them.
        folder: made if absent.

    Raises:
        UserError: the agent's sums may not fit in 64 bits; the folder holds files that are not this export's; the disk
            is full.
    """
    check_fits(state)
    own(folder, (PROGRAM, FRAMES, BUILT))
    whole_BS = state.formats.word(state.formats.activation).quantise(obs_BS)
    text, memory = program(state, whole_BS)
    write_text(folder / PROGRAM, text)
    write_bytes(folder / FRAMES, whole_BS.astype("<i4").tobytes())
    return memory


def actions(state: FixedState, whole_BS: Int32) -> Int32:
    """Return the actor's integers for observations that are integers already, (B, A), without noise."""
    trace = fixed_network.forward(
        state.actor.weight_N, state.sizes(ACTOR), whole_BS, state.sites(ACTOR), state.formats, fixed_reference
    )
    return tanh(trace.output_BP, state.formats.word(state.formats.activation))


def check_fits(state: FixedState) -> None:
    """Raise UserError where a sum or a shift of the program could leave 64 bits; the layer is named."""
    sizes, formats = state.sizes(ACTOR), state.formats
    for index, (terms, affine) in enumerate(zip(sizes[:-1], state.sites(ACTOR), strict=True)):
        if terms > TERMS:
            raise UserError(
                f"layer {index}: {terms} inputs, the program's 64-bit sums hold {TERMS}", "use smaller layers"
            )
        shift = 0 if affine is None else formats.weight + HALF - AFFINE_SHIFT - affine.exponent
        if not 0 <= shift <= MOST_SHIFT:
            raise UserError(
                f"layer {index}: a shift by {shift}, the program takes 0..{MOST_SHIFT}",
                "train the agent longer, so that its activations are seen",
            )


def program(state: FixedState, whole_BS: Int32) -> tuple[str, Memory]:
    """Return the C file's text and what it takes of memory."""
    sizes, formats = state.sizes(ACTOR), state.formats
    first = np.cumsum([0, *((q + 1) * p for q, p in itertools.pairwise(sizes))])
    rows = [
        f"    {{{q}, {p}, {at}, {_affine(affine)}}},"
        for (q, p), at, affine in zip(
            itertools.pairwise(sizes), first[:-1].tolist(), state.sites(ACTOR), strict=True
        )
    ]
    tables = tanh_table()
    constants = LAYER_BYTES * len(rows) + 4 * len(state.actor.weight_N) + 4 * len(tables)
    memory = Memory(constants, 2 * 4 * max(sizes))
    text = fill("actor.c", {
        "version": metadata.version("spikestill"), "constant_bytes": f"{memory.constant_bytes:,}",
        "working_bytes": f"{memory.working_bytes:,}", "inputs": sizes[0], "outputs": sizes[-1],
        "fraction": formats.activation, "weight_fraction": formats.weight, "bits": formats.bits,
        "layers": len(rows), "widest": max(sizes), "layer_table": "\n".join(rows),
        "parameters": table(state.actor.weight_N, "d"), "tanh_table": table(tables, "d"),
        "frames": len(whole_BS), "expected": table(actions(state, whole_BS).reshape(-1), "d"),
    })  # fmt: skip
    return text, memory


def _affine(affine: Affine | None) -> str:
    return "0, 0, 0, 0" if affine is None else f"1, {affine.mantissa}, {affine.exponent}, {affine.zero}"
