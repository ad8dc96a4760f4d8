"""Vectors of fp32 lanes as values of numba kernels: one source, for whatever vectors the processor has.

A kernel that is written with them does not depend on LLVM's automatic vectorisation. The number of lanes is the length
of a tuple, so that a kernel is compiled for each number. Arrays are flat: fp32, bf16 as uint16 (the upper half of an
fp32's bits, rounded to nearest, ties to even) and, to read, uint8. LLVM splits vectors wider than the processor's.

All are callable from ``njit`` code only.
"""

from __future__ import annotations

import functools
from typing import Any

from llvmlite import binding as llvm
from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model


class _BFloat(ir.Type):
    """LLVM's bfloat, which llvmlite does not name."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


I16, I32, FLOAT = ir.IntType(16), ir.IntType(32), ir.FloatType()
FAST = ("contract", "reassoc", "nsz")
ALIGNMENT = {FLOAT: 4, I16: 2}
"""In bytes. Elements of one byte, which are only read, have 1."""


@functools.cache
def _compiles_for(feature: str) -> bool:
    """Return True where numba compiles for processors with this feature, by LLVM's name; asking takes half a ms."""
    if config.CPU_FEATURES is not None:
        return f"+{feature}" in config.CPU_FEATURES.split(",")
    found = llvm.get_host_cpu_features()
    return bool(found and found.get(feature))


def vector_lanes() -> int:
    """Return the fp32 lanes of the widest vectors for which numba compiles: 16 with AVX-512, else 8."""
    return 16 if _compiles_for("avx512f") else 8


def native_pairs() -> bool:
    """Return True where one instruction multiplies pairs of bf16 and adds them to fp32 lanes (AVX-512 BF16)."""
    found = _compiles_for("avx512bf16") and _compiles_for("avx512vl")
    # LLVM's instructions have taken bfloats since 17; NUMBA_ENABLE_AVX=0 takes what begins with avx away.
    return found and bool(config.ENABLE_AVX) and llvm.llvm_version_info[0] >= 17


class Lanes(types.Type):
    """The numba type of ``count`` fp32 lanes."""

    def __init__(self, count: int) -> None:
        self.count = count
        super().__init__(name=f"Lanes({count})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, ir.VectorType(FLOAT, kind.count))


def _splat(value: Any, lanes: int) -> Any:
    return ir.Constant(ir.VectorType(value.type, lanes), [value.constant] * lanes)


def _pointer(context: Any, builder: Any, kind: Any, array: Any, index: Any, lanes: int) -> tuple[Any, Any]:
    """Return the address of ``lanes`` elements from ``index`` on, and what lies there."""
    data = context.make_array(kind)(context, builder, array).data
    element = {types.uint8: ir.IntType(8), types.uint16: I16}.get(kind.dtype, FLOAT)
    vector = ir.VectorType(element, lanes)
    return builder.bitcast(builder.gep(data, [index]), vector.as_pointer()), element


def _widened(builder: Any, value: Any, element: Any, count: int) -> Any:
    """Return ``count`` elements as fp32 lanes."""
    if element is FLOAT:
        return value
    wide = builder.zext(value, ir.VectorType(I32, count))
    if element is not I16:
        return builder.sitofp(wide, ir.VectorType(FLOAT, count))
    wide = builder.shl(wide, _splat(ir.Constant(I32, 16), count))
    return builder.bitcast(wide, ir.VectorType(FLOAT, count))


def _narrowed(builder: Any, value: Any, element: Any, count: int) -> Any:
    """Return fp32 lanes as ``count`` elements."""
    if element is not I16:
        return value
    if native_pairs():
        rounded = builder.fptrunc(value, ir.VectorType(_BFloat(), count))
        return builder.bitcast(rounded, ir.VectorType(I16, count))
    words = ir.VectorType(I32, count)
    sixteen, one = _splat(ir.Constant(I32, 16), count), _splat(ir.Constant(I32, 1), count)
    bits = builder.bitcast(value, words)
    odd = builder.and_(builder.lshr(bits, sixteen), one)
    bits = builder.add(builder.add(bits, _splat(ir.Constant(I32, 0x7FFF), count)), odd)
    return builder.trunc(builder.lshr(bits, sixteen), ir.VectorType(I16, count))


def _chosen(builder: Any, a: Any, b: Any, places: range) -> Any:
    """Return the elements at ``places`` of a and b, side by side."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(places)), [*places]))


@intrinsic
def read(typing_context: Any, array: Any, index: Any, lanes: Any) -> Any:
    """Return the lanes of ``array`` from ``index`` on, as many as the tuple ``lanes`` has elements."""
    count = len(lanes)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place, element = _pointer(context, builder, signature.args[0], arguments[0], arguments[1], count)
        value = builder.load(place, align=ALIGNMENT.get(element, 1))
        return _widened(builder, value, element, count)

    return Lanes(count)(array, types.intp, lanes), generate


@intrinsic
def write(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Store the lanes ``value`` in ``array`` from ``index`` on."""
    count = value.count

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place, element = _pointer(context, builder, signature.args[0], arguments[0], arguments[1], count)
        found = _narrowed(builder, arguments[2], element, count)
        builder.store(found, place, align=ALIGNMENT[element])
        return context.get_dummy_value()

    return types.void(array, types.intp, value), generate


@intrinsic
def read_pieces(typing_context: Any, array: Any, index: Any, stride: Any, pieces: Any, lanes: Any) -> Any:
    """Return the lanes of ``array`` that lie in ``len(pieces)`` pieces ``stride`` apart; the number is a power of 2."""
    many, count = len(pieces), len(lanes)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        parts, at = [], arguments[1]
        for _ in range(many):
            place, element = _pointer(context, builder, signature.args[0], arguments[0], at, count // many)
            parts.append(builder.load(place, align=ALIGNMENT.get(element, 1)))
            at = builder.add(at, arguments[2])
        while len(parts) > 1:
            both, pairs = range(2 * parts[0].type.count), zip(parts[::2], parts[1::2], strict=True)
            parts = [_chosen(builder, one, other, both) for one, other in pairs]
        return _widened(builder, parts[0], element, count)

    return Lanes(count)(array, types.intp, types.intp, pieces, lanes), generate


@intrinsic
def write_pieces(typing_context: Any, array: Any, index: Any, stride: Any, value: Any, pieces: Any) -> Any:
    """Store the lanes ``value`` in ``array`` in ``len(pieces)`` pieces ``stride`` apart, the first at ``index``."""
    many, count = len(pieces), value.count

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at, size = arguments[1], count // many
        _, element = _pointer(context, builder, signature.args[0], arguments[0], at, size)
        found = _narrowed(builder, arguments[3], element, count)
        for piece in range(many):
            place, _ = _pointer(context, builder, signature.args[0], arguments[0], at, size)
            part = _chosen(builder, found, found, range(piece * size, (piece + 1) * size))
            builder.store(part, place, align=ALIGNMENT[element])
            at = builder.add(at, arguments[2])
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, value, pieces), generate


@intrinsic
def move(typing_context: Any, target: Any, index: Any, source: Any, at: Any, lanes: Any) -> Any:
    """Copy lanes of ``source`` from ``at`` on to ``target`` from ``index`` on, both of one format."""
    count = len(lanes)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, element = _pointer(context, builder, signature.args[0], arguments[0], arguments[1], count)
        here, _ = _pointer(context, builder, signature.args[2], arguments[2], arguments[3], count)
        builder.store(builder.load(here, align=ALIGNMENT[element]), to, align=ALIGNMENT[element])
        return context.get_dummy_value()

    return types.void(target, types.intp, source, types.intp, lanes), generate


@intrinsic
def pair_up(
    typing_context: Any,
    pairs: Any,
    index: Any,
    first: Any,
    first_at: Any,
    second: Any,
    second_at: Any,
    lanes: Any,
) -> Any:
    """Store pairs of bf16 in ``pairs`` (uint32) from ``index`` on: one of ``first``, one of ``second`` above it."""
    count = len(lanes)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide, halves = ir.VectorType(I32, count), []
        for place in (2, 4):
            here, _ = _pointer(
                context, builder, signature.args[place], arguments[place], arguments[place + 1], count
            )
            halves.append(builder.zext(builder.load(here, align=ALIGNMENT[I16]), wide))
        upper = builder.shl(halves[1], _splat(ir.Constant(I32, 16), count))
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        to = builder.bitcast(builder.gep(data, [arguments[1]]), wide.as_pointer())
        builder.store(builder.or_(halves[0], upper), to, align=4)
        return context.get_dummy_value()

    return types.void(pairs, types.intp, first, types.intp, second, types.intp, lanes), generate


@intrinsic
def spread(typing_context: Any, value: Any, lanes: Any) -> Any:
    """Return lanes that all hold the fp32 ``value``."""
    count = len(lanes)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(FLOAT, count)
        nothing = ir.Constant(vector, ir.Undefined)
        first = builder.insert_element(nothing, arguments[0], ir.Constant(I32, 0))
        return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(I32, count), [0] * count))

    return Lanes(count)(types.float32, lanes), generate


def _binary(operation: str, text: str) -> Any:
    def typed(typing_context, a, b):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            return getattr(builder, operation)(*arguments, flags=FAST)

        return a(a, a), generate

    typed.__doc__ = text
    return intrinsic(typed)


plus = _binary("fadd", "Return a + b.")
minus = _binary("fsub", "Return a - b.")
times = _binary("fmul", "Return a b.")


def _called(name: str, count: int, builder: Any, arguments: Any) -> Any:
    vector = ir.VectorType(FLOAT, count)
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(vector, [vector] * len(arguments)), f"llvm.{name}.v{count}f32"
    )
    return builder.call(function, arguments)


@intrinsic
def product_sum(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a b + c, rounded once where the processor can."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _called("fmuladd", signature.args[0].count, builder, arguments)

    return a(a, a, a), generate


@intrinsic
def triangle(typing_context: Any, x: Any) -> Any:
    """Return max(0, 1 - |x|)."""
    count = x.count

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        one, zero = (_splat(ir.Constant(FLOAT, value), count) for value in (1.0, 0.0))
        size = _called("fabs", count, builder, arguments)
        found = builder.fsub(one, size)
        return builder.select(builder.fcmp_ordered(">", found, zero), found, zero)

    return x(x), generate


@intrinsic
def step(typing_context: Any, x: Any) -> Any:
    """Return 1 where x >= 0, else 0."""
    count = x.count

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        one, zero = (_splat(ir.Constant(FLOAT, value), count) for value in (1.0, 0.0))
        return builder.select(builder.fcmp_ordered(">=", arguments[0], zero), one, zero)

    return x(x), generate


@intrinsic
def total(typing_context: Any, x: Any) -> Any:
    """Return the sum of the lanes, added pair by pair, as an fp32 number."""
    count = x.count

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(FLOAT, [FLOAT, ir.VectorType(FLOAT, count)])
        name = f"llvm.vector.reduce.fadd.v{count}f32"
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        return builder.call(function, [ir.Constant(FLOAT, 0.0), *arguments], fastmath=FAST)

    return types.float32(x), generate


def _added_products(builder: Any, a: Any, b: Any, total: Any, count: int) -> Any:
    """Return a b + total of fp32 lanes."""
    return _called("fmuladd", count, builder, [a, b, total])


def _added_pairs(builder: Any, a: Any, b: Any, total: Any, count: int) -> Any:
    """Return a0 b0 + a1 b1 + total, where lanes of a and b are pairs of bf16."""
    if native_pairs() and count in (4, 8, 16):
        vector, pairs = ir.VectorType(FLOAT, count), ir.VectorType(_BFloat(), 2 * count)
        kind = ir.FunctionType(vector, [vector, pairs, pairs])
        name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * count}"
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        return builder.call(function, [total, builder.bitcast(a, pairs), builder.bitcast(b, pairs)])
    upper = _splat(ir.Constant(I32, 0xFFFF0000), count)
    sixteen = _splat(ir.Constant(I32, 16), count)
    lanes = ir.VectorType(FLOAT, count)
    for half in (lambda v: builder.shl(v, sixteen), lambda v: builder.and_(v, upper)):
        first, second = (builder.bitcast(half(v), lanes) for v in (a, b))
        total = _added_products(builder, first, second, total, count)
    return total


@intrinsic
def add_products(
    typing_context: Any,
    x: Any,
    x_at: Any,
    w: Any,
    w_at: Any,
    out: Any,
    out_at: Any,
    counts: Any,
    steps: Any,
    rows: Any,
    columns: Any,
    lanes: Any,
) -> Any:
    """Add a tile of a matrix product to ``out``: out[i, j] += sum over o, t of x[i, o, t] w[o, t, j].

    The tile has ``len(rows)`` rows and ``len(columns) * len(lanes)`` columns, all of it in registers: rows times
    columns vectors must leave some of them free (AVX2 and NEON have 16 and 32, AVX-512 32). Rows of ``out`` are added
    to one after another, so that they may overlap.

    Where x and w are uint32 they hold pairs of bf16, the first in the lower half, and both products of two pairs are
    added: in one instruction where there is one (:func:`native_pairs`), which takes subnormal numbers for 0, else as
    fp32 products.

    Args:
        typing_context: numba's, not given by the caller.
        x: fp32 or pairs, flat.
        x_at: where x[0, 0, 0] is.
        w: as x, flat.
        w_at: where w[0, 0, 0] is.
        out: fp32, flat.
        out_at: where out[0, 0] is.
        counts: how many o, how many t.
        steps: from one to the next of: x's rows, x's o, x's t, w's o, w's t, out's rows.
        rows: a tuple, for its length.
        columns: a tuple, for its length.
        lanes: a tuple, for its length.
    """
    many, across, count = len(rows), len(columns), len(lanes)
    paired = x.dtype == types.uint32

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word, vector = ir.IntType(64), ir.VectorType(FLOAT, count)
        factor = ir.VectorType(I32, count) if paired else vector
        added = _added_pairs if paired else _added_products
        data = [
            context.make_array(signature.args[place])(context, builder, arguments[place]).data
            for place in (0, 2, 4)
        ]
        x_begin, w_begin, out_begin = (builder.gep(data[i], [arguments[2 * i + 1]]) for i in range(3))
        outer, inner = cgutils.unpack_tuple(builder, arguments[6], 2)
        x_row, x_outer, x_inner, w_outer, w_inner, out_row = cgutils.unpack_tuple(builder, arguments[7], 6)
        # Where a tile is small, the next sum of a lane would wait for the one before: two chains of them then.
        chains = 2 if paired and many * across <= 8 else 1
        sums = [
            [
                [
                    cgutils.alloca_once_value(builder, ir.Constant(vector, [0.0] * count))
                    for _ in range(across)
                ]
                for _ in range(many)
            ]
            for _ in range(chains)
        ]
        x_rows = [x_begin]
        for _ in range(many - 1):
            x_rows.append(builder.gep(x_rows[-1], [x_row]))

        def add(x_some: Any, w_some: Any, index: Any, chain: int) -> None:
            x_here = builder.add(x_some, builder.mul(index, x_inner))
            w_here = builder.gep(w_begin, [builder.add(w_some, builder.mul(index, w_inner))])
            factors = []
            for column in range(across):
                place = builder.gep(w_here, [ir.Constant(word, column * count)])
                factors.append(builder.load(builder.bitcast(place, factor.as_pointer()), align=4))
            for row in range(many):
                value = builder.load(builder.gep(x_rows[row], [x_here]))
                single = builder.insert_element(ir.Constant(factor, ir.Undefined), value, ir.Constant(I32, 0))
                all_alike = ir.Constant(ir.VectorType(I32, count), [0] * count)
                wide = builder.shuffle_vector(single, ir.Constant(factor, ir.Undefined), all_alike)
                for column in range(across):
                    place = sums[chain][row][column]
                    builder.store(added(builder, wide, factors[column], builder.load(place), count), place)

        several = ir.Constant(word, chains)
        with cgutils.for_range(builder, outer) as first:
            x_some, w_some = builder.mul(first.index, x_outer), builder.mul(first.index, w_outer)
            with cgutils.for_range(builder, builder.udiv(inner, several)) as second:
                begin = builder.mul(second.index, several)
                for chain in range(chains):
                    add(x_some, w_some, builder.add(begin, ir.Constant(word, chain)), chain)
            if chains > 1:
                left = builder.icmp_unsigned("!=", builder.urem(inner, several), ir.Constant(word, 0))
                with builder.if_then(left):
                    add(x_some, w_some, builder.sub(inner, ir.Constant(word, 1)), 0)
        for row in range(many):
            for column in range(across):
                place = builder.gep(out_begin, [ir.Constant(word, column * count)])
                place = builder.bitcast(place, vector.as_pointer())
                found = builder.load(place, align=4)
                for part in sums:
                    found = builder.fadd(found, builder.load(part[row][column]))
                builder.store(found, place, align=4)
            out_begin = builder.gep(out_begin, [out_row])
        return context.get_dummy_value()

    integers = types.UniTuple(types.intp, 2), types.UniTuple(types.intp, 6)
    return types.void(
        x, types.intp, w, types.intp, out, types.intp, *integers, rows, columns, lanes
    ), generate
