"""A core map compiled for simulation: what each core gathers, evaluates and offers, as flat arrays.

What makes it fast, none of which changes a spike:

- Cores with the same crossbar, thresholds and axon types share one *tile*, stored once.
- Neurons of a core with the same crossbar column and threshold fire alike in every tick (fan-out copies):
  they share one *lane*, evaluated once.
- Spikes travel by words: all routes between the same two 64-bit words with the same delay and the same
  rotation of bit positions are one *move*, target |= rotate_left(source & mask, rotation). Within a tile the
  order of lanes, and that of axons of equal weight, is free: it is chosen so that few moves suffice.
- Cores are numbered anew, those of a tile side by side, and all that a tick reads of them lies in that order.
- A core's axon words that receive the same moves (the +1 and -1 axons of a ternary input) are gathered once.
- A word that would take more than ``MOST_MOVES`` moves, for its axons are fed from all over the chip, is
  *collected* instead: one source bit for each of its 64 axons, 4 bytes against a move's 24.

Axis suffixes: C cores, R cores in the order of evaluation, N neurons of a core, A axons, K tiles, W axon words of a
core, M moves, S transducer outputs, V vote masks, L collected words.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spikestill.deploy.core_map import NONE, WORD_BITS, CoreMap
from spikestill.deploy.packed_kernel import words_for
from spikestill.deploy.popcount import EIGHT

NEVER = np.iinfo(np.int32).max
MOST_MOVES = 20
Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


class CrossbarProgram(NamedTuple):
    """The arrays that the tick kernel reads; a named tuple so that numba takes it as one argument.

    The state of one tick is a row of uint64 words: ``input_words`` words of transducer spikes, position by
    position with the features of a position side by side, then the lanes of every core.

    Attributes:
        input_words: words of transducer spikes, ceil(O / 64) for each position.
        row_words: words of a row.
        lane_start_R: int64 (C,), the core's first word in a row.
        tile_R: int64 (C,), the core's tile.
        block_start_K: int64 (K + 1,), a tile's blocks of 64 lanes.
        crossbar: uint64 (blocks, 8, W, 8), in the order in which it is read: bit b of [block, lane // 8, w, lane % 8]
            is 1 where the axon at bit b of word w meets the lane.
        theta: int32 (blocks, 64), thresholds; the largest int32 in lanes that are not used.
        weight_KW: int64 (K, W), weight of the axons of each word.
        twin_RW: int64 (C, W), an earlier word of the core with the same spikes, or -1.
        move_start: int64 (C * W + 1,), the moves into each axon word.
        move_M: uint64 (M, 2): [word of the row | delay in ticks << 32 | rotation to the left << 48, bits of that word].
        collected_RW: int32 (C, W), the word among those that are collected, or -1.
        collected_bit: uint32 (L, 64), bit of a row that feeds each axon; any bit where none does.
        collected_delay_L: uint32, ticks.
        collected_mask_L: uint64, axons that a bit feeds.
        order_R: int64 (C,), the core of the core map that each is.
        vote_word_V, vote_action_V: int64; vote_mask_V: uint64: ones of row[word] & mask vote for action.
    """

    input_words: int
    row_words: int
    lane_start_R: Ints
    tile_R: Ints
    block_start_K: Ints
    crossbar: Words
    theta: npt.NDArray[np.int32]
    weight_KW: Ints
    twin_RW: Ints
    move_start: Ints
    move_M: Words
    collected_RW: npt.NDArray[np.int32]
    collected_bit: npt.NDArray[np.uint32]
    collected_delay_L: npt.NDArray[np.uint32]
    collected_mask_L: Words
    order_R: Ints
    vote_word_V: Ints
    vote_action_V: Ints
    vote_mask_V: Words


class _Routes(NamedTuple):
    """Every route: from a bit of the row, or from a neuron until bits are known, to an axon of a core."""

    core: Ints  # source core, NONE for the transducer
    source: Ints  # source neuron, or the transducer's bit
    target: Ints
    axon: Ints
    delay: Ints


def compile_program(core_map: CoreMap) -> tuple[CrossbarProgram, Ints]:
    """Return the program, and the bit of a row that holds each neuron's spike, (C, N), -1: not used."""
    routes = _all_routes(core_map)
    tile_C, first_K = _tiles(core_map)
    lane_KN, columns, thetas = _lanes(core_map, first_K)
    blocks_K = np.array([-(-len(theta) // WORD_BITS) for theta in thetas], np.int64)
    features, height, width = (int(size) for size in core_map.layer_shape_L3[0])
    input_words = height * width * words_for(features)
    order_R = np.argsort(tile_C, kind="stable").astype(np.int64)
    rank_C = np.argsort(order_R)
    tile_R = tile_C[order_R]
    lane_start_R = input_words + np.concatenate([[0], np.cumsum(blocks_K[tile_R])])
    lane_CN = lane_KN[tile_C]
    bit_CN = np.where(lane_CN == NONE, NONE, lane_start_R[rank_C, None] * WORD_BITS + lane_CN)
    source_bit = routes.source.copy()
    neuron = routes.core != NONE
    source_bit[neuron] = bit_CN[routes.core[neuron], routes.source[neuron]]
    place_KA, weight_KW = _axon_places(core_map, tile_C, columns, routes, source_bit)
    words = weight_KW.shape[1]
    place = place_KA[tile_C[routes.target], routes.axon]
    live = place != NONE
    target_bit = (rank_C[routes.target] * words * WORD_BITS + place)[live]
    source_bit, delay = source_bit[live], routes.delay[live]
    start, moves = _moves(source_bit, target_bit, delay, core_map.cores * words)
    twin_RW = _twins(start, moves, core_map.cores, words)
    collected_RW, collected = _collected(source_bit, target_bit, delay, start, twin_RW)
    moved = collected_RW.reshape(-1)[target_bit // WORD_BITS] == NONE
    start, moves = _moves(source_bit[moved], target_bit[moved], delay[moved], core_map.cores * words)
    crossbar, theta = _blocks(columns, thetas, place_KA, words)
    votes = _votes(core_map, bit_CN)
    program = CrossbarProgram(
        input_words=input_words,
        row_words=int(lane_start_R[-1]),
        lane_start_R=lane_start_R[:-1].astype(np.int64),
        tile_R=tile_R,
        block_start_K=np.concatenate([[0], np.cumsum(blocks_K)]).astype(np.int64),
        crossbar=crossbar,
        theta=theta,
        weight_KW=weight_KW,
        twin_RW=twin_RW,
        move_start=start,
        move_M=np.stack([moves[0] | moves[1] << 32 | moves[2] << 48, moves[3]], axis=1).view(np.uint64),
        collected_RW=collected_RW,
        collected_bit=collected[0],
        collected_delay_L=collected[1],
        collected_mask_L=collected[2],
        order_R=order_R,
        vote_word_V=votes[0],
        vote_action_V=votes[1],
        vote_mask_V=votes[2],
    )
    return program, bit_CN


def input_bits(core_map: CoreMap) -> Ints:
    """Return the bit of a row for every transducer output (o, h, w), flat, as ``pack_positions`` packs."""
    features, height, width = (int(size) for size in core_map.layer_shape_L3[0])
    position = np.arange(height * width) * words_for(features) * WORD_BITS
    return (np.arange(features)[:, None] + position[None, :]).reshape(-1)


def _all_routes(core_map: CoreMap) -> _Routes:
    core, neuron = np.nonzero(core_map.used_CN & (core_map.dest_core_CN != NONE))
    fed = np.repeat(input_bits(core_map), np.diff(core_map.input_start_S))
    return _Routes(
        core=np.concatenate([core, np.full(len(fed), NONE)]),
        source=np.concatenate([neuron, fed]),
        target=np.concatenate([core_map.dest_core_CN[core, neuron], core_map.input_core_E]).astype(np.int64),
        axon=np.concatenate([core_map.dest_axon_CN[core, neuron], core_map.input_axon_E]).astype(np.int64),
        delay=np.concatenate([core_map.dest_delay_CN[core, neuron], core_map.input_delay_E]).astype(np.int64),
    )


def _tiles(core_map: CoreMap) -> tuple[Ints, Ints]:
    """Return the tile of every core, and a core of every tile."""
    used_CN = core_map.used_CN
    key = np.concatenate(
        [
            core_map.core_crossbar_C[:, None],
            np.where(used_CN, core_map.theta_CN, 0),
            used_CN.astype(np.int32),
            core_map.axon_type_CA.astype(np.int32),
        ],
        axis=1,
    )
    rows = np.ascontiguousarray(key).view(np.dtype((np.void, key.shape[1] * key.itemsize)))[:, 0]
    _, first_K, tile_C = np.unique(rows, return_index=True, return_inverse=True)
    return tile_C.reshape(-1).astype(np.int64), first_K.astype(np.int64)


def _lanes(core_map: CoreMap, first_K: Ints) -> tuple[Ints, list[Words], list[Ints]]:
    """Return the lane of a tile's neurons (K, N), and per tile its lanes' columns (lanes, W) and thresholds.

    Lanes that drive one core lie side by side, in the order of that core's axons.
    """
    used_CN = core_map.used_CN
    lane_KN = np.full((len(first_K), used_CN.shape[1]), NONE, np.int64)
    columns, thetas = [], []
    for tile, core in enumerate(first_K):
        neurons = np.flatnonzero(used_CN[core])
        neurons = neurons[
            np.lexsort((core_map.dest_axon_CN[core, neurons], core_map.dest_core_CN[core, neurons]))
        ]
        column = core_map.crossbar_XNW[core_map.core_crossbar_C[core], neurons]
        theta = core_map.theta_CN[core, neurons].astype(np.int64)
        behaviour = np.concatenate([column.view(np.int64), theta[:, None]], axis=1)
        _, found, inverse = np.unique(behaviour, axis=0, return_index=True, return_inverse=True)
        lane_KN[tile, neurons] = np.argsort(np.argsort(found))[inverse.reshape(-1)]
        columns.append(column[np.sort(found)])
        thetas.append(theta[np.sort(found)])
    return lane_KN, columns, thetas


def _axon_places(
    core_map: CoreMap, tile_C: Ints, columns: list[Words], routes: _Routes, source_bit: Ints
) -> tuple[Ints, Ints]:
    """Return the bit of each axon among a core's words, (K, A), -1: it meets nothing; and the words' weights.

    Axons of one weight fill words of their own, in the order of what feeds them in one core of the tile,
    that with the most axons fed.
    """
    tiles, axons = len(columns), core_map.spec.axons
    order = np.argsort(routes.target, kind="stable")
    begin_C = np.searchsorted(routes.target[order], np.arange(core_map.cores + 1))
    fed_C = np.diff(begin_C)
    most = np.lexsort((np.arange(core_map.cores), -fed_C, tile_C))
    model_K = most[np.searchsorted(tile_C[most], np.arange(tiles))]
    place_KA = np.full((tiles, axons), NONE, np.int64)
    weights: list[list[int]] = []
    for tile, model in enumerate(model_K):
        into = order[begin_C[model] : begin_C[model + 1]]
        feed = np.full(axons, np.iinfo(np.int64).max)
        np.minimum.at(feed, routes.axon[into], source_bit[into])
        meets = np.bitwise_or.reduce(columns[tile], axis=0, initial=np.uint64(0))
        live = np.unpackbits(meets.view(np.uint8), bitorder="little")[:axons].astype(bool)
        weight_A = core_map.weight_Y[core_map.axon_type_CA[model]].astype(np.int64)
        found: list[int] = []
        for weight in np.unique(weight_A[live])[::-1]:
            chosen = np.flatnonzero(live & (weight_A == weight))
            chosen = chosen[np.argsort(feed[chosen], kind="stable")]
            place_KA[tile, chosen] = len(found) * WORD_BITS + np.arange(len(chosen))
            found += [int(weight)] * -(-len(chosen) // WORD_BITS)
        weights.append(found)
    words = max(1, *(len(found) for found in weights)) if weights else 1
    weight_KW = np.zeros((tiles, words), np.int64)
    for tile, found in enumerate(weights):
        weight_KW[tile, : len(found)] = found
    return place_KA, weight_KW


def _blocks(
    columns: list[Words], thetas: list[Ints], place_KA: Ints, words: int
) -> tuple[Words, npt.NDArray[np.int32]]:
    """Return the crossbars (blocks, 8, W, 8) in the order of axon places, and the thresholds (blocks, 64)."""
    crossbars, padded = [], []
    for column, theta, place in zip(columns, thetas, place_KA, strict=True):
        lanes = -(-len(theta) // WORD_BITS) * WORD_BITS
        axon = np.flatnonzero(place != NONE)
        bits = np.zeros((lanes, words * WORD_BITS), np.uint8)
        meets = np.unpackbits(np.ascontiguousarray(column).view(np.uint8), axis=1, bitorder="little")
        bits[: len(theta), place[axon]] = meets[:, axon]
        packed = np.packbits(bits, axis=1, bitorder="little").view(np.uint64)
        crossbars.append(packed.reshape(-1, WORD_BITS // EIGHT, EIGHT, words).transpose(0, 1, 3, 2))
        padded.append(np.concatenate([theta, np.full(lanes - len(theta), NEVER)]).reshape(-1, WORD_BITS))
    return np.ascontiguousarray(np.concatenate(crossbars)), np.concatenate(padded).astype(np.int32)


def _moves(source_bit: Ints, target_bit: Ints, delay: Ints, target_words: int) -> tuple[Ints, Ints]:
    """Return the first move of each target word, and the moves: (source, delay, rotation, mask), (4, M)."""
    keys, mask = _join(
        np.stack(
            [
                target_bit // WORD_BITS,
                source_bit // WORD_BITS,
                delay,
                (target_bit - source_bit) % WORD_BITS,
            ]
        ),
        source_bit % WORD_BITS,
    )
    start = np.searchsorted(keys[0], np.arange(target_words + 1)).astype(np.int64)
    return start, np.concatenate([keys[1:], mask.view(np.int64)[None]])


def _twins(start: Ints, moves: Ints, cores: int, words: int) -> Ints:
    """Return, for every core's axon words, an earlier word that receives the same moves, or -1: (R, W)."""
    twin_RW = np.full((cores, words), NONE, np.int64)
    begin_RW, count_RW = start[:-1].reshape(cores, words), np.diff(start).reshape(cores, words)
    for word in range(1, words):
        for earlier in range(word):
            alike = (count_RW[:, word] == count_RW[:, earlier]) & (count_RW[:, word] > 0)
            alike &= (twin_RW[:, word] == NONE) & (twin_RW[:, earlier] == NONE)
            core = np.flatnonzero(alike)
            if not core.size:
                continue
            count = count_RW[core, word]
            ends = np.cumsum(count)
            step = np.arange(ends[-1]) - np.repeat(ends - count, count)
            one = np.repeat(begin_RW[core, word], count) + step
            other = np.repeat(begin_RW[core, earlier], count) + step
            same = (moves[:, one] == moves[:, other]).all(axis=0)
            twin_RW[core[np.logical_and.reduceat(same, ends - count)], word] = earlier
    return twin_RW


def _collected(
    source_bit: Ints, target_bit: Ints, delay: Ints, start: Ints, twin_RW: Ints
) -> tuple[npt.NDArray[np.int32], tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32], Words]]:
    """Return which words are collected (R, W), and their bits, delays and masks.

    A word is collected where it takes more than ``MOST_MOVES`` moves, has no twin, its routes have one delay,
    and no axon of it is fed twice.
    """
    words = twin_RW.size
    word = target_bit // WORD_BITS
    fed_once = np.bincount(target_bit, minlength=words * WORD_BITS).reshape(-1, WORD_BITS).max(axis=1) <= 1
    least, most = np.full(words, NEVER), np.zeros(words, np.int64)
    np.minimum.at(least, word, delay)
    np.maximum.at(most, word, delay)
    chosen = (np.diff(start) > MOST_MOVES) & (twin_RW.reshape(-1) == NONE) & fed_once & (least == most)
    found = np.flatnonzero(chosen)
    index = np.full(words, NONE, np.int32)
    index[found] = np.arange(len(found))
    bit = np.zeros((len(found), WORD_BITS), np.uint32)
    mask = np.zeros(len(found), np.uint64)
    here = chosen[word]
    row, axon = index[word[here]], target_bit[here] % WORD_BITS
    bit[row, axon] = source_bit[here]
    np.bitwise_or.at(mask, row, np.uint64(1) << axon.astype(np.uint64))
    return index.reshape(twin_RW.shape), (bit, most[found].astype(np.uint32), mask)


def _join(keys: Ints, bit: Ints) -> tuple[Ints, Words]:
    """Return the distinct columns of ``keys``, sorted (first row slowest), and the union of their bits."""
    order = np.lexsort((*keys[::-1],))
    keys, ones = keys[:, order], np.uint64(1) << bit[order].astype(np.uint64)
    if not ones.size:
        return keys, ones
    begin = np.flatnonzero(np.concatenate([[True], (keys[:, 1:] != keys[:, :-1]).any(axis=0)]))
    return keys[:, begin], np.bitwise_or.reduceat(ones, begin)


def _votes(core_map: CoreMap, bit_CN: Ints) -> tuple[Ints, Ints, Words]:
    """Return the words, actions and masks of the output table.

    Two voting neurons of one lane count twice: each further one goes into a mask of its own.
    """
    bit = bit_CN[core_map.output_core_V, core_map.output_neuron_V]
    action = core_map.output_action_V.astype(np.int64)
    order = np.lexsort((bit, action))
    bit, action = bit[order], action[order]
    place = np.arange(len(bit))
    fresh = np.ones(len(bit), bool)
    fresh[1:] = (bit[1:] != bit[:-1]) | (action[1:] != action[:-1])
    turn = place - np.maximum.accumulate(np.where(fresh, place, 0))
    (word, action, _), mask = _join(np.stack([bit // WORD_BITS, action, turn]), bit % WORD_BITS)
    return word, action, mask
