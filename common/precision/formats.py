"""The formats of ``--precision``: what each stores and computes in, and where it can run.

Every format keeps fp32 master weights. A *working copy* in the compute format is made after every update: what
automatic mixed precision casts at each operation is cast once.
"""

from __future__ import annotations

import dataclasses

import torch

from spikestill.common.errors import UserError
from spikestill.common.precision.fp8 import FP8, has_fp8
from spikestill.common.precision.operations import NATIVE, UPCAST, Operations
from spikestill.common.processor import fast_bf16, native_bf16


@dataclasses.dataclass(frozen=True)
class NumberFormat:
    """One format.

    Attributes:
        name: as ``--precision`` takes it.
        body: weights, activations and their gradients of the convolutions and the hidden layer.
        head: the same of the last layer; Q-values, targets and the loss are fp32 always.
        scaled: gradients need loss scaling, for small ones would underflow.
        tf32: products of fp32 numbers may round their factors to 10 bits of significand.
        operations: what computes convolutions and products.
        emulated: this device has no products of this format: right, but slower than fp32.
    """

    name: str
    body: torch.dtype
    head: torch.dtype = torch.float32
    scaled: bool = False
    tf32: bool = False
    operations: Operations = NATIVE
    emulated: bool = False


FORMATS = {
    found.name: found
    for found in (
        NumberFormat("fp32", torch.float32),
        NumberFormat("tf32", torch.float32, tf32=True),
        NumberFormat("bf16", torch.bfloat16),
        NumberFormat("fp16", torch.float16, scaled=True),
        NumberFormat("fp16-master", torch.float16, torch.float16, scaled=True),
        NumberFormat("fp8", torch.bfloat16, operations=FP8),
    )
}


def number_format(name: str, device: torch.device) -> NumberFormat:
    """Return the format ``name`` for ``device``; ``auto`` is bf16 where that is faster, else fp32.

    On a CPU, fp16 is emulated: operands and results are rounded to fp16, sums are fp32, as tensor cores do it.

    Raises:
        UserError: the device cannot compute in this format.
    """
    if name == "auto":
        name = "bf16" if _is_ampere(device) or (device.type == "cpu" and fast_bf16()) else "fp32"
    found = FORMATS[name]
    if found.tf32 and not _is_ampere(device):
        raise UserError(
            "precision tf32: TensorFloat-32 is a mode of NVIDIA GPUs from compute capability 8.0 on, and the network "
            f"runs on {device.type}",
            "give --precision fp32 or bf16, or --device cuda on such a GPU",
        )
    if found.operations is FP8 and not has_fp8(device):
        raise UserError(
            "precision fp8: FP8 products need an NVIDIA GPU of compute capability 8.9 or more (Ada, Hopper), and the "
            f"network runs on {device.type}",
            "give --precision bf16, or --device cuda on such a GPU",
        )
    if found.body == torch.float16 and device.type == "cpu":
        return dataclasses.replace(found, operations=UPCAST, emulated=True)
    if found.body == torch.bfloat16 and not _multiplies_bf16(device):
        return dataclasses.replace(found, emulated=True)
    return found


def _is_ampere(device: torch.device) -> bool:
    """Return True for an NVIDIA GPU of compute capability 8.0 or more."""
    return device.type == "cuda" and bool(torch.cuda.get_device_capability() >= (8, 0))


def _multiplies_bf16(device: torch.device) -> bool:
    return _is_ampere(device) or (device.type == "cpu" and native_bf16())
