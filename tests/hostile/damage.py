"""What may befall a file: bytes that turn, and content that is altered and sealed again with a valid hash."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from spikestill.common.provenance import content_sha256
from spikestill.dataset.format import texts_sha256
from spikestill.dataset.journal import MAGIC as JOURNAL_MAGIC

EXTREMES = [0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1]
WICKED: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 7, 255, 4096, -4096, 65536, 2**31 - 1, 2**31,
    -(2**31) - 1, 2**63, -(2**63), 10**40,
    0.5, -0.5, 1e-320, 1e308, float("nan"), float("inf"), "", "x", "pong", "../../etc/passwd",
    "\0", "\ud800", "é" * 300,
    "x" * 70_000, [], {}, [[]], [0], [1, 2, 3], {"a": 1}, [0] * 3000, "nan", "1e999", "True",
]  # fmt: skip
Damage = Callable[[bytes, np.random.Generator], bytes]


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """Return ``content`` with one to four faults in it."""
    found = bytearray(content)
    for _ in range(int(rng.choice([1, 1, 1, 2, 4]))):
        kind, at = int(rng.integers(8)), int(rng.integers(max(1, len(found))))
        # Headers and indices lie at the ends, and matter most.
        if rng.random() < 0.5:
            front = rng.random() < 0.7
            at = min(at, int(rng.integers(1, 4096))) if front else max(0, len(found) - 1 - at % 4096)
        length = min(len(found) - at, 1 + int(rng.integers(64)))
        if kind <= 2 and found:
            found[at] ^= 1 << int(rng.integers(8))
        elif kind == 3:
            value = struct.pack("<Q", EXTREMES[int(rng.integers(len(EXTREMES)))])[
                : int(rng.choice([1, 2, 4, 8]))
            ]
            found[at : at + len(value)] = value
        elif kind == 4:
            found[at : at + length] = bytes(length)
        elif kind == 5:
            found[at : at + length] = rng.bytes(length)
        elif kind == 6:
            found = found[:at] if rng.random() < 0.5 else found + bytearray(rng.bytes(length))
        else:
            start = int(rng.integers(max(1, len(found))))
            found[at : at + length] = found[start : start + length]
    return bytes(found)


def altered(document: Any, rng: np.random.Generator) -> Any:
    """Return a JSON value with one of its values replaced, left out, doubled or moved a little."""
    whole = {"": copy.deepcopy(document)}
    places: list[tuple[Any, Any]] = []

    def walk(holder: Any, key: Any) -> None:
        places.append((holder, key))
        value = holder[key]
        for inner in (
            list(value)
            if isinstance(value, dict)
            else range(min(len(value), 40))
            if isinstance(value, list)
            else ()
        ):
            walk(value, inner)

    walk(whole, "")
    holder, key = places[int(rng.integers(len(places)))]
    value, kind = holder[key], int(rng.integers(8))
    if kind == 0 and (holder is not whole):
        del holder[key]
    elif kind == 1 and isinstance(value, list) and value:
        holder[key] = value + value
    elif kind == 2 and isinstance(value, int | float) and not isinstance(value, bool):
        holder[key] = value + int(rng.choice([-1, 1, 2, -17, 1000, 10**6]))
    elif kind == 3 and isinstance(value, dict):
        value["é"] = WICKED[int(rng.integers(len(WICKED)))]
    else:
        holder[key] = WICKED[int(rng.integers(len(WICKED)))]
    return whole[""]


def document(content: bytes, rng: np.random.Generator) -> bytes:
    """Return a JSON document with something in it altered."""
    return json.dumps(altered(json.loads(content), rng)).encode("utf-8", "surrogatepass")


def lines(content: bytes, rng: np.random.Generator) -> bytes:
    """Return JSON lines with something in one of them altered."""
    found = content.splitlines()
    at = int(rng.integers(len(found)))
    found[at] = document(found[at], rng)
    return b"\n".join(found) + b"\n"


def recipe(content: bytes, rng: np.random.Generator) -> bytes:
    """Return a YAML recipe with a value replaced by what YAML makes something odd of."""
    odd = [
        "1:30", "0b_", "0x", "010", "2024-01-01", "1_000", "~", "!!python/object:os.system x", "&a [*a]",
        "*a", "[", "{", ".inf",
        "-.nan", "1e999", "9" * 5000, "? [1, 2]", "<<: {a: 1}", '"\\uD800"', "|",
        "---", "\t", "[" * 200, "yes", "null", "''",
    ]  # fmt: skip
    found = content.decode().splitlines()
    at = int(rng.integers(len(found)))
    key = found[at].partition(":")[0]
    found[at] = f"{key}: {odd[int(rng.integers(len(odd)))]}" if rng.random() < 0.8 else found[at] * 2
    return "\n".join(found).encode()


def _array(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return an array with other values, shape or type."""
    kind = int(rng.integers(7))
    if kind == 0:
        return array.reshape(-1)[: array.size // 2].copy()
    if kind == 1:
        return array[None].copy() if array.ndim < 4 else array.reshape(-1).copy()
    if kind == 2:
        return np.zeros((0, *array.shape[1:]), array.dtype)
    if kind == 3:
        return array.astype(rng.choice(["<f8", "<i8", "|u1", "<f4", "|b1"]))
    found = array.copy().reshape(-1)
    if not found.size:
        return array
    if array.dtype.kind == "f":
        odd = np.array([np.nan, np.inf, -np.inf, 1e38, -1e38, 1e-40, 0]).astype(array.dtype)
    elif array.dtype.kind == "b":
        odd = np.array([True, False])
    else:
        limits = np.iinfo(array.dtype)
        odd = np.array([limits.min, limits.max, 0, 1, max(limits.min, -2), limits.max // 2]).astype(
            array.dtype
        )
    where = slice(None) if kind == 4 else rng.integers(found.size, size=int(rng.choice([1, 1, 8])))
    found[where] = odd[int(rng.integers(len(odd)))]
    return found.reshape(array.shape)


def _texts(texts: dict[str, str], rng: np.random.Generator) -> None:
    """Alter one of the texts, inside where it is JSON."""
    name = sorted(texts)[int(rng.integers(len(texts)))]
    try:
        texts[name] = json.dumps(altered(json.loads(texts[name]), rng))
    except ValueError:
        texts[name] = str(WICKED[int(rng.integers(len(WICKED)))]).encode("utf-8", "replace").decode()


def tensors(content: bytes, rng: np.random.Generator) -> bytes:
    """Return a safetensors file of ours whose description or tensors are altered, with the hash that goes with them."""
    metadata = json.loads(content[8 : 8 + struct.unpack("<Q", content[:8])[0]])["__metadata__"]
    found = load_tensors(content)
    texts = {name: text for name, text in metadata.items() if name not in ("sha256", "schema", "version")}
    if rng.random() < 0.6:
        _texts(texts, rng)
    else:
        name = sorted(found)[int(rng.integers(len(found)))]
        if rng.random() < 0.15:
            found["other" if rng.random() < 0.5 else name + ".0"] = found.pop(name)
        elif found[name].dtype != torch.bfloat16:
            found[name] = torch.from_numpy(_array(found[name].numpy(), rng))
    metadata |= texts
    if metadata["schema"] == "spikestill.student":
        arrays = {name: tensor.numpy() for name, tensor in found.items()}
        metadata["sha256"] = content_sha256((metadata["net"], metadata["provenance"]), arrays)
    else:
        from spikestill.common.tensors import _content

        metadata["sha256"] = content_sha256(*_content(metadata, found))
    return bytes(save_tensors(found, metadata))


def hdf5(content: bytes, rng: np.random.Generator) -> bytes:
    """Return an HDF5 file of ours whose attributes or datasets are altered, with the hash that goes with them."""
    file = io.BytesIO(content)
    with h5py.File(file, "r+", libver=("v108", "v108")) as found:
        if rng.random() < 0.6:
            texts = {
                name: value
                for name, value in found.attrs.items()
                if isinstance(value, str) and name not in ("sha256", "schema")
            }
            _texts(texts, rng)
            for name, value in texts.items():
                with contextlib.suppress(
                    ValueError, OSError, RuntimeError
                ):  # HDF5 holds 64 KiB in an attribute
                    found.attrs[name] = value.replace("\0", "0")
        else:
            name = sorted(found)[int(rng.integers(len(found)))]
            array = found[name][...]
            if rng.random() < 0.3 and found[name].chunks is not None and found[name].maxshape[0] is None:
                found[name].resize(int(rng.choice([0, 1, 31, 4096, 10**7, 10**12])), axis=0)
            else:
                del found[name]
                array = _array(array, rng)
                packed = {"compression": "gzip", "shuffle": True} if array.size > 64 else {}
                found.create_dataset(name, data=array, **packed)
        if found.attrs["schema"] == "spikestill.buffer":
            with contextlib.suppress(ValueError, LookupError, TypeError):  # what is no attribute has no hash
                found.attrs["sha256"] = texts_sha256(found.attrs)
        elif "sha256" in found.attrs:
            arrays = {name: found[name][...] for name in found}
            found.attrs["sha256"] = content_sha256(
                (found.attrs["description"], found.attrs["provenance"]), arrays
            )
    return file.getvalue()


def archive(content: bytes, rng: np.random.Generator) -> bytes:
    """Return a zip archive one of whose files is damaged, with the checksum that goes with it."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as before, zipfile.ZipFile(out, "w") as after:
        names = before.namelist()
        weights = np.array(
            [3.0 if name.endswith((".pkl", ".py", "data", ".json")) else 1.0 for name in names]
        )
        chosen = names[int(rng.choice(len(names), p=weights / weights.sum()))]
        for name in names:
            held = before.read(name)
            if name == chosen:
                inner = zipfile.is_zipfile(io.BytesIO(held)) and rng.random() < 0.8
                held = archive(held, rng) if inner else damaged(held, rng)
            after.writestr(name, held)
    return out.getvalue()


def journal(content: bytes, rng: np.random.Generator) -> bytes:
    """Return a journal that is damaged behind its magic, with the checksum that goes with it."""
    body = JOURNAL_MAGIC + damaged(content[len(JOURNAL_MAGIC) : -4], rng)
    return body + struct.pack("<I", zlib.crc32(body))
