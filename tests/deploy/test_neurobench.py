"""Our operations and sparsities beside those that NeuroBench's own harness counts on the same net and frames."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from neurobench.metrics.static import ConnectionSparsity, ParameterCount
from neurobench.metrics.workload import ActivationSparsity, SynapticOperations
from neurobench.models import TorchModel
from torch import nn

from spikestill.deploy import costs
from spikestill.student.integer_net import IntegerNet
from tests.nets import SMALL_SHAPE, random_stack, small_net, table1_net


class Step(nn.Module):
    """y = 1 iff s >= theta."""

    def __init__(self, theta_O: np.ndarray) -> None:
        super().__init__()
        self.theta = torch.from_numpy(theta_O.astype(np.float32))[:, None, None]

    def forward(self, sums: torch.Tensor) -> torch.Tensor:
        return (sums >= self.theta).float()


def as_modules(net: IntegerNet) -> nn.Sequential:
    """Return the net as the convolutions and activations that NeuroBench hooks."""
    modules: list[nn.Module] = []
    for layer in net.layers:
        out, per_group, kernel, _ = layer.weight_OIHW.shape
        convolution = nn.Conv2d(
            per_group * layer.groups, out, kernel, layer.stride, groups=layer.groups, bias=False
        )
        convolution.weight = nn.Parameter(torch.from_numpy(layer.weight_OIHW).float(), requires_grad=False)
        if layer.pad < 0:
            modules.append(nn.ZeroPad2d(layer.pad))
        else:
            convolution.padding = (layer.pad, layer.pad)
        modules += [convolution, Step(layer.theta_O)]
    return nn.Sequential(*modules)


@pytest.mark.parametrize(
    ("net", "shape"),
    [(small_net(1), SMALL_SHAPE), (table1_net("1chip"), (4, 84, 84))],
    ids=["small", "1chip"],
)
def test_the_harness_counts_the_same(net: IntegerNet, shape: tuple[int, int, int]) -> None:
    stacks = np.stack([random_stack(seed, shape) for seed in range(2)])
    model = TorchModel(as_modules(net))
    model.add_activation_module(Step)
    model.register_hooks()
    x = torch.from_numpy(stacks).float()
    with torch.no_grad():
        model(x)
    ours = costs.operations(net, stacks)
    operations = SynapticOperations()(model, None, (x, None))
    assert operations["Dense"] == ours.dense
    assert operations["Effective_MACs"] == ours.effective_macs
    assert operations["Effective_ACs"] == ours.effective_acs
    assert ActivationSparsity()(model, None, (x, None)) == pytest.approx(ours.activation_sparsity, abs=1e-12)
    assert ConnectionSparsity()(model) == pytest.approx(ours.connection_sparsity, abs=5e-5)  # it rounds
    features = sum(layer.features for layer in net.layers)
    weights = ParameterCount()(model)
    assert ours.footprint_bytes == pytest.approx(weights / 4 + 4 * features, abs=len(net.layers))
