"""Hints: linear readouts of hidden layers that predict the teacher's hidden units while a student trains.

A frame's Q-values are A numbers that hardly differ; the teacher's last hidden layer says of the same frame what
moves, and where. A linear readout of a student layer's spikes is trained to predict its principal components, and
the gradient of that goes on into the layers below (FitNets, Romero 2015). The readouts are thrown away at the end.

A student of several games has a teacher for each. A frame's targets are the components of its own game's teacher, and
only the readouts of that game learn from it.

Axis suffixes: B batch, U a teacher's hidden units, P principal components, those of all teachers side by side, S spikes
of a layer.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from spikestill.common.errors import UserError
from spikestill.student.architectures import LayerSpec
from spikestill.teacher.atari import q_network
from spikestill.teacher.atari.q_network import Weights

CENTRE_MOMENTUM = 0.05
# A unit that varies less than this share of the liveliest one is dead.
DEAD_SHARE = 1e-3
# Up to this every number of spikes is exact in bf16.
EXACT_COUNT = 256


def hinted_layers(layers: Sequence[LayerSpec]) -> list[int]:
    """Return the layers that get a readout: the last two before a spatial kernel, and the last but one.

    In the 1-chip net (counted from 0): 4, 6 and 8.
    """
    before = [index for index, (_, above) in enumerate(itertools.pairwise(layers)) if above.kernel > 1]
    return [*before[-2:], len(layers) - 2]


def principal_components(units_BU: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return (mean (U,), projection (U, P)) of the most variable directions of the standardised units.

    With z = (u - mean) / deviation, a component is z v / sqrt(s) for the direction v of standard deviation s: so
    the strong ones weigh more than the weak ones, but not by all they are stronger. All are scaled to a mean
    square of 1 over the batch. Dead units count for nothing.

    Args:
        units_BU: fp32, B > 1.
        count: P at most; there are no more than live units, or samples.
    """
    deviation, mean = torch.std_mean(units_BU, dim=0)
    live = deviation > DEAD_SHARE * deviation.max()
    scale = torch.where(live, 1.0 / torch.where(live, deviation, 1.0), 0.0)
    z = (units_BU - mean) * scale
    _, singular, directions = torch.linalg.svd(z, full_matrices=False)
    strength = singular / len(z) ** 0.5
    kept = int((strength[:count] > 1e-3 * strength[0]).sum())
    projection = scale[:, None] * directions[:kept].T / strength[:kept].sqrt()
    return mean, projection / ((units_BU - mean) @ projection).square().mean().sqrt()


class Hints:
    """The targets and the readouts.

    Args:
        teachers: weights of the Nature Q-network of each game, fp32.
        stacks_BCHW: uint8 stacks from which the principal components are taken.
        game_B: int64, the place of each stack's game in ``teachers``.
        spikes: what the student's layers give for some stacks, {layer: (B, O, H, W)} for the hinted ones.
        components: of each teacher.
        dtype: compute format of the teachers.
        readout: format of the readouts' products.

    Raises:
        UserError: fewer than two of the stacks are of a game; a teacher's hidden layer is constant on them.
    """

    def __init__(
        self,
        teachers: Sequence[Weights],
        stacks_BCHW: Tensor,
        game_B: Tensor,
        spikes: dict[int, Tensor],
        components: int,
        dtype: torch.dtype,
        readout: torch.dtype = torch.float32,
    ) -> None:
        self.readout = readout
        device = stacks_BCHW.device
        self._teachers = [
            q_network.working_copy(
                {name: weight.to(device) for name, weight in teacher.items()}, dtype, requires_grad=False
            )
            for teacher in teachers
        ]
        self.means: list[Tensor] = []
        self.projections: list[Tensor] = []
        for game in range(len(teachers)):
            own = stacks_BCHW[game_B == game]
            if len(own) < 2:
                raise UserError(
                    f"{len(own)} of the {len(stacks_BCHW)} frames that the hints begin with are of game {game + 1}",
                    "record more of it, or train without hints: --hint_weight 0",
                )
            units = torch.cat([self._units(game, part) for part in own.split(256)])
            mean_U, projection_UP = principal_components(units, components)
            if not projection_UP.shape[1]:
                raise UserError(
                    f"the teacher of game {game + 1}: its last hidden layer is the same on all of {len(own)} frames, "
                    "and the hints are to predict it",
                    "give another teacher, or train without hints: --hint_weight 0",
                )
            self.means.append(mean_U)
            self.projections.append(projection_UP)
        self.layers = sorted(spikes)
        self.centres = {layer: _flat(spikes[layer]).float().mean(dim=0) for layer in self.layers}
        targets = sum(projection.shape[1] for projection in self.projections)
        self.parameters = [
            torch.zeros(targets, len(self.centres[layer]), device=device, requires_grad=True)
            for layer in self.layers
        ] + [torch.zeros(targets, device=device, requires_grad=True) for _ in self.layers]

    def _units(self, game: int, stacks_BCHW: Tensor) -> Tensor:
        with torch.no_grad():
            return q_network.features(self._teachers[game], stacks_BCHW)[-1].float()

    def targets(self, stacks_BCHW: Tensor, game_B: Tensor) -> Tensor:
        """Return the principal components (B, P) of each stack's own teacher; NaN in the columns of the others.

        Args:
            stacks_BCHW: uint8.
            game_B: int64, the place of each stack's game among the teachers.
        """
        if len(self._teachers) == 1:
            return (self._units(0, stacks_BCHW) - self.means[0]) @ self.projections[0]
        widths = [projection.shape[1] for projection in self.projections]
        targets_BP = torch.full((len(stacks_BCHW), sum(widths)), torch.nan, device=stacks_BCHW.device)
        for game, columns in enumerate(targets_BP.split(widths, dim=1)):
            rows = (game_B == game).nonzero().flatten()
            if len(rows):
                columns[rows] = (self._units(game, stacks_BCHW[rows]) - self.means[game]) @ self.projections[
                    game
                ]
        return targets_BP

    def working_readouts(self) -> list[Tensor]:
        """Return ``parameters`` with the weights in the format of their products, as leaves that collect a gradient."""
        weights, biases = self.parameters[: len(self.layers)], self.parameters[len(self.layers) :]
        working = [*(weight.to(self.readout) for weight in weights), *biases]
        return [each.detach().requires_grad_() for each in working]

    def loss(
        self, spikes: Mapping[int, Tensor], targets_BP: Tensor, readouts: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Return (sum over the readouts of the mean squared error, each layer's mean spikes (S,)).

        What a readout sees is centred, s - E s: most neurons fire always or never, and say nothing.

        Args:
            spikes: of the hinted layers at least, (B, O, H, W).
            targets_BP: from :meth:`targets`; what is NaN there counts for nothing.
            readouts: from :meth:`working_readouts`.
        """
        total, means = torch.zeros((), device=targets_BP.device), []
        for index, layer in enumerate(self.layers):
            flat = _flat(spikes[layer])
            means.append(_mean(flat.detach()))
            weight, bias = readouts[index], readouts[len(self.layers) + index]
            predicted = _readout(flat, self.centres[layer], weight, bias)
            total = total + _mean_square(predicted, targets_BP, len(self._teachers) == 1)
        return total, means

    def absorb(self, shares: Sequence[list[Tensor]]) -> None:
        """Move the centres towards the means of a batch that was computed in equal shares."""
        for index, layer in enumerate(self.layers):
            mean = torch.stack([share[index] for share in shares]).mean(dim=0)
            self.centres[layer].lerp_(mean, CENTRE_MOMENTUM)

    def state(self) -> dict[str, Tensor]:
        """Return all that changes or was drawn, as named tensors."""
        tensors = {f"parameter.{index}": tensor.detach() for index, tensor in enumerate(self.parameters)}
        tensors |= {f"centre.{layer}": tensor for layer, tensor in self.centres.items()}
        for game, (mean_U, projection_UP) in enumerate(zip(self.means, self.projections, strict=True)):
            tensors |= {f"mean{_nth(game)}": mean_U, f"projection{_nth(game)}": projection_UP}
        return tensors

    def set_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore what :meth:`state` returned."""
        device = self.means[0].device
        with torch.no_grad():
            for index, parameter in enumerate(self.parameters):
                parameter.copy_(tensors[f"parameter.{index}"])
        for layer in self.layers:
            self.centres[layer] = tensors[f"centre.{layer}"].to(device).clone()
        for game in range(len(self.means)):
            self.means[game] = tensors[f"mean{_nth(game)}"].to(device)
            self.projections[game] = tensors[f"projection{_nth(game)}"].to(device)


def _readout(spikes_BS: Tensor, centre_S: Tensor, weight_PS: Tensor, bias_P: Tensor) -> Tensor:
    """Return (s - c) W^T + b, fp32 (B, P), products in the format of ``weight_PS``.

    In fp32 as s W^T + (b - W c), which writes nothing of the size of the spikes. Narrower formats would round s W^T.
    """
    dtype = weight_PS.dtype
    if dtype == torch.float32:
        return F.linear(spikes_BS.float(), weight_PS, bias_P - weight_PS @ centre_S)
    centred_BS = spikes_BS.to(dtype) - centre_S.to(dtype)
    if dtype == torch.float16 and spikes_BS.device.type == "cpu":
        return F.linear(centred_BS.float(), weight_PS.float()).half().float() + bias_P
    return F.linear(centred_BS, weight_PS).float() + bias_P


def _mean_square(predicted_BP: Tensor, targets_BP: Tensor, whole: bool) -> Tensor:
    """Return the mean squared error over the targets that are numbers; ``whole``: all are."""
    if whole:
        return F.mse_loss(predicted_BP, targets_BP)
    own_BP = torch.isfinite(targets_BP)
    error_BP = torch.where(own_BP, predicted_BP - targets_BP, 0.0)
    return error_BP.square().sum() / own_BP.sum()


def _nth(game: int) -> str:
    """Return what follows a name in a checkpoint: nothing for the first game's, as where there is one."""
    return f".{game}" if game else ""


def _mean(spikes_BS: Tensor) -> Tensor:
    """Return the mean (S,) of spikes in fp32.

    Where bf16 is native a product with ones takes half of a sum's time.
    """
    if spikes_BS.dtype != torch.bfloat16:
        return spikes_BS.mean(dim=0, dtype=torch.float32)
    parts = spikes_BS.split(EXACT_COUNT)
    counts = [torch.ones(1, len(part), dtype=part.dtype, device=part.device) @ part for part in parts]
    return torch.cat(counts).sum(dim=0, dtype=torch.float32) / len(spikes_BS)


def _flat(spikes_BOHW: Tensor) -> Tensor:
    return spikes_BOHW.permute(0, 2, 3, 1).flatten(1)
