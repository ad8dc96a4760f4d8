"""Options of ``spikestill distill``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from spikestill.common.atari import check_game
from spikestill.common.errors import UserError
from spikestill.configs.options import Options, Range, Seed, Share


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillConfig(Options):
    """Train a binary-activation, ternary-weight student on a buffer of Q-values (McKinstry 2018, 2.4 and 3)."""

    buffer: Path = Path("buffer.h5")
    """The HDF5 buffer that ``record`` wrote."""
    also: tuple[Path, ...] = ()
    """Further buffers, merged with it and shuffled. Where they are of other games, the student plays all of them by one
    head of the console's 18 actions (McKinstry 2018, Figure 4)."""
    initial: Path | None = None
    """What to go on from, with another buffer, say: another training's ``distill-checkpoint.safetensors``, or a
    finished ``student.safetensors``, one of the zoo's, say, whose function is kept exactly. The layers of a student of
    another game are a better start than random weights. None: random weights."""
    initial_beside: Path | None = None
    """For ``1chip-wide``: a second finished 1-chip student; its net begins as the second half, that of ``initial`` as
    the first. Their votes are added, and two that err in different places err less together."""
    architecture: Literal["1chip", "1chip-wide", "2chip", "4chip", "8chip"] = "1chip"
    """Net of Table 1, or ``1chip-wide``: two of its 1-chip nets side by side, which fill one chip (3,772 of its 4,096
    cores)."""
    window: Literal["centred", "published"] = "centred"
    """Where in the picture the net looks: ``published`` pads as Table 1 says, whose strides leave the 1-chip nets blind
    for the last ten rows and columns; ``centred`` leaves four out on every side. The other nets see everything."""
    loss: Literal["kl", "nll", "mse"] = "kl"
    """Kullback-Leibler divergence, negative log likelihood of the argmax, or squared error of Q (Rusu 2015), less each
    state's mean over the actions."""
    temperature: Annotated[float, Range(1e-9, 1e9)] = 0.01
    """Tau of the teacher's softmax for ``kl``, in units of Q; 0.01 is the paper's best."""
    logit_scale: Annotated[float, Range(1e-9, 1e9)] = 16.0
    """Factor from mean votes (0..1) to the student's logits."""
    steps: Annotated[int, Range(1, 1e9)] = 7_000
    """Batches to train on; with ``minutes``, at most so many."""
    minutes: Annotated[float, Range(1e-2, 1e5)] | None = None
    """The time there is: where the steps would take longer on this machine, there are as many as fit, and the learning
    rate falls over those. Decided once: ``--resume`` keeps it. None: all steps."""
    batch_size: Annotated[int, Range(2, 65536)] = 128
    """Frames a batch."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """``adam``, or ``sgd`` with momentum 0.9 (the paper's, with learning rate 20)."""
    learning_rate: Annotated[float, Range(1e-12, 1e6)] = 3e-2
    """Step size on the shadow weights at the start. With ``initial`` a well-trained student 3e-3 to 4e-3 keeps what it
    has learnt; the default undoes much of it."""
    learning_rate_final: Annotated[float, Range(1e-12, 1e6)] = 5e-4
    """Step size at the end of its cosine decay; equal to ``learning_rate``: constant."""
    teacher: Path | None = None
    """Teacher that recorded the buffer, for the hints; None: the zoo's for the game."""
    also_teachers: tuple[Path, ...] = ()
    """With buffers of several games: the teachers of the others, in the order in which their games come in
    ``--also``; empty: the zoo's."""
    hint_weight: Annotated[float, Range(0, 1e6)] = 1.0
    """Weight of the hints, linear readouts of hidden layers that predict the teacher's last hidden layer while
    training (FitNets, Romero 2015); 0: none, as the paper trained."""
    hint_share: Share = 0.33
    """First part of the training that has hints. They are worth much at its start and little later, and a batch
    of the 1-chip net without them takes a quarter less time; 1: the whole training."""
    hint_components: Annotated[int, Range(1, 512)] = 64
    """Principal components of the teacher's hidden layer to predict."""
    hint_learning_rate: Annotated[float, Range(1e-12, 1e6)] = 3e-4
    """Step size of Adam on the readouts at the start; it falls as ``learning_rate`` does."""
    norm_learning_rate: Annotated[float, Range(1e-12, 1e6)] | None = None
    """Step size on batch normalisation's gamma and beta at the start; it falls as ``learning_rate`` does. None: as the
    shadow weights'."""
    initial_range: Share = 1.0
    """The shadow weights begin uniform in -range..range. The paper says uniform and no more; below 0.5 every ternary
    weight begins at 0."""
    ghost_batches: Annotated[int, Range(0, 1024)] = 0
    """Shares of a batch that normalise by themselves (ghost batch normalisation, Hoffer 2017), each in a thread of its
    own; 1: the batch as a whole, as published; 0: one for each core, one on a GPU. It divides ``batch_size``."""
    renormalised_share: Share = 0.1
    """Last part of the training in which the running statistics normalise, as the deployed net does (batch
    renormalisation, Ioffe 2017); 0: none, as published."""
    recalibration_batches: Annotated[int, Range(0, 1e6)] = 64
    """Batches over which the finished weights' statistics are taken anew; 0: the running ones stay."""
    hysteresis: Annotated[float, Range(0, 0.5)] = 0.1
    """Half-width of the band around +-0.5 in which a ternary weight keeps its value (Esser 2016)."""
    sparsity: Annotated[float, Range(0, 1e6)] = 1e-4
    """Weight of the firing rates in the loss."""
    sparsity_form: Literal["layers", "features", "squares", "neurons"] = "layers"
    """What is summed: mean rates of ``layers``, mean rates of all ``features`` of the net, or half their ``squares``
    (a reading of Esser 2016, docs/distillation.md); ``neurons``: the mean rate of all neurons, large layers first."""
    prune: Annotated[int, Range(0, 7)] = 0
    """Branches of the net's eight to take out while training, so that it needs fewer cores: those whose votes are
    missed least. Two are a pair of neighbours, four a half, with which the mapper saves most."""
    prune_at: Annotated[float, Range(0, 0.99)] = 0.25
    """Part of the training after which they are taken out."""
    shift_pixels: Annotated[int, Range(0, 16)] = 0
    """Move each frame that is trained on by up to so many pixels in both directions, at random; what comes into view
    repeats the edge (DrQ's augmentation, Kostrikov 2021). The Q-values stay; the hints' teacher sees what
    the student sees."""
    stream: bool = False
    """Learn while the teacher plays, without a buffer: its play goes into a ring in memory (McKinstry 2018)."""
    stream_game: str = "pong"
    """Game that it plays."""
    stream_ring: Annotated[int, Range(64, 1e8)] = 1_000_000
    """Frames that the ring holds; 7,056 bytes each."""
    stream_start: Annotated[int, Range(1, 1e8)] = 50_000
    """Frames played before the first batch."""
    stream_period: Annotated[int, Range(1, 65536)] = 4
    """Frames played for every batch."""
    stream_envs: Annotated[int, Range(1, 1024)] = 16
    """Games played side by side; 1 as published."""
    stream_epsilon: Share = 0.05
    """Probability of a random action in place of the teacher's."""
    validation: Annotated[float, Range(0, 0.5)] = 0.02
    """Share of the buffer, its last steps, kept for validation."""
    precision: Literal["auto", "fp32", "bf16", "fp16", "fp16-master"] = "auto"
    """Format of the products after the first layer, docs/precision.md; sums of spikes are exact, batch normalisation
    and master weights fp32 in each. fp16: readouts of the hints in fp32, fp16-master: in fp16. auto: bf16 if that
    is faster (AMX, AMD's AVX-512 BF16, a GPU from compute capability 8.0), else fp32."""
    loss_scale: Annotated[float, Range(1, 2**40)] = 65_536.0
    """Factor on the loss at the start; fp16 and fp16-master only. Halved where a gradient overflows."""
    loss_scale_period: Annotated[int, Range(1, 1e9)] = 2_000
    """Batches without overflow after which the factor doubles."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the training runs."""
    log_steps: Annotated[int, Range(1, 1e9)] = 250
    """Batches between two lines of the learning curve."""
    own_play: Annotated[int, Range(0, 1e6)] = 0
    """Decisions that the student plays by itself for each line of the curve, of each game: the line then tells its
    agreement with the teacher, and its regret, on the states that its own play leads to. 0: none. A thousand take
    about two seconds."""
    checkpoint_minutes: Annotated[float, Range(1e-3, 1e5)] = 5.0
    """Wall-clock minutes between checkpoints."""
    seed: Seed = 0
    """Seed of the initial weights and of the batches."""

    WITHOUT_EFFECT: ClassVar[tuple[str, ...]] = ("checkpoint_minutes", "log_steps", "own_play")
    """Options that change nothing of what is made."""
    NEWER: ClassVar[tuple[str, ...]] = (
        "also_teachers",
        "initial_beside",
        "prune",
        "prune_at",
        "shift_pixels",
    )

    @property
    def hinted(self) -> bool:
        """Whether any batch has hints, for which the teachers' files are read."""
        return self.hint_weight > 0.0 and self.hint_share > 0.0

    def _check(self) -> None:
        if self.ghost_batches and (
            self.batch_size % self.ghost_batches or self.batch_size == self.ghost_batches
        ):
            raise UserError(
                f"ghost_batches {self.ghost_batches} of batch_size {self.batch_size}: equal shares of two or "
                "more frames wanted",
                "give a --ghost_batches that divides --batch_size and is at most its half",
            )
        if self.initial_beside is not None and self.initial is None:
            raise UserError(
                f"initial_beside {self.initial_beside} without initial: the net has two halves",
                "give --initial the student that it is to stand beside",
            )
        if self.initial_beside is not None and self.architecture != "1chip-wide":
            raise UserError(
                f"initial_beside {self.initial_beside} with architecture {self.architecture}, which is one net",
                "give --architecture 1chip-wide, or leave --initial_beside out",
            )
        if self.also and self.stream:
            raise UserError(
                "also with stream: a stream has no buffers", "leave one of --also and --stream out"
            )
        if self.also_teachers and self.stream:
            raise UserError(
                "also_teachers with stream: a stream is of one game",
                "leave one of --also_teachers and --stream out",
            )
        if not self.stream:
            return
        if self.minutes is not None:
            raise UserError(
                "minutes with stream: how long the games take is not known beforehand", "give --steps instead"
            )
        check_game(self.stream_game)
        if self.stream_ring < 8 * self.stream_envs:
            raise UserError(
                f"stream_ring {self.stream_ring} leaves {self.stream_ring // self.stream_envs} frames for each of "
                f"{self.stream_envs} games, at least 8 wanted",
                "raise --stream_ring, or lower --stream_envs",
            )
