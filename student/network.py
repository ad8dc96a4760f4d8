"""The trainable student: shadow weights, ternary weights, batch normalisation, binary activations.

In training it computes with batch statistics and passes gradients through the quantisers; in ``eval()``
it *is* the folded integer net, so that its scores are the deployed scores.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spikestill.common.legal import LegalActions
from spikestill.student import grouped
from spikestill.student.architectures import LayerSpec, check_layers, visible_sizes
from spikestill.student.branches import branch_of_features, first_branching
from spikestill.student.fold import fold
from spikestill.student.grouped import GroupedLayer, plan
from spikestill.student.integer_net import STACK_SHAPE, IntegerNet
from spikestill.student.quantise import (
    VARIANCE_EPSILON,
    NormalisedStep,
    Pressure,
    initial_ternary,
    ternarise,
)
from spikestill.student.torch_net import TorchIntegerNet

STATISTICS_MOMENTUM = 0.1


class TernaryLayer(nn.Module):
    """Grouped convolution with ternary weights, batch normalisation and binary activation.

    Args:
        spec: geometry.
        in_channels: features of the input.
        hysteresis: h of :func:`ternarise`.
        generator: source of the initial shadow weights, uniform (McKinstry 2018) in [-initial_range, initial_range].
        initial_range: 0..1.
        visible: how many rows and columns of the output to compute, see :func:`visible_sizes`.
    """

    ternary: Tensor
    mu: Tensor
    variance: Tensor

    def __init__(
        self,
        spec: LayerSpec,
        in_channels: int,
        hysteresis: float,
        generator: torch.Generator,
        visible: int,
        initial_range: float = 1.0,
    ) -> None:
        super().__init__()
        self.spec, self.hysteresis, self.visible = spec, hysteresis, visible
        shape = (spec.features, in_channels // spec.groups, spec.kernel, spec.kernel)
        self.shadow = nn.Parameter(
            torch.empty(shape).uniform_(-initial_range, initial_range, generator=generator)
        )
        self.gamma = nn.Parameter(torch.ones(spec.features))
        self.beta = nn.Parameter(torch.zeros(spec.features))
        self.register_buffer("ternary", initial_ternary(self.shadow.detach()))
        self.register_buffer("mu", torch.zeros(spec.features))
        self.register_buffer("variance", torch.ones(spec.features))

    @property
    def neurons(self) -> int:
        """Neurons that a vote depends on."""
        return self.spec.features * self.visible**2

    def requantise(self) -> None:
        """Clip the shadow weights to [-1, 1] and derive the ternary weights from them."""
        if self.shadow.device.type == "cpu":
            grouped.requantise(self.shadow, self.ternary, self.hysteresis)
            return
        with torch.no_grad():
            self.shadow.clamp_(-1.0, 1.0)
            self.ternary.copy_(ternarise(self.shadow, self.ternary, self.hysteresis))

    def straight_through(self) -> Tensor:
        """Return the ternary weights, whose gradient goes to the shadow weights (Esser 2016)."""
        return self.shadow + (self.ternary - self.shadow).detach()

    def forward(
        self, x: Tensor, weight: Tensor, pressure: Pressure, renormalise: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return (spikes (B, O, H, W), batch mean (O,), batch variance (O,)).

        Args:
            x: spikes or pixels (B, C, H, W) in ``weight``'s dtype.
            weight: ternary values in the compute format, as :meth:`StudentNetwork.working_weights` gives them.
            pressure: of the sparsity term.
            renormalise: normalise with the running statistics, not the batch's.
        """
        spec = self.spec
        if weight.dtype == torch.float16 and weight.device.type == "cpu":
            # Emulated, as tensor cores do it: factors and results fp16, sums fp32.
            s = F.conv2d(self._pad(x).float(), weight.float(), stride=spec.stride, groups=spec.groups).half()
        else:
            s = F.conv2d(self._pad(x), weight, stride=spec.stride, groups=spec.groups)
        running = (self.mu, self.variance) if renormalise else (None, None)
        return NormalisedStep.apply(s, self.gamma, self.beta, *running, pressure)

    def _pad(self, x: Tensor) -> Tensor:
        """Return the first rows and columns that are read, with the zeros around them."""
        spec = self.spec
        side = min(x.shape[2], (self.visible - 1) * spec.stride + spec.kernel - spec.pad)
        after = (self.visible - 1) * spec.stride + spec.kernel - spec.pad - side
        if (side, spec.pad, after) == (x.shape[2], 0, 0):
            return x
        return F.pad(x[:, :, :side, :side], (spec.pad, after, spec.pad, after))


class StudentNetwork(nn.Module):
    """A student of one of the Table 1 geometries, or any other chain of layers.

    Args:
        layers: geometry, first to last.
        actions: A.
        hysteresis: of the ternary weights.
        sparsity: weight of the firing rates in the loss.
        sparsity_form: ``layers`` (the sum of each layer's mean rate), ``features`` (of each feature's mean rate),
            ``neurons`` (the mean rate of all neurons) or ``squares`` (the sum of half of each feature's square).
        initial_range: the shadow weights begin uniform in [-initial_range, initial_range].
        seed: of the initial weights.
        dtype: format of the products after the first layer.
        input_shape: (C, H, W) of the uint8 input, H = W.
        game: the game in snake case, several joined by ``+``.
        legal: which of the actions each game takes, where there are several games.

    Raises:
        ValueError: H and W differ.
        UserError: see :func:`check_layers`.
    """

    def __init__(
        self,
        layers: tuple[LayerSpec, ...],
        actions: int,
        *,
        hysteresis: float = 0.1,
        sparsity: float = 0.0,
        sparsity_form: str = "layers",
        initial_range: float = 1.0,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        input_shape: tuple[int, int, int] = STACK_SHAPE,
        game: str = "",
        legal: tuple[LegalActions, ...] = (),
    ) -> None:
        super().__init__()
        if input_shape[1] != input_shape[2]:
            raise ValueError(f"input must be as high as wide, got {input_shape}")
        check_layers(layers, input_shape[0])
        self.actions, self.sparsity, self.dtype = actions, sparsity, dtype
        self.input_shape, self.game, self.sparsity_form = input_shape, game, sparsity_form
        self.legal = legal
        generator = torch.Generator().manual_seed(seed)
        channels, made = input_shape[0], []
        _, *visible = visible_sizes(layers, input_shape[1])
        for index, spec in enumerate(layers):
            made.append(TernaryLayer(spec, channels, hysteresis, generator, visible[index], initial_range))
            channels = spec.features
        self.layers = nn.ModuleList(made)
        self.neurons = sum(layer.neurons for layer in made)
        self._integer: TorchIntegerNet | None = None

    def forward(self, stacks_BCHW: Tensor) -> Tensor:
        """Return the mean vote (0..1) of each action, fp32 (B, A), of uint8 stacks.

        In ``eval()`` this is the folded integer net's votes over the number of voters, exactly.
        """
        if not self.training:
            return self.integer().votes(stacks_BCHW).float() / self.voters()
        weights = [
            self._cast(layer.straight_through(), index) for index, layer in enumerate(self.ternary_layers())
        ]
        rates, statistics, _ = self.propagate(stacks_BCHW, weights)
        self.absorb([statistics])
        return rates

    def propagate(
        self,
        stacks_BCHW: Tensor,
        weights: list[Tensor],
        *,
        renormalise: bool = False,
        loss_factor: float = 1.0,
        kept: Collection[int] | None = None,
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]], dict[int, Tensor]]:
        """Return (mean votes (B, A), each layer's batch mean and variance, spikes); the network stays as it is.

        Spikes are (B, O, H, W), by layer.

        Only the neurons that a vote depends on are computed, see :func:`visible_sizes`.

        Args:
            stacks_BCHW: uint8 stacks.
            weights: what :meth:`working_weights` gives, or straight-through weights in the same formats.
            renormalise: normalise with the running statistics (batch renormalisation), not the batch's.
            loss_factor: what the caller multiplies the mean loss of these stacks with before it differentiates: the
                stacks' share of the batch, times a loss scale. The sparsity penalty is multiplied with it too.
            kept: layers whose spikes to return; None: all.
        """
        chosen = range(len(self.layers)) if kept is None else kept
        way = self._group_by_group if self._in_groups(stacks_BCHW.device) else self._by_convolutions
        rate_BO, statistics, spikes = way(
            stacks_BCHW, weights, renormalise, self.sparsity * loss_factor, chosen
        )
        used = self.actions * (rate_BO.shape[1] // self.actions)
        votes = rate_BO[:, :used].reshape(len(rate_BO), -1, self.actions).mean(dim=1)
        return votes, statistics, spikes

    def _in_groups(self, device: torch.device) -> bool:
        """Return True where the kernels compute the layers, which know no fp16."""
        return device.type == "cpu" and self.dtype != torch.float16

    def _pressure(self, layer: TernaryLayer, penalty: float, images: int) -> Pressure:
        """Return what the sparsity term adds to the gradient of a layer's spikes in so many images.

        The squares of features' rates are our reading of Esser 2016, their sum that of McKinstry 2018, 3.
        """
        if self.sparsity_form == "squares":
            return Pressure(0.0, penalty / (images * layer.visible**2))
        forms = {"layers": 1.0, "features": layer.spec.features, "neurons": layer.neurons / self.neurons}
        return Pressure(penalty * forms[self.sparsity_form] / (images * layer.neurons), 0.0)

    def _by_convolutions(
        self, x: Tensor, weights: list[Tensor], renormalise: bool, penalty: float, kept: Collection[int]
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]], dict[int, Tensor]]:
        """Return mean spikes (B, O), statistics and kept spikes, by PyTorch's operations."""
        statistics, spikes = [], {}
        for index, (layer, weight) in enumerate(zip(self.ternary_layers(), weights, strict=True)):
            pressure = self._pressure(layer, penalty, len(x))
            x, mu, variance = layer(x.to(weight.dtype), weight, pressure, renormalise)
            statistics.append((mu, variance))
            if index in kept:
                spikes[index] = x
        return x.float().mean(dim=(2, 3)), statistics, spikes

    def _group_by_group(
        self,
        stacks_BCHW: Tensor,
        weights: list[Tensor],
        renormalise: bool,
        penalty: float,
        kept: Collection[int],
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]], dict[int, Tensor]]:
        """Return what :meth:`_by_convolutions` does, by the kernels of :mod:`spikestill.student.grouped`."""
        layers = self.ternary_layers()
        sides = [self.input_shape[1], *(layer.visible for layer in layers)]
        specs = [layer.spec for layer in layers]
        planned = plan(specs, self.input_shape[0], sides, len(stacks_BCHW), self.dtype.itemsize)
        statistics, spikes, x = [], {}, stacks_BCHW.contiguous()
        for index, (layer, weight) in enumerate(zip(layers, weights, strict=True)):
            running = (layer.mu, layer.variance) if renormalise else (None, None)
            x, plain, mu, variance = GroupedLayer.apply(
                x,
                weight,
                layer.gamma,
                layer.beta,
                *running,
                self._pressure(layer, penalty, len(stacks_BCHW)),
                planned[index],
                index in kept,
                self.dtype,
            )
            statistics.append((mu, variance))
            if plain is not None:
                spikes[index] = plain.permute(0, 3, 1, 2)
        rate_BO = x.view(len(stacks_BCHW), sides[-1] ** 2, -1).float().mean(dim=1)
        return rate_BO, statistics, spikes

    def working_weights(self) -> list[Tensor]:
        """Return each layer's ternary weights as leaves that collect a gradient.

        The straight-through rule makes that gradient the shadow weights'. They are in the compute format, but for the
        kernels, which round them themselves, so that their gradient is fp32.
        """
        return [
            self._cast(layer.ternary, index).detach().requires_grad_()
            for index, layer in enumerate(self.ternary_layers())
        ]

    def absorb(
        self, shares: list[list[tuple[Tensor, Tensor]]], momentum: float = STATISTICS_MOMENTUM
    ) -> None:
        """Move the running statistics towards those of a batch that was computed in equal shares.

        The whole batch's variance is the mean of the shares' plus the variance of their means.
        """
        self._integer = None
        layers = self.ternary_layers()
        # Those of all layers side by side: they are few numbers, and each operation costs the same.
        mus, variances = (
            torch.stack([torch.cat([each[which] for each in share]) for share in shares]) for which in (0, 1)
        )
        mean = mus.mean(dim=0)
        variance = variances.mean(dim=0) + (mus - mean).square().mean(dim=0)
        features = [layer.spec.features for layer in layers]
        with torch.no_grad():
            for running, found in (
                ([layer.mu for layer in layers], mean),
                ([layer.variance for layer in layers], variance),
            ):
                torch._foreach_lerp_(running, found.split(features), momentum)

    def ternary_layers(self) -> list[TernaryLayer]:
        """Return the layers, first to last."""
        return [layer for layer in self.layers if isinstance(layer, TernaryLayer)]

    def _cast(self, weight: Tensor, index: int) -> Tensor:
        if self._in_groups(weight.device):
            return weight
        # The first layer's sums reach 65,280: bf16 could not hold them.
        if index == 0 and weight.device.type == "cpu":
            return weight.float()
        dtype = torch.float32 if index == 0 else self.dtype
        return weight.to(dtype).contiguous(memory_format=torch.channels_last)

    def requantise(self) -> None:
        """Bring the ternary weights up to date after a step of the optimiser."""
        self._integer = None
        for layer in self.ternary_layers():
            layer.requantise()

    def silence(self, branches: Sequence[int]) -> None:
        """Let these branches' neurons never fire: gamma 0, beta -1 (:mod:`spikestill.student.branches`)."""
        self._integer = None
        layers = self.ternary_layers()
        with torch.no_grad():
            for layer in layers[first_branching([each.spec for each in layers]) :]:
                device = layer.gamma.device
                own_O = torch.isin(branch_of_features(layer.spec.features), torch.tensor([*branches])).to(
                    device
                )
                layer.gamma.masked_fill_(own_O, 0.0)
                layer.beta.masked_fill_(own_O, -1.0)

    def integer(self) -> TorchIntegerNet:
        """Return the folded net in PyTorch.

        It is made anew after :meth:`requantise`, :meth:`absorb`, :meth:`load_state_dict` and :meth:`train`: whoever
        changes a parameter in another way calls one of them.
        """
        if self._integer is None:
            device = next(self.parameters()).device
            emulated = self.dtype == torch.float16 and device.type == "cpu"
            dtype = torch.float32 if emulated else self.dtype
            self._integer = TorchIntegerNet(self.to_integer(), dtype=dtype, device=device)
        return self._integer

    def train(self, mode: bool = True) -> StudentNetwork:
        """Switch between training and the integer net."""
        self._integer = None
        super().train(mode)
        return self

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """See :meth:`torch.nn.Module.load_state_dict`."""
        self._integer = None
        return super().load_state_dict(*args, **kwargs)

    def to_integer(self) -> IntegerNet:
        """Return the deployed form: ternary weights and folded thresholds."""
        folded = []
        for index, layer in enumerate(self.ternary_layers()):
            gamma, beta, mu, variance = (
                tensor.detach().cpu().double().numpy()
                for tensor in (layer.gamma, layer.beta, layer.mu, layer.variance)
            )
            folded.append(
                fold(
                    layer.ternary.cpu().to(torch.int8).numpy(), gamma, beta, mu,
                    (variance + VARIANCE_EPSILON) ** 0.5,
                    stride=layer.spec.stride, pad=layer.spec.pad, groups=layer.spec.groups, first=index == 0,
                )
            )  # fmt: skip
        return IntegerNet(tuple(folded), self.actions, self.input_shape, self.game, self.legal)

    def voters(self) -> int:
        """Return how many neurons vote for each action."""
        *_, (features, height, width) = self.integer().net.shapes()
        return features // self.actions * height * width
