"""A student's layers on a CPU, group by group: one matrix product a group in place of a grouped convolution.

Grouped convolutions of few channels leave most of a processor idle. Here the activations lie group by group for the
layer that reads them, so that a layer is G products of (images * places, K) with (K, M), for K inputs and M features
of a group; where the kernel is larger than 1 the patches of a few images at a time are gathered, as many as the cache
holds, and their gradients scattered again. The step kernel writes the reading layer's layout.

    s = x W^T,    dW = ds^T x,    dx = ds W          weights (G, M, K), K = (u, v, c); (c, u, v) for pixels

Sums of spikes are whole numbers to 128, which bf16 has all of: they are kept so whatever the format of the products,
for the step kernels read them four times and wait for the memory. The first layer's, of pixels, are kept in fp32.

Layouts: spikes (Q, G, b, h, w, c), Q blocks of b images, c channels of each of the reading layer's G groups; sums
(Q, G, b, h, w, m), with the layer's own groups. All tensors of this module are flat, unless their name says more.

Axis suffixes: B images, O output features, C channels, H height, W width.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from spikestill.common.kernel_arrays import kernel_array
from spikestill.common.processor import fast_pairs
from spikestill.common.vectors import native_pairs, vector_lanes
from spikestill.student import narrow_kernel, pair_kernel, step_kernel
from spikestill.student.architectures import LayerSpec
from spikestill.student.quantise import Pressure

PATCH_BYTES = 1 << 21
"""Patches of one block of images, at most: they stay in the cache between gathering and product."""
LANES = (16, 8)
"""How many values the kernels handle together, where the groups allow it."""

LINE_BYTES = 64
"""Of a processor's cache, which it fetches in pairs of lines."""

NARROW = 32
"""Features of a group up to which a library's products, forward and backward, are slower than :mod:`narrow_kernel`.

Measured in fp32 on AVX2 and AVX-512, in bf16 with AMX alone: there 16 features a group took 8.5 ms in place of 13.
"""

Ints = tuple[int, ...]


class Layout(NamedTuple):
    """How activations lie: images of a block, groups, channels or features of a group."""

    block: int
    groups: int
    width: int


class LayerGeometry(NamedTuple):
    """One layer for a number of images.

    Attributes:
        spec: kernel, stride, padding, groups.
        images: B.
        side: rows and columns of the input that lie there.
        out: rows and columns of the output that are computed.
        reads: layout of the input.
        sums: layout of the sums.
        writes: layout of the spikes, which is what the next layer reads.
    """

    spec: LayerSpec
    images: int
    side: int
    out: int
    reads: Layout
    sums: Layout
    writes: Layout

    @property
    def fan_in(self) -> int:
        """Return K."""
        return self.reads.width * self.spec.kernel**2

    @property
    def shape(self) -> Ints:
        """Return (images, places of an image, features) for the step kernels."""
        return self.images, self.out**2, self.spec.features

    def line(self, item_bytes: int) -> tuple[Ints, Ints, Ints]:
        """Return (lanes, pieces of the sums, pieces of the spikes) of the step kernels.

        The lanes are two cache lines of values, or one, where the groups allow it: with fewer every line is read
        several times. They lie in one group, or they fill several whole groups, a piece each.
        """
        line, widths = LINE_BYTES // item_bytes, (self.sums.width, self.writes.width)
        for count in (2 * line, line, *LANES):
            if self.spec.features % count == 0 and all(w % count == 0 or count % w == 0 for w in widths):
                pieces, pieces_to = ((0,) * max(1, count // width) for width in widths)
                return (0,) * count, pieces, pieces_to
        return (0,), (0,), (0,)


def plan(
    layers: Sequence[LayerSpec], channels: int, sides: Sequence[int], images: int, item_bytes: int
) -> list[LayerGeometry]:
    """Return the geometry of every layer.

    Args:
        layers: geometry, first to last.
        channels: of the input.
        sides: of the input, and of what is computed of each layer's output.
        images: B.
        item_bytes: of an activation.
    """
    blocks = []
    for index, spec in enumerate(layers):
        width = (layers[index - 1].features if index else channels) // spec.groups
        patch = spec.groups * width * spec.kernel**2 * sides[index + 1] ** 2 * (item_bytes if index else 4)
        # What has no patches wants no blocks.
        most = images if spec.kernel == 1 and index else max(1, PATCH_BYTES // patch)
        block = next(count for count in range(min(most, images), 0, -1) if images % count == 0)
        blocks.append(Layout(block, spec.groups, width))
    found = []
    for index, spec in enumerate(layers):
        sums = Layout(blocks[index].block, spec.groups, spec.features // spec.groups)
        writes = blocks[index + 1] if index + 1 < len(layers) else Layout(images, 1, spec.features)
        found.append(LayerGeometry(spec, images, sides[index], sides[index + 1], blocks[index], sums, writes))
    return found


def _lanes(size: int) -> Ints:
    return (0,) * next((count for count in LANES if size % count == 0), 1)


def _pixel_geometry(layer: LayerGeometry) -> Ints:
    return (layer.reads.width, layer.side, layer.out, layer.spec.kernel, layer.spec.stride, layer.spec.pad)


def _geometry(layer: LayerGeometry) -> Ints:
    """Return what :func:`step_kernel.gather` takes: planes are the (group, image) pairs of one block."""
    return (layer.reads.groups * layer.reads.block, *_pixel_geometry(layer))


class _Inputs:
    """The input of a layer as factors of its products, block by block: (G, block * places, K)."""

    def __init__(self, x: Tensor, layer: LayerGeometry, dtype: torch.dtype) -> None:
        self.x, self.layer = x, layer
        self.rows = layer.reads.block * layer.out**2
        self.pixels = x.dtype == torch.uint8
        self.direct = (
            layer.spec.kernel == 1 and layer.spec.stride == 1 and layer.spec.pad == 0 and not self.pixels
        )
        self.direct = self.direct and layer.side == layer.out
        if not self.direct:
            self.patches = torch.empty(layer.reads.groups, self.rows, layer.fan_in, dtype=dtype)

    def block(self, index: int) -> Tensor:
        """Return the factors of block ``index``; the next call may write over them."""
        layer = self.layer
        if self.direct:
            return self.x.view(-1, layer.reads.groups, self.rows, layer.fan_in)[index]
        if self.pixels:
            step_kernel.gather_pixels(
                kernel_array(self.x), kernel_array(self.patches), index * layer.reads.block, layer.reads.block,
                _pixel_geometry(layer), _lanes(layer.spec.kernel),
            )  # fmt: skip
        else:
            size = layer.reads.groups * layer.reads.block * layer.side**2 * layer.reads.width
            step_kernel.gather(
                kernel_array(self.x),
                index * size,
                kernel_array(self.patches),
                _geometry(layer),
                _lanes(layer.reads.width),
            )
        return self.patches


def is_narrow(layer: LayerGeometry, x: Tensor) -> bool:
    """Return True where :mod:`narrow_kernel` computes the layer: few features a group, larger kernels than 1.

    It multiplies in fp32, spikes of bf16 too; fp16 never comes here, see :meth:`StudentNetwork.propagate`.
    """
    width, run = layer.sums.width, layer.reads.width * layer.spec.kernel
    narrow = width <= NARROW or x.dtype == torch.uint8
    return layer.spec.kernel > 1 and layer.out > 2 and narrow and width % 8 == 0 and run % 8 == 0


@functools.cache
def _pairs_are_faster() -> bool:
    return native_pairs() and fast_pairs()


def in_pairs(layer: LayerGeometry, pixels: bool) -> bool:
    """Return True where :mod:`pair_kernel` is the faster one, and can compute a narrow layer."""
    return _pairs_are_faster() and (layer.spec.kernel if pixels else layer.reads.width) % 2 == 0


def _narrow_layout(layer: LayerGeometry) -> Ints:
    return layer.images // layer.reads.block, layer.reads.groups, layer.reads.block


def _narrow_lanes(layer: LayerGeometry) -> Ints:
    """Return lanes that divide the features of a group and what is read of an image's row."""
    spec, width = layer.spec, layer.reads.width
    first, end = max(0, -spec.pad), min(layer.side, (layer.out - 1) * spec.stride + spec.kernel - spec.pad)
    return _lanes(math.gcd((end - first) * width, layer.side * width, layer.sums.width))


def _kept_in(pixels: bool) -> torch.dtype:
    """Return the format of a layer's sums: whole numbers to 128, which bf16 has all of, but the first layer's."""
    return torch.float32 if pixels else torch.bfloat16


def _narrow_sums(x: Tensor, weight_GMK: Tensor, layer: LayerGeometry) -> Tensor:
    out, width, pixels = layer.out, layer.sums.width, x.dtype == torch.uint8
    s = torch.empty(layer.images * out**2 * layer.spec.features, dtype=_kept_in(pixels))
    weight_GKM = weight_GMK.float().transpose(1, 2).contiguous()
    found, geometry = kernel_array(s), _pixel_geometry(layer)
    tile = narrow_kernel.tile(out, width, vector_lanes())
    pairs = in_pairs(layer, pixels)
    kernel: Any = pair_kernel if pairs else narrow_kernel
    factors = pair_kernel.paired(weight_GKM) if pairs else kernel_array(weight_GKM)
    if pixels:
        kernel.pixel_sums(kernel_array(x), factors, found, layer.images, geometry, width, tile)
        return s
    layout, lanes = _narrow_layout(layer), _narrow_lanes(layer)
    kernel.sums(kernel_array(x), factors, found, layout, geometry, width, tile, lanes)
    return s


def _narrow_gradient(
    x: Tensor, ds: Tensor, weight_GMK: Tensor, layer: LayerGeometry
) -> tuple[Tensor | None, Tensor]:
    out, width, run = layer.out, layer.sums.width, layer.reads.width * layer.spec.kernel
    groups, geometry = layer.reads.groups, _pixel_geometry(layer)
    dw_GKM, pixels = torch.zeros(groups, layer.fan_in, width), x.dtype == torch.uint8
    pairs = ds.dtype == torch.bfloat16 and in_pairs(layer, pixels)
    kernel: Any = pair_kernel if pairs else narrow_kernel
    if pixels:
        tile = narrow_kernel.tile(layer.spec.kernel, width, vector_lanes())
        arrays = (kernel_array(x), kernel_array(ds), kernel_array(dw_GKM))
        kernel.pixel_gradients(*arrays, layer.images, geometry, width, tile, _lanes(width))
        return None, dw_GKM.transpose(1, 2)
    tiles = (narrow_kernel.tile(run, width, vector_lanes()), narrow_kernel.tile(out, run, vector_lanes()))
    dx = torch.empty(x.shape, dtype=ds.dtype)
    factors = pair_kernel.paired(weight_GMK) if pairs else kernel_array(weight_GMK.float().contiguous())
    kernel.gradients(
        kernel_array(x), kernel_array(ds), factors, kernel_array(dx), kernel_array(dw_GKM),
        _narrow_layout(layer), geometry, width, *tiles, _narrow_lanes(layer),
    )  # fmt: skip
    return dx, dw_GKM.transpose(1, 2)


def sums(x: Tensor, weight_GMK: Tensor, layer: LayerGeometry) -> Tensor:
    """Return the sums s of a layer, in its layout and in the format that :func:`_kept_in` gives.

    Args:
        x: spikes in the layout that the layer reads, or uint8 pixels (B, C, H, W).
        weight_GMK: in the format of the products.
        layer: the geometry.
    """
    if is_narrow(layer, x):
        return _narrow_sums(x, weight_GMK, layer)
    inputs = _Inputs(x, layer, weight_GMK.dtype)
    blocks = layer.images // layer.reads.block
    kept, weight_GKM = _kept_in(inputs.pixels), weight_GMK.transpose(1, 2)
    s = torch.empty(blocks, layer.sums.groups, inputs.rows, layer.sums.width, dtype=kept)
    found = None if kept == weight_GMK.dtype else torch.empty(s.shape[1:])
    for index in range(blocks):
        torch.bmm(inputs.block(index), weight_GKM, out=s[index] if found is None else found)
        if found is not None:
            s[index] = found
    return s.view(-1)


def sums_gradient(
    x: Tensor, ds: Tensor, weight_GMK: Tensor, layer: LayerGeometry, wants_dx: bool
) -> tuple[Tensor | None, Tensor]:
    """Return (dx in the layout of x, where wanted; dW (G, M, K) in fp32) of :func:`sums`."""
    if is_narrow(layer, x):
        return _narrow_gradient(x, ds, weight_GMK, layer)
    inputs = _Inputs(x, layer, ds.dtype)
    blocks = layer.images // layer.reads.block
    ds_QGNM = ds.view(blocks, layer.sums.groups, inputs.rows, layer.sums.width)
    dw = torch.zeros(weight_GMK.shape)
    dx = torch.empty(x.shape, dtype=ds.dtype) if wants_dx else None
    for index in range(blocks):
        factor, ds_GNM = inputs.block(index), ds_QGNM[index]
        if ds.dtype == torch.float32:
            dw.baddbmm_(ds_GNM.transpose(1, 2), factor)
        else:
            dw += torch.bmm(ds_GNM.transpose(1, 2), factor)
        if dx is None:
            continue
        if inputs.direct:
            torch.bmm(ds_GNM, weight_GMK, out=dx.view(blocks, layer.reads.groups, inputs.rows, -1)[index])
            continue
        patches = torch.bmm(ds_GNM, weight_GMK)
        size = layer.reads.groups * layer.reads.block * layer.side**2 * layer.reads.width
        step_kernel.scatter(
            kernel_array(patches), kernel_array(dx), index * size, _geometry(layer), _lanes(layer.reads.width)
        )
    return dx, dw


def normalised_step(
    s: Tensor,
    affine_2O: Tensor,
    running_2O: Tensor | None,
    pressure: Pressure,
    layer: LayerGeometry,
    keep: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return (spikes in the layout that the layer writes, spikes (B, H, W, O) where ``keep``, the normalisation).

    Args:
        s: sums.
        affine_2O: gamma and beta.
        running_2O: mean and variance to normalise with; None: the batch's.
        pressure: of the sparsity term.
        layer: the geometry.
        keep: see above.
        dtype: of the spikes.
    """
    y, normal_8O = torch.empty(s.shape, dtype=dtype), torch.empty(8, layer.spec.features)
    plain = torch.empty(s.shape, dtype=dtype) if keep else None
    step_kernel.normalised_step(
        kernel_array(s), affine_2O.numpy(), (affine_2O if running_2O is None else running_2O).numpy(),
        running_2O is not None, np.array(pressure, np.float32), kernel_array(y),
        kernel_array(y if plain is None else plain), keep, normal_8O.numpy(), layer.shape, tuple(layer.sums),
        tuple(layer.writes), *layer.line(s.element_size()),
    )  # fmt: skip
    return y, plain, normal_8O


def step_gradient(
    s: Tensor, dy: Tensor, dy_plain: Tensor | None, normal_8O: Tensor, layer: LayerGeometry
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (ds in the layout of s and the format of dy, sum dx, sum dx n), see :func:`quantise.step_gradient`.

    Args:
        s: sums.
        dy: gradient of the spikes in the layout that the layer writes.
        dy_plain: another one, channels last.
        normal_8O: the normalisation.
        layer: the geometry.
    """
    ds, sums_2O = torch.empty(s.shape, dtype=dy.dtype), torch.empty(2, layer.spec.features)
    step_kernel.step_gradient(
        kernel_array(s), kernel_array(dy), kernel_array(dy if dy_plain is None else dy_plain), dy_plain is not None,
        normal_8O.numpy(), kernel_array(ds), sums_2O.numpy(), layer.shape, tuple(layer.sums),
        tuple(layer.writes), *layer.line(s.element_size()),
    )  # fmt: skip
    return ds, sums_2O[0], sums_2O[1]


class GroupedLayer(torch.autograd.Function):
    """One layer: products, normalisation and step; :class:`quantise.NormalisedStep` has the mathematics.

    forward(x, fp32 weight (O, C, k, k), gamma, beta, mean, variance, pressure, geometry, keep, dtype) -> (spikes in the
    layout that the next layer reads, spikes (B, H, W, O) where ``keep``, the batch's mean (O,) and variance (O,)).
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight_OCUV: Tensor,
        gamma_O: Tensor,
        beta_O: Tensor,
        mean_O: Tensor | None,
        variance_O: Tensor | None,
        pressure: Pressure,
        layer: LayerGeometry,
        keep: bool,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """Return spikes and the batch's statistics."""
        pixels = x.dtype == torch.uint8
        # The first layer's sums reach 65,280: bf16 could not hold them.
        weight_OCUV = weight_OCUV.to(torch.float32 if pixels else dtype, memory_format=torch.channels_last)
        weight_GMK = _by_group(weight_OCUV, layer, pixels)
        s = sums(x, weight_GMK, layer)
        running = None if mean_O is None or variance_O is None else torch.stack([mean_O, variance_O])
        y, plain, normal = normalised_step(
            s, torch.stack([gamma_O, beta_O]), running, pressure, layer, keep, dtype
        )
        if plain is not None:
            plain = plain.view(layer.images, layer.out, layer.out, layer.spec.features)
        batch_mean, batch_variance = normal[0].clone(), normal[2].clone()
        ctx.save_for_backward(x, s, weight_OCUV, normal)
        ctx.layer = layer
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(batch_mean, batch_variance)
        return y, plain, batch_mean, batch_variance

    @staticmethod
    def backward(
        ctx: Any, dy: Tensor | None, dy_plain: Tensor | None, _mean: Tensor, _variance: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, weight, gamma and beta."""
        x, s, weight_OCUV, normal = ctx.saved_tensors
        layer: LayerGeometry = ctx.layer
        if dy is None:
            dtype = s.dtype if dy_plain is None else dy_plain.dtype
            dy = torch.zeros(s.shape, dtype=dtype)
        if dy_plain is not None:
            dy_plain = dy_plain.contiguous()
        ds, dx, dx_normal = step_gradient(s, dy.contiguous(), dy_plain, normal, layer)
        batch_mean, scale, mean, deviation = normal[0], normal[1], normal[5], normal[6]
        # sum dx (s - m) / d, from the sums over the batch's own normalised values.
        dgamma = (dx_normal / scale + dx * (batch_mean - mean)) * deviation
        pixels = x.dtype == torch.uint8
        weight_GMK = _by_group(weight_OCUV, layer, pixels)
        dinput, dw = sums_gradient(x, ds, weight_GMK, layer, not pixels)
        kernel = layer.spec.kernel
        if pixels:
            dweight = dw.reshape(weight_OCUV.shape)
        else:
            dweight = dw.reshape(layer.spec.features, kernel, kernel, layer.reads.width).permute(0, 3, 1, 2)
        return dinput, dweight, dgamma, dx, None, None, None, None, None, None


def _by_group(weight_OCUV: Tensor, layer: LayerGeometry, pixels: bool) -> Tensor:
    """Return the weights as (G, M, K), without copying where they lie in K's order."""
    ordered = weight_OCUV if pixels else weight_OCUV.permute(0, 2, 3, 1)
    return ordered.reshape(layer.sums.groups, layer.sums.width, layer.fan_in)


def requantise(shadow: Tensor, ternary: Tensor, hysteresis: float) -> None:
    """Clip fp32 shadow weights to [-1, 1] and renew ``ternary``, in place: what :func:`quantise.ternarise` gives."""
    outside, inside = np.float32(0.5 + hysteresis), np.float32(0.5 - hysteresis)
    if hysteresis:
        # A weight keeps its value down to this limit, exclusive.
        inside = np.nextafter(inside, np.float32(1.0))
    step_kernel.requantise(kernel_array(shadow), kernel_array(ternary), (float(outside), float(inside)))
