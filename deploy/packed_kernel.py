"""A whole integer net as bit-packed popcounts on one thread: the fastest exact way to play it on a CPU.

A binary neuron with inputs x and weights w+ (mask of the +1), w- (mask of the -1) has
s = popcount(x & w+) - popcount(x & w-). The two masks are disjoint, so
s + popcount(w-) = popcount((x & w+) | (~x & w-)): one popcount a word instead of two, and
y = 1 iff popcount((x & w+) | (~x & w-)) >= theta + popcount(w-).

Layouts. Spikes of a layer are kept as bits, feature o of a position in bit o % 64 of word o // 64. For the
layer that reads them they are spread to one word (per 64 channels) and group, so that a patch is built with
one shift and one or for each tap, vectorised over groups; neurons of a group are vectorised over features.
Taps never straddle two words, so any fan-in works: 64 // channels taps a word, or ceil(channels / 64)
words a tap.

Axis suffixes: O output features, H height, W width, C channels, A actions.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from spikestill.common.compiling import njit
from spikestill.common.spikes import SpikeLayout, SpikeTrace, neuron_mask
from spikestill.deploy.popcount import popcount
from spikestill.deploy.transduction import plan_transduction, transduce_kernel
from spikestill.student.integer_net import IntegerLayer, IntegerNet, check_stack, count_votes

WORD_BITS = 64
NEVER = np.iinfo(np.int64).max

# Columns of the geometry table, one row for each binary layer.
(
    IN_HEIGHT, IN_WIDTH, OUT_HEIGHT, OUT_WIDTH, FEATURES, GROUPS, KERNEL, STRIDE, PAD, PER_IN, WORDS,
    WEIGHTS, THETA,
) = range(13)  # fmt: skip


def words_for(bits: int) -> int:
    """Return how many 64-bit words hold ``bits`` bits."""
    return -(-bits // WORD_BITS)


def patch_words(layer: IntegerLayer) -> int:
    """Return the 64-bit words of one neuron's patch."""
    per_in, taps = layer.in_channels // layer.groups, layer.kernel**2
    return -(-taps // (WORD_BITS // per_in)) if per_in <= WORD_BITS else taps * words_for(per_in)


def pack_weights(layer: IntegerLayer) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Return the masks w+ and w-, uint64 (blocks of 64 features, words, 64), zero past the last feature."""
    per_in, taps, words = layer.in_channels // layer.groups, layer.kernel**2, patch_words(layer)
    channel = np.arange(per_in)[:, None]
    tap = np.arange(taps)[None, :]
    if per_in <= WORD_BITS:
        per_word = WORD_BITS // per_in
        word = np.broadcast_to(tap // per_word, (per_in, taps))
        bit = tap % per_word * per_in + channel
    else:
        word = tap * words_for(per_in) + channel // WORD_BITS
        bit = np.broadcast_to(channel % WORD_BITS, (per_in, taps))
    weight = layer.weight_OIHW.reshape(layer.features, per_in * taps)
    blocks = words_for(layer.features)
    masks = []
    for sign in (1, -1):
        mask = np.zeros((words, blocks * WORD_BITS), np.uint64)
        ones = np.where(weight == sign, np.uint64(1) << bit.reshape(-1).astype(np.uint64), np.uint64(0))
        # Bits of a word are distinct, so their sum is their union.
        np.add.at(mask[:, : layer.features], word.reshape(-1), ones.T)
        masks.append(np.ascontiguousarray(mask.reshape(words, blocks, WORD_BITS).transpose(1, 0, 2)))
    return masks[0], masks[1]


class PackedNet:
    """An integer net with bit-packed layers; thread-safe, and it releases the GIL while it computes.

    Args:
        net: any valid integer net: any fan-in, any thresholds.
    """

    def __init__(self, net: IntegerNet) -> None:
        self.net = net
        self.shapes = net.shapes()
        self._plan = plan_transduction(net.layers[0], net.input_shape)
        rows, plus, minus, theta = [], [], [], []
        weights = thresholds = 0
        for layer, shape_in, shape_out in zip(net.layers[1:], self.shapes[:-1], self.shapes[1:], strict=True):
            masks = pack_weights(layer)
            minus_O = (layer.weight_OIHW == -1).sum(axis=(1, 2, 3), dtype=np.int64)
            rows.append((
                *shape_in[1:], *shape_out[1:], layer.features, layer.groups, layer.kernel, layer.stride,
                layer.pad, layer.in_channels // layer.groups, masks[0].shape[1], weights, thresholds,
            ))  # fmt: skip
            plus.append(masks[0].reshape(-1))
            minus.append(masks[1].reshape(-1))
            theta.append(np.full(masks[0].shape[0] * WORD_BITS, NEVER, np.int64))
            theta[-1][: layer.features] = layer.theta_O.astype(np.int64) + minus_O
            weights += masks[0].size
            thresholds += len(theta[-1])
        self._geometry = np.array(rows, np.int64).reshape(len(rows), THETA + 1)
        self._plus = np.concatenate([*plus, np.zeros(0, np.uint64)])
        self._minus = np.concatenate([*minus, np.zeros(0, np.uint64)])
        self._theta = np.concatenate([*theta, np.zeros(0, np.int64)])
        sizes = [height * width * words_for(features) for features, height, width in self.shapes]
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def _packed(self, stack_CHW: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
        check_stack(self.net, stack_CHW)
        plan = self._plan
        return _forward(
            np.ascontiguousarray(stack_CHW), plan.geometry, plan.offsets, plan.bounds, plan.theta_O,
            self._geometry, self._plus, self._minus, self._theta, self._starts,
        )  # fmt: skip

    def spikes(self, stack_CHW: npt.NDArray[np.uint8]) -> list[npt.NDArray[np.uint8]]:
        """Return every layer's spikes, uint8 0/1 (O, H, W), transduction first.

        Raises:
            ValueError: the stack is not uint8 of the net's input shape.
        """
        packed = self._packed(stack_CHW)
        found = []
        for shape, begin, end in zip(self.shapes, self._starts, self._starts[1:], strict=False):
            features, height, width = shape
            octets = packed[begin:end].reshape(height, width, -1).view(np.uint8)
            bits_HWO = np.unpackbits(octets, axis=2, count=features, bitorder="little")
            found.append(np.ascontiguousarray(bits_HWO.transpose(2, 0, 1)))
        return found

    def votes(self, stack_CHW: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        """Return the votes of every action, int64 (A,).

        Raises:
            ValueError: the stack is not uint8 of the net's input shape.
        """
        return self._votes(self._packed(stack_CHW))

    def traced(self, stack_CHW: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int64], SpikeTrace]:
        """Return the votes (A,) and the spikes that gave them, packed.

        Raises:
            ValueError: the stack is not uint8 of the net's input shape.
        """
        packed = self._packed(stack_CHW)
        return self._votes(packed), SpikeTrace(packed[None], self.layout)

    @functools.cached_property
    def layout(self) -> SpikeLayout:
        """Where the spikes lie in a trace."""
        bits, places = [], []
        for (features, height, width), begin, end in zip(
            self.shapes, self._starts, self._starts[1:], strict=False
        ):
            positions = height * width
            first = (begin + np.arange(positions) * ((end - begin) // positions)) * WORD_BITS
            bits.append((np.arange(features)[:, None] + first[None, :]).reshape(-1))
            places.append(np.arange(features * positions))
        words = int(self._starts[-1])
        return SpikeLayout(
            shapes=tuple(self.shapes),
            bits=tuple(bits),
            places=tuple(places),
            layer_W=np.repeat(np.arange(len(self.shapes)), np.diff(self._starts)),
            mask_W=neuron_mask(tuple(bits), tuple(places), words),
            unit_W=np.full(words, -1, np.int64),
            planes_PW=np.zeros((0, words), np.uint64),
            neurons_U=np.zeros(0, np.int64),
            event_planes_PW=np.zeros((0, words), np.uint64),
        )

    def _votes(self, packed: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        features, height, width = self.shapes[-1]
        octets = packed[self._starts[-2] :].reshape(height * width, -1).view(np.uint8)
        bits_PO = np.unpackbits(octets, axis=1, count=features, bitorder="little")
        return count_votes(bits_PO.T, self.net.actions)


@njit(cache=True, nogil=True)
def pack_positions(spikes_OHW, packed):  # type: ignore[no-untyped-def]
    """Pack uint8 spikes (O, H, W) into ``packed``, which must be zero: ceil(O / 64) words a position."""
    features, height, width = spikes_OHW.shape
    words = (features + 63) // 64
    flat = spikes_OHW.reshape(features, height * width)
    for feature in range(features):
        word, shift = feature // 64, np.uint64(feature % 64)
        for position in range(height * width):
            packed[position * words + word] |= np.uint64(flat[feature, position]) << shift


@njit(cache=True, nogil=True)
def bit_field(words, start, count):  # type: ignore[no-untyped-def]
    """Return ``count`` (1..64) bits of ``words`` from bit ``start``, as a uint64."""
    word, shift = start // 64, start % 64
    value = words[word] >> np.uint64(shift)
    if shift + count > 64:
        value |= words[word + 1] << np.uint64(64 - shift)
    if count < 64:
        value &= (np.uint64(1) << np.uint64(count)) - np.uint64(1)
    return value


@njit(cache=True, nogil=True)
def _spread(packed, spread, geometry):  # type: ignore[no-untyped-def]
    """Write a layer's spikes in the reading layer's form: (position, word of the group's channels, group)."""
    groups, per_in = geometry[GROUPS], geometry[PER_IN]
    words_in = (groups * per_in + 63) // 64
    words_group = (per_in + 63) // 64
    for position in range(geometry[IN_HEIGHT] * geometry[IN_WIDTH]):
        source = packed[position * words_in : (position + 1) * words_in]
        for word in range(words_group):
            count = min(per_in - word * 64, 64)
            for group in range(groups):
                spread[position, word, group] = bit_field(source, group * per_in + word * 64, count)


@njit(cache=True, nogil=True)
def _gather_patch(spread, patch, geometry, top, left):  # type: ignore[no-untyped-def]
    """Write the patch (word, group) of the output position whose kernel starts at (top, left)."""
    height, width, kernel, per_in = (
        geometry[IN_HEIGHT],
        geometry[IN_WIDTH],
        geometry[KERNEL],
        geometry[PER_IN],
    )
    patch[:] = np.uint64(0)
    for u in range(max(0, -top), min(kernel, height - top)):
        for v in range(max(0, -left), min(kernel, width - left)):
            tap = u * kernel + v
            pixel = spread[(top + u) * width + left + v]
            if per_in <= 64:
                per_word = 64 // per_in
                shift = np.uint64(tap % per_word * per_in)
                target = patch[tap // per_word]
                for group in range(target.shape[0]):
                    target[group] |= pixel[0, group] << shift
            else:
                for word in range(pixel.shape[0]):
                    # One by one: copying a row compiles an error message's text along, which takes 2 s.
                    target = patch[tap * pixel.shape[0] + word]
                    for group in range(target.shape[0]):
                        target[group] = pixel[word, group]


@njit(cache=True, nogil=True)
def _two_words(x, y, plus_x, minus_x, plus_y, minus_y, theta):  # type: ignore[no-untyped-def]
    """Return the spikes of 64 neurons with two-word patches as a uint64; every argument has 64 lanes."""
    fired = np.uint64(0)
    for lane in range(WORD_BITS):
        total = popcount((x[lane] & plus_x[lane]) | (~x[lane] & minus_x[lane]))
        total += popcount((y[lane] & plus_y[lane]) | (~y[lane] & minus_y[lane]))
        fired |= np.uint64(total >= theta[lane]) << np.uint64(lane)
    return fired


@njit(cache=True, nogil=True)
def _many_words(patch, first, plus, minus, theta, totals):  # type: ignore[no-untyped-def]
    """As :func:`_two_words`, for any number of words: ``patch`` (word, feature), masks flat (word, lane)."""
    totals[:] = 0
    for word in range(patch.shape[0]):
        x = patch[word, first : first + WORD_BITS]
        p, m = (
            plus[word * WORD_BITS : (word + 1) * WORD_BITS],
            minus[word * WORD_BITS : (word + 1) * WORD_BITS],
        )
        for lane in range(WORD_BITS):
            totals[lane] += popcount((x[lane] & p[lane]) | (~x[lane] & m[lane]))
    fired = np.uint64(0)
    for lane in range(WORD_BITS):
        fired |= np.uint64(totals[lane] >= theta[lane]) << np.uint64(lane)
    return fired


@njit(cache=True, nogil=True)
def _binary_layer(packed_in, packed_out, geometry, plus, minus, theta):  # type: ignore[no-untyped-def]
    """Compute one binary layer. Masks are flat (block of 64 features, word, lane)."""
    groups, words, features = geometry[GROUPS], geometry[WORDS], geometry[FEATURES]
    words_group = (geometry[PER_IN] + 63) // 64
    blocks = (features + WORD_BITS - 1) // WORD_BITS
    spread = np.empty((geometry[IN_HEIGHT] * geometry[IN_WIDTH], words_group, groups), np.uint64)
    _spread(packed_in, spread, geometry)
    patch = np.empty((words, groups), np.uint64)
    lanes = np.zeros((words, blocks * WORD_BITS), np.uint64)
    totals = np.empty(WORD_BITS, np.int64)
    for row in range(geometry[OUT_HEIGHT]):
        for column in range(geometry[OUT_WIDTH]):
            _gather_patch(
                spread, patch, geometry,
                row * geometry[STRIDE] - geometry[PAD], column * geometry[STRIDE] - geometry[PAD],
            )  # fmt: skip
            _widen(patch, lanes, features // groups)
            target = (row * geometry[OUT_WIDTH] + column) * blocks
            for block in range(blocks):
                first, mask = block * WORD_BITS, block * words * WORD_BITS
                t = theta[first : first + WORD_BITS]
                if words == 2:
                    x, y = lanes[0, first : first + WORD_BITS], lanes[1, first : first + WORD_BITS]
                    middle, end = mask + WORD_BITS, mask + 2 * WORD_BITS
                    packed_out[target + block] = _two_words(
                        x, y, plus[mask:middle], minus[mask:middle], plus[middle:end], minus[middle:end], t
                    )
                else:
                    packed_out[target + block] = _many_words(
                        lanes, first, plus[mask:], minus[mask:], t, totals
                    )


@njit(cache=True, nogil=True)
def _widen(patch, lanes, per_out):  # type: ignore[no-untyped-def]
    """Give every feature its group's patch: (word, group) to (word, feature)."""
    for word in range(patch.shape[0]):
        for group in range(patch.shape[1]):
            lanes[word, group * per_out : (group + 1) * per_out] = patch[word, group]


@njit(cache=True, nogil=True)
def _forward(  # type: ignore[no-untyped-def]
    stack_CHW, plan_geometry, plan_offsets, plan_bounds, plan_theta, geometry, plus, minus, theta, starts
):
    """Return the packed spikes of all layers, one after another."""
    packed = np.zeros(starts[-1], np.uint64)
    spikes_OHW = np.empty((plan_theta.shape[0], plan_geometry[4], plan_geometry[5]), np.uint8)
    transduce_kernel(stack_CHW, plan_geometry, plan_offsets, plan_bounds, plan_theta, spikes_OHW)
    pack_positions(spikes_OHW, packed[starts[0] : starts[1]])
    for index in range(geometry.shape[0]):
        _binary_layer(
            packed[starts[index] : starts[index + 1]], packed[starts[index + 1] : starts[index + 2]],
            geometry[index], plus[geometry[index, WEIGHTS] :], minus[geometry[index, WEIGHTS] :],
            theta[geometry[index, THETA] :],
        )  # fmt: skip
    return packed
