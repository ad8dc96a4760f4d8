"""An update written down once and then done without the interpreter, by one thread or two.

The agents' own code runs over a :class:`Recorder` in place of the host's operations: what would be computed becomes a
command (:mod:`program_kernel`), in an array of its own. Doing the commands gives what the operations give, bit for bit:
they call the same compiled loops and the products of the same library. What is saved is what lies between them: an
update of DDPG has some 100 operations of 20 us, between which two threads wait for the interpreter's lock.

An update can be written down where nothing that it computes decides what is computed next. Under a compound loss scale
an overflow does: the optimiser's commands then look at what the rounding of the gradients found, and the scale is
changed after the program, which reads it at its beginning alone. What is drawn on the way (TD3's noise), pixels, and
the baselines without a scale in narrow formats go through the operations one by one.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.teacher.control import ddpg, sac
from spikestill.teacher.control import program_kernel as pk
from spikestill.teacher.control.actor_critic import AgentState, Batch, Noise, Settings
from spikestill.teacher.control.blas import compiled_code_calls
from spikestill.teacher.control.lanes import Both, OtherThread
from spikestill.teacher.control.operations import (
    AdamRule,
    HostOperations,
    Layer,
    PolicyRule,
    Sample,
    adam_numbers,
)
from spikestill.teacher.control.optimiser import COUNTERS, count, grow

Array = npt.NDArray[Any]
FEWEST = 4
"""Transitions of a batch: NumPy has other functions for products of one row or column, and DDPG takes halves."""


def can_be_recorded(o: Any, settings: Settings) -> bool:
    """Return whether an agent's updates can be written down."""
    if not isinstance(o, HostOperations) or settings.encoder is not None:
        return False
    if settings.config.batch_size < FEWEST or 1 in (settings.observation, *settings.config.hidden):
        return False
    scaling = "compound" if o.form.low else "none"
    drawn = settings.config.algorithm == "ddpg" and settings.config.target_noise
    return settings.methods.loss_scaling == scaling and not drawn and compiled_code_calls()


@dataclasses.dataclass(frozen=True)
class _Changing:
    """A number of an update that is another one in the next."""

    number: Callable[[], float]

    def numbers(self) -> list[float]:
        """Return the number that it is now."""
        return [self.number()]


class Recorder:
    """The operations of :class:`HostOperations` that write themselves down; results are arrays to be filled.

    Args:
        o: what would compute.
        state: whose parameters the optimiser steps.
        given: arrays that come from outside with every update, by which :meth:`array` knows them.
    """

    shares = HostOperations.shares
    worth_sharing = 0

    def __init__(self, o: HostOperations, state: AgentState, given: Sequence[Array]) -> None:
        self.real, self._o, self._state, self._given = o.real, o, state, given
        self.commands: list[list[int]] = []
        self.scalars: list[Any] = []
        self.inputs: list[tuple[Array, int]] = []
        self.finite = {name: np.ones(len(group.g_NP), np.int64) for name, group in state.groups.items()}
        self.stepped: set[str] = set()
        self.changed: list[tuple[int, Callable[[], Sequence[float]]]] = []
        self.kept: list[Array] = []
        self._lane = 0

    def both(self, work: Callable[[int], Any], number: int) -> list[Any]:
        """Write down pieces of work, every second one for the other thread: a ``Both``."""
        self._write(pk.WAIT)
        found = []
        for index in range(number):
            self._lane = index % 2
            found.append(work(index))
        self._lane = 0
        self._write(pk.WAIT)
        return found

    def _write(self, what: int, *values: Any) -> None:
        """Write a command; arrays become their addresses, and are kept."""
        row = [what, self._lane]
        for value in values:
            if isinstance(value, np.ndarray):
                self.kept.append(value)
                row.append(value.ctypes.data)
            else:
                row.append(int(value))
        if what == pk.WAIT and self.commands and self.commands[-1][0] == pk.WAIT:
            return
        self.commands.append(row + [0] * (pk.WIDTH - len(row)))

    def _scalar(self, *values: Any) -> int:
        """Return the place of the first of these numbers, which lie one behind the other."""
        at = len(self.scalars)
        for value in values:
            if isinstance(value, _Changing):
                self.changed.append((len(self.scalars), value.numbers))
            self.scalars.append(self.real(0.0 if isinstance(value, _Changing) else value))
        return at

    def _product(
        self, a: Array, b: Array, out: Array, *, a_turned: bool = False, b_turned: bool = False
    ) -> None:
        """Write down out = a b, of contiguous arrays, as ``np.matmul`` calls BLAS for them."""
        _contiguous(a, b, out)
        (rows, columns), inner = out.shape, a.shape[0] if a_turned else a.shape[1]
        if columns == 1 and not b_turned:
            order, sizes = (pk.ROW_MAJOR, (inner, rows)) if a_turned else (pk.COLUMN_MAJOR, (inner, rows))
            self._write(pk.VECTOR, a, order, *sizes, a.shape[1], b, out)
            return
        lies = [pk.TRANSPOSED if turned else pk.AS_IT_IS for turned in (a_turned, b_turned)]
        self._write(pk.PRODUCT, a, b, out, rows, columns, inner, *lies, a.shape[1], b.shape[1], columns)

    def array(self, values: Array) -> Array:
        """Take in what comes from outside."""
        index = next(index for index, each in enumerate(self._given) if each is values)
        found = np.empty(values.shape, self.real)
        self.inputs.append((found, index))
        self._round(found)
        return found

    def _round(self, values: Array) -> None:
        if self._o.form.low:
            self._write(pk.ROUND, values, values.size)

    def host(self, values: Array) -> Array:
        """Return an array as it is when it is looked at."""
        return values

    def zeros(self, *shape: int) -> Array:
        """Return zeros."""
        found = self._o.zeros(*shape)
        self.kept.append(found)
        return found

    def scalar(self, value: float) -> float:
        """Return ``value`` rounded to the format."""
        return self._o.scalar(value)

    def joined(self, x_BI: Array, y_BD: Array) -> Array:
        """See :class:`HostOperations`, here and below."""
        _contiguous(x_BI, y_BD)
        (rows, left), right = x_BI.shape, y_BD.shape[1]
        found = np.empty((rows, left + right), self.real)
        self._write(pk.JOIN, x_BI, y_BD, found, rows, left, right)
        return found

    def stacked(self, parts: Sequence[Array]) -> Array:
        """Return parts of a batch, whose rows may lie apart, as one."""
        found, begin = np.empty((sum(map(len, parts)), parts[0].shape[1]), self.real), 0
        for part in filter(len, parts):
            into, begin = found[begin : begin + len(part)], begin + len(part)
            self._write(pk.ROWS, part, into, *part.shape, part.strides[0] // part.itemsize)
        return found

    def linear(self, x_BI: Array, layer: Layer, relu: bool) -> Array:
        """Return x W + b (B, O); max(., 0) where ``relu``."""
        found = np.empty((len(x_BI), len(layer.bias_O)), self.real)
        self._product(x_BI, layer.weight_IO, found)
        self._write(pk.BIAS, found, layer.bias_O, *found.shape, relu)
        return found

    def backward(self, g_BO: Array, layer: Layer, active_BI: Array | None) -> Array:
        """Return g Wᵀ (B, I); zero where a unit of ``active_BI`` was not active."""
        found = np.empty((len(g_BO), len(layer.weight_IO)), self.real)
        if g_BO.shape[1] == 1:
            _contiguous(g_BO, layer.weight_IO)
            self._write(pk.OUTER, g_BO, layer.weight_IO, found, *found.shape)
        else:
            self._product(g_BO, layer.weight_IO, found, b_turned=True)
        if active_BI is None:
            self._round(found)
        else:
            self._write(pk.MASK, found, active_BI, *found.shape)
        return found

    def weight_gradient(self, x_BI: Array, g_BO: Array, into: Layer) -> None:
        """Write xᵀ g and the sum of g over the batch."""
        self._product(x_BI, g_BO, into.weight_IO, a_turned=True)
        self._write(pk.COLUMNS, g_BO, into.bias_O, *g_BO.shape)

    def finish(self, g_P: Array) -> bool:
        """Round gradients, and note for the optimiser whether all are finite; return True."""
        if self._o.form.low:
            name, index = next(
                (name, index)
                for name, group in self._state.groups.items()
                for index, own_P in enumerate(group.g_NP)
                if np.may_share_memory(own_P, g_P)
            )
            self._write(pk.FINISH, g_P, g_P.size, self.finite[name][index : index + 1])
        return True

    def tanh(self, u_BD: Array) -> Array:
        """Return tanh u, written over u."""
        self._write(pk.TANH, u_BD, u_BD.size)
        return u_BD

    def tanh_backward(self, g_BD: Array, a_BD: Array) -> Array:
        """Return g (1 − a²), written over g."""
        self._write(pk.TANH_BACKWARD, g_BD, a_BD, g_BD.size)
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
        """Return y (B,)."""
        found = np.empty(reward_B.shape, self.real)
        arrays = (reward_B, going_on_B, values[0], values[-1], density_B, found)
        _contiguous(*arrays)
        at = self._scalar(alpha, discount)
        self._write(pk.BELLMAN, *arrays, found.size, at, at + 1)
        return found

    def temporal_difference(self, value_B1: Array, target_B: Array, factor: float) -> Array:
        """Return the gradient (B, 1) of the squared error, times ``factor``."""
        found = np.empty(value_B1.shape, self.real)
        self._write(pk.DIFFERENCE, value_B1, target_B, found, found.size, self._scalar(factor))
        return found

    def of_smaller(self, values: Sequence[Array], factor: float) -> list[Array]:
        """Return for each of one or two values (B, 1) ``factor`` where it is the smaller, else 0."""
        if len(values) == 1:
            full = np.empty(values[0].shape, self.real)
            self._write(pk.FILL, full, full.size, self._scalar(factor))
            return [full]
        found = [np.empty(each.shape, self.real) for each in values]
        self._write(pk.SMALLER, *values, *found, found[0].size, self._scalar(factor))
        return found

    def sum(self, parts: Sequence[Array]) -> Array:
        """Return the sum of one or two arrays, whose rows may lie apart."""
        first, *others = (self.stacked([part]) for part in parts)
        for other in others:
            self._write(pk.ADD, first, other, first.size)
        return first

    def sample(self, head_BO: Array, noise_BD: Array, rule: PolicyRule) -> Sample:
        """Return the action of a head (μ, z) and its log π."""
        shape = noise_BD.shape
        t, std, u, a = (np.empty(shape, self.real) for _ in range(4))
        density_B = np.empty(shape[0], self.real)
        at = self._scalar(rule.low, 0.5 * (rule.high - rule.low), rule.added, rule.limit)
        self._write(
            pk.SAMPLE, head_BO, noise_BD, t, std, u, a, density_B, *shape, at, rule.normal_fix, rule.softplus_fix
        )  # fmt: skip
        return Sample(head_BO, noise_BD, t, std, u, a, density_B)

    def sample_backward(self, found: Sample, g_action_BD: Array, g_density: Any, rule: PolicyRule) -> Array:
        """Return the gradient of the head (B, 2 D)."""
        g_BO = np.empty(found.head_BO.shape, self.real)
        at = self._scalar(g_density, rule.added, 0.5 * (rule.high - rule.low), rule.limit)
        self._write(
            pk.SAMPLE_BACKWARD, g_action_BD, found.head_BO, found.noise_BD, found.t_BD, found.std_BD, found.u_BD,
            found.action_BD, g_BO, *found.noise_BD.shape, at, rule.normal_fix, rule.softplus_fix,
        )  # fmt: skip
        return g_BO

    def changing(self, number: Callable[[], float]) -> _Changing:
        """Return a number that is looked up anew before every update."""
        return _Changing(number)

    def adam(
        self, p: Array, m: Array, w: Array, c: Array, g: Array, step: int, scale: float, rule: AdamRule
    ) -> None:
        """Step the parameters, by the numbers of the step that it then is."""
        _contiguous(p, m, w, g)
        groups = self._state.groups.items()
        ((name, trained),) = ((name, each) for name, each in groups if np.may_share_memory(p, each.p_NP))
        at = self._scalar(*adam_numbers(self._o, step, scale, rule))
        self.changed.append((at, lambda: adam_numbers(self._o, trained.steps + 1, trained.scale, rule)))
        finite = self.finite[name]
        self._write(pk.ADAM, p, m, w, c, g, p.size, at, rule.root_form, rule.kahan, finite, len(finite))
        self.stepped.add(name)

    def average(self, target: Array, p: Array, tau: float) -> None:
        """Move the target's weights towards ``p``."""
        _contiguous(target, p)
        at = self._scalar(tau, 1.0 - tau)
        self._write(pk.AVERAGE, target, p, p.size, at, at + 1)

    def average_kahan(
        self, total: Array, c: Array, target: Array, p: Array, tau: float, scale: float
    ) -> None:
        """Move the target's weights towards ``p`` by Kahan momentum."""
        _contiguous(total, c, target, p)
        at = self._scalar(tau, scale)
        self._write(pk.AVERAGE_KAHAN, total, c, target, p, p.size, at, at + 1)


def _contiguous(*arrays: Array) -> None:
    """Check that commands may take the arrays by their addresses alone."""
    assert all(each.flags.c_contiguous for each in arrays)


class Program:
    """One kind of update of one agent, written down as it is first made; the state's arrays stay where they are.

    Args:
        o: the host's operations.
        state: is changed.
        settings: what does not change.
        batch: transitions of the first update.
        noise: of the first update.
    """

    def __init__(
        self, o: HostOperations, state: AgentState, settings: Settings, batch: Batch, noise: Noise
    ) -> None:
        if not compiled_code_calls():
            raise RuntimeError("compiled code cannot call this NumPy's products")
        self._o, self._state, self._settings, self._q = o, state, settings, o.q
        recorder = Recorder(o, state, (*batch, *noise))
        learn = sac.learn_networks if settings.config.algorithm == "sac" else ddpg.update
        with _counters_kept(state):
            self._found = learn(recorder, state, settings, batch, noise, recorder.both)
        recorder.both(lambda _: None, 0)
        self._inputs, self._changed, self._kept = recorder.inputs, recorder.changed, recorder.kept
        self._stepped = {name: recorder.finite[name] for name in state.groups if name in recorder.stepped}
        self._commands = np.array(recorder.commands, np.int64)
        self._scalars = np.array(recorder.scalars, o.real)

    def __call__(self, batch: Batch, noise: Noise, both: Both) -> dict[str, Any]:
        """Do the update; return what it found, which the next one writes over."""
        o, state, settings = self._o, self._state, self._settings
        given = (*batch, *noise)
        for array, index in self._inputs:
            array[...] = given[index]
        for at, numbers in self._changed:
            found = numbers()
            self._scalars[at : at + len(found)] = found
        if isinstance(both, OtherThread):
            both.run(self._commands, self._scalars, self._q)
        else:
            pk.alone(self._commands, self._scalars, self._q)
        for name, finite_N in self._stepped.items():
            group = state.groups[name]
            if count(o, group, bool(finite_N.all()), settings.methods):
                grow(o, [group], settings.methods)
        state.updates += 1
        return sac.learn_temperature(o, state, settings, self._found)


@contextlib.contextmanager
def _counters_kept(state: AgentState) -> Iterator[None]:
    """Leave what is counted of an update as it is, and where no loss scale doubles."""
    groups, updates = state.groups.values(), state.updates
    before = [{name: getattr(group, name) for name in COUNTERS} for group in groups]
    for group in groups:
        group.good = -1
    try:
        yield
    finally:
        state.updates = updates
        for group, counters in zip(groups, before, strict=True):
            for name, value in counters.items():
                setattr(group, name, value)
