"""Layer norm over the features of each place, and the ReLU behind it, in one pass on a CPU (Ba 2016).

    z = (s - mean) / sqrt(var + epsilon)        mean and var over the C features of a place
    y = max(0, gain z + shift)

    dz = gain dy where y > 0, else 0
    ds = (dz - mean(dz) - z mean(dz z)) / sqrt(var + epsilon)
    dgain = sum of dy z, dshift = sum of dy, over the places where y > 0

PyTorch's layer norm takes a quarter of the time of a gradient of the Nature network: rows of 32 and 64 numbers are
short for it. Here a row is two or four vectors, which stay in the first cache between its loops. Arithmetic is
fp32, sums and results bf16 or fp32. Elsewhere (on a GPU, in fp16) PyTorch's operations do the same.

Arrays are flat; a row has C numbers, C a multiple of a vector's lanes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from spikestill.common.compiling import njit
from spikestill.common.kernel_arrays import kernel_array
from spikestill.common.vectors import (
    minus,
    plus,
    product_sum,
    read,
    spread,
    step,
    times,
    total,
    vector_lanes,
    write,
)


@njit(nogil=True, cache=True)
def normalise_rows(s, affine, y, moments, features, epsilon, lanes):  # type: ignore[no-untyped-def]
    """Write y of every row and its moments.

    Args:
        s: (R C,) sums.
        affine: (2 C,) fp32: gain, shift.
        y: (R C,), in the format of ``s``.
        moments: (2 R,) fp32: of each row the mean and 1 / sqrt(var + epsilon).
        features: C.
        epsilon: fp32.
        lanes: a tuple, as long as a vector.
    """
    wide, zero, share = len(lanes), spread(np.float32(0.0), lanes), np.float32(1.0 / features)
    for row in range(len(s) // features):
        begin = row * features
        added, squares = zero, zero
        for i in range(begin, begin + features, wide):
            added = plus(added, read(s, i, lanes))
        mean = total(added) * share
        centre = spread(mean, lanes)
        for i in range(begin, begin + features, wide):
            found = minus(read(s, i, lanes), centre)
            squares = product_sum(found, found, squares)
        inverse = np.float32(1.0) / np.sqrt(total(squares) * share + epsilon)
        moments[2 * row], moments[2 * row + 1] = mean, inverse
        slope = spread(inverse, lanes)
        for i in range(0, features, wide):
            z = times(minus(read(s, begin + i, lanes), centre), slope)
            found = product_sum(z, read(affine, i, lanes), read(affine, features + i, lanes))
            write(y, begin + i, times(found, step(found)))


@njit(nogil=True, cache=True)
def row_gradients(dy, y, s, affine, moments, ds, d_affine, features, lanes):  # type: ignore[no-untyped-def]
    """Write the gradient ``ds`` of the sums, and add that of gain and shift to ``d_affine``.

    Args:
        dy, y, s, ds: (R C,), all in one format.
        affine: (2 C,) fp32: gain, shift.
        moments: what :func:`normalise_rows` wrote.
        d_affine: (2 C,) fp32.
        features: C.
        lanes: a tuple, as long as a vector.
    """
    wide, zero, share = len(lanes), spread(np.float32(0.0), lanes), np.float32(1.0 / features)
    one, minus_one = spread(np.float32(1.0), lanes), spread(np.float32(-1.0), lanes)
    kept, normal = np.empty(features, np.float32), np.empty(features, np.float32)
    for row in range(len(s) // features):
        begin = row * features
        mean, inverse = moments[2 * row], moments[2 * row + 1]
        slope, centre = spread(inverse, lanes), spread(mean, lanes)
        added, products = zero, zero
        for i in range(0, features, wide):
            # 1 where y > 0.
            active = minus(one, step(times(read(y, begin + i, lanes), minus_one)))
            d = times(read(dy, begin + i, lanes), active)
            z = times(minus(read(s, begin + i, lanes), centre), slope)
            write(d_affine, i, product_sum(d, z, read(d_affine, i, lanes)))
            write(d_affine, features + i, plus(d, read(d_affine, features + i, lanes)))
            d = times(d, read(affine, i, lanes))
            write(kept, i, d)
            write(normal, i, z)
            added = plus(added, d)
            products = product_sum(d, z, products)
        lower = spread(-total(added) * share, lanes)
        tilt = spread(-total(products) * share, lanes)
        for i in range(0, features, wide):
            found = product_sum(read(normal, i, lanes), tilt, plus(read(kept, i, lanes), lower))
            write(ds, begin + i, times(found, slope))


def _lanes() -> tuple[int, ...]:
    return (0,) * vector_lanes()


class _FeatureNorm(torch.autograd.Function):
    """The kernels on (..., C) that lies in order."""

    @staticmethod
    def forward(ctx: Any, s: Tensor, gain: Tensor, shift: Tensor, epsilon: float) -> Tensor:
        features = s.shape[-1]
        affine = torch.cat([gain, shift]).float()
        y, moments = torch.empty_like(s), torch.empty(2 * (s.numel() // features))
        normalise_rows(
            kernel_array(s), kernel_array(affine), kernel_array(y), kernel_array(moments), features,
            np.float32(epsilon), _lanes(),
        )  # fmt: skip
        ctx.save_for_backward(s, affine, y, moments)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        s, affine, y, moments = ctx.saved_tensors
        features = s.shape[-1]
        ds, d_affine = torch.empty_like(s), torch.zeros_like(affine)
        row_gradients(
            *(kernel_array(each) for each in (dy.contiguous(), y, s, affine, moments, ds, d_affine)),
            features, _lanes(),
        )  # fmt: skip
        d_gain, d_shift = d_affine.to(s.dtype).chunk(2)
        return ds, d_gain, d_shift, None


def feature_norm(sums: Tensor, gain: Tensor, shift: Tensor, epsilon: float) -> Tensor:
    """Return relu(layer norm) of a layer's sums (B, C) or (B, C, H, W) over their features, differentiable.

    Args:
        sums: of a layer; with places, best channels-last.
        gain: (C,), in their format.
        shift: (C,), in their format.
        epsilon: beside the variance.
    """
    last = sums.movedim(1, -1)
    fits = sums.shape[1] % len(_lanes()) == 0 and sums.dtype in (torch.float32, torch.bfloat16)
    if sums.device.type == "cpu" and fits:
        y = _FeatureNorm.apply(last.contiguous(), gain, shift, epsilon)
    else:
        y = F.relu(F.layer_norm(last, gain.shape, gain, shift, epsilon))
    return y.movedim(-1, 1)
