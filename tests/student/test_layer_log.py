from __future__ import annotations

import torch

from spikestill.student.layer_log import LayerActivity, activity


def test_rates_dead_and_constant_neurons_and_flips_of_a_layer():
    spikes = torch.zeros(4, 2, 1, 2, dtype=torch.uint8)
    spikes[:, 0, 0, 0] = 1  # always
    spikes[1, 1, 0, 1] = 1  # once in four
    before = torch.tensor([0, 1, -1, 0])
    after = torch.tensor([0, 1, 1, 0])
    assert activity([spikes], [before], [after]) == [
        LayerActivity(rate=5 / 16, dead=2 / 4, constant=1 / 4, flips=1 / 4)
    ]
