"""Hints: linear readouts of hidden layers that predict the teacher's hidden units while a student trains.

A frame's Q-values are A numbers that hardly differ; the teacher's last hidden layer says of the same frame what
moves, and where. A linear readout of a student layer's spikes is trained to predict its principal components, and
the gradient of that goes on into the layers below (FitNets, Romero 2015). The readouts are thrown away at the end.

Axis suffixes: B batch, U the teacher's hidden units, P principal components, S spikes of a layer.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from spikestill.student.architectures import LayerSpec
from spikestill.teacher.atari import q_network
from spikestill.teacher.atari.q_network import Weights

CENTRE_MOMENTUM = 0.05
# A unit that varies less than this share of the liveliest one is dead.
DEAD_SHARE = 1e-3


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
        teacher: weights of the Nature Q-network, fp32.
        stacks_BCHW: uint8 stacks from which the principal components are taken.
        spikes: what the student's layers give for some stacks, {layer: (B, O, H, W)} for the hinted ones.
        components: P.
        dtype: compute format of the teacher.
        readout: format of the readouts; None: that of the spikes.
    """

    def __init__(
        self,
        teacher: Weights,
        stacks_BCHW: Tensor,
        spikes: dict[int, Tensor],
        components: int,
        dtype: torch.dtype,
        readout: torch.dtype | None = None,
    ) -> None:
        self.readout = readout
        moved = {name: weight.to(stacks_BCHW.device) for name, weight in teacher.items()}
        self._teacher = q_network.working_copy(moved, dtype, requires_grad=False)
        units = torch.cat([self._units(part) for part in stacks_BCHW.split(256)])
        self.mean_U, self.projection_UP = principal_components(units, components)
        self.layers = sorted(spikes)
        self.centres = {layer: _flat(spikes[layer]).float().mean(dim=0) for layer in self.layers}
        targets = self.projection_UP.shape[1]
        self.parameters = [
            torch.zeros(targets, len(self.centres[layer]), device=units.device, requires_grad=True)
            for layer in self.layers
        ] + [torch.zeros(targets, device=units.device, requires_grad=True) for _ in self.layers]

    def _units(self, stacks_BCHW: Tensor) -> Tensor:
        with torch.no_grad():
            return q_network.features(self._teacher, stacks_BCHW)[-1].float()

    def targets(self, stacks_BCHW: Tensor) -> Tensor:
        """Return the teacher's principal components (B, P) for uint8 stacks."""
        return (self._units(stacks_BCHW) - self.mean_U) @ self.projection_UP

    def loss(self, spikes: Mapping[int, Tensor], targets_BP: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return (sum over the readouts of the mean squared error, each layer's mean spikes (S,)).

        What a readout sees is centred, s - E s: most neurons fire always or never, and say nothing.

        Args:
            spikes: of the hinted layers at least, (B, O, H, W).
            targets_BP: from :meth:`targets`.
        """
        total, means = torch.zeros((), device=targets_BP.device), []
        for index, layer in enumerate(self.layers):
            flat = _flat(spikes[layer])
            means.append(flat.detach().mean(dim=0, dtype=torch.float32))
            dtype = self.readout or flat.dtype
            centred = flat.to(dtype) - self.centres[layer].to(dtype)
            weight, bias = self.parameters[index].to(dtype), self.parameters[len(self.layers) + index]
            if dtype == torch.float16 and flat.device.type == "cpu":
                predicted = F.linear(centred.float(), weight.float()).half().float() + bias
            else:
                predicted = F.linear(centred, weight).float() + bias
            total = total + F.mse_loss(predicted, targets_BP)
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
        return tensors | {"mean": self.mean_U, "projection": self.projection_UP}

    def set_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore what :meth:`state` returned."""
        device = self.mean_U.device
        with torch.no_grad():
            for index, parameter in enumerate(self.parameters):
                parameter.copy_(tensors[f"parameter.{index}"])
        for layer in self.layers:
            self.centres[layer] = tensors[f"centre.{layer}"].to(device).clone()
        self.mean_U, self.projection_UP = tensors["mean"].to(device), tensors["projection"].to(device)


def _flat(spikes_BOHW: Tensor) -> Tensor:
    return spikes_BOHW.permute(0, 2, 3, 1).flatten(1)
