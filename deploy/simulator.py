"""The core simulator: a core map tick by tick, at the level of cores, axons, delays and routed spikes.

In every tick each core gathers its axons' spikes (a firing in tick t - delay reaches its axon in tick t),
every neuron takes V = sum_w weight_w * popcount(axons_w & crossbar_w) over its 64-axon words and fires iff
V >= theta, and forgets V (deploy.core_map has the dynamics). What a tick computes becomes visible in later
ticks only.

- *Frame by frame*: the chip rests with blank input, one frame enters in tick 0, blank input follows, and the
  output neurons are read in tick ``ticks``. Cores that the frame cannot have reached in a tick keep their
  resting spikes and are not evaluated again: the reach is worked out once from routes and delays.
- *Pipelined*: a new frame enters in every tick and every core is evaluated in every tick.

Axis suffixes: B frames, C cores, N neurons of a core, A actions, W axon words, O output features, H, W.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from spikestill.common.compiling import njit
from spikestill.common.spikes import DISAGREE, SpikeLayout, SpikeTrace
from spikestill.deploy.core_map import NONE, WORD_BITS, CoreMap
from spikestill.deploy.crossbar_program import Ints, Words, compile_program
from spikestill.deploy.packed_kernel import pack_positions
from spikestill.deploy.popcount import EIGHT, fire_four_words, popcount
from spikestill.deploy.spike_layout import core_layout, core_of_word, firing_ticks
from spikestill.deploy.transduction import plan_transduction, transduce_planned

TOGETHER = 16
"""Cores whose axons are gathered before any is evaluated: the crossbars are then read in longer runs."""


class CoreSimulator:
    """Plays a core map, exactly; releases the GIL. One caller at a time.

    Args:
        core_map: the student on cores.
        threads: a pipelined run's frames are shared among as many, each share a stream of its own.

    Attributes:
        core_map: the map that it plays.
        kept: per layer, bool (O, H, W): True for the neurons that the map kept (the rest nothing reads).

    Raises:
        ValueError: the cores do not come to rest with blank input.
    """

    def __init__(self, core_map: CoreMap, threads: int = 1) -> None:
        self.core_map = core_map
        self.threads = threads
        self._program, self._bit_CN = compile_program(core_map)
        self._all = np.arange(core_map.cores)
        self._plan = plan_transduction(core_map.transduction, core_map.input_shape)
        delays = [core_map.dest_delay_CN.max(initial=1), core_map.input_delay_E.max(initial=1)]
        self._memory = int(max(delays)) + 1
        self._resting = self._rest()
        self._start, self._cores = self._schedule()
        self._rows = np.repeat(self._resting[None, :], core_map.ticks + self._memory, axis=0)
        self._sources = self._layer_sources()
        self.kept = [np.ones(shape, bool) for shape in core_map.layer_shape_L3.tolist()]
        for kept, (_, _, place) in zip(self.kept[1:], self._sources, strict=True):
            kept[:] = False
            kept.reshape(-1)[place] = True
        unit_W = core_of_word(self._program)
        tick_W = np.where(unit_W == NONE, 0, firing_ticks(core_map)[unit_W])
        self._seen_W = tick_W * self._program.row_words + np.arange(self._program.row_words)

    @functools.cached_property
    def layout(self) -> SpikeLayout:
        """Where the spikes lie in a trace."""
        return core_layout(self.core_map, self._program, self._bit_CN, self._sources)

    def _rest(self) -> npt.NDArray[np.uint64]:
        """Return the row of a chip that has seen blank input for long enough."""
        program = self._program
        rows = np.zeros((self._memory, program.row_words), np.uint64)
        ticks = self.core_map.ticks + 2 * self._memory
        start, blank = np.arange(ticks + 1) * len(self._all), np.zeros(self._plan.output_shape, np.uint8)
        _play_frame(program, rows, blank, start, np.tile(self._all, ticks), self.core_map.actions)
        if (rows != rows[0]).any():
            word = int(np.flatnonzero((rows != rows[0]).any(axis=0))[0])
            core = int(program.order_R[np.searchsorted(program.lane_start_R, word, side="right") - 1])
            raise ValueError(
                f"core {core} does not come to rest within {self.core_map.ticks + 2 * self._memory} ticks of "
                f"blank input, the map's depth is {self.core_map.ticks} ticks: its routes or delays are wrong"
            )
        return rows[0].copy()

    def _schedule(self) -> tuple[Ints, Ints]:
        """Return which cores a frame can have reached in each tick: first index (ticks + 2,), and cores."""
        core_map, program = self.core_map, self._program
        reached = np.zeros((core_map.ticks + 1, core_map.cores), bool)
        core_C, neuron_C = np.nonzero(core_map.dest_core_CN != NONE)
        target, delay = (each[core_C, neuron_C] for each in (core_map.dest_core_CN, core_map.dest_delay_CN))
        # One number for each: to sort them takes a tenth of the time that columns of three take.
        numbers = (core_map.cores, core_map.cores, self._memory)
        edges = np.array(
            np.unravel_index(np.unique(np.ravel_multi_index((core_C, target, delay), numbers)), numbers)
        )
        entries = core_map.input_delay_E <= core_map.ticks
        reached[core_map.input_delay_E[entries], core_map.input_core_E[entries]] = True
        for tick in range(core_map.ticks):
            target, delay = edges[1:, reached[tick][edges[0]]]
            inside = tick + delay <= core_map.ticks
            reached[(tick + delay)[inside], target[inside]] = True
        cores = [np.flatnonzero(reached[tick][program.order_R]) for tick in range(core_map.ticks + 1)]
        start = np.concatenate([[0], np.cumsum([len(found) for found in cores])]).astype(np.int64)
        return start, np.concatenate(cores)

    def _layer_sources(self) -> list[tuple[Ints, Words, Ints]]:
        """Return, per binary layer, each computing neuron's word and shift in a row and flat place."""
        core_map = self.core_map
        found = []
        for layer in range(1, len(core_map.layer_shape_L3)):
            cores = (core_map.core_layer_C == layer) & ~core_map.core_relay_C
            core, neuron = np.nonzero(core_map.used_CN & cores[:, None])
            position = tuple(
                getattr(core_map, name)[core, neuron] for name in ("feature_CN", "row_CN", "column_CN")
            )
            place = np.ravel_multi_index(position, tuple(core_map.layer_shape_L3[layer]))
            bit = self._bit_CN[core, neuron]
            found.append((bit // WORD_BITS, (bit % WORD_BITS).astype(np.uint64), place))
        return found

    def _transduce(self, stack_CHW: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        return transduce_planned(self._plan, stack_CHW)

    def _play(self, spikes_OHW: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        return _play_frame(
            self._program, self._rows, spikes_OHW, self._start, self._cores, self.core_map.actions
        )

    def votes(self, stack_CHW: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        """Return the votes (A,) of one frame, played alone, int64.

        Raises:
            ValueError: the stack is not uint8 of the map's input shape.
        """
        return self._play(self._transduce(stack_CHW))

    def trace(self) -> SpikeTrace:
        """Return the spikes of the last frame played alone, packed: each core's from the tick in which it fired."""
        return SpikeTrace(self._rows.reshape(-1)[self._seen_W][None], self.layout)

    def spikes(self, stack_CHW: npt.NDArray[np.uint8]) -> list[npt.NDArray[np.uint8]]:
        """Return every layer's spikes of one frame, played alone: uint8 (O, H, W), transduction first.

        A neuron that the map did not keep (see :attr:`kept`) is 0. Where copies of one neuron differ, which
        only a faulty map can bring about, it is 2.

        Raises:
            ValueError: the stack is not uint8 of the map's input shape.
        """
        transduced = self._transduce(stack_CHW)
        self._play(transduced)
        ticks = self.core_map.layer_tick_L
        return [transduced, *(self._read(layer, self._rows[ticks[layer]]) for layer in range(1, len(ticks)))]

    def _read(self, layer: int, row: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
        """Return a binary layer's spikes (O, H, W) from the row of its tick."""
        word, shift, place = self._sources[layer - 1]
        fired = ((row[word] >> shift) & np.uint64(1)).astype(np.uint8)
        shape = tuple(self.core_map.layer_shape_L3[layer])
        spikes = np.zeros(shape, np.uint8).reshape(-1)
        spikes[place] = fired
        spikes[place[spikes[place] != fired]] = DISAGREE
        return spikes.reshape(shape)

    def pipelined(self, stacks_BCHW: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        """Return the votes (B, A) of frames that enter one after another, one in every tick, int64.

        Raises:
            ValueError: a stack is not uint8 of the map's input shape.
        """
        shares = np.array_split(stacks_BCHW, min(self.threads, len(stacks_BCHW)) or 1)
        if len(shares) == 1:
            return self._stream(stacks_BCHW, self._memory)[0]
        with ThreadPoolExecutor(len(shares)) as pool:
            return np.concatenate(list(pool.map(lambda share: self._stream(share, self._memory)[0], shares)))

    def pipelined_spikes(
        self, stacks_BCHW: npt.NDArray[np.uint8]
    ) -> tuple[npt.NDArray[np.int64], list[list[npt.NDArray[np.uint8]]]]:
        """Return a pipelined run's votes (B, A) and, per frame, every layer's spikes; see :meth:`spikes`.

        It keeps the state of every tick: about 25 KB a frame for the 1-chip net.

        Raises:
            ValueError: a stack is not uint8 of the map's input shape.
        """
        ticks = self.core_map.layer_tick_L
        votes, transduced, rows = self._stream(
            stacks_BCHW, len(stacks_BCHW) + self.core_map.ticks + self._memory
        )
        found = []
        for frame in range(len(stacks_BCHW)):
            layers = [self._read(layer, rows[frame + ticks[layer]]) for layer in range(1, len(ticks))]
            found.append([transduced[frame], *layers])
        return votes, found

    def firings(self, stacks_BCHW: npt.NDArray[np.uint8]) -> Iterator[npt.NDArray[np.bool_]]:
        """Yield, tick by tick, which neurons of all cores fire in a pipelined run: bool (C, N).

        Frame f enters in tick f; the run ends with the last frame's votes. It keeps the state of every tick.

        Raises:
            ValueError: a stack is not uint8 of the map's input shape.
        """
        ticks = len(stacks_BCHW) + self.core_map.ticks
        rows = self._stream(stacks_BCHW, ticks + self._memory)[2][:ticks]
        used = self._bit_CN != NONE
        word, shift = self._bit_CN // WORD_BITS, (self._bit_CN % WORD_BITS).astype(np.uint64)
        for row in rows:
            yield ((row[word] >> shift) & np.uint64(1)).astype(bool) & used

    def _stream(
        self, stacks_BCHW: npt.NDArray[np.uint8], kept_rows: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8], npt.NDArray[np.uint64]]:
        """Return the votes, the transducer's spikes (B, O, H, W) and the last ``kept_rows`` ticks' rows."""
        transduced = np.zeros((len(stacks_BCHW), *self.core_map.layer_shape_L3[0]), np.uint8)
        for frame, stack_CHW in enumerate(stacks_BCHW):
            transduced[frame] = self._transduce(stack_CHW)
        rows = np.repeat(self._resting[None, :], kept_rows, axis=0)
        votes = _play_stream(
            self._program, rows, transduced, self._all, self.core_map.ticks, self.core_map.actions
        )
        return votes, transduced, rows


@njit(cache=True, nogil=True)
def _collect(rows, row, bits):  # type: ignore[no-untyped-def]
    """Return the 64 ``bits`` of the row that begins at word ``row`` of ``rows``, as one word."""
    arrived = np.uint64(0)
    for lane in range(WORD_BITS):
        bit = np.uint64(bits[lane])
        spikes = rows[row + (bit >> np.uint64(6))] >> (bit & np.uint64(63))
        arrived |= (spikes & np.uint64(1)) << np.uint64(lane)
    return arrived


@njit(cache=True, nogil=True)
def _gather(program, rows, row_of_delay, cores, axons):  # type: ignore[no-untyped-def]
    """Bring the spikes that reach ``cores`` in this tick to ``axons`` (cores, W); ``rows`` is flat.

    All cores in one call: handing the program's arrays over costs more than what a core gathers.
    """
    words = axons.shape[1]
    low, six = np.uint64(0xFFFFFFFF), np.uint64(63)
    twins, collected_RW = program.twin_RW, program.collected_RW
    move_start, moves = program.move_start, program.move_M
    for index in range(cores.shape[0]):
        core = cores[index]
        for word in range(words):
            twin = twins[core, word]
            if twin >= 0:
                axons[index, word] = axons[index, twin]
                continue
            collected = collected_RW[core, word]
            if collected >= 0:
                row = row_of_delay[program.collected_delay_L[collected]]
                arrived = _collect(rows, row, program.collected_bit[collected])
                axons[index, word] = arrived & program.collected_mask_L[collected]
                continue
            arrived = np.uint64(0)
            for move in range(move_start[core * words + word], move_start[core * words + word + 1]):
                way = moves[move, 0]
                place = row_of_delay[(way >> np.uint64(32)) & np.uint64(0xFFFF)] + (way & low)
                spikes = rows[place] & moves[move, 1]
                left = way >> np.uint64(48)
                arrived |= (spikes << left) | (spikes >> ((np.uint64(64) - left) & six))
            axons[index, word] = arrived


@njit(cache=True, nogil=True)
def _evaluate_any(axons, weights, crossbar, theta, potential):  # type: ignore[no-untyped-def]
    """Return the spikes of 64 lanes of a core with any number of axon words; ``potential`` is scratch of 64."""
    potential[:] = 0
    for eight in range(crossbar.shape[0]):
        for word in range(axons.shape[0]):
            x, w = axons[word], weights[word]
            for lane in range(EIGHT):
                potential[eight * EIGHT + lane] += w * popcount(x & crossbar[eight, word, lane])
    fired = np.uint64(0)
    for lane in range(WORD_BITS):
        fired |= np.uint64(potential[lane] >= theta[lane]) << np.uint64(lane)
    return fired


@njit(inline="always")
def _tick(program, rows, tick, cores):  # type: ignore[no-untyped-def]
    """Evaluate ``cores``, numbered as in the program, in ``tick``; row t % len(rows) holds the spikes of tick t."""
    words = program.weight_KW.shape[1]
    axons = np.empty((TOGETHER, words), np.uint64)
    potential = np.empty(WORD_BITS, np.int64)
    row_of_delay = np.empty(rows.shape[0], np.uint64)
    for delay in range(rows.shape[0]):
        row_of_delay[delay] = (tick - delay) % rows.shape[0] * rows.shape[1]
    flat, now = rows.reshape(-1), rows[tick % rows.shape[0]]
    for first in range(0, cores.shape[0], TOGETHER):
        some = cores[first : first + TOGETHER]
        _gather(program, flat, row_of_delay, some, axons)
        for index in range(some.shape[0]):
            core = some[index]
            tile = program.tile_R[core]
            weights = program.weight_KW[tile]
            target = program.lane_start_R[core] - program.block_start_K[tile]
            for block in range(program.block_start_K[tile], program.block_start_K[tile + 1]):
                crossbar, theta = program.crossbar[block], program.theta[block]
                if words == 4:
                    now[target + block] = fire_four_words(axons[index], weights, crossbar, theta)
                else:
                    now[target + block] = _evaluate_any(axons[index], weights, crossbar, theta, potential)


@njit(inline="always")
def _count(program, row, votes):  # type: ignore[no-untyped-def]
    """Add the output neurons' spikes in ``row`` to ``votes`` (A,)."""
    for index in range(program.vote_word_V.shape[0]):
        spikes = row[program.vote_word_V[index]] & program.vote_mask_V[index]
        votes[program.vote_action_V[index]] += popcount(spikes)


@njit(cache=True, nogil=True)
def _play_frame(program, rows, spikes, start, cores, actions):  # type: ignore[no-untyped-def]
    """Play one frame from rest; return the votes (A,) of the last tick.

    ``rows`` holds the resting spikes wherever the frame cannot reach. Tick t evaluates the cores from ``start[t]`` to
    ``start[t + 1]``.
    """
    rows[0, : program.input_words] = np.uint64(0)
    pack_positions(spikes, rows[0, : program.input_words])
    ticks = start.shape[0] - 1
    for tick in range(ticks):
        _tick(program, rows, tick, cores[start[tick] : start[tick + 1]])
    votes = np.zeros(actions, np.int64)
    _count(program, rows[(ticks - 1) % rows.shape[0]], votes)
    return votes


@njit(cache=True, nogil=True)
def _play_stream(program, rows, spikes, cores, ticks, actions):  # type: ignore[no-untyped-def]
    """Play frames (B, O, H, W), one entering in each tick, from rest; return their votes (B, A)."""
    frames = spikes.shape[0]
    votes = np.zeros((frames, actions), np.int64)
    for tick in range(frames + ticks):
        row = rows[tick % rows.shape[0]]
        row[: program.input_words] = np.uint64(0)
        if tick < frames:
            pack_positions(spikes[tick], row[: program.input_words])
        _tick(program, rows, tick, cores)
        if tick >= ticks:
            _count(program, row, votes[tick - ticks])
    return votes
