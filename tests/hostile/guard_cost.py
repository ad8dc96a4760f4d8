"""What the guard of HDF5 costs a command: ``python -m tests.hostile.guard_cost``; docs/security.md has the figures."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from spikestill.common import hdf5
from spikestill.common.hdf5 import Hdf5File
from tests.dataset.test_format import write_buffer
from tests.hostile.fuzz import used_seconds

REPEATS = 9


def cost(path: Path) -> tuple[float, float]:
    """Return seconds (of the processor, of the clock) that it takes to open a file and to read a column."""
    processor, clock = used_seconds(), time.perf_counter()
    with Hdf5File(path, "buffer", "give another") as file:
        file.read(["action"])
    return used_seconds() - processor, time.perf_counter() - clock


def main() -> None:
    """Print the medians of a first and of a later file."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_buffer(Path(folder) / "buffer.h5")
        first, later = [], []
        for _ in range(REPEATS):
            hdf5._guard.close()
            first.append(cost(path))
            # Ticks of 10 ms are too coarse for one.
            many = [cost(path) for _ in range(20)]
            later.append((sum(each[0] for each in many) / 20, sum(each[1] for each in many) / 20))
    for name, found in (("first", first), ("later", later)):
        processor, clock = (statistics.median(each[part] for each in found) for part in (0, 1))
        print(
            f"{name} file: {processor:.3f} s of the processor, {clock:.3f} s of the clock, medians of {REPEATS}"
        )


if __name__ == "__main__":
    main()
