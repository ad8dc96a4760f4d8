"""The rungs of the parity ladder: every way to play an integer net, made comparable.

A rung plays a chunk of frames and gives the spikes of every layer (where it shows them) and the votes.
Each is compared with PyTorch's evaluation of the integer net (where PyTorch is not installed, with the NumPy loop) by
``np.array_equal``.

Axis suffixes: B frames, C channels, O output features, H height, W width, A actions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from spikestill.deploy.packed_kernel import PackedNet
from spikestill.deploy.simulator import CoreSimulator
from spikestill.student.integer_net import IntegerNet, choose, count_votes, naive_forward

REFERENCE = "pytorch" if importlib.util.find_spec("torch") else "naive"
"""What the others are compared with: the NumPy loop where PyTorch is not installed."""


@dataclasses.dataclass(frozen=True, eq=False)
class Played:
    """What a rung gives for a chunk of frames.

    Attributes:
        layers: uint8 spikes (B, O, H, W) of every layer, transduction first; None: the rung shows none.
        votes_BA: int64 votes.
    """

    layers: list[npt.NDArray[np.uint8]] | None
    votes_BA: npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Difference:
    """The first disagreement of a rung with the reference.

    Attributes:
        rung: the rung's name.
        frame: index among the compared frames.
        where: ``layer 3, neuron (feature 5, row 2, column 7)``, ``votes of action 1`` or ``action``.
        expected: the reference's value.
        found: the rung's value.
        layer: the layer's index, None where only votes or action differ.
        neuron: (feature, row, column), None where only votes or action differ.
    """

    rung: str
    frame: int
    where: str
    expected: int
    found: int
    layer: int | None = None
    neuron: tuple[int, int, int] | None = None

    def __str__(self) -> str:
        return (
            f"rung {self.rung} differs from {REFERENCE} in frame {self.frame}, {self.where}: "
            f"{self.found}, expected {self.expected}"
        )


@dataclasses.dataclass(eq=False)
class Rung:
    """One way to play, and what the comparison has found so far.

    Attributes:
        name: what reports call it.
        play: plays a chunk (B, C, H, W).
        limit: how many frames it is compared on, the first ones.
        kept: per layer, the neurons (O, H, W) that it computes; None: all.
        skipped: why it does not run, '' if it does.
        frames, mismatches, seconds: frames compared, frames that differed, time in ``play``.
        first: the first difference.
    """

    name: str
    play: Callable[[npt.NDArray[np.uint8]], Played] | None
    limit: int
    kept: list[npt.NDArray[np.bool_]] | None = None
    skipped: str = ""
    frames: int = 0
    mismatches: int = 0
    seconds: float = 0.0
    first: Difference | None = None

    def compare(self, stacks_BCHW: npt.NDArray[np.uint8], reference: Played) -> None:
        """Play the chunk as far as the limit goes, and note what differs from the reference."""
        count = min(len(stacks_BCHW), self.limit - self.frames)
        if self.play is None or count <= 0:
            return
        began = time.perf_counter()
        played = self.play(stacks_BCHW[:count])
        self.seconds += time.perf_counter() - began
        for frame in range(count):
            difference = self._differ(frame, played, reference)
            self.mismatches += difference is not None
            self.first = self.first or difference
        self.frames += count

    def _differ(self, frame: int, played: Played, reference: Played) -> Difference | None:
        number = self.frames + frame
        assert reference.layers is not None
        for layer, expected in enumerate(reference.layers if played.layers is not None else ()):
            wanted, found = expected[frame], played.layers[layer][frame]  # type: ignore[index]
            if self.kept is not None:
                wanted = wanted * self.kept[layer]
            if not np.array_equal(wanted, found):
                feature, row, column = (int(index) for index in np.argwhere(wanted != found)[0])
                at = feature, row, column
                where = f"layer {layer}, neuron (feature {feature}, row {row}, column {column})"
                return Difference(self.name, number, where, int(wanted[at]), int(found[at]), layer, at)
        wanted, found = reference.votes_BA[frame], played.votes_BA[frame]
        if not np.array_equal(wanted, found):
            action = int(np.argmax(wanted != found))
            return Difference(
                self.name, number, f"votes of action {action}", int(wanted[action]), int(found[action])
            )
        if choose(wanted) != choose(found):
            return Difference(self.name, number, "action", choose(wanted), choose(found))
        return None

    def report(self) -> dict[str, Any]:
        """Return the outcome as JSON values."""
        found = {
            "name": self.name,
            "frames": self.frames,
            "mismatches": self.mismatches,
            "seconds": round(self.seconds, 3),
        }
        return {**found, "skipped": self.skipped} if self.skipped else found


def reference_player(net: IntegerNet) -> Callable[[npt.NDArray[np.uint8]], Played]:
    """Return what the rungs are compared with: PyTorch's evaluation, or the naive loop where there is no PyTorch."""
    return torch_player(net) if REFERENCE == "pytorch" else naive_player(net)


def torch_player(net: IntegerNet) -> Callable[[npt.NDArray[np.uint8]], Played]:
    """Return PyTorch's evaluation of the integer net."""
    import torch

    from spikestill.student import torch_net

    network = torch_net.TorchIntegerNet(net)

    def play(stacks_BCHW: npt.NDArray[np.uint8]) -> Played:
        stacks = torch.from_numpy(np.ascontiguousarray(stacks_BCHW))
        layers = network.spikes(stacks)
        votes_BA = torch_net.count_votes(layers[-1], net.actions)
        return Played([layer.numpy() for layer in layers], votes_BA.numpy())

    return play


def naive_player(net: IntegerNet) -> Callable[[npt.NDArray[np.uint8]], Played]:
    """Return the naive NumPy loop over output positions."""

    def play(stacks_BCHW: npt.NDArray[np.uint8]) -> Played:
        frames = [naive_forward(net, stack) for stack in stacks_BCHW]
        return Played(_by_layer(frames), np.stack([count_votes(f[-1], net.actions) for f in frames]))

    return play


def naive_rung(net: IntegerNet, limit: int) -> Rung:
    """Return the rung of the naive NumPy loop; it is skipped where it is the reference."""
    if REFERENCE == "naive":
        return Rung("naive", None, 0, skipped="it is the reference, as PyTorch is not installed")
    return Rung("naive", naive_player(net), limit)


def packed_rung(net: IntegerNet, limit: int) -> Rung:
    """Return the rung of the packed kernel."""
    packed = PackedNet(net)

    def play(stacks_BCHW: npt.NDArray[np.uint8]) -> Played:
        frames = [packed.spikes(stack) for stack in stacks_BCHW]
        return Played(_by_layer(frames), np.stack([packed.votes(stack) for stack in stacks_BCHW]))

    return Rung("packed", play, limit)


def core_rungs(simulator: CoreSimulator, limit: int) -> list[Rung]:
    """Return the rungs of the core simulator: frame by frame, and a frame in every tick."""

    def frame_by_frame(stacks_BCHW: npt.NDArray[np.uint8]) -> Played:
        frames = [simulator.spikes(stack) for stack in stacks_BCHW]
        return Played(_by_layer(frames), np.stack([simulator.votes(stack) for stack in stacks_BCHW]))

    def pipelined(stacks_BCHW: npt.NDArray[np.uint8]) -> Played:
        votes_BA, frames = simulator.pipelined_spikes(stacks_BCHW)
        return Played(_by_layer(frames), votes_BA)

    return [
        Rung("cores", frame_by_frame, limit, simulator.kept),
        Rung("cores-pipelined", pipelined, limit, simulator.kept),
    ]


@contextlib.contextmanager
def lava_rungs(
    net: IntegerNet,
    fused_limit: int,
    stock_limit: int,
    stock_synapses: int,
    stock_target: Literal["simulation", "loihi2"],
) -> Iterator[list[Rung]]:
    """Yield the rungs of the two Lava backends, skipped with the reason where they cannot run."""
    from spikestill.common.errors import UserError
    from spikestill.deploy.lava.loader import available

    missing = available()
    with contextlib.ExitStack() as stack:
        rungs = []
        for name, limit, start in (
            ("lava", fused_limit, lambda: _fused(net, stack)),
            ("lava-loihi", stock_limit, lambda: _stock(net, stack, stock_synapses, stock_target)),
        ):
            reason = missing or ("" if limit else "its number of frames is 0")
            play = None
            if not reason:
                try:
                    play = start()
                except UserError as error:
                    reason = str(error)
            rungs.append(Rung(name, play, limit, skipped=reason))
        yield rungs


def _fused(net: IntegerNet, stack: contextlib.ExitStack) -> Callable[[npt.NDArray[np.uint8]], Played]:
    from spikestill.deploy.lava.fused import FusedLava

    lava = stack.enter_context(FusedLava(net))
    return lambda stacks_BCHW: Played(None, np.stack([lava.votes(one) for one in stacks_BCHW]))


def _stock(
    net: IntegerNet, stack: contextlib.ExitStack, most: int, target: Literal["simulation", "loihi2"]
) -> Callable[[npt.NDArray[np.uint8]], Played]:
    from spikestill.common.errors import UserError
    from spikestill.deploy.lava.stock import StockLava, synapse_count

    synapses = synapse_count(net)
    if synapses > most:
        raise UserError(f"the net has {synapses} synapses, the limit is stock_synapses {most}")
    lava = stack.enter_context(StockLava(net, target=target))

    def play(stacks_BCHW: npt.NDArray[np.uint8]) -> Played:
        layers = lava.spikes_many(list(stacks_BCHW))
        return Played(layers, np.stack([count_votes(last, net.actions) for last in layers[-1]]))

    return play


def _by_layer(frames: list[list[npt.NDArray[np.uint8]]]) -> list[npt.NDArray[np.uint8]]:
    """Turn spikes by frame and layer into spikes by layer, (B, O, H, W) each."""
    return [np.stack(layer) for layer in zip(*frames, strict=True)]
