"""Operations of LLVM that numba does not offer, for numba kernels: population count, and 64 neurons at once."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

EIGHT = 8
WORDS = 4


@intrinsic
def popcount(typing_context: Any, word: Any) -> Any:
    """Return the number of ones of a uint64 as int64 (``llvm.ctpop.i64``); callable from ``njit`` code only.

    Args:
        typing_context: numba's, not given by the caller.
        word: uint64.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate


@intrinsic
def fire_four_words(typing_context: Any, axons: Any, weights: Any, crossbar: Any, theta: Any) -> Any:
    """Return the spikes of 64 lanes of a core with four axon words, as a uint64.

        bit l = 1 iff sum_w weights[w] * popcount(axons[w] & crossbar[l // 8, w, l % 8]) >= theta[l]

    Vectors of eight lanes (``vpopcntq`` where the processor has it), the crossbar read from its first byte to its last:
    a compiler's own vectorisation of the loop reads it in four streams, at half the speed from memory.

    Args:
        typing_context: numba's, not given by the caller.
        axons: uint64 (4,).
        weights: int64 (4,), of 32 bits at most.
        crossbar: uint64 (8, 4, 8), C order.
        theta: int32 (64,).
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        i32, i64 = ir.IntType(32), ir.IntType(64)
        longs, ints = ir.VectorType(i64, EIGHT), ir.VectorType(i32, EIGHT)
        data = [
            context.make_array(kind)(context, builder, value).data
            for kind, value in zip(signature.args, arguments, strict=True)
        ]
        ctpop = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(longs, [longs]), f"llvm.ctpop.v{EIGHT}i64"
        )

        def spread(array: Any, index: int) -> Any:
            value = builder.load(builder.gep(array, [ir.Constant(i64, index)]))
            nothing = ir.Constant(longs, ir.Undefined)
            first = builder.insert_element(nothing, value, ir.Constant(i32, 0))
            return builder.shuffle_vector(first, nothing, ir.Constant(ints, [0] * EIGHT))

        def eight(array: Any, index: int, kind: Any, bytes_each: int) -> Any:
            place = builder.gep(array, [ir.Constant(i64, index)])
            return builder.load(builder.bitcast(place, kind.as_pointer()), align=bytes_each)

        spikes = [spread(data[0], word) for word in range(WORDS)]
        # As 32 bits, which a weight fits into: the products are one instruction then, of 64 bits they are many.
        weight = [builder.sext(builder.trunc(spread(data[1], word), ints), longs) for word in range(WORDS)]
        fired = ir.Constant(i64, 0)
        for first in range(0, 64, EIGHT):
            potential = ir.Constant(longs, [0] * EIGHT)
            for word in range(WORDS):
                column = eight(data[2], first * WORDS + word * EIGHT, longs, 8)
                count = builder.call(ctpop, [builder.and_(spikes[word], column)])
                potential = builder.add(potential, builder.mul(weight[word], count))
            limit = builder.sext(eight(data[3], first, ints, 4), longs)
            bits = builder.bitcast(builder.icmp_signed(">=", potential, limit), ir.IntType(EIGHT))
            fired = builder.or_(fired, builder.shl(builder.zext(bits, i64), ir.Constant(i64, first)))
        return fired

    return types.uint64(axons, weights, crossbar, theta), generate
