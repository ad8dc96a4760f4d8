"""What the accelerator does in which cycle: jobs, their cycles and memory accesses, as pure functions of sizes.

``N`` cores of ``side x side`` elements; a memory line is ``side`` words of 32 bits. A job is one product of a layer
over the whole batch, or one optimiser step:

- *forward* (inference dataflow): columns of W lie on rows of elements, interleaved over the cores, so that a vector
  is computed by all cores at once (intra-layer parallelism). A step loads one tile of ``side`` rows and columns into
  each core (``N side`` lines of W, each to a column of elements), while the tile before multiplies every vector of
  the batch. With 16-bit activations two vectors go through at a time.
- *backward* (training dataflow): a row of W lies on a row of elements, the same in all cores (``side`` lines), and
  each core multiplies vectors of its own (intra-batch parallelism).
- *gradient*: elements hold the sums. Each core adds error times activation of its own vectors; a finished tile
  leaves while the next one is summed. The biases are one more tile, its activation 1.
- *adam*: a line of parameters a cycle, target network included.
- *noise*, *difference*, *slope*: a number at a time, what lies between two networks: exploration on the actor's output
  (six draws of the generator, a cycle each), the errors of transitions (three lines read, a cycle each), and errors
  through tanh's derivative (a cycle).

A step takes as long as the longer of its stream and the next step's load, so tiles must serve many vectors: the weight
memory gives ``side`` weights a cycle, the elements want ``N side^2``.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Literal

from spikestill.common.errors import UserError
from spikestill.configs.accelerator import ArraySpec

Kind = Literal["forward", "backward", "gradient", "adam", "noise", "difference", "slope"]
FILL = {"forward": 33, "backward": 33, "gradient": 32, "adam": 79, "noise": 9, "difference": 12, "slope": 14}
"""Cycles from the last issue of a job to its last write, of the SystemVerilog's pipelines."""
BEATS = {"noise": 6, "difference": 3, "slope": 1}
"""Cycles that the word unit issues a number in."""


WIDEST_LINES = 1 << 20
"""Lines that an address of the SystemVerilog reaches."""
PAPER = ArraySpec()


@dataclasses.dataclass(frozen=True)
class Job:
    """One job and what it takes.

    Attributes:
        kind: what is done.
        outputs, inputs: P and Q of the layer; for adam the lines of parameters, and 0.
        batch: vectors.
        half: 16-bit activations, two vectors at a time.
        cycles: from its start to its last write.
        busy: cycles in which the arrays are fed.
        operations: multiply-adds that the layer asks for.
        reads, writes: words of memory, by memory's name.
    """

    kind: Kind
    outputs: int
    inputs: int
    batch: int
    half: bool
    cycles: int
    busy: int
    operations: int
    reads: dict[str, int]
    writes: dict[str, int]


def lines(words: int, spec: ArraySpec) -> int:
    """Return how many memory lines hold ``words``."""
    return -(-words // spec.side)


def forward(spec: ArraySpec, outputs: int, inputs: int, batch: int, *, half: bool) -> Job:
    """Return the job of a layer's forward product."""
    # One line more: the biases of the tile's outputs.
    load, stream = spec.cores * spec.side + 1, math.ceil(batch / 2) if half else batch
    steps = lines(outputs, spec) * -(-inputs // (spec.cores * spec.side))
    cycles = load + (steps - 1) * max(stream, load) + stream + FILL["forward"]
    width = spec.cores * spec.side
    return Job(
        "forward", outputs, inputs, batch, half, cycles, steps * stream, batch * outputs * inputs,
        {"weight": steps * load * spec.side, "activation": steps * stream * width},
        {"activation": lines(outputs, spec) * spec.side * stream},
    )  # fmt: skip


def backward(spec: ArraySpec, outputs: int, inputs: int, batch: int, *, masked: bool = True) -> Job:
    """Return the job of W^T e: ``inputs`` sums of ``outputs`` terms; ``masked`` by the derivative of ReLU."""
    load, stream = spec.side, math.ceil(batch / spec.cores)
    steps = lines(outputs, spec) * lines(inputs, spec)
    cycles = load + (steps - 1) * max(stream, load) + stream + FILL["backward"]
    words = lines(inputs, spec) * spec.side * batch
    return Job(
        "backward", outputs, inputs, batch, False, cycles, steps * stream, batch * outputs * inputs,
        {"weight": steps * load * spec.side, "error": steps * spec.side * batch, "activation": words if masked else 0},
        {"error": words},
    )  # fmt: skip


def gradient(spec: ArraySpec, outputs: int, inputs: int, batch: int, *, half: bool) -> Job:
    """Return the job of sum_b e a^T, biases included."""
    stream = math.ceil(batch / spec.cores)
    tiles = lines(outputs, spec) * (lines(inputs, spec) + 1)
    # The last tile leaves column by column, as many as it has outputs.
    drained = (outputs - 1) % spec.side + 1
    cycles = (tiles - 1) * max(stream, spec.side) + stream + drained + FILL["gradient"]
    words = tiles * spec.side * batch
    return Job(
        "gradient", outputs, inputs, batch, half, cycles, tiles * stream, batch * outputs * (inputs + 1),
        {"error": words, "activation": words - lines(outputs, spec) * spec.side * batch},
        {"gradient": lines(outputs, spec) * (lines(inputs, spec) * spec.side + 1) * spec.side},
    )  # fmt: skip


def parameter_lines(spec: ArraySpec, sizes: tuple[int, ...]) -> int:
    """Return the memory lines of a network: every row of W in lines of its own, then the biases."""
    return sum(p * lines(q, spec) + lines(p, spec) for q, p in itertools.pairwise(sizes))


def adam(spec: ArraySpec, sizes: tuple[int, ...]) -> Job:
    """Return the job of an optimiser step of a whole network and of its target network's approach."""
    count = parameter_lines(spec, sizes)
    words = count * spec.side
    held = ("weight", "m", "v", "target")
    return Job(
        "adam", count, 0, 1, False, count + FILL["adam"], 0, 0,
        dict.fromkeys((*held, "gradient"), words), dict.fromkeys(held, words),
    )  # fmt: skip


def vector_stride(spec: ArraySpec, width: int) -> int:
    """Return the lines that a vector of ``width`` words takes, whole groups of all cores' lines."""
    return -(-width // (spec.cores * spec.side)) * spec.cores


def update_lines(spec: ArraySpec, actor: tuple[int, ...], critic: tuple[int, ...], batch: int) -> int:
    """Return the lines of a bank of activations that an update's passes fill at most, two of the actor's and three of
    the critic's, and a line of rewards; errors take fewer."""
    actors, critics = (sum(vector_stride(spec, size) for size in sizes) for sizes in (actor, critic))
    return (2 * actors + 3 * critics + vector_stride(spec, 2)) * -(-batch // max(2, spec.cores))


def by_word(spec: ArraySpec, kind: Literal["noise", "difference", "slope"], outputs: int, batch: int) -> Job:
    """Return a job of the word unit on ``outputs`` numbers of each vector."""
    numbers, words = outputs * batch, lines(outputs, spec) * spec.side * batch
    line = numbers * spec.side
    reads = {
        "noise": {"activation": 6 * line},
        "difference": {"activation": 3 * line},
        "slope": {"activation": line, "error": line},
    }[kind]
    return Job(
        kind, outputs, 0, batch, False, numbers * BEATS[kind] + FILL[kind], 0, 0, reads,
        {"activation" if kind == "noise" else "error": words},
    )  # fmt: skip


def pass_forward(spec: ArraySpec, sizes: tuple[int, ...], batch: int, *, half: bool) -> list[Job]:
    """Return the jobs of one forward pass."""
    return [forward(spec, p, q, batch, half=half) for q, p in itertools.pairwise(sizes)]


def pass_backward(spec: ArraySpec, sizes: tuple[int, ...], batch: int, *, to_input: bool) -> list[Job]:
    """Return the jobs of one backward pass, the last layer first."""
    pairs = list(itertools.pairwise(sizes))
    return [
        backward(spec, p, q, batch, masked=index > 0)
        for index, (q, p) in reversed(list(enumerate(pairs)))
        if index > 0 or to_input
    ]


def learn(spec: ArraySpec, sizes: tuple[int, ...], batch: int, *, half: bool) -> list[Job]:
    """Return the jobs of a network's gradients and optimiser step."""
    return [
        *(gradient(spec, p, q, batch, half=half) for q, p in itertools.pairwise(sizes)),
        adam(spec, sizes),
    ]


def update(
    spec: ArraySpec, actor: tuple[int, ...], critic: tuple[int, ...], batch: int, *, half: bool
) -> list[Job]:
    """Return the jobs of a whole DDPG update in their order (``fixed_ddpg.update``).

    Args:
        spec: the accelerator.
        actor, critic: layer sizes.
        batch: transitions.
        half: 16-bit activations: after FIXAR's quantisation delay.

    Raises:
        UserError: the batch does not fit into the activation memory.
    """
    if batch > spec.batch:
        raise UserError(
            f"batch of {batch}: the accelerator's activation memory holds {spec.batch} vectors",
            f"give a batch of {spec.batch} or less, or a larger memory",
        )
    return [
        *pass_forward(spec, actor, batch, half=half),
        *pass_forward(spec, critic, batch, half=half),
        *pass_forward(spec, critic, batch, half=half),
        by_word(spec, "difference", 1, batch),
        *pass_backward(spec, critic, batch, to_input=False),
        *learn(spec, critic, batch, half=half),
        *pass_forward(spec, actor, batch, half=half),
        *pass_forward(spec, critic, batch, half=half),
        *pass_backward(spec, critic, batch, to_input=True),
        by_word(spec, "slope", actor[-1], batch),
        *pass_backward(spec, actor, batch, to_input=False),
        *learn(spec, actor, batch, half=half),
    ]


@dataclasses.dataclass(frozen=True)
class Total:
    """The sum of some jobs.

    Attributes:
        cycles, operations: as of a :class:`Job`.
        utilisation: multiply-adds, over what the elements could do in those cycles (two a cycle in half precision).
        fed: share of the cycles in which the arrays are fed.
        reads, writes: words by memory.
    """

    cycles: int
    operations: int
    utilisation: float
    fed: float
    reads: dict[str, int]
    writes: dict[str, int]


def total(spec: ArraySpec, jobs: list[Job]) -> Total:
    """Return what ``jobs`` take together, one after the other."""
    cycles = sum(job.cycles for job in jobs)
    # In half precision a forward product's multiply-add occupies half an element.
    work = sum(job.operations / (2 if job.half and job.kind == "forward" else 1) for job in jobs)
    memories = sorted({name for job in jobs for name in (*job.reads, *job.writes)})
    return Total(
        cycles, sum(job.operations for job in jobs), work / (cycles * spec.elements),
        sum(job.busy for job in jobs) / cycles,
        {name: sum(job.reads.get(name, 0) for job in jobs) for name in memories},
        {name: sum(job.writes.get(name, 0) for job in jobs) for name in memories},
    )  # fmt: skip
