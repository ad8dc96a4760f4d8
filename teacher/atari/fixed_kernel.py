"""The fixed-point Q-network as a kernel: one stack at a time, 32-bit sums, one thread; releases the interpreter.

Axis suffixes as in ``fixed_network``; A flat activations, position by position with the channels side by side.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spikestill.common.compiling import njit
from spikestill.teacher.atari.fixed_network import FixedLayer


class FixedKernel:
    """Computes ``fixed_network.forward`` bit for bit.

    Args:
        layers: the network.
    """

    def __init__(self, layers: tuple[FixedLayer, ...]) -> None:
        self.layers = layers

    def __call__(self, stacks_BCHW: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
        """Return the last layer's sums (B, A + 1), int32, of uint8 stacks (B, 4, 84, 84)."""
        return np.stack([self._one(stack_CHW) for stack_CHW in stacks_BCHW])

    def _one(self, stack_CHW: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
        activation = np.ascontiguousarray(stack_CHW.transpose(1, 2, 0)).astype(np.int32)
        for layer in self.layers:
            size = (activation.shape[0] - layer.kernel) // layer.stride + 1
            out = np.empty((size, size, layer.weight_KO.shape[1]), np.int32)
            _layer(
                activation, layer.weight_KO, layer.bias_O, layer.multiplier_O, layer.shift_O,
                layer.kernel, layer.stride, layer.planes, layer.largest, out,
            )  # fmt: skip
            activation = out
        return activation.reshape(-1)


@njit(cache=True, nogil=True)
def _layer(  # type: ignore[no-untyped-def]
    activation_HWC, weight_KO, bias_O, multiplier_O, shift_O, kernel, stride, planes, largest, out_HWO
):
    """Write one layer; ``out_HWO`` int32."""
    channels = activation_HWC.shape[2]
    outputs = weight_KO.shape[1]
    high = np.empty(outputs, np.int32)
    low = np.empty(outputs, np.int32)
    for row in range(out_HWO.shape[0]):
        for column in range(out_HWO.shape[1]):
            high[:] = 0
            low[:] = 0
            tap = 0
            for u in range(kernel):
                for v in range(kernel):
                    pixel = activation_HWC[row * stride + u, column * stride + v]
                    for channel in range(channels):
                        value = pixel[channel]
                        # Half of what follows a ReLU is zero.
                        if value:
                            weight = weight_KO[tap]
                            least = np.int32(value & 255)
                            if planes == 2:
                                most = np.int32(value >> 8)
                                for o in range(outputs):
                                    high[o] += weight[o] * most
                                    low[o] += weight[o] * least
                            else:
                                for o in range(outputs):
                                    low[o] += weight[o] * least
                        tap += 1
            for o in range(outputs):
                total = np.int64(low[o])
                if planes == 2:
                    total = np.int64(high[o]) + ((total + 128) >> 8)
                total += bias_O[o]
                if largest:
                    total = (total * multiplier_O[o] + (np.int64(1) << (shift_O[o] - 1))) >> shift_O[o]
                    total = min(max(total, np.int64(0)), np.int64(largest))
                out_HWO[row, column, o] = total
