"""An agent's work as a script for the SystemVerilog's test bench: memory lines, jobs, and what each must give.

A :class:`Bench` takes the place of ``fixed_fast`` in ``fixed_ddpg``, as the model does, and writes down what the host
does: lines it puts into memory, the words of every job, the cycles that the model predicts, and every line of every
result to compare with. Between two layers nothing passes through the host.

Axis suffixes: B batch, P outputs, Q inputs, N parameters.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import numpy.typing as npt

from spikestill.common.errors import UserError
from spikestill.common.precision.fixed import (
    Affine,
    Int32,
    Int64,
    QFormat,
    affine_shift,
    random_state,
    tanh_table,
)
from spikestill.common.precision.fixed_adam import AdamRule
from spikestill.configs.accelerator import ArraySpec
from spikestill.configs.fixed_point import Formats
from spikestill.deploy.accelerator.model import Accelerator
from spikestill.deploy.accelerator.schedule import WIDEST_LINES, Job, lines, parameter_lines, vector_stride
from spikestill.teacher.control import fixed_network

WEIGHT, TARGET, GRADIENT, M, V, ACTIVATION, ERROR = range(7)
KINDS = {"forward": 0, "backward": 1, "gradient": 2, "adam": 3, "noise": 4, "difference": 5, "slope": 6}
HALF, RELU, TANH, QUANTISE, MASK, FROM_TARGET = (1 << bit for bit in range(4, 10))


def line_hex(words: npt.NDArray[np.int32]) -> str:
    """Return a line's words as the hexadecimal number that ``$readmemh`` and the script take: word 0 lowest."""
    return "".join(f"{int(word) & 0xFFFFFFFF:08x}" for word in words[::-1])


def parameter_image(flat_N: Int32, sizes: tuple[int, ...], spec: ArraySpec) -> Int32:
    """Return a network's parameters as memory lines (lines, side): rows of W padded to whole lines, then biases."""
    parts = []
    for weight, bias in fixed_network.layers(flat_N, sizes):
        per_row = lines(weight.shape[1], spec)
        rows = np.zeros((len(weight), per_row * spec.side), np.int32)
        rows[:, : weight.shape[1]] = weight
        parts.append(rows.reshape(-1, spec.side))
        padded = np.zeros(lines(len(bias), spec) * spec.side, np.int32)
        padded[: len(bias)] = bias
        parts.append(padded.reshape(-1, spec.side))
    return np.concatenate(parts)


def tanh_image() -> list[str]:
    """Return the table of tanh for the SystemVerilog: value (21 bits) and rise to the next (14 bits)."""
    table = tanh_table().astype(np.int64)
    return [f"{(int(here) << 14) | int(after - here):09x}" for here, after in itertools.pairwise(table)]


@dataclasses.dataclass
class Region:
    """Vectors in the activation or the error memory: where, how many lines each, and 16-bit pairs or words."""

    base: int
    stride: int
    half: bool


@dataclasses.dataclass
class _Pending:
    """A forward job that waits to hear whether its result is quantised."""

    job: Job
    words: dict[int, int]
    region: Region
    out_BP: Int32


class Bench(Accelerator):
    """The model, writing the script; see the module.

    Attributes:
        script: its lines since :meth:`taken`.
        vector_lines: lines of a bank of vectors in use.
        most_vector_lines: the most that were.

    Args:
        spec: the accelerator.
        networks: name to (layer sizes, flat weights, targets, m, v), the actor first.
        formats: of the agent.
    """

    def __init__(
        self, spec: ArraySpec, networks: dict[str, tuple[tuple[int, ...], Int32, Int32, Int32, Int32]], formats: Formats
    ) -> None:  # fmt: skip
        super().__init__(spec)
        self.script: list[str] = []
        self.vector_lines = {ACTIVATION: 0, ERROR: 0}
        self.most_vector_lines = 0
        self.formats = formats
        self.banks = max(2, spec.cores)
        self._words = dict.fromkeys(range(32), 0)
        for index in range(32):
            self.script.append(f"D {index} 0")
        self._arrays: dict[int, tuple[object, Region]] = {}
        self._pending: _Pending | None = None
        self._bases, self._sizes, base = {}, {}, 0
        self._weights: dict[str, dict[int, Int32]] = {}
        for name, (sizes, *flats) in networks.items():
            self._bases[name], self._sizes[name] = base, sizes
            base += parameter_lines(spec, sizes)
            self._weights[name] = dict(zip((WEIGHT, TARGET), flats[:2], strict=True))
            for memory, flat_N in zip((TARGET, M, V), flats[1:], strict=True):
                self._write(memory, 0, self._bases[name], parameter_image(flat_N, sizes, spec))
        self.parameter_lines = base
        self.weights = np.concatenate(
            [parameter_image(flats[0], sizes, spec) for sizes, *flats in networks.values()]
        )

    def taken(self) -> list[str]:
        """Return the script since the last call; vectors are placed anew from here, nothing of them is read again."""
        self._flush()
        self._arrays.clear()
        self.vector_lines = dict.fromkeys(self.vector_lines, 0)
        lines, self.script = self.script, []
        return lines

    def _write(self, memory: int, bank: int, address: int, image: Int32, verb: str = "W") -> None:
        for offset, line in enumerate(image):
            self.script.append(f"{verb} {memory} {bank} {address + offset:05x} {line_hex(line)}")

    def _place(self, memory: int, width: int, vectors: int, *, half: bool) -> Region:
        """Return room for vectors of ``width`` words, whole groups of all cores' lines."""
        stride = vector_stride(self.spec, width)
        region = Region(self.vector_lines[memory], stride, half)
        held = -(-vectors // 2) if half else vectors
        end = region.base + stride * -(-held // self.banks)
        assert end <= WIDEST_LINES
        self.vector_lines[memory] = end
        self.most_vector_lines = max(self.most_vector_lines, end)
        return region

    def _vectors(self, memory: int, region: Region, x_BQ: Int32, zero: int, verb: str) -> None:
        """Write or compare vectors: as words, or as pairs of q = x + zero, the even vector low."""
        batch, width = x_BQ.shape
        count = lines(width, self.spec) if verb == "C" else region.stride
        rows: Int64 = np.zeros((batch, count * self.spec.side), np.int64)
        rows[:, :width] = x_BQ
        if region.half:
            # Words beyond the width hold the zero point, which is 0 once it is taken off.
            rows = rows + zero
            if batch % 2:
                rows = np.concatenate([rows, np.full_like(rows[:1], zero)])
            rows = rows[0::2] | rows[1::2] << 16
        words = (rows & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
        for index, row in enumerate(words):
            address = region.base + index // self.banks * region.stride
            self._write(memory, index % self.banks, address, row.reshape(-1, self.spec.side), verb)

    def _resident(self, memory: int, x_BQ: Int32, zero: int, *, half: bool) -> Region:
        """Return where ``x_BQ`` lies, putting it there first where it is the host's."""
        known = self._arrays.get(id(x_BQ))
        if known is None:
            region = self._place(memory, x_BQ.shape[1], len(x_BQ), half=half)
            self._vectors(memory, region, x_BQ, zero, "W")
            self._arrays[id(x_BQ)] = known = (x_BQ, region)
        return known[1]

    def _layer(self, weight_PQ: Int32) -> tuple[str, int, int, int, int]:
        """Return (network, layer, memory, the weights' line, the biases' line) of a view into the networks."""
        for name, memories in self._weights.items():
            for memory, flat_N in memories.items():
                address = self._bases[name]
                for index, (weight, bias) in enumerate(fixed_network.layers(flat_N, self._sizes[name])):
                    biases = address + len(weight) * lines(weight.shape[1], self.spec)
                    if weight.ctypes.data == weight_PQ.ctypes.data:
                        return name, index, memory, address, biases
                    address = biases + lines(len(bias), self.spec)
        raise LookupError("a layer of none of the networks")

    def _run(self, job: Job, words: dict[int, int]) -> None:
        words = {0: KINDS[job.kind] | words.pop(0, 0), **words}
        for index, value in sorted(words.items()):
            if self._words[index] != value:
                self._words[index] = value
                self.script.append(f"D {index} {value & 0xFFFFFFFF:x}")
        self.script.append(f"J {job.cycles}")

    def _flush(self) -> None:
        """Write down the forward job that waits, its result whole."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._run(pending.job, pending.words)
            self._vectors(ACTIVATION, pending.region, pending.out_BP, 0, "C")
            self._arrays[id(pending.out_BP)] = (pending.out_BP, pending.region)

    def forward(
        self, x_BQ: Int32, affine: Affine | None, weight_PQ: Int32, bias_P: Int32, shift: int, bias_shift: int,
        bits: int, relu: bool,
    ) -> tuple[Int32, int]:  # fmt: skip
        """Return what the model gives, and write the job down."""
        self._flush()
        found = super().forward(x_BQ, affine, weight_PQ, bias_P, shift, bias_shift, bits, relu)
        _, _, memory, address, biases = self._layer(weight_PQ)
        half, zero = affine is not None, affine.zero if affine else 0
        source = self._resident(ACTIVATION, x_BQ, zero, half=half)
        outputs, inputs = weight_PQ.shape
        region = self._place(ACTIVATION, outputs, len(x_BQ), half=False)
        stream = -(-len(x_BQ) // 2) if half else len(x_BQ)
        group = self.spec.cores * self.spec.side
        words = {
            0: (HALF if half else 0) | (RELU if relu else 0) | (FROM_TARGET if memory == TARGET else 0),
            1: outputs, 2: inputs, 3: len(x_BQ), 4: stream, 5: group + 1, 6: lines(outputs, self.spec),
            7: -(-inputs // group), 8: address, 9: lines(inputs, self.spec), 10: biases, 11: source.base,
            12: source.stride, 13: region.base, 14: region.stride, 17: shift, 18: bias_shift, 21: zero,
        }  # fmt: skip
        if affine is not None:
            words |= {19: affine.mantissa, 20: affine_shift(affine, shift)}
        self._pending = _Pending(self.jobs[-1], words, region, found[0])
        return found

    def quantise(self, activation: Int32, affine: Affine) -> tuple[Int32, int]:
        """Return what the model gives; a layer's result is quantised where it leaves the array, others by the host."""
        found, beyond = super().quantise(activation, affine)
        pending = self._pending
        if pending is not None and pending.out_BP is activation:
            if affine.zero or affine.exponent > 16:
                raise UserError(
                    f"a hidden layer's 16-bit format is {affine}: the output unit takes a zero point of 0",
                    "export an agent with ReLU layers",
                )
            pending.words |= {22: affine.mantissa, 23: 16 - affine.exponent}
            pending.words[0] |= QUANTISE
            pending.region.half = True
            self._pending = None
            self._run(pending.job, pending.words)
            self._vectors(ACTIVATION, pending.region, found, 0, "C")
            self._arrays[id(found)] = (found, pending.region)
        return found, beyond

    def tanh(self, x_BA: Int32, form: QFormat) -> Int32:
        """Return what the model gives; the actor's result is this where it leaves the array."""
        found = super().tanh(x_BA, form)
        pending = self._pending
        assert pending is not None
        assert pending.out_BP is x_BA
        pending.words[0] |= TANH
        pending.out_BP = found
        self._flush()
        return found

    def explore(self, action_BA: Int32, key: int, counter: int, deviation: int, fraction: int) -> Int32:
        """Return what the model gives, and write the job down: the actions become it where they lie."""
        found = super().explore(action_BA, key, counter, deviation, fraction)
        _, region = self._arrays[id(action_BA)]
        first = random_state(key, counter)
        words = {
            11: region.base, 12: region.stride, 13: region.base, 14: region.stride, 30: deviation, 31: first,
        }  # fmt: skip
        self._by_word(ACTIVATION, region, found, words)
        return found

    def td_errors(
        self, reward_B: Int32, not_done_B: npt.NDArray[np.bool_], next_q_B1: Int32, q_B1: Int32, discount: int,
        by: int, bits: int,
    ) -> tuple[Int32, int, int]:  # fmt: skip
        """Return what the model gives, and write the job down; the host gives rewards and which episodes go on."""
        self._flush()
        found = super().td_errors(reward_B, not_done_B, next_q_B1, q_B1, discount, by, bits)
        transition_B2 = np.stack([reward_B, not_done_B], 1, dtype=np.int32, casting="unsafe")
        transitions = self._resident(ACTIVATION, transition_B2, 0, half=False)
        (_, following), (_, values) = self._arrays[id(next_q_B1)], self._arrays[id(q_B1)]
        region = self._place(ERROR, 1, len(q_B1), half=False)
        words = {
            8: transitions.base, 9: transitions.stride, 11: values.base, 12: values.stride, 13: region.base,
            14: region.stride, 15: following.base, 16: following.stride, 17: by, 30: discount,
        }  # fmt: skip
        self._by_word(ERROR, region, found[0], words)
        return found

    def through_tanh(self, error_BI: Int32, action_BA: Int32, fraction: int, bits: int) -> tuple[Int32, int]:
        """Return what the model gives, and write the job down."""
        found = super().through_tanh(error_BI, action_BA, fraction, bits)
        (_, errors), (_, actions) = self._arrays[id(error_BI)], self._arrays[id(action_BA)]
        region = self._place(ERROR, action_BA.shape[1], len(action_BA), half=False)
        words = {
            2: error_BI.shape[1] - action_BA.shape[1], 11: actions.base, 12: actions.stride, 13: region.base,
            14: region.stride, 15: errors.base, 16: errors.stride,
        }  # fmt: skip
        self._by_word(ERROR, region, found[0], words)
        return found

    def _by_word(self, memory: int, region: Region, out_BP: Int32, words: dict[int, int]) -> None:
        """Write down a job of the word unit, whose result ``out_BP`` then lies in ``region``."""
        batch, outputs = out_BP.shape
        self._run(self.jobs[-1], words | {1: outputs, 3: batch})
        self._vectors(memory, region, out_BP, 0, "C")
        self._arrays[id(out_BP)] = (out_BP, region)

    def backward(
        self, error_BP: Int32, weight_PQ: Int32, mask_BQ: Int32 | None, shift: int, bits: int
    ) -> tuple[Int32, int]:
        """Return what the model gives, and write the job down."""
        self._flush()
        found = super().backward(error_BP, weight_PQ, mask_BQ, shift, bits)
        _, _, memory, address, biases = self._layer(weight_PQ)
        errors = self._resident(ERROR, error_BP, 0, half=False)
        outputs, inputs = weight_PQ.shape
        region = self._place(ERROR, inputs, len(error_BP), half=False)
        words = {
            0: FROM_TARGET if memory == TARGET else 0, 1: outputs, 2: inputs, 3: len(error_BP),
            4: -(-len(error_BP) // self.spec.cores), 5: self.spec.side, 6: lines(inputs, self.spec),
            7: lines(outputs, self.spec), 8: address, 9: lines(inputs, self.spec), 10: biases, 13: region.base,
            14: region.stride, 15: errors.base, 16: errors.stride, 17: shift,
        }  # fmt: skip
        if mask_BQ is not None:
            _, masks = self._arrays[id(mask_BQ)]
            words[0] |= MASK | (HALF if masks.half else 0)
            words |= {11: masks.base, 12: masks.stride}
        self._run(self.jobs[-1], words)
        self._vectors(ERROR, region, found[0], 0, "C")
        self._arrays[id(found[0])] = (found[0], region)
        return found

    def gradient(
        self, error_BP: Int32, x_BQ: Int32, affine: Affine | None, unit: int, shift: int, bits: int
    ) -> tuple[Int32, Int32, int]:
        """Return what the model gives, and write the job down once the optimiser says whose gradients these are."""
        self._flush()
        found = super().gradient(error_BP, x_BQ, affine, unit, shift, bits)
        half, zero = affine is not None, affine.zero if affine else 0
        source = self._resident(ACTIVATION, x_BQ, zero, half=half)
        errors = self._resident(ERROR, error_BP, 0, half=False)
        outputs, inputs = error_BP.shape[1], x_BQ.shape[1]
        address, biases = self._gradient_lines(outputs, inputs)
        words = {
            0: HALF if half else 0, 1: outputs, 2: inputs, 3: len(x_BQ), 4: -(-len(x_BQ) // self.spec.cores),
            6: lines(outputs, self.spec), 7: lines(inputs, self.spec) + 1, 8: address, 9: lines(inputs, self.spec),
            10: biases, 11: source.base, 12: source.stride, 15: errors.base, 16: errors.stride, 17: shift,
            21: zero, 24: 1 << unit,
        }  # fmt: skip
        if affine is not None:
            words |= {19: affine.mantissa, 20: affine_shift(affine, shift)}
        self._run(self.jobs[-1], words)
        flat = np.concatenate([found[0].reshape(-1), found[1]])
        self._write(GRADIENT, 0, address, parameter_image(flat, (inputs, outputs), self.spec), "C")
        return found

    def _gradient_lines(self, outputs: int, inputs: int) -> tuple[int, int]:
        """Return the lines of weights and biases of the layer whose gradient this is: layers go in order."""
        done = len(list(itertools.takewhile(lambda job: job.kind == "gradient", self.jobs[-2::-1])))
        if done == 0:
            self._learning = next(
                name for name, sizes in self._sizes.items() if sizes[:2] == (inputs, outputs)
            )
        sizes = self._sizes[self._learning]
        address = self._bases[self._learning] + parameter_lines(self.spec, sizes[: done + 1])
        return address, address + outputs * lines(inputs, self.spec)

    def adam(
        self, weight_N: Int32, m_N: Int32, v_N: Int32, gradient_N: Int32, alpha: int, rule: AdamRule, key: int
    ) -> tuple[Int32, Int32, Int32, int]:
        """Return what the model gives; the job is written down with the target's approach."""
        self._flush()
        if rule.root or rule.stochastic or rule.bits != 32:
            raise UserError(
                "the optimiser's lanes hold Adam's plain form in 32 bits, rounded to nearest",
                "export an agent trained with --second_moment plain --rounding nearest",
            )
        found = super().adam(weight_N, m_N, v_N, gradient_N, alpha, rule, key)
        self._stepped = self._learning, found, alpha, rule
        return found

    def approach(self, target_N: Int32, weight_N: Int32, tau: int) -> Int32:
        """Return what the model gives, and write down the optimiser's job with all that it changed."""
        found = super().approach(target_N, weight_N, tau)
        name, (weight, m, v, _), alpha, rule = self._stepped
        sizes, base = self._sizes[name], self._bases[name]
        self._run(
            self.jobs[-1],
            {8: base, 25: parameter_lines(self.spec, sizes), 26: alpha, 27: rule.m_decay, 28: rule.v_decay,
             29: rule.epsilon, 30: tau},
        )  # fmt: skip
        for memory, flat_N in ((WEIGHT, weight), (TARGET, found), (M, m), (V, v)):
            self._write(memory, 0, base, parameter_image(flat_N, sizes, self.spec), "C")
        self._weights[name] = {WEIGHT: weight, TARGET: found}
        return found
