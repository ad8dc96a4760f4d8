"""An ONNX network's weights in other files, found and put into it: what runs in the children of ``onnx_weights.py``.

Protocol buffers grow when they are parsed: two bytes are a node, and a node takes a hundred. So it happens in a
process of its own, with limits on memory and time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from google.protobuf.message import DecodeError

from spikestill.common.limits import TENSORS

BLOCK = 1 << 20


def warm_up() -> None:
    """Parse and walk a small network, so that everything is imported before the right to open files is given up."""
    tensor = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[1], raw_data=bytes(4))
    model = onnx.ModelProto(graph=onnx.GraphProto(name="net", initializer=[tensor]))
    assert len(list(_tensors(_parsed(model.SerializeToString())))) == 1


def outside(network: int) -> tuple[list[list[Any]] | None, dict[str, Any]]:
    """Return of each tensor that lies in another file: name, that file ('' if none), offset, bytes (-1: all there are).

    None where the content is no network: ONNX Runtime says what is wrong with it.
    """
    try:
        model = _parsed(_content(network))
    except DecodeError:
        return None, {}
    found: list[list[Any]] = []
    for tensor in _tensors(model):
        if not _lies_outside(tensor):
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        place, offset = entries.get("location", ""), int(entries.get("offset", "0"))
        found.append([tensor.name[:200], place, offset, int(entries.get("length", "-1"))])
        if len(found) > TENSORS:
            raise ValueError(f"more than {TENSORS:,} of its tensors lie in other files")
    return found, {}


def whole(
    network: int, weights: int, lengths: Sequence[int]
) -> tuple[None, dict[str, npt.NDArray[np.uint8]]]:
    """Return the network with the weights in it, as ``network``: ``lengths`` bytes of ``weights`` for each tensor."""
    model = _parsed(_content(network))
    tensors = [tensor for tensor in _tensors(model) if _lies_outside(tensor)]
    for tensor, length in zip(tensors, lengths, strict=True):
        tensor.raw_data = _exactly(weights, length)
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]
    return None, {"network": np.frombuffer(model.SerializeToString(), np.uint8)}


def _parsed(content: bytes) -> Any:
    model = onnx.ModelProto()
    model.ParseFromString(content)
    return model


def _lies_outside(tensor: Any) -> bool:
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)


def _tensors(message: Any) -> Iterator[Any]:
    """Yield every tensor of an ONNX message, wherever it lies: initial values, attributes, subgraphs, functions."""
    if message.DESCRIPTOR.name == "TensorProto":
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if isinstance(value, Sequence) else [value]:
                yield from _tensors(inner)


def _content(descriptor: int) -> bytes:
    size = os.lseek(descriptor, 0, os.SEEK_END)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return _exactly(descriptor, size)


def _exactly(descriptor: int, size: int) -> bytes:
    """Return the next ``size`` bytes of an open file."""
    content, filled = bytearray(size), 0
    while filled < size:
        got = os.readv(descriptor, [memoryview(content)[filled : filled + BLOCK]])
        if not got:
            raise ValueError("it became shorter while it was read")
        filled += got
    return bytes(content)
