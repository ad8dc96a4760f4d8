"""Milliseconds a frame of the Lava backends, beside the packed kernel that the fused one wraps.

    python -m benchmarks.lava [--frames 1000] [--student student.safetensors] [--stock-frames 20]

The fused backend and the kernel play a net of the 1-chip geometry (random weights, or the student given);
the stock backend plays a small net, one frame alone and many in a row, and, with --stock-frames, the large
net too. Writes benchmarks/results/lava.json.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__" and not __package__:
    # Run as a file: the folder of this file, in which `lava` is this file, must not shadow Lava.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np

from benchmarks.measurement import finish
from spikestill.deploy.lava.fused import FusedLava
from spikestill.deploy.lava.stock import StockLava
from spikestill.deploy.packed_kernel import PackedNet
from spikestill.student.architectures import LayerSpec
from spikestill.student.integer_net import IntegerNet, load
from tests.nets import random_net, random_stack, table1_net

SMALL_SHAPE = (4, 18, 18)
SMALL_LAYERS = (LayerSpec(8, 4, 2, 1, 1), LayerSpec(16, 3, 1, 1, 2), LayerSpec(32, 1, 1, 0, 2))
WARM_UP_FRAMES = 20


def latency_ms(play: Callable[[np.ndarray], object], stacks: list[np.ndarray]) -> dict[str, float]:
    """Return p50, p99 and max of one call a stack, ms, after a warm-up."""
    for stack in stacks[:WARM_UP_FRAMES]:
        play(stack)
    taken = []
    for stack in stacks:
        start = time.perf_counter()
        play(stack)
        taken.append(1e3 * (time.perf_counter() - start))
    p50, p99 = np.percentile(taken, [50, 99])
    return {"p50": round(p50, 3), "p99": round(p99, 3), "max": round(max(taken), 3)}


def stock_ms(net: IntegerNet, frames: int) -> dict[str, float]:
    """Return the start, one frame alone (median) and a frame of many in a row, ms, of the stock backend."""
    stacks = [random_stack(seed, net.input_shape) for seed in range(frames)]
    start = time.perf_counter()
    with StockLava(net) as stock:
        started = time.perf_counter()
        stock.spikes_many(stacks[:1])
        row = time.perf_counter()
        stock.spikes_many(stacks)
        row_ms = 1e3 * (time.perf_counter() - row) / frames
        alone = latency_ms(stock.spikes, stacks[:10])["p50"]
    return {
        "start": round(1e3 * (started - start)),
        "frame_alone_p50": alone,
        "frame_in_a_row": round(row_ms, 3),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--frames", type=int, default=1000, help="frames for the fused backend and the kernel"
    )
    parser.add_argument(
        "--stock-frames", type=int, default=0, help="frames of the large net in stock Processes"
    )
    parser.add_argument("--student", type=Path, help="student file; default: random weights, 1-chip geometry")
    options = parser.parse_args()
    net = load(options.student)[0] if options.student else table1_net("1chip")
    stacks = [random_stack(seed, net.input_shape) for seed in range(options.frames)]
    result: dict[str, object] = {
        "net": str(options.student or "1chip, random weights"),
        "frames": options.frames,
    }
    result["kernel_ms"] = latency_ms(PackedNet(net).votes, stacks)
    start = time.perf_counter()
    with FusedLava(net) as fused:
        result["fused_start_ms"] = round(1e3 * (time.perf_counter() - start))
        result["fused_ms"] = latency_ms(fused.votes, stacks)
    result["stock_small_ms"] = stock_ms(random_net(SMALL_LAYERS, 0, input_shape=SMALL_SHAPE), 200)
    if options.stock_frames:
        result["stock_ms"] = stock_ms(net, options.stock_frames)
    finish("lava", result)


if __name__ == "__main__":
    main()
