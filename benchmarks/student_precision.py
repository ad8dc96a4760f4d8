"""Every number format of ``distill --precision`` from the same start: loss, agreement, time.

    python -m benchmarks.student_precision BUFFER [--steps 1000] [--batch_size 64]

The same buffer, the same first weights, the same batches, the recipe of ``distill`` with the batches given here. At the
end the running statistics are taken anew, as ``distill`` does, and the last part of the buffer is asked: the loss, how
often the student picks the teacher's action, and what the others cost in Q. Each format runs in a process of its own.
fp16 and fp16-master are emulated on a CPU: their time says nothing, their figures do. Writes
``student_precision.json``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measurement import finish, in_a_process
from spikestill.common.processor import keep_freed_memory
from spikestill.configs.distill import DistillConfig
from spikestill.dataset.reader import BufferReader
from spikestill.student.distill import hinting_teachers
from spikestill.student.distillation import Distillation
from spikestill.student.sources import BufferSource
from spikestill.teacher.checkpoint import read_teacher

FORMATS = ("fp32", "bf16", "fp16", "fp16-master")


def train(precision: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train in one format; return its figures."""
    keep_freed_memory()
    with BufferReader(options.buffer) as reader:
        config = DistillConfig(
            buffer=options.buffer,
            steps=options.steps,
            batch_size=options.batch_size,
            precision=precision,  # type: ignore[arg-type]
            seed=options.seed,
        )
        training = Distillation(
            config,
            BufferSource([reader], config.validation),
            [read_teacher(path)[0] for path in hinting_teachers(config, [reader])],
        )
        losses, seconds = [], []
        for _ in range(options.steps):
            began = time.perf_counter()
            loss, _ = training.train_step()
            seconds.append(time.perf_counter() - began)
            losses.append(loss)
        training.recalibrate(config.recalibration_batches)
        found = {
            "emulated": training.format.emulated,
            "samples_per_s": round(options.batch_size / float(np.median(seconds)), 1),
            "skipped_batches": training.skipped,
            "loss_scale": training.scale.value,
            "loss_by_quarter": [round(float(np.mean(part)), 4) for part in np.array_split(losses, 4)],
            "validation": {name: round(value, 4) for name, value in training.validate().items()},
        }
        training.close()
    return found


def main() -> None:
    """Run every format in turn and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("buffer", type=Path, help="what `spikestill record` wrote")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=FORMATS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(train(options.only, options)))
        return
    figures: dict[str, Any] = {}
    for name in FORMATS:
        figures[name] = in_a_process(name, "benchmarks.student_precision", *sys.argv[1:], "--only", name)
        print(name, figures[name], flush=True)
    finish(
        "student_precision",
        {"steps": options.steps, "batch": options.batch_size, "seed": options.seed, "formats": figures},
    )


if __name__ == "__main__":
    main()
