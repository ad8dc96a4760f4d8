"""The fast integer matrix product: int32 x int32 summed in int64, vectors of eight lanes, for numba kernels.

Exact wherever the sums fit in 64 bits, which :func:`fits` proves from the largest factors; ``fixed_fast.py`` takes
the element's two sums where it cannot.

Axis suffixes: S rows of the stream, K terms of a sum, O outputs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from spikestill.common.compiling import njit

WIDTH = 8
"""Outputs that a block computes at once, the lanes of a vector; the right factor is padded to a multiple of it."""
ROWS = 4
"""Rows of a block: its 32 sums leave AVX2's sixteen registers room for the factors."""


def _block(rows: int) -> Any:
    """Return the intrinsic that multiplies ``rows`` rows of the stream by WIDTH outputs of the right factor."""

    @intrinsic
    def multiply(typing_context: Any, stream: Any, right: Any, out: Any, row: Any, column: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> None:
            i32, i64 = ir.IntType(32), ir.IntType(64)
            narrow, wide, halves = (
                ir.VectorType(i32, WIDTH),
                ir.VectorType(i64, WIDTH),
                ir.VectorType(i32, 2 * WIDTH),
            )
            arrays = [
                context.make_array(kind)(context, builder, value)
                for kind, value in zip(signature.args[:3], arguments[:3], strict=True)
            ]
            terms, outputs = (builder.extract_value(arrays[1].shape, axis) for axis in range(2))
            row, column = arguments[3:]
            first = [
                builder.gep(arrays[0].data, [builder.mul(builder.add(row, ir.Constant(i64, r)), terms)])
                for r in range(rows)
            ]
            begin = builder.gep(arrays[1].data, [column])
            entry, body, done = builder.block, builder.append_basic_block(), builder.append_basic_block()
            builder.branch(body)
            builder.position_at_end(body)
            k = builder.phi(i64)
            sums = [builder.phi(wide) for _ in range(rows)]
            k.add_incoming(ir.Constant(i64, 0), entry)
            place = builder.gep(begin, [builder.mul(k, outputs)])
            factors = builder.sext(builder.load(builder.bitcast(place, narrow.as_pointer()), align=4), wide)
            added = []
            for r in range(rows):
                # The 32-bit number in all halves of the lanes, which one load does; the product reads lower halves.
                one = builder.load(builder.gep(first[r], [k]))
                lanes = builder.insert_element(ir.Constant(halves, ir.Undefined), one, ir.Constant(i32, 0))
                lanes = builder.shuffle_vector(
                    lanes, ir.Constant(halves, ir.Undefined), ir.Constant(halves, [0] * 2 * WIDTH)
                )
                by = ir.Constant(wide, [32] * WIDTH)
                lanes = builder.ashr(builder.shl(builder.bitcast(lanes, wide), by), by)
                sums[r].add_incoming(ir.Constant(wide, [0] * WIDTH), entry)
                added.append(builder.add(sums[r], builder.mul(lanes, factors)))
                sums[r].add_incoming(added[-1], body)
            following = builder.add(k, ir.Constant(i64, 1))
            k.add_incoming(following, body)
            builder.cbranch(builder.icmp_signed("<", following, terms), body, done)
            builder.position_at_end(done)
            for r in range(rows):
                line = builder.mul(builder.add(row, ir.Constant(i64, r)), outputs)
                at = builder.gep(arrays[2].data, [builder.add(line, column)])
                builder.store(added[r], builder.bitcast(at, wide.as_pointer()), align=8)

        return types.void(stream, right, out, row, column), generate

    return multiply


_multiply_rows, _multiply_row = _block(ROWS), _block(1)


@njit(nogil=True, cache=True)
def multiply(stream_SK: Any, right_KO: Any, out_SO: Any) -> None:
    """Write ``stream_SK @ right_KO`` to ``out_SO``, modulo 2^64.

    Args:
        stream_SK: int32, C order, K >= 1.
        right_KO: int32, C order, O a multiple of :data:`WIDTH`.
        out_SO: int64, C order.
    """
    rows = stream_SK.shape[0]
    whole = rows - rows % ROWS
    for column in range(0, right_KO.shape[1], WIDTH):
        for row in range(0, whole, ROWS):
            _multiply_rows(stream_SK, right_KO, out_SO, row, column)
        for row in range(whole, rows):
            _multiply_row(stream_SK, right_KO, out_SO, row, column)


@njit(nogil=True, cache=True)
def fits(stream_SK: Any, right_KO: Any) -> bool:
    """Return True where no sum of K products of their elements, rounded, can leave 64 bits."""
    largest = np.int64(0), np.int64(0)
    for s in range(stream_SK.shape[0]):
        for k in range(stream_SK.shape[1]):
            largest = max(largest[0], abs(np.int64(stream_SK[s, k]))), largest[1]
    for k in range(right_KO.shape[0]):
        for o in range(right_KO.shape[1]):
            largest = largest[0], max(largest[1], abs(np.int64(right_KO[k, o])))
    return largest[0] * largest[1] <= ((np.int64(1) << 62) - 1) // stream_SK.shape[1]
