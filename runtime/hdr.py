"""Times in a histogram of high dynamic range: from a nanosecond to hours, each to a thousandth, in little memory.

Source: Gil Tene, HdrHistogram (2012), with three significant digits: counts of equal parts of every power of two.
"""

from __future__ import annotations

from typing import Any

import numpy as np

PART_BITS = 10
"""A power of two has 2**10 parts, each at most 1/1024 of what it holds."""
PER_MILLE = {"p50": 500, "p99": 990, "p999": 999, "max": 1000}
EDGES_NS = np.array([(4 + quarter) << (octave - 2) for octave in range(13, 30) for quarter in range(4)])
"""Edges of the bins that are drawn, ns: quarters of powers of two from 8 microseconds to 0.9 s."""


def part(value_ns: int) -> int:
    """Return the index of the part that holds a time: values below 2**11 have one each."""
    shift = max(0, value_ns.bit_length() - PART_BITS - 1)
    return (shift << PART_BITS) + (value_ns >> shift)


def bounds_ns(index: int) -> tuple[int, int]:
    """Return the lowest and the highest time (ns, whole) of a part."""
    shift = max(0, (index >> PART_BITS) - 1)
    low = (index - (shift << PART_BITS)) << shift
    return low, low + (1 << shift) - 1


class HdrHistogram:
    """Counts times; what it says of them is at most 1/1024 above the truth, its maximum and sum are exact to 1 ns.

    Attributes:
        count: times counted.
        sum_s: their sum, seconds.
        max_s: the longest, seconds; 0 where there is none.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count, self._sum_ns, self._max_ns = 0, 0, 0

    @property
    def sum_s(self) -> float:
        """Their sum, seconds."""
        return self._sum_ns * 1e-9

    @property
    def max_s(self) -> float:
        """The longest, seconds; 0 where there is none."""
        return self._max_ns * 1e-9

    def add(self, value_s: float) -> None:
        """Count a time, seconds; one below 0 counts as 0."""
        value_ns = max(0, round(value_s * 1e9))
        index = part(value_ns)
        self._counts[index] = self._counts.get(index, 0) + 1
        self.count += 1
        self._sum_ns += value_ns
        self._max_ns = max(self._max_ns, value_ns)

    def percentiles_ms(self) -> dict[str, float | None]:
        """Return p50, p99, p99.9 and the maximum in milliseconds, None for each if empty.

        Each is the highest time of the part that holds the value of nearest rank: the smallest with at least that
        share of all at or below it.
        """
        if not self.count:
            return dict.fromkeys(PER_MILLE)
        found: dict[str, float | None] = {}
        left = list(PER_MILLE.items())
        passed = 0
        for index in sorted(self._counts):
            passed += self._counts[index]
            # Nearest rank in integers: ceil(n p) is at least 1.
            while left and passed >= -(-self.count * left[0][1] // 1000):
                found[left.pop(0)[0]] = round(min(bounds_ns(index)[1], self._max_ns) * 1e-6, 4)
        return found

    def bins(self) -> dict[str, Any]:
        """Return ``edges_ms`` and ``counts``, one fewer, for drawing; what lies outside is in the end bins."""
        counts = np.zeros(len(EDGES_NS) - 1, np.int64)
        for index, count in self._counts.items():
            place = int(np.searchsorted(EDGES_NS, bounds_ns(index)[0], side="right")) - 1
            counts[min(max(place, 0), len(counts) - 1)] += count
        return {"edges_ms": (EDGES_NS / 1e6).tolist(), "counts": counts.tolist()}
