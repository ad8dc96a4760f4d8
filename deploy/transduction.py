"""The transduction layer: 8-bit pixels to spikes, on the host, exact and on one thread.

y[o, r, c] = 1 iff sum_i,u,v w[o, i, u, v] x[i, r S + u - P, c S + v - P] >= theta[o], with x in 0..255,
w in {-1, 0, +1}, stride S and P zeros around the input; a P below zero leaves pixels out
(docs/architecture.md, the exactness contract).

Way: the padded input is split into S x S phase planes per channel. In the plane of phase (u mod S, v mod S)
the pixels that tap (u, v) brings to all output positions lie one after another, so a tap of a feature is one
vector addition or subtraction, and a weight of 0 costs nothing. Sums of 64 positions at a time stay in registers, in
int16 for up to 128 taps (128 * 255 < 2**15); they are added into int32.

Axis suffixes: O output features, I input features of a group, C channels, H height, W width.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from spikestill.common.compiling import njit
from spikestill.student.integer_net import MAX_PIXEL, IntegerLayer

TAPS_PER_CHUNK = (2**15 - 1) // MAX_PIXEL
POSITIONS = 64
"""That are summed together."""


@intrinsic
def _sum_taps(
    typing_context: Any, part: Any, at: Any, planes: Any, offsets: Any, begin: Any, end: Any
) -> Any:
    """Write part[at + i] = sum of planes[offsets[t] + at + i] over begin <= t < end, for 0 <= i < ``POSITIONS``.

    Callable from ``njit`` code only.

    Args:
        typing_context: numba's, not given by the caller.
        part: int16.
        at: first position.
        planes: int16.
        offsets: int64.
        begin: first tap.
        end: after the last tap.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(ir.IntType(16), POSITIONS)
        target, source, taps = (
            context.make_array(signature.args[place])(context, builder, arguments[place]).data
            for place in (0, 2, 3)
        )
        _, first, _, _, start, stop = arguments
        total = cgutils.alloca_once_value(builder, ir.Constant(vector, [0] * POSITIONS))
        source = builder.gep(source, [first])
        with cgutils.for_range(builder, builder.sub(stop, start)) as loop:
            offset = builder.load(builder.gep(taps, [builder.add(start, loop.index)]))
            here = builder.bitcast(builder.gep(source, [offset]), vector.as_pointer())
            builder.store(builder.add(builder.load(total), builder.load(here, align=2)), total)
        place = builder.bitcast(builder.gep(target, [first]), vector.as_pointer())
        builder.store(builder.load(total), place, align=2)
        return context.get_dummy_value()

    places = (types.intp,) * 2
    return types.void(part, types.intp, planes, offsets, *places), generate


@dataclasses.dataclass(frozen=True, eq=False)
class TransductionPlan:
    """A transduction layer made ready for :func:`transduce_planned` and for kernels that call it.

    Attributes:
        input_shape: (C, H, W) of the uint8 input.
        output_shape: (O, H, W) of the spikes.
        geometry: int64, (stride, pad, plane height, plane width, output height, output width).
        offsets: int64 positions in the flat phase planes, one per non-zero weight, feature by feature,
            a feature's +1 taps before its -1 taps.
        bounds: int64 (O, 3): begin of the feature's +1 taps, begin of its -1 taps, end.
        theta_O: int32 thresholds.
    """

    input_shape: tuple[int, int, int]
    output_shape: tuple[int, int, int]
    geometry: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    bounds: npt.NDArray[np.int64]
    theta_O: npt.NDArray[np.int32]


def plan_transduction(layer: IntegerLayer, input_shape: tuple[int, int, int]) -> TransductionPlan:
    """Return the plan of ``layer`` for inputs of ``input_shape`` (C, H, W).

    Raises:
        ValueError: the layer does not fit the input.
    """
    features, out_height, out_width = layer.output_shape(input_shape)
    stride, kernel = layer.stride, layer.kernel
    plane_height = -(-(input_shape[1] + 2 * layer.pad) // stride)
    plane_width = -(-(input_shape[2] + 2 * layer.pad) // stride)
    per_in, per_out = layer.in_channels // layer.groups, features // layer.groups
    channel, u, v = np.meshgrid(np.arange(per_in), np.arange(kernel), np.arange(kernel), indexing="ij")
    plane = (channel * stride + u % stride) * stride + v % stride
    tap = (plane * plane_height + u // stride) * plane_width + v // stride
    group_step = per_in * stride * stride * plane_height * plane_width
    offsets, bounds = [], np.zeros((features, 3), np.int64)
    end = 0
    for feature in range(features):
        weight = layer.weight_OIHW[feature]
        base = feature // per_out * group_step
        plus, minus = tap[weight > 0] + base, tap[weight < 0] + base
        bounds[feature] = end, end + len(plus), end + len(plus) + len(minus)
        end += len(plus) + len(minus)
        offsets += [plus, minus]
    return TransductionPlan(
        input_shape=input_shape,
        output_shape=(features, out_height, out_width),
        geometry=np.array([stride, layer.pad, plane_height, plane_width, out_height, out_width], np.int64),
        offsets=np.concatenate(offsets).astype(np.int64),
        bounds=bounds,
        theta_O=np.ascontiguousarray(layer.theta_O),
    )


@njit(inline="always")
def split_phases(stack_CHW, geometry, planes):  # type: ignore[no-untyped-def]
    """Write the padded uint8 stack into flat int16 phase planes; ``planes`` must be zero."""
    stride, pad, plane_height, plane_width = geometry[0], geometry[1], geometry[2], geometry[3]
    channels, height, width = stack_CHW.shape
    left_out = max(-pad, 0)
    for channel in range(channels):
        for row in range(left_out, height - left_out):
            phase_row, plane_row = (row + pad) % stride, (row + pad) // stride
            plane = (channel * stride + phase_row) * stride
            at, apart = (plane * plane_height + plane_row) * plane_width, plane_height * plane_width
            # Pixel by pixel as they lie: phase by phase the short, strided loops take four times as long.
            phase, place = (left_out + pad) % stride, at + (left_out + pad) // stride
            place += phase * apart
            for column in range(left_out, width - left_out):
                planes[place] = stack_CHW[channel, row, column]
                phase += 1
                place += apart
                if phase == stride:
                    phase = 0
                    place += 1 - stride * apart


@njit(cache=True, nogil=True)
def transduce_kernel(stack_CHW, geometry, offsets, bounds, theta_O, spikes_OHW):  # type: ignore[no-untyped-def]
    """Write y = 1 iff s >= theta to ``spikes_OHW`` (uint8); the arguments are a plan's arrays."""
    stride, plane_height, plane_width = geometry[0], geometry[2], geometry[3]
    out_height, out_width = geometry[4], geometry[5]
    length = (out_height - 1) * plane_width + out_width
    whole = (length + POSITIONS - 1) // POSITIONS * POSITIONS
    planes = np.zeros(stack_CHW.shape[0] * stride * stride * plane_height * plane_width + POSITIONS, np.int16)
    split_phases(stack_CHW, geometry, planes)
    part = np.empty(whole, np.int16)
    total = np.empty(whole, np.int32)
    for feature in range(theta_O.shape[0]):
        total[:] = 0
        for sign in range(2):
            begin, end = bounds[feature, sign], bounds[feature, sign + 1]
            while begin < end:
                stop = min(begin + TAPS_PER_CHUNK, end)
                for at in range(0, whole, POSITIONS):
                    _sum_taps(part, at, planes, offsets, begin, stop)
                begin = stop
                if sign == 0:
                    for index in range(whole):
                        total[index] += part[index]
                else:
                    for index in range(whole):
                        total[index] -= part[index]
        theta = theta_O[feature]
        for row in range(out_height):
            for column in range(out_width):
                spikes_OHW[feature, row, column] = total[row * plane_width + column] >= theta


def transduce_planned(plan: TransductionPlan, stack_CHW: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return the spikes of the planned layer, uint8 0/1 (O, H, W).

    Raises:
        ValueError: the stack is not uint8 of the plan's input shape.
    """
    if stack_CHW.dtype != np.uint8 or stack_CHW.shape != plan.input_shape:
        raise ValueError(
            f"input must be uint8 of shape {plan.input_shape}, got {stack_CHW.dtype} {stack_CHW.shape}"
        )
    spikes_OHW = np.empty(plan.output_shape, np.uint8)
    transduce_kernel(
        np.ascontiguousarray(stack_CHW), plan.geometry, plan.offsets, plan.bounds, plan.theta_O, spikes_OHW
    )
    return spikes_OHW
