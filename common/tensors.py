"""Named tensors with their schema, version, provenance and hash in a safetensors file; nothing is ever unpickled."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from spikestill.common.atomic import atomic_path
from spikestill.common.provenance import Provenance, check_content, content_sha256, warn_unchecked
from spikestill.common.tensor_file import open_tensor_file, sort_metadata_of

VERSION = 2
MOMENTS = {
    "Adam": {"step", "exp_avg", "exp_avg_sq"},
    "SGD": {"momentum_buffer"},
    "CenteredRMSprop": {"square_avg", "grad_avg"},
}
"""Optimiser to what it keeps of each parameter."""


def write_tensors(
    path: Path, tensors: dict[str, Tensor], schema: str, provenance: Provenance, **metadata: str
) -> None:
    """Write tensors with their schema, version, provenance and hash to a safetensors file, atomically."""
    header = {"schema": schema, "version": str(VERSION), "provenance": provenance.to_json(), **metadata}
    header["sha256"] = content_sha256(*_content(header, tensors))
    with atomic_path(path) as temporary:
        try:
            save_file(tensors, temporary, metadata=header)
        except SafetensorError as error:
            if "No space left" in str(error) or "os error 28" in str(error):
                raise OSError(28, "No space left on device") from error
            raise
        sort_metadata_of(temporary)


def _content(header: Mapping[str, str], tensors: dict[str, Tensor]) -> tuple[list[str], dict[str, Any]]:
    """Return what the hash is of: every entry of the header, and the bytes of every tensor."""
    texts = [f"{key} {header[key]}" for key in sorted(header) if key != "sha256"]
    named = {f"{name} {tensor.dtype} {tuple(tensor.shape)}": tensor for name, tensor in tensors.items()}
    # As bytes: NumPy has no bf16.
    return texts, {
        name: tensor.contiguous().reshape(-1).view(torch.uint8).numpy() for name, tensor in named.items()
    }


def read_tensors(path: Path, schema: str, remedy: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read what :func:`write_tensors` wrote, checking its hash (from version 2 on): (tensors, metadata).

    Raises:
        UserError: the file is missing, truncated, foreign, newer or altered.
    """
    path = Path(path)
    with open_tensor_file(path, schema, VERSION, remedy, noun="safetensors file", framework="pt") as (
        file,
        metadata,
    ):
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if int(metadata["version"]) == 1:
            warn_unchecked(path)
        else:
            check_content(*_content(metadata, tensors), metadata["sha256"])
        return tensors, metadata


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimiser's moments as tensors ``optimizer.INDEX.NAME``; a moment that is None is left out."""
    return {
        f"optimizer.{index}.{name}": torch.as_tensor(value)
        for index, moments in optimizer.state_dict()["state"].items()
        for name, value in moments.items()
        if value is not None
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Give the optimiser the moments that :func:`optimizer_tensors` returned; other names are passed over.

    Raises:
        ValueError, LookupError: a moment is missing, misshapen, not finite, or of no parameter.
    """
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    moments: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, index, moment = name.split(".")
            moments.setdefault(int(index), {})[moment] = value
    wanted = MOMENTS[type(optimizer).__name__]
    for number, found in moments.items():
        if not 0 <= number < len(parameters) or set(found) != wanted:
            raise ValueError(
                f"optimizer.{number} has {sorted(found)}, {sorted(wanted)} of {len(parameters)} wanted"
            )
        for moment, value in found.items():
            shape = () if moment == "step" else tuple(parameters[number].shape)
            if (
                tuple(value.shape) != shape
                or not value.is_floating_point()
                or not torch.isfinite(value).all()
            ):
                raise ValueError(
                    f"optimizer.{number}.{moment} is {value.dtype} {tuple(value.shape)}, finite {shape} wanted"
                )
            if moment in ("step", "exp_avg_sq", "square_avg") and bool((value < 0).any()):
                raise ValueError(f"optimizer.{number}.{moment} holds values below 0")
    whole = optimizer.state_dict()
    whole["state"] = moments
    optimizer.load_state_dict(whole)
