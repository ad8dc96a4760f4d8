"""The transduction layer: 8-bit pixels to spikes, on the host, exact and on one thread.

y[o, r, c] = 1 iff sum_i,u,v w[o, i, u, v] x[i, r S + u - P, c S + v - P] >= theta[o], with x in 0..255,
w in {-1, 0, +1}, stride S and P zeros around the input; a P below zero leaves pixels out
(docs/architecture.md, the exactness contract).

Way: the padded input is split into S x S phase planes per channel. In the plane of phase (u mod S, v mod S)
the pixels that tap (u, v) brings to all output positions lie one after another, so a tap of a feature is one
vector addition or subtraction, and a weight of 0 costs nothing. Sums are taken in int16 for up to 128 taps
(128 * 255 < 2**15), then added into int32.

Axis suffixes: O output features, I input features of a group, C channels, H height, W width.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from spikestill.common.compiling import njit
from spikestill.student.integer_net import MAX_PIXEL, IntegerLayer

TAPS_PER_CHUNK = (2**15 - 1) // MAX_PIXEL


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
            for phase in range(stride):
                first = left_out + (phase - pad - left_out) % stride
                count = (width - left_out - first + stride - 1) // stride
                plane = (channel * stride + phase_row) * stride + phase
                start = (plane * plane_height + plane_row) * plane_width + (first + pad) // stride
                for index in range(count):
                    planes[start + index] = stack_CHW[channel, row, first + index * stride]


@njit(cache=True, nogil=True)
def transduce_kernel(stack_CHW, geometry, offsets, bounds, theta_O, spikes_OHW):  # type: ignore[no-untyped-def]
    """Write y = 1 iff s >= theta to ``spikes_OHW`` (uint8); the arguments are a plan's arrays."""
    stride, plane_height, plane_width = geometry[0], geometry[2], geometry[3]
    out_height, out_width = geometry[4], geometry[5]
    planes = np.zeros(stack_CHW.shape[0] * stride * stride * plane_height * plane_width, np.int16)
    split_phases(stack_CHW, geometry, planes)
    length = (out_height - 1) * plane_width + out_width
    part = np.empty(length, np.int16)
    total = np.empty(length, np.int32)
    for feature in range(theta_O.shape[0]):
        total[:] = 0
        for sign in range(2):
            begin, end = bounds[feature, sign], bounds[feature, sign + 1]
            while begin < end:
                stop = min(begin + TAPS_PER_CHUNK, end)
                part[:] = 0
                while begin + 4 <= stop:
                    first = planes[offsets[begin] : offsets[begin] + length]
                    second = planes[offsets[begin + 1] : offsets[begin + 1] + length]
                    third = planes[offsets[begin + 2] : offsets[begin + 2] + length]
                    fourth = planes[offsets[begin + 3] : offsets[begin + 3] + length]
                    for index in range(length):
                        part[index] += first[index] + second[index] + third[index] + fourth[index]
                    begin += 4
                while begin < stop:
                    first = planes[offsets[begin] : offsets[begin] + length]
                    for index in range(length):
                        part[index] += first[index]
                    begin += 1
                if sign == 0:
                    for index in range(length):
                        total[index] += part[index]
                else:
                    for index in range(length):
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
