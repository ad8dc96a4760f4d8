"""Options of ``spikestill distill``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import ClassVar, Literal

from spikestill.common.errors import UserError, nearest
from spikestill.common.ranges import check_range

ARCHITECTURE_NAMES = ("1chip", "2chip", "4chip", "8chip")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillConfig:
    """Train a binary-activation, ternary-weight student on a buffer of Q-values (McKinstry 2018, 2.4 and 3)."""

    buffer: Path = Path("buffer.h5")
    """The HDF5 buffer that ``record`` wrote."""
    initial: Path | None = None
    """Checkpoint of another training, ``distill-checkpoint.safetensors``, whose network to go on from, with another
    buffer, say; None: random weights."""
    architecture: str = "1chip"
    """Net of Table 1: ``1chip``, ``2chip``, ``4chip`` or ``8chip``."""
    window: Literal["centred", "published"] = "centred"
    """Where in the picture the net looks: ``published`` pads as Table 1 says, whose strides leave the 1-chip net blind
    for the last ten rows and columns; ``centred`` leaves four out on every side. The other nets see everything."""
    loss: Literal["kl", "nll", "mse"] = "kl"
    """Kullback-Leibler divergence, negative log likelihood of the argmax, or squared error of Q (Rusu 2015)."""
    temperature: float = 0.01
    """Tau of the teacher's softmax for ``kl``, in units of Q, > 0; 0.01 is the paper's best."""
    logit_scale: float = 16.0
    """Factor from mean votes (0..1) to the student's logits, > 0."""
    steps: int = 7_000
    """Batches to train on, 1..1e9."""
    batch_size: int = 128
    """Frames a batch, 2..65536."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """``adam``, or ``sgd`` with momentum 0.9 (the paper's, with learning rate 20)."""
    learning_rate: float = 3e-2
    """Step size on the shadow weights at the start, > 0."""
    learning_rate_final: float = 5e-4
    """Step size at the end of its cosine decay, > 0; equal to ``learning_rate``: constant."""
    teacher: Path | None = None
    """Teacher that recorded the buffer, for the hints; None: the zoo's for the game."""
    hint_weight: float = 1.0
    """Weight of the hints, linear readouts of hidden layers that predict the teacher's last hidden layer while
    training (FitNets, Romero 2015), >= 0; 0: none, as the paper trained."""
    hint_components: int = 64
    """Principal components of the teacher's hidden layer to predict, 1..512."""
    hint_learning_rate: float = 3e-4
    """Step size of Adam on the readouts at the start, > 0; it falls as ``learning_rate`` does."""
    hysteresis: float = 0.1
    """Half-width of the band around +-0.5 in which a ternary weight keeps its value, 0..0.5 (Esser 2016)."""
    sparsity: float = 1e-4
    """Weight of the mean firing rate, summed over the layers, in the loss, >= 0."""
    validation: float = 0.02
    """Share of the buffer, its last steps, kept for validation, 0..0.5."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """Format of the products after the first layer; sums of spikes are exact in both. auto: bf16 if native."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the training runs."""
    log_steps: int = 250
    """Batches between two lines of the learning curve, >= 1."""
    checkpoint_minutes: float = 5.0
    """Wall-clock minutes between checkpoints, > 0."""
    seed: int = 0
    """Seed of the initial weights and of the batches, >= 0."""

    WITHOUT_EFFECT: ClassVar[tuple[str, ...]] = ("checkpoint_minutes", "log_steps")
    """Options that change nothing of what is made."""

    def __post_init__(self) -> None:
        if self.architecture not in ARCHITECTURE_NAMES:
            raise UserError(
                f"unknown architecture {self.architecture!r}; known: {', '.join(ARCHITECTURE_NAMES)}",
                f"did you mean {nearest(self.architecture, ARCHITECTURE_NAMES)!r}",
            )
        for field, low, high in (
            ("temperature", 1e-9, 1e9),
            ("logit_scale", 1e-9, 1e9),
            ("steps", 1, 1e9),
            ("batch_size", 2, 65536),
            ("learning_rate", 1e-12, 1e6),
            ("learning_rate_final", 1e-12, 1e6),
            ("hint_weight", 0, 1e6),
            ("hint_components", 1, 512),
            ("hint_learning_rate", 1e-12, 1e6),
            ("hysteresis", 0, 0.5),
            ("sparsity", 0, 1e6),
            ("validation", 0, 0.5),
            ("log_steps", 1, 1e9),
            ("checkpoint_minutes", 1e-3, 1e5),
            ("seed", 0, 2**31 - 1),
        ):
            check_range(self, field, low, high)
