"""A tensor's numbers as the kernels of :mod:`spikestill.common.vectors` take them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def kernel_array(tensor: Tensor) -> npt.NDArray[Any]:
    """Return the numbers of a tensor on the host that lies in order, flat; bf16 as uint16, its bits.

    They are the tensor's own: a kernel that writes them changes it.
    """
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16).reshape(-1)
    return tensor.numpy().reshape(-1)
