"""The operations in tensors of a native format, on a GPU: fp16 and bf16 numbers are stored and computed as such.

Every operation's result is a tensor of the format, as on the host (``operations.py``), which emulates this:
elementwise operations are computed in fp32 and rounded once, products are summed in fp32. What differs in the last bits
is the order of the sums, the transcendental functions, and a division by a number of the host, which a GPU makes a
multiplication.

An update of SAC from states launches some 340 kernels in fp16 and waits for the device about 20 times: for the batch,
where the host decides whether gradients are finite, for the temperature, and for what is reported.

Axis suffixes as in ``operations.py``; H, W rows and columns, C channels, K = 9 C numbers of a patch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spikestill.common.precision.names import NATIVE
from spikestill.common.precision.rounding import NumberFormat
from spikestill.teacher.control.encoder_kernels import KERNEL
from spikestill.teacher.control.operations import STEP, AdamRule, Layer, PolicyRule, Sample
from spikestill.teacher.control.tensor_formulas import on_tensors

TYPES = dict(zip(NATIVE, (torch.float64, torch.float32, torch.bfloat16, torch.float16), strict=True))
"""PyTorch's name of each format."""
ALIGNED = 128
"""Numbers: 256 bytes in fp16."""
SLICE = 1 << 22
"""Parameters that an optimiser's step takes at a time, for it needs several times their memory."""


class DeviceOperations:
    """The operations on a device; methods are those of :class:`HostOperations`, on tensors.

    Args:
        form: the number format, one of :data:`TYPES`.
        device: where the tensors are.

    Attributes:
        shares: 1: a loop over parameters is one kernel.
        at_once: None: all images of a batch go through convolutions at once.
    """

    shares = 1
    worth_sharing = 0
    at_once = None

    def __init__(self, form: NumberFormat, device: torch.device) -> None:
        self.form, self.device = form, device
        self.type = TYPES[form.name]
        self.wide = torch.promote_types(self.type, torch.float32)
        self.watch: list[str] | None = None
        self.f = on_tensors()
        # Sums of products in fp32 throughout: no reduced precision in fp16 and bf16, no TF32 in fp32.
        matmul = torch.backends.cuda.matmul
        matmul.allow_fp16_reduced_precision_reduction = False
        matmul.allow_bf16_reduced_precision_reduction = False
        matmul.allow_tf32 = False

    def _seen(self, operation: str, *results: Tensor) -> None:
        if self.watch is not None and not all(self.finite(each) for each in results):
            self.watch.append(operation)

    def array(self, values: npt.ArrayLike | Tensor) -> Tensor:
        """Return ``values`` in the format, on the device."""
        if not isinstance(values, Tensor):
            values = torch.from_numpy(np.array(values, self.form.storage, order="C"))
        return values.to(self.device, self.type)

    def host(self, values: Tensor) -> npt.NDArray[Any]:
        """Return a tensor as NumPy's array, in the type that holds its numbers on the host."""
        return values.to("cpu", self.wide).numpy()

    def copy(self, values: Tensor) -> Tensor:
        """Return a copy."""
        return values.clone()

    def finite(self, values: Tensor) -> bool:
        """Return whether all of a tensor is finite: its largest magnitude is."""
        return not values.numel() or math.isfinite(float(torch.linalg.vector_norm(values, math.inf)))

    def rows(self, values_NP: npt.NDArray[Any]) -> Tensor:
        """Return the parameters of N networks in the format; each begins where a GPU's products like it, at a multiple
        of :data:`ALIGNED` numbers."""
        networks, numbers = values_NP.shape
        padded = self.zeros(networks, -(-numbers // ALIGNED) * ALIGNED)[:, :numbers]
        padded[...] = self.array(values_NP)
        return padded

    def empty(self, *shape: int) -> Tensor:
        """Return a tensor that is not initialised."""
        return torch.empty(shape, dtype=self.type, device=self.device)

    def zeros(self, *shape: int) -> Tensor:
        """Return zeros."""
        return torch.zeros(shape, dtype=self.type, device=self.device)

    def joined(self, x_BI: Tensor, y_BD: Tensor) -> Tensor:
        """Return (x, y) side by side, (B, I + D)."""
        return torch.cat([x_BI, y_BD], 1)

    def stacked(self, parts: Sequence[Tensor]) -> Tensor:
        """Return parts of a batch as one."""
        return torch.cat(list(parts))

    def linear(self, x_BI: Tensor, layer: Layer, relu: bool) -> Tensor:
        """Return x W + b (B, O), summed in fp32 and rounded once; max(., 0) where ``relu``."""
        # A bias of one axis is added after the sum, in the format, and some kernels want it aligned.
        y_BO = torch.addmm(layer.bias_O.expand(len(x_BI), -1), x_BI, layer.weight_IO)
        if relu:
            y_BO.relu_()
        self._seen("matrix product, forward", y_BO)
        return y_BO

    def backward(self, g_BO: Tensor, layer: Layer, active_BI: Tensor | None) -> Tensor:
        """Return g Wᵀ (B, I); zero where a unit of ``active_BI`` was not active."""
        g_BI = g_BO @ layer.weight_IO.t()
        if active_BI is not None:
            g_BI = torch.where(active_BI > 0, g_BI, 0.0)
        self._seen("matrix product, backward to the activations", g_BI)
        return g_BI

    def weight_gradient(self, x_BI: Tensor, g_BO: Tensor, into: Layer) -> None:
        """Write xᵀ g and the sum of g over the batch, rounded."""
        torch.mm(x_BI.t(), g_BO, out=into.weight_IO)
        torch.sum(g_BO, 0, out=into.bias_O)

    def finish(self, g_P: Tensor) -> bool:
        """Return True where all gradients are finite; they are rounded already."""
        finite = self.finite(g_P)
        self._seen("matrix product, backward to the weights", g_P)
        return finite

    def images(self, frames_B: npt.NDArray[np.uint8]) -> Tensor:
        """Return stacks uint8 (B, frame, colour, row, column) as images (B, H, W, C), the oldest frame's colours
        first."""
        found = torch.from_numpy(np.ascontiguousarray(frames_B)).to(self.device)
        return found.permute(0, 3, 4, 1, 2).flatten(3)

    def cut(
        self, images_BHWC: Tensor, rows_BH: npt.NDArray[np.int64], columns_BW: npt.NDArray[np.int64]
    ) -> Tensor:
        """Return of each image the rows and columns that are named, (B, H, W, C)."""
        rows, columns = (torch.from_numpy(each).to(self.device) for each in (rows_BH, columns_BW))
        image = torch.arange(len(images_BHWC), device=self.device)
        return images_BHWC[image[:, None, None], rows[:, :, None], columns[:, None, :]]

    def pixels(self, images_BHWC: Tensor) -> Tensor:
        """Return pixels 0..255 divided by 255."""
        return images_BHWC.to(self.type).div_(255)

    def patches(self, x_BHWC: Tensor, stride: int) -> Tensor:
        """Return the 3 x 3 patches of images, (B P, 9 C)."""
        # (B, H', W', C, row, column), a view.
        views = x_BHWC.unfold(1, KERNEL, stride).unfold(2, KERNEL, stride)
        return views.permute(0, 1, 2, 4, 5, 3).reshape(-1, KERNEL**2 * x_BHWC.shape[3])

    def scattered(self, g_PO: Tensor, layer: Layer, active_BHWC: Tensor, stride: int) -> Tensor:
        """Return a convolution's gradient by its images (B, H, W, C), summed in fp32 and rounded once; zero where a
        unit of ``active_BHWC`` was not active."""
        size, height, width, channels = active_BHWC.shape
        rows, columns = ((side - KERNEL) // stride + 1 for side in (height, width))
        taps = (g_PO.to(self.wide) @ layer.weight_IO.to(self.wide).t()).reshape(
            size, rows, columns, KERNEL, KERNEL, channels
        )
        found = torch.zeros(active_BHWC.shape, dtype=self.wide, device=self.device)
        for row in range(KERNEL):
            for column in range(KERNEL):
                bottom, right = row + stride * (rows - 1) + 1, column + stride * (columns - 1) + 1
                found[:, row:bottom:stride, column:right:stride] += taps[:, :, :, row, column]
        g_BHWC = torch.where(active_BHWC > 0, found.to(self.type), 0.0)
        self._seen("convolution, backward to the activations", g_BHWC)
        return g_BHWC

    def add_weight_gradient(self, x_BI: Tensor, g_BO: Tensor, into: Layer) -> None:
        """Add xᵀ g and the sum of g to ``into``, rounded."""
        into.weight_IO.add_(x_BI.t() @ g_BO)
        into.bias_O.add_(g_BO.sum(0))

    def add(self, first_P: Tensor, second_P: Tensor, into_P: Tensor) -> None:
        """Write the sum of two parts of gradients."""
        torch.add(first_P, second_P, out=into_P)

    def _mean(self, x: Tensor, axis: int) -> Tensor:
        """Return the mean over an axis, which stays, summed in fp32 and rounded once."""
        return x.to(self.wide).mean(axis, keepdim=True).to(self.type)

    def _normal(self, x: Tensor, axis: int, epsilon: float, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        """Return s (x - mean) / σ over an axis, and s / σ, σ² = variance + ``epsilon``, s = ``scale``."""
        d = x - self._mean(x, axis)
        variance = d.to(self.wide).square().mean(axis, keepdim=True).to(self.type)
        inverse = (variance + epsilon).sqrt_().reciprocal_()
        if scale != 1.0:
            inverse.mul_(scale)
        return d.mul_(inverse), inverse

    def standardised(self, weight_IO: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        """Return Ŵ = (W - mean) / (σ √I) over each output's inputs (I, O), and 1 / (σ √I) (1, O), σ² = variance +
        ``epsilon``."""
        found, inverse_1O = self._normal(weight_IO, 0, epsilon, len(weight_IO) ** -0.5)
        self._seen("weight standardisation", found)
        return found, inverse_1O

    def standardised_backward(self, standard_IO: Tensor, inverse_1O: Tensor, g_IO: Tensor) -> None:
        """g ← the weights' gradient, of the standardised ones'."""
        along = (g_IO.to(self.wide) * standard_IO).sum(0, keepdim=True).to(self.type)
        rest = (g_IO - self._mean(g_IO, 0)) - standard_IO * along
        torch.mul(rest, inverse_1O, out=g_IO)
        self._seen("gradient of the weight standardisation", g_IO)

    def limited(self, x_BZ: Tensor, largest: float) -> Tensor:
        """Scale rows with a magnitude beyond ``largest`` down to it, in place; return the factors (B, 1)."""
        found_B1 = x_BZ.abs().amax(1, keepdim=True)
        factor_B1 = torch.where(found_B1 > largest, torch.full_like(found_B1, largest) / found_B1, 1.0)
        x_BZ.mul_(factor_B1)
        return factor_B1

    def scaled_rows(self, x_BZ: Tensor, factor_B1: Tensor) -> Tensor:
        """Return each row times its factor; ``x_BZ`` is written over."""
        return x_BZ.mul_(factor_B1)

    def normalised(
        self, x_BZ: Tensor, gain_Z: Tensor, offset_Z: Tensor, epsilon: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return (gain n + offset, n, 1 / σ (B, 1)), n = (x - mean) / σ over a row, σ² = variance + ``epsilon``."""
        normal_BZ, inverse_B1 = self._normal(x_BZ, 1, epsilon)
        out_BZ = gain_Z * normal_BZ + offset_Z
        self._seen("layer norm", out_BZ)
        return out_BZ, normal_BZ, inverse_B1

    def normalised_backward(
        self, g_BZ: Tensor, normal_BZ: Tensor, inverse_B1: Tensor, gain_Z: Tensor, into_gain_Z: Tensor,
        into_offset_Z: Tensor,
    ) -> Tensor:  # fmt: skip
        """Return x's gradient, written over ``g_BZ``; write gain's and offset's."""
        into_gain_Z.copy_((g_BZ.to(self.wide) * normal_BZ).sum(0))
        torch.sum(g_BZ, 0, out=into_offset_Z)
        h_BZ = g_BZ * gain_Z
        along_B1 = self._mean(h_BZ.to(self.wide) * normal_BZ, 1)
        rest_BZ = (h_BZ - self._mean(h_BZ, 1)) - normal_BZ * along_B1
        torch.mul(rest_BZ, inverse_B1, out=g_BZ)
        self._seen("gradient of the layer norm", g_BZ)
        return g_BZ

    def sample(self, head_BO: Tensor, noise_BD: Tensor, rule: PolicyRule) -> Sample:
        """Return the action of a head (μ, z) and its log π."""
        mean_BD, z_BD = head_BO.chunk(2, 1)
        half_width = 0.5 * (rule.high - rule.low)
        t, _, std, u, a = self.f["squashed"](mean_BD, z_BD, noise_BD, rule.low, half_width, rule.added, ())
        each_BD = self.f["log_density"](mean_BD, std, u, rule.limit, rule.normal_fix, rule.softplus_fix, ())
        density_B = each_BD.sum(1)
        self._seen("sampling an action", a)
        self._seen("log density of the action", density_B)
        return Sample(head_BO, noise_BD, t, std, u, a, density_B)

    def sample_backward(
        self, found: Sample, g_action_BD: Tensor, g_density: float, rule: PolicyRule
    ) -> Tensor:
        """Return the gradient of the head (B, 2 D)."""
        # A number of the host would be multiplied by a rounded reciprocal where the formula divides it.
        g_one = torch.full((), g_density, dtype=self.type)
        mean_BD = found.head_BO[:, : found.noise_BD.shape[1]]
        g_BO = torch.cat(
            self.f["squashed_backward"](
                g_action_BD, g_one, mean_BD, found.noise_BD, found.t_BD, found.std_BD, rule.added, found.u_BD,
                found.action_BD, 0.5 * (rule.high - rule.low), rule.limit, rule.normal_fix, rule.softplus_fix, (),
            ), 1,
        )  # fmt: skip
        self._seen("gradient of the log density", g_BO)
        return g_BO

    def tanh(self, u_BD: Tensor) -> Tensor:
        """Return tanh u; ``u_BD`` is written over."""
        return u_BD.tanh_()

    def tanh_backward(self, g_BD: Tensor, a_BD: Tensor) -> Tensor:
        """Return g (1 − a²)."""
        found: Tensor = self.f["tanh_backward"](g_BD, a_BD, ())
        return found

    def target(
        self,
        reward_B: Tensor,
        going_on_B: Tensor,
        values: Sequence[Tensor],
        density_B: Tensor,
        alpha: float,
        discount: float,
    ) -> Tensor:
        """Return y = r + γ · going_on · (min Q̄ − α log π), (B,); one value or two, each (B, 1)."""
        first, last = values[0].reshape(-1), values[-1].reshape(-1)
        y_B: Tensor = self.f["bellman_target"](
            reward_B, going_on_B, first, last, density_B, alpha, discount, ()
        )
        self._seen("target of the critic", y_B)
        return y_B

    def temporal_difference(self, value_B1: Tensor, target_B: Tensor, factor: float) -> Tensor:
        """Return the gradient (B, 1) of the squared error, times ``factor``."""
        g_B: Tensor = self.f["temporal_difference"](value_B1.reshape(-1), target_B, factor, ())
        self._seen("gradient of the critic's loss", g_B)
        return g_B[:, None]

    def of_smaller(self, values: Sequence[Tensor], factor: float) -> list[Tensor]:
        """Return for each of one or two values (B, 1) ``factor`` where it is the smaller, else 0."""
        full = torch.full_like(values[0], self.scalar(factor))
        if len(values) == 1:
            return [full]
        first = values[0] < values[1]
        return [torch.where(first, full, 0.0), torch.where(first, 0.0, full)]

    def sum(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the sum of one or two tensors; the first may be written over."""
        first, *others = (part.contiguous() for part in parts)
        for other in others:
            first.add_(other)
        return first

    def scalar(self, value: float) -> float:
        """Return ``value`` rounded to the format."""
        with np.errstate(over="ignore"):
            return float(self.form.round(value))

    def changing(self, number: Callable[[], float]) -> float:
        """Return a number that is another one in every update."""
        return number()

    def mean(self, x_B: Tensor) -> float:
        """Return the mean, summed in fp32 or better, rounded once."""
        return float(self._mean(x_B, 0))

    def multiply(self, x_P: Tensor, factor: float) -> bool:
        """x ← factor · x; return True where all of it is finite then."""
        return self.finite(x_P.mul_(factor))

    def adam(
        self, p: Tensor, m: Tensor, w: Tensor, c: Tensor, g: Tensor, step: int, scale: float, rule: AdamRule
    ) -> None:
        """Step the parameters, in place; ``step`` counts from 1, ``scale`` is the gradients' own."""
        for each in _slices(p, m, w, c, g):
            self._adam(each, step, scale, rule)
        self._seen(STEP, p)

    def _adam(self, parameters: tuple[Tensor, ...], step: int, scale: float, rule: AdamRule) -> None:
        p, m, w, c, g = parameters
        f, beta1, beta2 = self.f, rule.beta1, rule.beta2
        m.copy_(f["first_moment"](m, g, beta1, 1.0 - beta1, ()))
        if rule.root_form:
            w.copy_(f["second_moment_root"](w, g, beta2**0.5, (1.0 - beta2) ** 0.5, ()))
            root = w
        else:
            w.copy_(f["second_moment"](w, g, beta2, 1.0 - beta2, ()))
            root = f["square_root"](w, ())
        change = f["adam_change"](
            m, root, rule.rate / (1.0 - beta1**step), (1.0 - beta2**step) ** 0.5,
            self.scalar(rule.scaled_epsilon(scale)), (),
        )  # fmt: skip
        if rule.kahan:
            for own, new in zip((p, c), f["changed_kahan"](p, c, change, ()), strict=True):
                own.copy_(new)
        else:
            p.copy_(f["changed"](p, change, ()))

    def average(self, target: Tensor, p: Tensor, tau: float) -> None:
        """Move the target's weights towards ``p``, in place."""
        target.copy_(self.f["averaged"](target, p, tau, 1.0 - tau, ()))

    def average_kahan(
        self, total: Tensor, c: Tensor, target: Tensor, p: Tensor, tau: float, scale: float
    ) -> None:
        """Move the target's weights towards ``p`` by Kahan momentum, in place."""
        for *moved, weights in _slices(total, c, target, p):
            found = self.f["averaged_kahan"](moved[0], moved[1], weights, tau, scale, ())
            for own, new in zip(moved, found, strict=True):
                own.copy_(new)
        self._seen("Kahan momentum", total)


def _slices(*parameters: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the same slices of tensors along their last axis, (..., P) each; one may be empty."""
    for begin in range(0, parameters[0].shape[-1], SLICE):
        yield tuple(each[..., begin : begin + SLICE] for each in parameters)
