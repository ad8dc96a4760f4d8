"""The state of a student's training, and a step of it: gradients in shares, hints, loss scaling, checkpoint."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from spikestill.common.artefacts import numbered
from spikestill.common.errors import MALFORMED, UserError, restoring
from spikestill.common.limits import regular_file
from spikestill.common.precision.formats import number_format
from spikestill.common.precision.scaling import LossScale
from spikestill.common.processor import compute_device, cores
from spikestill.common.provenance import Provenance, file_sha256
from spikestill.common.tensor_file import read_metadata
from spikestill.common.tensors import (
    optimizer_tensors,
    read_tensors,
    restore_optimizer,
)
from spikestill.common.training import (
    BEGIN_ANEW,
    check_arrays,
    check_counters,
    read_checkpoint,
    write_checkpoint,
)
from spikestill.configs.distill import DistillConfig
from spikestill.configs.loading import plain
from spikestill.student import integer_net
from spikestill.student.architectures import WIDE, architecture, centred
from spikestill.student.augmentation import at_random
from spikestill.student.beside import beside
from spikestill.student.branches import BRANCHES, least_missed, votes_by_branch
from spikestill.student.hints import Hints, hinted_layers
from spikestill.student.integer_net import IntegerNet
from spikestill.student.judging import judged
from spikestill.student.layer_log import LayerActivity, activity
from spikestill.student.losses import distillation_loss, legal_scores
from spikestill.student.network import StudentNetwork
from spikestill.student.sources import Drawn, Source
from spikestill.student.unfold import check_same_net, unfold
from spikestill.teacher.atari.q_network import Weights

SCHEMA = "spikestill.distill-checkpoint"
# Frames on which the layers' activity is logged.
ACTIVITY_FRAMES = 128
# Batches from which the hints' principal components are taken.
HINT_BATCHES = 40
# Batches from which the statistics of a deployed student, to go on from, are taken.
UNFOLD_BATCHES = 64
# Batches on which the branches to take out are chosen.
PRUNE_BATCHES = 8
# Options that may differ between a run and its resumption. ``steps`` lengthens or shortens a training: the learning
# rate then follows the new length from there on. A training that diverged goes on with other step sizes.
# ``precision`` is compared as what it stands for, files by content.
FREE_OPTIONS = (
    *DistillConfig.WITHOUT_EFFECT, "buffer", "also", "teacher", "also_teachers", "steps", "minutes", "initial",
    "initial_beside", "precision", "learning_rate", "learning_rate_final", "norm_learning_rate", "hint_learning_rate",
)  # fmt: skip
# What trainings did whose checkpoints do not have the option.
BEFORE = {"hint_share": 1.0}
INITIAL_BESIDE = "give a student.safetensors, or leave --initial_beside out"
OTHER_INITIAL = "give another file, or leave --initial out"
INITIAL = "give a distill-checkpoint.safetensors or a student.safetensors, or leave --initial out"
LOWER_RATE = "lower --learning_rate"
LOWER_RATE_AND_RESUME = "lower --learning_rate, then go on from the last checkpoint with --resume"


def learning_rate(config: DistillConfig, step: int) -> float:
    """Return the step size: a cosine from ``learning_rate`` to ``learning_rate_final`` over the run."""
    done = min(1.0, step / config.steps)
    low = config.learning_rate_final
    return low + (config.learning_rate - low) * 0.5 * (1.0 + math.cos(math.pi * done))


class Fitted(NamedTuple):
    """A schedule that was fitted to the time there was: the minutes, the steps asked for, and those that fit."""

    minutes: float
    asked: int
    steps: int


class Distillation:
    """The whole state of a training: network, optimiser, generator and step.

    A batch is computed in shares, one thread each; every share normalises with its own
    statistics (ghost batch normalisation, Hoffer 2017) and the gradients are added in a fixed order.

    Args:
        config: the options.
        source: frames and Q-values.
        teachers: of each of the source's games, whose hidden units are the hints; none: train without hints.
        checkpoint: what an interrupted training left, to go on from it; None: begin.

    Raises:
        UserError: the network to begin with, or the checkpoint, cannot be used.
    """

    def __init__(
        self,
        config: DistillConfig,
        source: Source,
        teachers: Sequence[Weights] = (),
        checkpoint: Path | None = None,
    ) -> None:
        self.config, self.source = config, source
        self.device = compute_device(config.device)
        self.rng = np.random.default_rng([config.seed, 6])
        self.layers = architecture(config.architecture)
        if config.window == "centred":
            self.layers = centred(self.layers, integer_net.STACK_SHAPE[1])
        self.format = number_format(config.precision, self.device)
        self.scale = LossScale(config.loss_scale if self.format.scaled else 1.0, config.loss_scale_period)
        self.skipped = 0
        self.resumable = checkpoint is not None
        self.network = StudentNetwork(
            self.layers,
            source.actions,
            hysteresis=config.hysteresis,
            sparsity=config.sparsity,
            sparsity_form=config.sparsity_form,
            initial_range=config.initial_range,
            seed=config.seed,
            dtype=self.format.body,
            game=source.game,
            legal=source.legal,
        ).to(self.device)
        layers = self.network.ternary_layers()
        norms = [*(layer.gamma for layer in layers), *(layer.beta for layer in layers)]
        weights = [layer.shadow for layer in layers]
        self.parameters = [*weights, *norms]
        self.optimizer = _optimizer(config, weights, norms)
        self.step = 0
        self.fitted: Fitted | None = None
        self.before: list[Tensor] = []
        self.pruned: list[int] = []
        self.hints_over = False
        self.shares = config.ghost_batches or _shares(config.batch_size, self.device)
        self.pool: ThreadPoolExecutor | None = None
        self.parents: dict[str, str] = {} if config.stream else {"buffer": file_sha256(config.buffer)}
        self.parents |= {
            numbered("buffer", index): file_sha256(path) for index, path in enumerate(config.also, 1)
        }
        if config.initial is not None and checkpoint is None:
            if config.initial_beside is not None:
                self._begin_with_two(config.initial, config.initial_beside)
                self.parents["initial_beside"] = file_sha256(config.initial_beside)
            else:
                with restoring(config.initial, OTHER_INITIAL):
                    self._begin_with(config.initial)
            self.parents["initial"] = file_sha256(config.initial)
        self.hints = self._make_hints(teachers) if teachers else None
        if self.hints is not None:
            self.hint_optimizer = torch.optim.Adam(
                self.hints.parameters, lr=config.hint_learning_rate, fused=True
            )
        if checkpoint is not None:
            with restoring(checkpoint, BEGIN_ANEW):
                self.restore(checkpoint)

    def _begin_with(self, path: Path) -> None:
        regular_file(path, "checkpoint", INITIAL)
        try:
            schema = read_metadata(path).get("schema")
        except MALFORMED as error:
            raise UserError(f"{path}: is no safetensors file ({error})", INITIAL) from error
        if schema == integer_net.SCHEMA:
            net = self._deployed(path)
            if self.config.architecture == WIDE and 2 * net.layers[-1].features == self.layers[-1].features:
                raise UserError(
                    f"{path} is one 1-chip net, and {WIDE} has two side by side",
                    "give --initial_beside another finished 1-chip student",
                )
            self._begin_with_deployed(net, path)
        else:
            self._begin_with_checkpoint(path)

    def _begin_with_two(self, path: Path, path_beside: Path) -> None:
        with restoring(path, OTHER_INITIAL):
            regular_file(path, "student", INITIAL)
            one = self._deployed(path)
        with restoring(path_beside, "give another file, or leave --initial_beside out"):
            regular_file(path_beside, "student", INITIAL_BESIDE)
            if file_sha256(path) == file_sha256(path_beside):
                raise UserError(
                    f"{path_beside} is the same student as {path}, and equal halves learn the same",
                    "train one of them further first, with another --seed",
                )
            net = beside(one, self._deployed(path_beside), path_beside)
        with restoring(path, OTHER_INITIAL):
            self._begin_with_deployed(net, path)

    def _deployed(self, path: Path) -> IntegerNet:
        """Return the net of a finished student, and say so where it plays another game."""
        net, _ = integer_net.load(path)
        if net.game != self.network.game:
            told = f"distill: begins with the layers of a student of {net.game}, to play {self.network.game}"
            print(told, file=sys.stderr, flush=True)
        return net

    def _begin_with_deployed(self, net: IntegerNet, path: Path) -> None:
        check_same_net(net, self.network, path)
        rng = np.random.default_rng([self.config.seed, 10])
        self.source.advance()
        drawn = (self._draw(rng) for _ in range(UNFOLD_BATCHES))
        unfold(net, self.network, (self._stacks(batch.stacks) for batch in drawn))

    def _begin_with_checkpoint(self, checkpoint: Path) -> None:
        tensors, metadata = read_tensors(checkpoint, SCHEMA, INITIAL)
        theirs, config = json.loads(metadata["config"]), plain(self.config)
        pruned = json.loads(metadata["counters"]).get("pruned", [])
        if pruned and len(pruned) != self.config.prune:
            raise UserError(
                f"{checkpoint}: its student lacks {len(pruned)} branches, prune is {self.config.prune}",
                f"give --prune {len(pruned)}, or another checkpoint",
            )
        for option in ("architecture", "window"):
            if theirs[option] != config[option]:
                raise UserError(
                    f"{checkpoint}: trains a student of {option} {theirs[option]}, not {config[option]}",
                    f"give --{option} {theirs[option]}, or another checkpoint",
                )
        self._load_network(tensors, checkpoint, "give another checkpoint, or leave --initial out")
        self._take_out(pruned)

    def _load_network(self, tensors: dict[str, Tensor], path: Path, remedy: str) -> None:
        prefix = "network."
        self.network.load_state_dict(
            {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        )
        self.check_finite(str(path), remedy)

    def _make_hints(self, teachers: Sequence[Weights]) -> Hints:
        rng = np.random.default_rng([self.config.seed, 8])
        self.source.advance()
        drawn = [self._draw(rng) for _ in range(HINT_BATCHES)]
        stacks = torch.cat([self._stacks(batch.stacks) for batch in drawn])
        game = torch.from_numpy(np.concatenate([batch.game for batch in drawn])).to(self.device)
        with torch.no_grad():
            _, _, spikes = self.network.propagate(
                stacks[: self.config.batch_size], self.network.working_weights()
            )
        chosen = {index: spikes[index] for index in hinted_layers(self.layers)}
        dtype = (
            torch.float32 if self.format.body == torch.float16 and self.format.emulated else self.format.body
        )
        # The readouts are the head: in fp32 where the format keeps that, but for bf16, whose products are the point.
        readout = self.format.head if self.format.scaled else self.format.body
        return Hints(teachers, stacks, game, chosen, self.config.hint_components, dtype, readout)

    def _stacks(self, stacks_BCHW: np.ndarray) -> Tensor:
        return _channels_last(torch.from_numpy(stacks_BCHW).to(self.device))

    def _draw(self, rng: np.random.Generator) -> Drawn:
        return self.source.draw(rng, self.config.batch_size)

    def _compute(self, share: Callable[[int], tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Return what ``share`` gives for each share: in threads of their own, or one share on all cores."""
        if self.shares == 1:
            return [share(0)]
        if self.pool is None:
            threads = min(self.shares, cores())
            self.pool = ThreadPoolExecutor(
                threads, "gradient", initializer=torch.set_num_threads, initargs=(1,)
            )
        return list(self.pool.map(share, range(self.shares)))

    def _share(
        self,
        index: int,
        weights: list[Tensor],
        hints: Hints | None,
        readouts: list[Tensor],
        stacks: Tensor,
        q: Tensor,
        game: Tensor,
    ) -> tuple[Any, ...]:
        part = slice(
            index * self.config.batch_size // self.shares, (index + 1) * self.config.batch_size // self.shares
        )
        x = stacks[part].to(self.device)
        q_part = q[part].to(self.device)
        factor = self.scale.value / self.shares
        renormalise = self.step >= (1.0 - self.config.renormalised_share) * self.config.steps
        rates, statistics, spikes = self.network.propagate(
            x if self.device.type == "cpu" else _channels_last(x), weights, renormalise=renormalise, loss_factor=factor,
            kept=hints.layers if hints is not None else (),
        )  # fmt: skip
        loss = self._loss(rates, q_part)
        layers = self.network.ternary_layers()
        leaves = [*weights, *(layer.gamma for layer in layers), *(layer.beta for layer in layers)]
        means: list[Tensor] = []
        whole = loss
        if hints is not None:
            targets = hints.targets(_channels_last(x), game[part].to(self.device))
            hint, means = hints.loss(spikes, targets, readouts)
            whole = loss + self.config.hint_weight * hint
            leaves += readouts
        gradients = torch.autograd.grad(whole * factor, leaves)
        agree = (legal_scores(rates, q_part).argmax(dim=1) == q_part.argmax(dim=1)).float().mean()
        return gradients, statistics, loss.detach(), agree, means, whole.detach()

    def _loss(self, rates: Tensor, q: Tensor) -> Tensor:
        """Return the loss of mean votes; those of the branches that are left count as all."""
        whole = rates * (BRANCHES / (BRANCHES - len(self.pruned)))
        logits = self.config.logit_scale * whole
        return distillation_loss(self.config.loss, logits, q, self.config.temperature)

    def train_step(self) -> tuple[float, float]:
        """Do one gradient step; return (loss, agreement with the teacher's best action on the batch).

        Where a gradient overflows under loss scaling the weights and their statistics stay as they are.

        Raises:
            UserError: the loss, with the hints' part, is not finite; the network is left as it was.
        """
        self.source.advance()
        if (
            self.config.prune
            and not self.pruned
            and self.step >= int(self.config.prune_at * self.config.steps)
        ):
            self._prune()
        drawn = self._draw(self.rng)
        if self.config.shift_pixels:
            drawn = drawn._replace(stacks=at_random(self.rng, drawn.stacks, self.config.shift_pixels))
        stacks, q, game = (torch.from_numpy(array) for array in drawn)
        weights, hints = self.network.working_weights(), self._hints_now()
        readouts = hints.working_readouts() if hints is not None else []
        shares = self._compute(lambda index: self._share(index, weights, hints, readouts, stacks, q, game))
        loss, whole = (float(sum(share[part] for share in shares)) / self.shares for part in (2, 5))
        if not math.isfinite(whole):
            with_hints = f" ({whole} with the hints)" if math.isfinite(loss) else ""
            what = f"distill step {self.step}: loss {loss}{with_hints} is not finite"
            raise self._too_large(what, q) or UserError(what, self._lower_rate)
        agreement = float(sum(share[3] for share in shares)) / self.shares
        if self._collect([share[0] for share in shares], hints):
            self._descend(hints)
            if hints is not None:
                hints.absorb([share[4] for share in shares])
            logged = (self.step + 1) % self.config.log_steps == 0
            self.before = [layer.ternary.clone() for layer in self.network.ternary_layers()] if logged else []
            self.network.requantise()
            self.network.absorb([share[1] for share in shares])
        self.step += 1
        return loss, agreement

    def _too_large(self, what: str, q: Tensor) -> UserError | None:
        """Return the error for a batch whose finite Q-values make a loss that is not, whatever the student does.

        Args:
            what: happened.
            q: the batch's Q-values (B, A); -inf is no value.
        """
        config = self.config
        if math.isfinite(float(distillation_loss(config.loss, torch.zeros_like(q), q, config.temperature))):
            return None
        legal = q[q != -torch.inf]
        if not torch.isfinite(legal).all():
            return None
        largest = float(legal[legal.abs().argmax()])
        divided = config.loss == "kl"
        done = f"divided by temperature {config.temperature:g}" if divided else "squared"
        remedy = "raise --temperature" if divided else "give another --loss"
        another = "give another --teacher" if config.stream else "record with another --teacher"
        return UserError(
            f"{what}: {self.source.origin(largest)} has the Q-value {largest:g}, which {done} is too large for fp32",
            f"{remedy}, or {another}",
        )

    @property
    def _lower_rate(self) -> str:
        """The remedy for a training that diverged; a checkpoint is named only where there is one."""
        return LOWER_RATE_AND_RESUME if self.resumable else LOWER_RATE

    def _prune(self) -> None:
        """Choose the branches to take out, on fresh batches, by the loss without them; from now on they are silent."""
        rng = np.random.default_rng([self.config.seed, 9])
        last, weights = len(self.layers) - 1, self.network.working_weights()
        votes, q = [], []
        with torch.no_grad():
            for drawn in (self._draw(rng) for _ in range(PRUNE_BATCHES)):
                _, _, spikes = self.network.propagate(self._stacks(drawn.stacks), weights, kept=(last,))
                votes.append(votes_by_branch(spikes[last].float().mean(dim=(2, 3)), self.network.actions))
                q.append(torch.from_numpy(drawn.q_values).to(self.device))
        taught = torch.cat(q)
        self._take_out(
            least_missed(torch.cat(votes), lambda rates: float(self._loss(rates, taught)), self.config.prune)
        )

    def _take_out(self, branches: list[int]) -> None:
        """Silence these branches from now on; [] for none.

        Raises:
            ValueError: they are not as many different branches, ascending, as are to be taken out.
        """
        known = all(type(branch) is int and branch in range(BRANCHES) for branch in branches)
        if not known or branches != sorted(set(branches)) or len(branches) not in (0, self.config.prune):
            raise ValueError(
                f"pruned is {branches}, {self.config.prune} of the branches 0..{BRANCHES - 1} wanted"
            )
        self.pruned = branches
        if branches:
            self.network.silence(branches)

    @property
    def hinted_steps(self) -> int:
        """The steps of the training's first part, which has hints; 0 where they were over before more steps came."""
        if self.hints is None or self.hints_over:
            return 0
        return math.ceil(self.config.hint_share * self.config.steps)

    def _hints_now(self) -> Hints | None:
        return self.hints if self.step < self.hinted_steps else None

    def _collect(self, gradients: Sequence[Sequence[Tensor]], hints: Hints | None) -> bool:
        """Give every parameter the sum of the shares' gradients, unscaled; return whether all are finite."""
        hinted = hints.parameters if hints is not None else []
        parameters = [*self.parameters, *hinted]
        for index, parameter in enumerate(parameters):
            gradient = gradients[0][index].float()
            for share in gradients[1:]:
                gradient += share[index]
            if self.format.scaled:
                gradient.div_(self.scale.value)
            parameter.grad = gradient.contiguous()
        return not (self.format.scaled and self._overflowed(parameters))

    def _descend(self, hints: Hints | None) -> None:
        """Take the optimisers' steps, at the step sizes of now."""
        config = self.config
        rate = learning_rate(config, self.step)
        norm_rate = rate * (config.norm_learning_rate or config.learning_rate) / config.learning_rate
        for group, step_size in zip(self.optimizer.param_groups, (rate, norm_rate), strict=True):
            group["lr"] = step_size
        self.optimizer.step()
        if self.pruned:
            self.network.silence(self.pruned)
        if hints is not None:
            for group in self.hint_optimizer.param_groups:
                group["lr"] = config.hint_learning_rate * rate / config.learning_rate
            self.hint_optimizer.step()

    def _overflowed(self, parameters: list[Tensor]) -> bool:
        """Return True where a gradient is not finite, and adjust the loss scale.

        Raises:
            UserError: there is no scale left to blame.
        """
        finite = all(
            bool(torch.isfinite(parameter.grad).all())
            for parameter in parameters
            if parameter.grad is not None
        )
        if not finite and self.scale.value <= 1.0:
            raise UserError(
                f"distill step {self.step}: a gradient is not finite at a loss scale of 1", self._lower_rate
            )
        self.scale.update(finite)
        self.skipped += not finite
        return not finite

    def recalibrate(self, batches: int) -> None:
        """Replace the running statistics by their means over fresh batches, the weights as they are."""
        rng = np.random.default_rng([self.config.seed, 7])
        weights = self.network.working_weights()
        with torch.no_grad():
            for index in range(batches):
                x = self._stacks(self._draw(rng).stacks)
                _, statistics, _ = self.network.propagate(x, weights, kept=())
                self.network.absorb([statistics], momentum=1.0 / (index + 1))

    def validate(self) -> dict[str, float]:
        """Return loss, agreement and regret of the integer net on held-out steps (the training's if none are)."""
        stacks, q_values, _ = self.source.validation()
        q = torch.from_numpy(q_values)
        net = self.network.integer()
        votes = torch.cat(
            [net.votes(torch.from_numpy(part)) for part in np.array_split(stacks, 16) if len(part)]
        )
        rates = votes.cpu().float() / self.network.voters()
        loss = self._loss(rates, q)
        found = judged(legal_scores(rates, q).argmax(dim=1).numpy(), q_values)
        return {"agreement": found.agreement, "loss": float(loss), "regret": found.regret}

    def votes(self, stacks_BCHW: np.ndarray) -> np.ndarray:
        """Return the votes int64 (B, A) of the integer net as it stands, for stacks (B, 4, 84, 84)."""
        return self.network.integer().votes(torch.from_numpy(stacks_BCHW)).cpu().numpy()

    def activity(self) -> list[LayerActivity]:
        """Return what each layer of the integer net does on validated frames, and what the last step flipped."""
        stacks = self.source.validation().stacks
        # Those of several games lie one after the other.
        stacks = stacks[np.linspace(0, len(stacks) - 1, min(ACTIVITY_FRAMES, len(stacks))).astype(np.int64)]
        after = [layer.ternary for layer in self.network.ternary_layers()]
        spikes = self.network.integer().spikes(torch.from_numpy(stacks))
        return activity(spikes, self.before or after, after)

    def check_finite(self, where: str, remedy: str) -> None:
        """Raise UserError where a value of the network is not finite: such a state is neither saved nor resumed."""
        for name, tensor in self.network.state_dict().items():
            if not torch.isfinite(tensor).all():
                raise UserError(f"{where}: {name} holds values that are not finite", remedy)

    def save(self, path: Path, provenance: Provenance) -> None:
        """Write the whole state to ``path``.

        Raises:
            UserError: a value of the network is not finite, or the disk is full.
        """
        self.check_finite(f"distill step {self.step}", self._lower_rate)
        tensors = {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}
        tensors |= optimizer_tensors(self.optimizer)
        if self.hints is not None:
            hints = self.hints.state() | optimizer_tensors(self.hint_optimizer)
            tensors |= {f"hints.{name}": tensor for name, tensor in hints.items()}
        tensors |= {f"source.{name}": tensor for name, tensor in self.source.state().items()}
        counters = {
            "step": self.step, "rng": self.rng.bit_generator.state, "shares": self.shares,
            "precision": self.format.name, "loss_scale": dataclasses.astuple(self.scale), "skipped": self.skipped,
            "fitted": self.fitted, "pruned": self.pruned,
            "hints_over": self.config.hint_share < 1.0 and self.step >= self.hinted_steps,
        }  # fmt: skip
        write_checkpoint(path, SCHEMA, tensors, counters, plain(self.config), provenance)
        self.resumable = True

    def provenance(self) -> Provenance:
        """Return where the student comes from; a resumed one from the files that it began with."""
        found = Provenance.of(self.config, self.config.seed)
        return dataclasses.replace(found, parents=self.parents)

    def restore(self, path: Path) -> None:
        """Restore what :meth:`save` wrote.

        Raises:
            UserError: the file cannot be read, or belongs to another buffer or other options.
        """
        tensors, counters, parents = read_checkpoint(
            path, SCHEMA, plain(self.config), plain(DistillConfig()) | BEFORE, FREE_OPTIONS, self.format.name
        )
        self._check_buffers(path, parents)
        self.parents = parents
        self._load_network(tensors, path, BEGIN_ANEW)
        restore_optimizer(self.optimizer, tensors)
        if self.hints is not None:
            hints = {
                name.removeprefix("hints."): tensor
                for name, tensor in tensors.items()
                if name.startswith("hints.")
            }
            check_arrays(hints, self.hints.state())
            self.hints.set_state(hints)
            restore_optimizer(self.hint_optimizer, hints)
        self.source.set_state({
            name.removeprefix("source."): tensor for name, tensor in tensors.items() if name.startswith("source.")
        })  # fmt: skip
        counters = {"shares": self.shares, "skipped": 0, "pruned": [], "hints_over": False, **counters}
        check_counters(counters, {"step": 0, "shares": 1, "skipped": 0})
        if not 1 <= counters["shares"] <= max(1, self.config.batch_size // 2):
            raise ValueError(f"shares is {counters['shares']}, at most half the batch wanted")
        self.step = counters["step"]
        # Each share normalises by itself: the machine's cores must not change what it is.
        self.shares = counters["shares"]
        if self.format.scaled and "loss_scale" in counters:
            value, period, good = counters["loss_scale"]
            check_counters(
                {"value": value, "period": period, "good": good}, {"value": 1.0, "period": 1, "good": 0}
            )
            self.scale = LossScale(value, period, good)
        self.skipped = counters["skipped"]
        self.hints_over = counters["hints_over"] is True
        self._take_out(counters["pruned"])
        if counters.get("fitted") is not None:
            self.keep(Fitted(*counters["fitted"]))
        self.rng.bit_generator.state = counters["rng"]

    def _check_buffers(self, path: Path, parents: Mapping[str, str]) -> None:
        """Raise UserError unless the checkpoint's buffers are those of the options, in their order."""
        theirs, ours = ({name: value for name, value in each.items() if name.startswith("buffer")}
                        for each in (parents, self.parents))  # fmt: skip
        if len(theirs) != len(ours):
            raise UserError(
                f"{path}: was trained on {len(theirs)} buffers, now there are {len(ours)}",
                "give the same --buffer and --also, or start again in another --run_dir",
            )
        for index, given in enumerate((self.config.buffer, *self.config.also)):
            if theirs.get(numbered("buffer", index)) != ours.get(numbered("buffer", index)):
                raise UserError(
                    f"{path}: was trained on another buffer than {given}",
                    f"give that buffer by --{'also' if index else 'buffer'}, or start again in another --run_dir",
                )

    def keep(self, fitted: Fitted) -> None:
        """Follow a schedule that was fitted to the time there was, where the options still ask for the same."""
        if (self.config.minutes, self.config.steps) == (fitted.minutes, fitted.asked):
            self.fitted = fitted
            self.config = dataclasses.replace(self.config, steps=fitted.steps)

    def close(self) -> None:
        """End the gradient threads."""
        if self.pool is not None:
            self.pool.shutdown()


def _channels_last(stacks_BCHW: Tensor) -> Tensor:
    return stacks_BCHW.contiguous(memory_format=torch.channels_last)


def _optimizer(
    config: DistillConfig, weights: Sequence[Tensor], norms: Sequence[Tensor]
) -> torch.optim.Optimizer:
    """Return the optimiser: the weights' group, then that of gamma and beta."""
    groups = [
        {"params": [*weights], "lr": config.learning_rate},
        {"params": [*norms], "lr": config.norm_learning_rate or config.learning_rate},
    ]
    if config.optimizer == "adam":
        return torch.optim.Adam(groups, fused=True)
    return torch.optim.SGD(groups, lr=config.learning_rate, momentum=0.9)


def _shares(batch_size: int, device: torch.device) -> int:
    """Return the number of shares: as many as cores, all of one size, for each counts as much in the statistics."""
    most = min(cores(), batch_size // 2) if device.type == "cpu" else 1
    return next(count for count in range(max(1, most), 0, -1) if batch_size % count == 0)
