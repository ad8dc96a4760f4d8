"""What does a recorded update (``program.py``): commands over addresses, without the interpreter.

A command is a row of 64-bit integers: what is done, which thread does it, then addresses, sizes and places of scalars,
as the branch of :func:`run` reads them. Numbers are of the format's storage.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from spikestill.common.awake import give_way
from spikestill.common.compiling import njit
from spikestill.common.precision.rounding import Rounding, round_all
from spikestill.teacher.control import kernels

Array = npt.NDArray[Any]

(
    WAIT, PRODUCT, VECTOR, OUTER, BIAS, MASK, COLUMNS, TANH, TANH_BACKWARD, JOIN, ROWS, BELLMAN, DIFFERENCE, ADAM,
    AVERAGE, SAMPLE, SAMPLE_BACKWARD, SMALLER, ADD, FILL, ROUND, FINISH, AVERAGE_KAHAN,
) = range(23)  # fmt: skip
"""What a command does."""
WIDTH = 15
"""Integers of a command."""
ALONE, FIRST, OTHER = range(3)
"""A thread's role."""
LINE = 8
"""Integers of a cache line: each thread counts in a line of its own."""
LOOKS = 2000
"""How often a thread looks for the other before it gives its core away, some 10 us."""
AWAKE = 1000
"""How often a thread without work gives its core away, 0.2 ms or more, before it rests between two looks."""
REST_US, LONG_REST_US, RESTS = 50, 1000, 100
"""How long it rests, and after how many rests so much longer: nobody trains then."""
ROW_MAJOR, AS_IT_IS, TRANSPOSED, COLUMN_MAJOR = 101, 111, 112, 102
"""BLAS's names for how a matrix lies."""
PRODUCT_NAME, VECTOR_NAME = "spikestill_{}gemm", "spikestill_{}gemv"
"""By which ``blas.py`` names NumPy's own functions, for fp32 (s) and fp64 (d)."""

NO_COMMANDS, NO_MAIL = np.zeros((0, WIDTH), np.int64), np.zeros(0, np.int64)
_rest = types.ExternalFunction("usleep", types.int32(types.uint32))


@intrinsic
def _numbers(typing_context: Any, address: Any, like: Any) -> Any:
    """Return an address as a pointer to numbers of the type of ``like``."""
    pointer = types.CPointer(like.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(pointer))

    return pointer(address, like), generate


def _element(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.gep(array.data, [arguments[1]])


@intrinsic
def _publish(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Store an integer, after everything that this thread wrote before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store_atomic(arguments[2], _element(context, builder, signature, arguments), "release", 8)
        return context.get_dummy_value()

    return types.void(array, index, value), generate


@intrinsic
def _published(typing_context: Any, array: Any, index: Any) -> Any:
    """Return an integer; what its thread wrote before is there too."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(_element(context, builder, signature, arguments), "acquire", 8)

    return types.int64(array, index), generate


def _call(builder: Any, name: str, element: Any, kinds: str, values: Any) -> None:
    """Call a function of BLAS; ``kinds`` has a letter for each argument: e(num), i(nteger), r(eal), p(ointer)."""
    real = ir.FloatType() if element == types.float32 else ir.DoubleType()
    types_of = {"e": ir.IntType(32), "i": ir.IntType(64), "r": real, "p": ir.IntType(64)}
    signature = ir.FunctionType(ir.VoidType(), [types_of[kind] for kind in kinds])
    function = cgutils.get_or_insert_function(
        builder.module, signature, name.format("s" if element == types.float32 else "d")
    )
    given = []
    for kind, value in zip(kinds, values, strict=True):
        if isinstance(value, int | float):
            given.append(ir.Constant(types_of[kind], value))
        else:
            given.append(builder.trunc(value, types_of[kind]) if kind == "e" else value)
    builder.call(function, given)


@intrinsic
def _product(typing_context: Any, command: Any, like: Any) -> Any:
    """C = op(A) op(B), row by row: (a, b, c, rows, columns, inner, how a lies, how b lies, steps of a, of b, of c)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        a, b, c, m, n, k, a_lies, b_lies, lda, ldb, ldc = cgutils.unpack_tuple(builder, arguments[0], 11)
        values = (ROW_MAJOR, a_lies, b_lies, m, n, k, 1.0, a, lda, b, ldb, 0.0, c, ldc)
        _call(builder, PRODUCT_NAME, signature.args[1].dtype, "eeeiiirpipirpi", values)
        return context.get_dummy_value()

    return types.void(command, like), generate


@intrinsic
def _vector(typing_context: Any, command: Any, like: Any) -> Any:
    """y = A^T x: (how A lies, rows, columns, A, its step, x, y)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        order, rows, columns, a, lda, x, y = cgutils.unpack_tuple(builder, arguments[0], 7)
        values = (order, TRANSPOSED, rows, columns, 1.0, a, lda, x, 1, 0.0, y, 1)
        _call(builder, VECTOR_NAME, signature.args[1].dtype, "eeiirpipirpi", values)
        return context.get_dummy_value()

    return types.void(command, like), generate


@njit(cache=True, nogil=True)
def _meet(mail: Array, lane: int) -> None:
    """Return when both threads are here; each counts in a line of its own."""
    own, other = LINE * (1 + lane), LINE * (2 - lane)
    wanted = mail[own] + 1
    _publish(mail, own, wanted)
    while True:
        for _ in range(LOOKS):
            if _published(mail, other) >= wanted:
                return
        give_way()


@njit(cache=True, nogil=True)
def _array(address: int, like: Array, shape: Any) -> Array:
    """Return the array of this shape at an address, of numbers like those of ``like``."""
    return numba.carray(_numbers(address, like), shape)


@njit(cache=True, nogil=True, error_model="numpy")
def _run(
    role: int,
    commands: Array,
    scalars: Array,
    q: Rounding,
    mail: Array,
    asked_1: Array,
    wanted: int,
    done: int,
) -> int:
    """Do what :func:`alone`, :func:`both` and :func:`serve` say; one function, which is compiled once a format."""
    lane = 1 if role == OTHER else 0
    idle = 0
    if role == FIRST:
        mail[1], mail[2] = commands.ctypes.data, commands.shape[0]
        mail[3], mail[4] = scalars.ctypes.data, scalars.shape[0]
        _publish(mail, 0, mail[0] + 1)
    while True:
        if role == OTHER:
            if _published(mail, 0) == done:
                if _published(asked_1, 0) >= wanted:
                    return done
                idle += 1
                if idle < AWAKE:
                    give_way()
                else:
                    _rest(REST_US if idle < AWAKE + RESTS else LONG_REST_US)
                continue
            done += 1
            idle = 0
            commands = _array(mail[1], mail, (mail[2], WIDTH))
            scalars = _array(mail[3], scalars, (mail[4],))
        for i in range(commands.shape[0]):
            c = commands[i]
            if c[0] == WAIT:
                if role != ALONE:
                    _meet(mail, lane)
                continue
            if role != ALONE and c[1] != lane:
                continue
            if c[0] == PRODUCT:
                _product((c[2], c[3], c[4], c[5], c[6], c[7], c[8], c[9], c[10], c[11], c[12]), scalars)
            elif c[0] == VECTOR:
                _vector((c[3], c[4], c[5], c[2], c[6], c[7], c[8]), scalars)
            elif c[0] == OUTER:
                w, out = _array(c[3], scalars, (c[6],)), _array(c[4], scalars, (c[5], c[6]))
                kernels.outer(_array(c[2], scalars, (c[5],)), w, out)
            elif c[0] == BIAS:
                bias = _array(c[3], scalars, (c[5],))
                kernels.add_bias(_array(c[2], scalars, (c[4], c[5])), bias, c[6] != 0, q)
            elif c[0] == MASK:
                active = _array(c[3], scalars, (c[4], c[5]))
                kernels.mask(_array(c[2], scalars, (c[4], c[5])), active, q)
            elif c[0] == COLUMNS:
                out = _array(c[3], scalars, (c[5],))
                kernels.column_sums(_array(c[2], scalars, (c[4], c[5])), out)
            elif c[0] == TANH:
                kernels.tanh(_array(c[2], scalars, (c[3],)), q)
            elif c[0] == TANH_BACKWARD:
                a = _array(c[3], scalars, (c[4],))
                kernels.tanh_backward(_array(c[2], scalars, (c[4],)), a, q)
            elif c[0] == JOIN:
                x, y = (
                    _array(c[2], scalars, (c[5], c[6])),
                    _array(c[3], scalars, (c[5], c[7])),
                )
                kernels.join(x, y, _array(c[4], scalars, (c[5], c[6] + c[7])))
            elif c[0] == ROWS:
                whole = _array(c[2], scalars, ((c[4] - 1) * c[6] + c[5],))
                kernels.copy_rows(whole, c[6], _array(c[3], scalars, (c[4], c[5])))
            elif c[0] == BELLMAN:
                size = (c[8],)
                kernels.bellman(
                    _array(c[2], scalars, size), _array(c[3], scalars, size),
                    _array(c[4], scalars, size), _array(c[5], scalars, size),
                    _array(c[6], scalars, size), scalars[c[9]], scalars[c[10]], q,
                    _array(c[7], scalars, size),
                )  # fmt: skip
            elif c[0] == DIFFERENCE:
                size = (c[5],)
                kernels.temporal_difference(
                    _array(c[2], scalars, size), _array(c[3], scalars, size), scalars[c[6]], q,
                    _array(c[4], scalars, size),
                )  # fmt: skip
            elif c[0] == ADAM:
                size, at, root_form, kahan = (c[7],), c[8], c[9] != 0, c[10] != 0
                if not _array(c[11], commands, (c[12],)).all():
                    continue
                kernels.adam(
                    _array(c[2], scalars, size), _array(c[3], scalars, size),
                    _array(c[4], scalars, size),
                    _array(c[5], scalars, (c[7] if kahan else 0,)),
                    _array(c[6], scalars, size),
                    scalars[at], scalars[at + 1], scalars[at + 2], scalars[at + 3], scalars[at + 4], scalars[at + 5],
                    scalars[at + 6], root_form, kahan, q,
                )  # fmt: skip
            elif c[0] == SAMPLE:
                rows, actions, at = c[9], c[10], c[11]
                wide = (rows, actions)
                kernels.squash(
                    _array(c[2], scalars, (rows, 2 * actions)), _array(c[3], scalars, wide),
                    scalars[at], scalars[at + 1], scalars[at + 2], scalars[at + 3], c[12] != 0, c[13] != 0, q,
                    _array(c[4], scalars, wide), _array(c[5], scalars, wide),
                    _array(c[6], scalars, wide), _array(c[7], scalars, wide),
                    _array(c[8], scalars, (rows,)),
                )  # fmt: skip
            elif c[0] == SAMPLE_BACKWARD:
                rows, actions, at = c[10], c[11], c[12]
                wide, heads = (rows, actions), (rows, 2 * actions)
                kernels.squash_backward(
                    _array(c[2], scalars, wide), scalars[at], _array(c[3], scalars, heads),
                    _array(c[4], scalars, wide), _array(c[5], scalars, wide),
                    _array(c[6], scalars, wide), scalars[at + 1],
                    _array(c[7], scalars, wide), _array(c[8], scalars, wide),
                    scalars[at + 2], scalars[at + 3], c[13] != 0, c[14] != 0, q,
                    _array(c[9], scalars, heads),
                )  # fmt: skip
            elif c[0] == SMALLER:
                size = (c[6],)
                kernels.of_smaller(
                    _array(c[2], scalars, size), _array(c[3], scalars, size), scalars[c[7]],
                    _array(c[4], scalars, size), _array(c[5], scalars, size),
                )  # fmt: skip
            elif c[0] == ADD:
                kernels.add(_array(c[2], scalars, (c[4],)), _array(c[3], scalars, (c[4],)), q)
            elif c[0] == FILL:
                _array(c[2], scalars, (c[3],))[:] = scalars[c[4]]
            elif c[0] == ROUND:
                round_all(_array(c[2], scalars, (c[3],)), q)
            elif c[0] == FINISH:
                finite = round_all(_array(c[2], scalars, (c[3],)), q)
                _array(c[4], commands, (1,))[0] = 1 if finite else 0
            elif c[0] == AVERAGE_KAHAN:
                size = (c[6],)
                kernels.average_kahan(
                    _array(c[2], scalars, size), _array(c[3], scalars, size),
                    _array(c[4], scalars, size), _array(c[5], scalars, size),
                    scalars[c[7]], scalars[c[8]], q,
                )  # fmt: skip
            elif c[0] == AVERAGE:
                p = _array(c[3], scalars, (c[4],))
                kernels.average(_array(c[2], scalars, (c[4],)), p, scalars[c[5]], scalars[c[6]], q)
        if role != OTHER:
            return done


def alone(commands: Array, scalars: Array, q: Rounding) -> None:
    """Do the commands in their order.

    Args:
        commands: int64 (commands, WIDTH); the last one is to wait.
        scalars: numbers of the storage's type, by their places.
        q: the format, as the kernels take it.
    """
    _run(ALONE, commands, scalars, q, NO_MAIL, NO_MAIL, 0, 0)


def both(mail: Array, commands: Array, scalars: Array, q: Rounding) -> None:
    """Do the commands with the thread that is in :func:`serve`: the same results. Both are done when this one is.

    Args:
        mail: int64 (3 LINE,): the program's number, where its arrays are and how many rows they have; then how often
            each thread has met the other.
        commands, scalars, q: see :func:`alone`.
    """
    _run(FIRST, commands, scalars, q, mail, NO_MAIL, 0, 0)


def serve(mail: Array, asked_1: Array, wanted: int, done: int, like: Array, q: Rounding) -> int:
    """Do the other thread's part of the programs that come by ``mail``, until so much other work is asked for.

    Args:
        mail: see :func:`both`.
        asked_1: int64 (1,), how much other work was asked for.
        wanted: return when it is as much.
        done: number of the last program that is done.
        like: numbers of the storage's type.
        q: the format.

    Returns:
        The number of the last program that is done now.
    """
    return int(_run(OTHER, NO_COMMANDS, like, q, mail, asked_1, wanted, done))
