"""Fixed-point numbers as pure integer functions: formats, rounding, saturation, products, roots, quotients, tanh.

A number x of format Q(bits, fraction) is the integer ``X = x 2^fraction``, kept in ``bits`` bits, two's complement.
Everything here is the NumPy reference: integers only, no float anywhere between :func:`QFormat.quantise` and
:func:`QFormat.real`. The fast kernels (``fixed_fast.py``), the accelerator's model, its SystemVerilog and the
exported C give the same integers.

The rules, said once:

- *Rounding* of a right shift is to nearest, halves up: ``(X + 2^(s-1)) >> s`` (:func:`round_shift`).
- *Saturation*: what does not fit becomes the nearest end of the format, and is counted (:func:`saturate`).
- *Products*: a 32 x 32 product is two 32 x 16 ones, the stream's upper half (signed) and lower half (unsigned), each
  with a 64-bit sum of its own; neither can overflow below 2^15 terms (:func:`product`, :func:`narrow`). This is the
  processing element of FIXAR (Yang 2021, section V.C).
- *16-bit activations* are Algorithm 1's ``q`` with its zero point taken off (:class:`Affine`).

Axis suffixes: S rows of the stream, K terms of a sum, O outputs.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

HALF = 16
"""Bits of half a word: the narrow side of the element's multipliers, and FIXAR's quantised activations."""
GOLDEN = 0x9E3779B9
"""Step of the random generator's state: 2^32 over the golden ratio."""
TERMS = 1 << 15
"""Products that a 64-bit sum of 32 x 17 bits holds for certain: 2^31 2^16 2^15 = 2^62."""
AFFINE_SHIFT = 8
"""Bits that :func:`narrow_affine` drops from a sum before it multiplies by the scale."""
AFFINE_BITS = 48
"""Bits that it keeps, so that 48 x 16 bits fit in 64."""


@dataclasses.dataclass(frozen=True)
class QFormat:
    """A format of ``bits`` bits (2..32), ``fraction`` of them below the point (any integer).

    ``fraction`` may exceed ``bits``: Q(32, 34) has the range +-2^-3.
    """

    bits: int
    fraction: int

    @property
    def high(self) -> int:
        """Largest integer, 2^(bits-1) - 1."""
        return (1 << (self.bits - 1)) - 1

    @property
    def low(self) -> int:
        """Smallest integer, -2^(bits-1)."""
        return -(1 << (self.bits - 1))

    @property
    def ulp(self) -> float:
        """The value of 1."""
        return 2.0**-self.fraction

    def quantise(self, real: npt.ArrayLike) -> Int32:
        """Return the integers nearest to ``real`` (halves up), saturated: where the outer world comes in.

        Raises:
            ValueError: a value is NaN.
        """
        scaled = np.floor(np.asarray(real, np.float64) * 2.0**self.fraction + 0.5)
        if np.isnan(scaled).any():
            raise ValueError(f"NaN has no value in {self}")
        return np.clip(scaled, self.low, self.high).astype(np.int32)

    def integer(self, real: float) -> int:
        """Return the one integer nearest to ``real``, as :meth:`quantise`."""
        return int(self.quantise(real))

    def real(self, integers: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return what the integers stand for, float64: exact."""
        return np.asarray(integers, np.float64) * self.ulp

    def __str__(self) -> str:
        return f"Q({self.bits}, {self.fraction})"


def round_shift(x: Int64, shift: int) -> Int64:
    """Return ``floor(x / 2^shift + 1/2)`` of int64, ``shift`` 0..62; ``x + 2^(shift-1)`` must fit in 64 bits."""
    return x if shift == 0 else (x + (1 << (shift - 1))) >> shift


def ceil_shift(x: Int64, shift: int) -> Int64:
    """Return ``ceil(x / 2^shift)`` of int64, ``shift`` 0..62; ``x + 2^shift`` must fit in 64 bits."""
    return (x + ((1 << shift) - 1)) >> shift


def saturate(x: Int64, bits: int) -> tuple[Int64, int]:
    """Return (x clipped to ``bits`` bits, how many values that changed)."""
    high = (1 << (bits - 1)) - 1
    return np.clip(x, -high - 1, high), int(np.count_nonzero((x > high) | (x < -high - 1)))


@dataclasses.dataclass(frozen=True)
class Sums:
    """Exact sums of 32 x 32 products, as the two sums that the elements keep: ``upper 2^16 + lower``."""

    upper_SO: Int64
    lower_SO: Int64


def product(stream_SK: Int32, weight_KO: Int32) -> Sums:
    """Return ``stream_SK @ weight_KO`` exactly: each 32 x 32 product two of 32 x 16 (Yang 2021, figure 5).

    Args:
        stream_SK: int32, split into an upper half, signed, and a lower half, unsigned.
        weight_KO: int32.

    Raises:
        ValueError: a sum of K >= 2^15 products may not fit in 64 bits.
    """
    if stream_SK.shape[1] > TERMS:
        raise ValueError(f"{stream_SK.shape[1]} terms, {TERMS} is what a 64-bit sum holds for certain")
    stream, weight = stream_SK.astype(np.int64), weight_KO.astype(np.int64)
    return Sums((stream >> HALF) @ weight, (stream & 0xFFFF) @ weight)


def narrow(sums: Sums, shift: int, bits: int) -> tuple[Int64, int]:
    """Return (``round_shift(upper 2^16 + lower, shift)`` saturated to ``bits``, values saturated), exactly.

    The 74-bit sum is never formed: the lower sum's carry goes to the upper one first.

    Args:
        sums: of :func:`product`.
        shift: 0..62.
        bits: 2..32.
    """
    upper = sums.upper_SO + (sums.lower_SO >> HALF)
    lower = sums.lower_SO & 0xFFFF
    if shift > HALF:
        return saturate(round_shift(upper, shift - HALF), bits)
    # Beyond 2^40 every result saturates: shifted left by 16 at most, it would still be above 2^31.
    upper = np.clip(upper, -(1 << 40), 1 << 40)
    return saturate((upper << (HALF - shift)) + round_shift(lower, shift), bits)


@dataclasses.dataclass(frozen=True)
class Affine:
    """Algorithm 1's 16-bit activations of one layer (Yang 2021): q = floor(A / delta) + z, A ~ delta (q - z).

    delta = mantissa 2^(exponent - 16), in units of the activation's last place; z = floor(-A_min / delta).
    The paper's range |A_min| + |A_max| is rounded up to 16 significant bits, so that reading back multiplies by 16
    bits. q is 0..2^16 - 1 (saturated); what is multiplied is q - z, 17 bits with its sign: what the lower half's
    multiplier has anyway, where it takes an unsigned 16-bit half.

    Attributes:
        mantissa: 2^15..2^16 - 1.
        exponent: -15..17.
        zero: z, 0..2^16.
    """

    mantissa: int
    exponent: int
    zero: int

    @classmethod
    def of(cls, minimum: int, maximum: int) -> Affine:
        """Return the format of activations seen between ``minimum`` <= 0 and ``maximum`` >= 0, int32 values."""
        span = max(1, max(0, -minimum) + max(0, maximum))
        exponent = span.bit_length() - HALF
        mantissa = -(-span >> exponent) if exponent > 0 else span << -exponent
        if mantissa == 1 << HALF:
            mantissa, exponent = mantissa >> 1, exponent + 1
        return cls(mantissa, exponent, _floor_quotient(max(0, -minimum), mantissa, exponent))

    def quantise(self, activation: Int32) -> tuple[Int32, int]:
        """Return (q - z as int32, how many q were saturated to 0..2^16 - 1)."""
        wide = activation.astype(np.int64)
        up, down = max(0, -self.exponent), max(0, self.exponent)
        q = (wide << (HALF + up)) // (self.mantissa << down) + self.zero
        clipped = np.clip(q, 0, (1 << HALF) - 1)
        return (clipped - self.zero).astype(np.int32), int(np.count_nonzero(clipped != q))


def _floor_quotient(value: int, mantissa: int, exponent: int) -> int:
    """Return floor(value 2^16 / (mantissa 2^exponent))."""
    return (value << (HALF + max(0, -exponent))) // (mantissa << max(0, exponent))


def affine_product(stream_SK: Int32, weight_KO: Int32) -> Int64:
    """Return ``stream_SK @ weight_KO`` of a stream of 17 bits, exactly, in one 64-bit sum.

    Raises:
        ValueError: K >= 2^15.
    """
    if stream_SK.shape[1] > TERMS:
        raise ValueError(f"{stream_SK.shape[1]} terms, {TERMS} is what a 64-bit sum holds for certain")
    return stream_SK.astype(np.int64) @ weight_KO.astype(np.int64)


def narrow_affine(sum_SO: Int64, affine: Affine, shift: int, bits: int) -> tuple[Int64, int]:
    """Return (``sum delta / 2^shift`` rounded and saturated to ``bits``, values saturated).

        T = round_shift(sum, 8), saturated to 48 bits;   round_shift(T mantissa, shift + 8 - exponent)

    Args:
        sum_SO: of :func:`affine_product`.
        affine: the stream's format.
        shift: bits to drop beyond delta's own; ``shift + 8 - exponent`` must be 0..62.
        bits: 2..32.
    """
    kept, lost = saturate(round_shift(sum_SO, AFFINE_SHIFT), AFFINE_BITS)
    scaled = kept * affine.mantissa
    # Halves are added after a shift by one, for the product may fill 64 bits.
    by = affine_shift(affine, shift)
    rounded = scaled if by == 0 else ((scaled >> (by - 1)) + 1) >> 1
    found, clipped = saturate(rounded, bits)
    return found, lost + clipped


def affine_shift(affine: Affine, shift: int) -> int:
    """Return the shift that follows the product with the mantissa.

    Raises:
        ValueError: it is negative, as where a batch of one meets inputs that reach both ends of 32 bits.
    """
    by = shift + HALF - AFFINE_SHIFT - affine.exponent
    if by < 0:
        raise ValueError(f"a shift by {by} after a 16-bit format's product, 0 is the least")
    return by


def integer_root(x: Int64) -> Int64:
    """Return floor(sqrt(x)) of int64 0..2^62 - 1, bit by bit: 31 steps of compare and subtract, as in hardware."""
    rest, root = np.array(x, np.int64), np.zeros(np.shape(x), np.int64)
    for place in range(30, -1, -1):
        trial = (root << (place + 1)) + (1 << (2 * place))
        fits = rest >= trial
        rest = np.where(fits, rest - trial, rest)
        root = np.where(fits, root + (1 << place), root)
    return root


def ceil_root(x: Int64) -> Int64:
    """Return ceil(sqrt(x)) of int64 0..2^62 - 1."""
    root = integer_root(x)
    return root + (root * root < x)


def rounded_quotient(numerator: Int64, denominator: Int64) -> Int64:
    """Return numerator / denominator (> 0) rounded to nearest, halves away from 0: floor(|n| / d + 1/2), n's sign.

    Args:
        numerator: |n| + d / 2 < 2^63.
        denominator: 1..2^62.
    """
    size = (np.abs(numerator) + (denominator >> 1)) // denominator
    return np.where(numerator < 0, -size, size)


TANH_STEP_BITS = 7
"""A segment of the table is 2^-7 wide."""
TANH_SEGMENTS = 1024
"""Segments from 0 to 8; beyond 8 the last entry holds (1 - tanh 8 = 2.3e-7)."""
TANH_FRACTION = 20
"""Fraction bits of the entries: 21-bit values, 14-bit rises."""


@functools.cache
def tanh_table() -> Int32:
    """Return round(2^20 tanh(k / 128)) for k = 0..1024, int32 (1025,)."""
    scale, step = 1 << TANH_FRACTION, 1 << TANH_STEP_BITS
    table = np.array(
        [math.floor(math.tanh(k / step) * scale + 0.5) for k in range(TANH_SEGMENTS + 1)], np.int32
    )
    table.setflags(write=False)
    return table


def tanh(x: Int32, form: QFormat) -> Int32:
    """Return tanh of ``x`` in format ``form`` (fraction 6..27), in the same format: table and linear interpolation.

        |x| in segments of 2^-7, k the segment, r the rest (fraction - 7 bits):
        y = table[k] + round_shift((table[k+1] - table[k]) r, fraction - 7);  the sign is put back

    The error is at most 7e-6 (2^-17.1), plus half a unit of the format's last place.
    """
    table = tanh_table().astype(np.int64)
    size = np.abs(x.astype(np.int64))
    rest_bits = form.fraction - TANH_STEP_BITS
    if rest_bits >= 0:
        segment, rest = size >> rest_bits, size & ((1 << rest_bits) - 1)
    else:
        segment, rest, rest_bits = size << -rest_bits, np.zeros_like(size), 0
    inside = segment < TANH_SEGMENTS
    at = np.where(inside, segment, TANH_SEGMENTS - 1)
    rise = (table[at + 1] - table[at]) * rest
    y = np.where(inside, table[at] + round_shift(rise, rest_bits), table[TANH_SEGMENTS])
    if form.fraction >= TANH_FRACTION:
        y = y << (form.fraction - TANH_FRACTION)
    else:
        y = round_shift(y, TANH_FRACTION - form.fraction)
    return np.where(x < 0, -y, y).astype(np.int32)


def random_bits(key: int, counter: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Return 32 random bits for each counter: a hash of (key, counter), so that order and number of threads are free.

        x = counter * 0x9E3779B9 + key;  x ^= x >> 16;  x *= 0x7FEB352D;  x ^= x >> 15;  x *= 0x846CA68B;  x ^= x >> 16

    all modulo 2^32 (the multipliers: Wellons's low-bias hash).
    """
    x = counter.astype(np.uint32) * np.uint32(GOLDEN) + np.uint32(key & 0xFFFFFFFF)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def random_state(key: int, counter: int) -> int:
    """Return what :func:`random_bits` hashes for ``counter``; the next counter's is this and :data:`GOLDEN`."""
    return (counter * GOLDEN + key) & 0xFFFFFFFF


def gaussian(key: int, counter: int, size: int, fraction: int) -> Int64:
    """Return ``size`` near-normal numbers of deviation 1, mean 0: the sum of twelve 16-bit uniforms (Irwin 1927).

        n = sum_{j<12} (u_j + 1/2) 2^-16 - 6, tails end at +-6

    Args:
        key: of the stream.
        counter: of the first draw; the next free one is ``counter + 6 size``.
        size: how many.
        fraction: fraction bits of the result, 0..47.
    """
    draws = random_bits(key, (np.arange(6 * size, dtype=np.uint64) + counter).astype(np.uint32))
    draws = draws.reshape(size, 6).astype(np.int64)
    total = (draws & 0xFFFF).sum(1) + (draws >> HALF).sum(1) + 6 - (6 << HALF)
    return total << (fraction - HALF) if fraction >= HALF else round_shift(total, HALF - fraction)
