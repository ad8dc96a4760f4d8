"""What an agent computes with: layers, policies, losses, optimiser steps, target updates, in one number format.

The agents (``sac.py``, ``ddpg.py``) are written over these operations alone. :class:`HostOperations` runs them on a
CPU in any format: products in fp32 (fp64 in fp64) by BLAS, every result rounded to the format.

Axis suffixes: B batch, D action numbers, O, I layer outputs and inputs, P parameters, flat.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spikestill.common.precision.rounding import NumberFormat, round_all
from spikestill.teacher.control import encoder_kernels, kernels

Array = npt.NDArray[Any]
STEP = "optimiser step"
"""Name of the operation that changes the weights."""


class Layer(NamedTuple):
    """One layer: weight (I, O), bias (O,)."""

    weight_IO: Any
    bias_O: Any


class Sample(NamedTuple):
    """A squashed Gaussian's action and what its gradient needs, each (B, D); log π is (B,)."""

    head_BO: Any
    noise_BD: Any
    t_BD: Any
    std_BD: Any
    u_BD: Any
    action_BD: Any
    density_B: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyRule:
    """How a head becomes an action.

    Attributes:
        low, high: bounds of log σ.
        added: to σ.
        limit: K of the softplus-fix.
        normal_fix, softplus_fix: methods of Björck 2021.
    """

    low: float
    high: float
    added: float
    limit: float
    normal_fix: bool
    softplus_fix: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamRule:
    """How parameters step.

    Attributes:
        rate, beta1, beta2, epsilon: η, β₁, β₂, ε.
        root_form: hAdam.
        kahan: Kahan gradients.
        least: what ε times the loss's scale is at least: the format's smallest positive number with compound loss
            scaling, so that halving the scale never makes it 0; 0 without.
    """

    rate: float
    beta1: float
    beta2: float
    epsilon: float
    root_form: bool
    kahan: bool
    least: float = 0.0

    def scaled_epsilon(self, scale: float) -> float:
        """Return ε for gradients that have the loss's scale."""
        return max(scale * self.epsilon, self.least)


class HostOperations:
    """The operations on a CPU.

    Args:
        form: the number format.

    Attributes:
        shares: into how many pieces a loop over parameters is cut, one for each of two threads.
        worth_sharing: how many parameters Adam steps in about twice the 60 us in which a thread is woken and waited
            for; rounded to fewer bits than fp32 any number.
        at_once: images that go through convolutions at a time; None: all of a batch.
    """

    shares = 2
    at_once = 1

    def __init__(self, form: NumberFormat) -> None:
        self.form = form
        self.worth_sharing = 0 if form.low else 1 << 18
        self.q = form.rounding
        self.real = np.dtype(form.storage).type
        self.watch: list[str] | None = None
        self._levels = self.array(np.arange(256) / 255)

    def _seen(self, operation: str, *results: Any) -> None:
        """Note the operation where it is the first whose result is not finite, while ``watch`` is a list."""
        if self.watch is not None and not all(np.isfinite(each).all() for each in results):
            self.watch.append(operation)

    def array(self, values: npt.ArrayLike) -> Array:
        """Return ``values`` in the format, as an array of the operations' own."""
        found = np.array(values, self.real, order="C")
        if self.form.low:
            round_all(found.reshape(-1), self.q)
        return found

    def host(self, values: Any) -> Array:
        """Return an array of the operations as NumPy's."""
        return np.asarray(values)

    def copy(self, values: Array) -> Array:
        """Return a copy of an array of the operations."""
        return values.copy()

    def finite(self, values: Array) -> bool:
        """Return whether all of an array is finite."""
        return bool(np.isfinite(values).all())

    def rows(self, values_NP: npt.NDArray[Any]) -> Array:
        """Return the parameters of N networks in the format, a row each."""
        return self.array(values_NP)

    def empty(self, *shape: int) -> Array:
        """Return an array that is not initialised."""
        return np.empty(shape, self.real)

    def zeros(self, *shape: int) -> Array:
        """Return zeros."""
        return np.zeros(shape, self.real)

    def joined(self, x_BI: Array, y_BD: Array) -> Array:
        """Return (x, y) side by side, (B, I + D)."""
        return np.concatenate([x_BI, y_BD], axis=1)

    def stacked(self, parts: Sequence[Array]) -> Array:
        """Return parts of a batch as one."""
        return np.concatenate(parts)

    def linear(self, x_BI: Array, layer: Layer, relu: bool) -> Array:
        """Return x W + b (B, O), the sum in the storage's type and rounded once; max(., 0) where ``relu``."""
        y_BO = np.matmul(x_BI, layer.weight_IO)
        kernels.add_bias(y_BO, layer.bias_O, relu, self.q)
        self._seen("matrix product, forward", y_BO)
        return y_BO

    def backward(self, g_BO: Array, layer: Layer, active_BI: Array | None) -> Array:
        """Return g Wᵀ (B, I); zero where a unit of ``active_BI`` was not active."""
        # One column's product is no sum, and BLAS is slow at it.
        g_BI = g_BO * layer.weight_IO.T if g_BO.shape[1] == 1 else np.matmul(g_BO, layer.weight_IO.T)
        if active_BI is None:
            round_all(g_BI.reshape(-1), self.q)
        else:
            kernels.mask(g_BI, active_BI, self.q)
        self._seen("matrix product, backward to the activations", g_BI)
        return g_BI

    def weight_gradient(self, x_BI: Array, g_BO: Array, into: Layer) -> None:
        """Write xᵀ g and the sum of g over the batch; :meth:`finish` rounds them."""
        np.matmul(x_BI.T, g_BO, out=into.weight_IO)
        kernels.column_sums(g_BO, into.bias_O)

    def finish(self, g_P: Array) -> bool:
        """Round gradients; return True where all are finite."""
        finite = bool(round_all(g_P, self.q))
        self._seen("matrix product, backward to the weights", g_P)
        return finite

    def images(self, frames_B: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return stacks uint8 (B, frame, colour, row, column) as images (B, H, W, C), the oldest frame's colours
        first."""
        found = np.ascontiguousarray(frames_B.transpose(0, 3, 4, 1, 2))
        return found.reshape(*found.shape[:3], -1)

    def cut(
        self,
        images_BHWC: npt.NDArray[np.uint8],
        rows_BH: npt.NDArray[np.int64],
        columns_BW: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.uint8]:
        """Return of each image the rows and columns that are named, (B, H, W, C)."""
        image = np.arange(len(images_BHWC))
        return images_BHWC[image[:, None, None], rows_BH[:, :, None], columns_BW[:, None, :]]

    def pixels(self, images_BHWC: npt.NDArray[np.uint8]) -> Array:
        """Return pixels 0..255 divided by 255."""
        found = np.empty(images_BHWC.shape, self.real)
        encoder_kernels.look_up(
            self._levels, np.ascontiguousarray(images_BHWC).reshape(-1), found.reshape(-1)
        )
        return found

    def patches(self, x_BHWC: Array, stride: int) -> Array:
        """Return the 3 x 3 patches of images, (B P, 9 C)."""
        kernel, (size, *sides, channels) = encoder_kernels.KERNEL, x_BHWC.shape
        rows, columns = ((side - kernel) // stride + 1 for side in sides)
        found = np.empty((size, rows * columns, kernel**2 * channels), self.real)
        for x_HWC, patches_PK in zip(x_BHWC, found, strict=True):
            encoder_kernels.gather(np.ascontiguousarray(x_HWC), stride, patches_PK)
        return found.reshape(-1, found.shape[2])

    def scattered(self, g_PO: Array, layer: Layer, active_BHWC: Array, stride: int) -> Array:
        """Return a convolution's gradient by its images (B, H, W, C), summed in the storage's type and rounded once;
        zero where a unit of ``active_BHWC`` was not active."""
        found = np.empty(active_BHWC.shape, self.real)
        g_BPK = np.matmul(g_PO, layer.weight_IO.T).reshape(len(found), -1, len(layer.weight_IO))
        for g_PK, active_HWC, g_HWC in zip(g_BPK, active_BHWC, found, strict=True):
            encoder_kernels.scatter(g_PK, stride, np.ascontiguousarray(active_HWC), self.q, g_HWC)
        self._seen("convolution, backward to the activations", found)
        return found

    def add_weight_gradient(self, x_BI: Array, g_BO: Array, into: Layer) -> None:
        """Add xᵀ g and the sum of g to ``into``, which :meth:`finish` rounds when all is added."""
        np.add(into.weight_IO, np.matmul(x_BI.T, g_BO), out=into.weight_IO)
        np.add(into.bias_O, np.add.reduce(g_BO, axis=0), out=into.bias_O)

    def add(self, first_P: Array, second_P: Array, into_P: Array) -> None:
        """Write the sum of two parts of gradients, which :meth:`finish` rounds."""
        np.add(first_P, second_P, out=into_P)

    def standardised(self, weight_IO: Array, epsilon: float) -> tuple[Array, Array]:
        """Return Ŵ = (W - mean) / (σ √I) over each output's inputs (I, O), and 1 / (σ √I) (O,), σ² = variance +
        ``epsilon``."""
        found, inverse_O = np.empty_like(weight_IO), np.empty(weight_IO.shape[1], self.real)
        scale = self.real(len(weight_IO) ** -0.5)
        encoder_kernels.standardise(weight_IO, self.real(epsilon), scale, self.q, found, inverse_O)
        self._seen("weight standardisation", found)
        return found, inverse_O

    def standardised_backward(self, standard_IO: Array, inverse_O: Array, g_IO: Array) -> None:
        """g ← the weights' gradient, of the standardised ones'."""
        encoder_kernels.standardise_backward(standard_IO, inverse_O, self.q, g_IO)
        self._seen("gradient of the weight standardisation", g_IO)

    def limited(self, x_BZ: Array, largest: float) -> Array:
        """Scale rows with a magnitude beyond ``largest`` down to it, in place; return the factors (B,)."""
        factor_B = np.empty(len(x_BZ), self.real)
        encoder_kernels.limit(x_BZ, self.real(largest), self.q, factor_B)
        return factor_B

    def scaled_rows(self, x_BZ: Array, factor_B: Array) -> Array:
        """Return each row times its factor; ``x_BZ`` is written over."""
        encoder_kernels.scale_rows(x_BZ, factor_B, self.q)
        return x_BZ

    def normalised(
        self, x_BZ: Array, gain_Z: Array, offset_Z: Array, epsilon: float
    ) -> tuple[Array, Array, Array]:
        """Return (gain n + offset, n, 1 / σ (B,)), n = (x - mean) / σ over a row, σ² = variance + ``epsilon``."""
        out_BZ, normal_BZ, inverse_B = (
            np.empty_like(x_BZ),
            np.empty_like(x_BZ),
            np.empty(len(x_BZ), self.real),
        )
        encoder_kernels.normalise(
            x_BZ, gain_Z, offset_Z, self.real(epsilon), self.q, normal_BZ, inverse_B, out_BZ
        )
        self._seen("layer norm", out_BZ)
        return out_BZ, normal_BZ, inverse_B

    def normalised_backward(
        self, g_BZ: Array, normal_BZ: Array, inverse_B: Array, gain_Z: Array, into_gain_Z: Array, into_offset_Z: Array
    ) -> Array:  # fmt: skip
        """Return x's gradient, written over ``g_BZ``; write gain's and offset's, which :meth:`finish` rounds."""
        encoder_kernels.normalise_backward(
            g_BZ, normal_BZ, inverse_B, gain_Z, self.q, into_gain_Z, into_offset_Z
        )
        self._seen("gradient of the layer norm", g_BZ)
        return g_BZ

    def sample(self, head_BO: Array, noise_BD: Array, rule: PolicyRule) -> Sample:
        """Return the action of a head (μ, z) and its log π."""
        shape, real = noise_BD.shape, self.real
        t, std, u, a = (np.empty(shape, real) for _ in range(4))
        density_B = np.empty(shape[0], real)
        kernels.squash(
            head_BO, noise_BD, real(rule.low), real(0.5 * (rule.high - rule.low)), real(rule.added), real(rule.limit),
            rule.normal_fix, rule.softplus_fix, self.q, t, std, u, a, density_B,
        )  # fmt: skip
        self._seen("sampling an action", a)
        self._seen("log density of the action", density_B)
        return Sample(head_BO, noise_BD, t, std, u, a, density_B)

    def sample_backward(self, found: Sample, g_action_BD: Array, g_density: float, rule: PolicyRule) -> Array:
        """Return the gradient of the head (B, 2 D)."""
        g_BO, real = np.empty(found.head_BO.shape, self.real), self.real
        kernels.squash_backward(
            g_action_BD, real(g_density), found.head_BO, found.noise_BD, found.t_BD, found.std_BD, real(rule.added),
            found.u_BD, found.action_BD, real(0.5 * (rule.high - rule.low)), real(rule.limit), rule.normal_fix,
            rule.softplus_fix, self.q, g_BO,
        )  # fmt: skip
        self._seen("gradient of the log density", g_BO)
        return g_BO

    def tanh(self, u_BD: Array) -> Array:
        """Return tanh u; ``u_BD`` is written over."""
        kernels.tanh(u_BD, self.q)
        return u_BD

    def tanh_backward(self, g_BD: Array, a_BD: Array) -> Array:
        """Return g (1 − a²); ``g_BD`` is written over."""
        kernels.tanh_backward(g_BD, a_BD, self.q)
        return g_BD

    def target(
        self,
        reward_B: Array,
        going_on_B: Array,
        values: Sequence[Array],
        density_B: Array,
        alpha: float,
        discount: float,
    ) -> Array:
        """Return y = r + γ · going_on · (min Q̄ − α log π), (B,); one value or two, each (B, 1)."""
        y_B = np.empty(reward_B.shape, self.real)
        first, last = values[0].reshape(-1), values[-1].reshape(-1)
        kernels.bellman(
            reward_B, going_on_B, first, last, density_B, self.real(alpha), self.real(discount), self.q, y_B
        )
        self._seen("target of the critic", y_B)
        return y_B

    def temporal_difference(self, value_B1: Array, target_B: Array, factor: float) -> Array:
        """Return the gradient (B, 1) of the squared error, times ``factor``."""
        g_B = np.empty(target_B.shape, self.real)
        kernels.temporal_difference(value_B1.reshape(-1), target_B, self.real(factor), self.q, g_B)
        self._seen("gradient of the critic's loss", g_B)
        return g_B[:, None]

    def of_smaller(self, values: Sequence[Array], factor: float) -> list[Array]:
        """Return for each of one or two values (B, 1) ``factor`` where it is the smaller, else 0."""
        with np.errstate(over="ignore"):
            full = self.array([factor])[0]
        if len(values) == 1:
            return [np.full_like(values[0], full)]
        first = values[0] < values[1]
        return [np.where(first, full, self.real(0)), np.where(first, self.real(0), full)]

    def sum(self, parts: Sequence[Array]) -> Array:
        """Return the sum of one or two arrays; the first is written over."""
        first, *others = (np.ascontiguousarray(part) for part in parts)
        for other in others:
            kernels.add(first.reshape(-1), other.reshape(-1), self.q)
        return first

    def scalar(self, value: float) -> float:
        """Return ``value`` rounded to the format."""
        return float(self.array([value])[0])

    def changing(self, number: Callable[[], float]) -> float:
        """Return a number that is another one in every update."""
        return number()

    def mean(self, x_B: Array) -> float:
        """Return the mean, summed in the storage's type or better, rounded once."""
        return self.scalar(float(np.mean(x_B, dtype=self.real)))

    def multiply(self, x_P: Array, factor: float) -> bool:
        """x ← factor · x; return True where all of it is finite then."""
        return bool(kernels.multiply(x_P.reshape(-1), self.real(factor), self.q))

    def adam(
        self, p: Array, m: Array, w: Array, c: Array, g: Array, step: int, scale: float, rule: AdamRule
    ) -> None:
        """Step the parameters, in place; ``step`` counts from 1, ``scale`` is the gradients' own."""
        flat = [each.reshape(-1) for each in (p, m, w, c, g)]
        kernels.adam(*flat, *adam_numbers(self, step, scale, rule), rule.root_form, rule.kahan, self.q)
        self._seen(STEP, p)

    def average(self, target: Array, p: Array, tau: float) -> None:
        """Move the target's weights towards ``p``, in place."""
        kernels.average(target, p, self.real(tau), self.real(1.0 - tau), self.q)

    def average_kahan(
        self, total: Array, c: Array, target: Array, p: Array, tau: float, scale: float
    ) -> None:
        """Move the target's weights towards ``p`` by Kahan momentum, in place."""
        kernels.average_kahan(total, c, target, p, self.real(tau), self.real(scale), self.q)
        self._seen("Kahan momentum", total)


def adam_numbers(o: HostOperations, step: int, scale: float, rule: AdamRule) -> list[Any]:
    """Return the numbers that :func:`kernels.adam` takes: β₁, 1 − β₁, β₂, 1 − β₂ (their roots in hAdam), the step size,
    the correction of the second moment, ε."""
    beta2, rest2 = rule.beta2, 1.0 - rule.beta2
    if rule.root_form:
        beta2, rest2 = beta2**0.5, rest2**0.5
    found = (
        rule.beta1, 1.0 - rule.beta1, beta2, rest2, rule.rate / (1.0 - rule.beta1**step),
        (1.0 - rule.beta2**step) ** 0.5, o.scalar(rule.scaled_epsilon(scale)),
    )  # fmt: skip
    return [o.real(each) for each in found]
