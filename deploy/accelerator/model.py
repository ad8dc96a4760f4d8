"""The accelerator's arithmetic, tile by tile as its elements do it: one more implementation of a layer's operations.

An :class:`Accelerator` takes the place of ``fixed_fast`` in ``fixed_ddpg.update``: the agent then runs on the model,
which gives the same integers and writes down every job with its cycles (``schedule.py``).

Axis suffixes: B batch, P outputs, Q inputs, N parameters, S vectors of a stream, K terms of a tile, O its outputs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spikestill.common.precision import fixed_reference, fixed_words
from spikestill.common.precision.fixed import (
    HALF,
    Affine,
    Int32,
    Int64,
    QFormat,
    Sums,
    narrow,
    narrow_affine,
    round_shift,
    saturate,
    tanh,
)
from spikestill.common.precision.fixed_adam import AdamRule, approach
from spikestill.configs.accelerator import ArraySpec
from spikestill.deploy.accelerator import schedule
from spikestill.deploy.accelerator.schedule import Job

ACCUMULATOR_BITS = 64


class Accelerator:
    """The arrays, with the jobs that they did.

    Attributes:
        jobs: in their order, since :meth:`clear`.
        peak: largest bits of any accumulator, sign included: of 64.

    Args:
        spec: its size.
    """

    def __init__(self, spec: ArraySpec = schedule.PAPER) -> None:
        self.spec = spec
        self.clear()

    def clear(self) -> None:
        """Forget the jobs."""
        self.jobs: list[Job] = []
        self.peak = 0

    def _elements(self, stream_SK: Int32, weight_KO: Int32, *, whole: bool) -> tuple[Int64, Int64]:
        """Return the two sums down each column of one array: of the stream's upper and lower halves.

        An array sums ``side`` products. Halves: the upper 16 bits signed and the lower 16 unsigned of a whole word;
        of a pair of 16-bit activations (``whole`` False) each goes to a multiplier of its own, and only one is here.
        """
        stream, weight = stream_SK.astype(np.int64), weight_KO.astype(np.int64)
        if not whole:
            return np.zeros((len(stream), weight.shape[1]), np.int64), stream @ weight
        return (stream >> HALF) @ weight, (stream & 0xFFFF) @ weight

    def _matrix(self, stream_SK: Int32, weight_KO: Int32, *, whole: bool, interleaved: bool) -> Sums:
        """Return the sums of ``stream @ weight``, accumulated tile by tile, and over the cores where interleaved."""
        side, cores = self.spec.side, self.spec.cores
        rows, terms = stream_SK.shape
        outputs = weight_KO.shape[1]
        upper_SO, lower_SO = np.zeros((2, rows, outputs), np.int64)
        group = side * cores if interleaved else side
        for o in range(0, outputs, side):
            tile = np.s_[:, o : o + side]
            for k in range(0, terms, group):
                # Core n has columns n, n + N ... of the group; what one core alone has is the training dataflow.
                for core in range(cores if interleaved else 1):
                    taken = np.s_[k + core : k + group : cores] if interleaved else np.s_[k : k + group]
                    up, low = self._elements(stream_SK[:, taken], weight_KO[taken, o : o + side], whole=whole)
                    upper_SO[tile] += up
                    lower_SO[tile] += low
            self._watch(upper_SO[tile], lower_SO[tile])
        return Sums(upper_SO, lower_SO)

    def _watch(self, *sums: Int64) -> None:
        for each in sums:
            for end in (int(each.max(initial=0)), ~int(each.min(initial=0))):
                self.peak = max(self.peak, end.bit_length() + 1)

    def forward(
        self, x_BQ: Int32, affine: Affine | None, weight_PQ: Int32, bias_P: Int32, shift: int, bias_shift: int,
        bits: int, relu: bool,
    ) -> tuple[Int32, int]:  # fmt: skip
        """Return (activations, values saturated), see ``fixed_reference.forward``."""
        outputs, inputs = weight_PQ.shape
        self.jobs.append(schedule.forward(self.spec, outputs, inputs, len(x_BQ), half=affine is not None))
        sums = self._matrix(x_BQ, weight_PQ.T, whole=affine is None, interleaved=True)
        lost = 0
        if affine is None:
            value, _ = narrow(sums, shift, fixed_reference.WIDE)
        else:
            value, lost = narrow_affine(sums.lower_SO, affine, shift, fixed_reference.WIDE)
        value = value + round_shift(bias_P.astype(np.int64), bias_shift)
        out, clipped = saturate(np.maximum(value, 0) if relu else value, bits)
        return out.astype(np.int32), lost + clipped

    def backward(
        self, error_BP: Int32, weight_PQ: Int32, mask_BQ: Int32 | None, shift: int, bits: int
    ) -> tuple[Int32, int]:
        """Return (errors, values saturated), see ``fixed_reference.backward``."""
        masked, (outputs, inputs) = mask_BQ is not None, weight_PQ.shape
        self.jobs.append(schedule.backward(self.spec, outputs, inputs, len(error_BP), masked=masked))
        out_BQ = np.zeros((len(error_BP), weight_PQ.shape[1]), np.int32)
        clipped = 0
        for core in range(self.spec.cores):
            mine = np.s_[core :: self.spec.cores]
            value, lost = narrow(
                self._matrix(error_BP[mine], weight_PQ, whole=True, interleaved=False), shift, bits
            )
            out_BQ[mine] = value if mask_BQ is None else np.where(mask_BQ[mine] > 0, value, 0)
            clipped += lost
        return out_BQ, clipped

    def gradient(
        self, error_BP: Int32, x_BQ: Int32, affine: Affine | None, unit: int, shift: int, bits: int
    ) -> tuple[Int32, Int32, int]:
        """Return (gradients of weights and biases, values saturated), see ``fixed_reference.gradient``."""
        outputs, inputs, batch = error_BP.shape[1], x_BQ.shape[1], len(x_BQ)
        self.jobs.append(schedule.gradient(self.spec, outputs, inputs, batch, half=affine is not None))
        # The biases' tile streams whole words, whatever the activations are.
        whole, one_B1 = affine is None, np.full((batch, 1), 1 << unit, np.int32)
        sums, ones = self._held(x_BQ, error_BP, whole=whole), self._held(one_B1, error_BP, whole=True)
        if affine is None:
            value, clipped = narrow(sums, shift, bits)
        else:
            value, clipped = narrow_affine(sums.lower_SO, affine, shift, bits)
        bias, more = narrow(ones, shift, bits)
        return value.T.astype(np.int32), bias[0].astype(np.int32), clipped + more

    def _held(self, x_BQ: Int32, error_BP: Int32, *, whole: bool) -> Sums:
        """Return the sums (Q, P) that the elements hold, each core's vectors first, then over the cores."""
        upper_QP, lower_QP = np.zeros((2, x_BQ.shape[1], error_BP.shape[1]), np.int64)
        for core in range(self.spec.cores):
            mine = np.s_[core :: self.spec.cores]
            up, low = self._elements(x_BQ[mine].T, error_BP[mine], whole=whole)
            upper_QP += up
            lower_QP += low
        self._watch(upper_QP, lower_QP)
        return Sums(upper_QP, lower_QP)

    def quantise(self, activation: Int32, affine: Affine) -> tuple[Int32, int]:
        """Return (q - z, how many q were saturated): the activation unit's divider."""
        return affine.quantise(activation)

    def extremes(self, activation: Int32) -> tuple[int, int]:
        """Return (least, largest), 0 included."""
        return fixed_reference.extremes(activation)

    def tanh(self, x_BA: Int32, form: QFormat) -> Int32:
        """Return tanh, taken where the actor's results leave the array."""
        return tanh(x_BA, form)

    def explore(self, action_BA: Int32, key: int, counter: int, deviation: int, fraction: int) -> Int32:
        """Return actions with noise, see ``fixed_words.explore``."""
        batch, actions = action_BA.shape
        self.jobs.append(schedule.by_word(self.spec, "noise", actions, batch))
        return fixed_words.explore(action_BA, key, counter, deviation, fraction)

    def td_errors(
        self, reward_B: Int32, not_done_B: npt.NDArray[np.bool_], next_q_B1: Int32, q_B1: Int32, discount: int,
        by: int, bits: int,
    ) -> tuple[Int32, int, int]:  # fmt: skip
        """Return (errors, targets saturated, errors saturated), see ``fixed_words.td_errors``."""
        self.jobs.append(schedule.by_word(self.spec, "difference", 1, len(q_B1)))
        return fixed_words.td_errors(reward_B, not_done_B, next_q_B1, q_B1, discount, by, bits)

    def through_tanh(self, error_BI: Int32, action_BA: Int32, fraction: int, bits: int) -> tuple[Int32, int]:
        """Return (errors, values saturated), see ``fixed_words.through_tanh``."""
        batch, actions = action_BA.shape
        self.jobs.append(schedule.by_word(self.spec, "slope", actions, batch))
        return fixed_words.through_tanh(error_BI, action_BA, fraction, bits)

    def adam(
        self, weight_N: Int32, m_N: Int32, v_N: Int32, gradient_N: Int32, alpha: int, rule: AdamRule, key: int
    ) -> tuple[Int32, Int32, Int32, int]:
        """Return (weight, m, v, values saturated): the optimiser's lanes, one parameter each."""
        layers: list[Job] = []
        for job in reversed(self.jobs):
            if job.kind != "gradient":
                break
            layers.insert(0, job)
        sizes = (layers[0].inputs, *(job.outputs for job in layers))
        self.jobs.append(schedule.adam(self.spec, sizes))
        return fixed_reference.adam(weight_N, m_N, v_N, gradient_N, alpha, rule, key)

    def approach(self, target_N: Int32, weight_N: Int32, tau: int) -> Int32:
        """Return the moved target network."""
        return approach(target_N, weight_N, tau)
