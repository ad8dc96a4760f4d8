"""Lowers a binary layer to what stock Lava computes: a sparse matrix of synapses and a bias per neuron.

Exact threshold neuron, fixed point (lava.proc.lif.models.PyLifModelBitAcc): with du = dv = 4095, vth = 0 and
bias (1 - T) 2**6 the voltage is v = (a + 1 - T) 2**6 + r, fired iff v > 0. du clears the current; dv leaves
r = trunc(v_before / 4096), which lies in (-64, 0] since a neuron that fired is reset to 0 and
|v_before| < 2**18 up to a fan-in of 511. So it fires iff a >= T.

Sparse drops the lowest bit of weights of mixed sign, hence matrix 2 W with weight_exp = -1.

Axis suffixes: O output features, I input features of a group, C channels, H height, W width, N neurons.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from spikestill.common.errors import UserError
from spikestill.configs.hardware import hardware, signed
from spikestill.student.integer_net import IntegerLayer, effective_theta

LOIHI = hardware("loihi")
assert LOIHI.activation_bits is not None
BIAS_EXP = 6
"""LIF shifts its activation left by so many bits, as it does the bias."""
MAX_FAN_IN = signed(LOIHI.activation_bits - BIAS_EXP)[1]
"""|a| 2**6 must stay within the activation's width."""


def synapses(layer: IntegerLayer, shape_CHW: tuple[int, int, int]) -> Any:
    """Return W as ``scipy.sparse.csr_matrix``, int32 of -1, 0, +1, shape (neurons, inputs).

    Both sides, (O, H, W) of the output and (C, H, W) of the input, are flat in C order, so that
    ``W @ x_CHW.reshape(-1)`` are the layer's sums.

    Args:
        layer: the layer.
        shape_CHW: the shape of its input.
    """
    from scipy.sparse import csr_matrix

    features, height, width = layer.output_shape(shape_CHW)
    _, in_height, in_width = shape_CHW
    feature, channel, u, v = np.nonzero(layer.weight_OIHW)
    value = layer.weight_OIHW[feature, channel, u, v].astype(np.int32)
    per_in, per_out = layer.in_channels // layer.groups, features // layer.groups
    channel = feature // per_out * per_in + channel
    row, column = (axis.reshape(1, -1) for axis in np.indices((height, width)))
    y = row * layer.stride + u[:, None] - layer.pad
    x = column * layer.stride + v[:, None] - layer.pad
    inside = (y >= 0) & (y < in_height) & (x >= 0) & (x < in_width)
    post = (feature[:, None] * height + row) * width + column
    pre = (channel[:, None] * in_height + y) * in_width + x
    values = np.broadcast_to(value[:, None], inside.shape)
    shape = (features * height * width, int(np.prod(shape_CHW)))
    return csr_matrix((values[inside], (post[inside], pre[inside])), shape=shape, dtype=np.int32)


def bias_mantissa(layer: IntegerLayer, shape_CHW: tuple[int, int, int]) -> npt.NDArray[np.int16]:
    """Return 1 - T for every neuron, int16 (N,), T being theta clamped to where it matters, [-P, P + 1].

    Raises:
        UserError: the fan-in exceeds what the fixed-point neuron holds.
    """
    if layer.fan_in > MAX_FAN_IN:
        raise UserError(
            f"a layer of fan-in {layer.fan_in}, Lava's fixed-point neuron holds up to {MAX_FAN_IN}",
            "use the fused Lava backend, which has no such limit",
        )
    _, height, width = layer.output_shape(shape_CHW)
    theta = effective_theta(layer, first=False)
    return np.repeat((1 - theta).astype(np.int16), height * width)
