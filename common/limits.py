"""How large, how many and how long: every limit that a file meets before anything is allocated for it.

A reader compares what a file *declares* with the file's own size (Deflate cannot shrink by more than
``MAX_DEFLATE_RATIO``) and with the limits here, and only then allocates. docs/security.md lists them.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from spikestill.common.errors import UserError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

MAX_DEFLATE_RATIO = 1032
"""Deflate cannot shrink by more: a file that declares more bytes than this many times its size is refused."""

# --- HDF5, read in a process of its own
HDF5_ENTRIES = 256
"""Objects in an HDF5 file's root group."""
HDF5_ATTRIBUTES = 64
"""Attributes of its root group."""
HDF5_TEXT_BYTES = 4 * MIB
"""Bytes of all attributes together."""
HDF5_SECONDS = 1.0
"""Processor seconds that HDF5 may take for a call; it describes a file of ours in 5 ms."""
HDF5_BYTES_PER_S, HDF5_CHUNKS_PER_S = 64 * MIB, 100_000
"""A call gets another second for so many bytes that it reads, or chunks that it lists (a quarter of what it can)."""
HDF5_MEMORY = 192 * MIB
"""Memory that HDF5 may take beside what the file declares."""


CORES = 1 << 16
"""Cores of a core map: the largest target, 16 TrueNorth chips, has so many."""
HDF5_FACTOR, HDF5_EXTRA = 24, 64 * MIB
"""A core map or a trace declares at most HDF5_FACTOR bytes for each of its file's, and HDF5_EXTRA more: the
mapper's own have 11 for each, traces 2 to 6."""
BUFFER_FACTOR = 64
"""The same of a buffer's columns, HDF5_EXTRA more: observations may be sparse."""


CHUNK_BYTES = 200
"""Least bytes of a chunk of 32 frames: Deflate makes 242 of the emptiest. A buffer that declares more rows than its
file can hold chunks is refused."""


RECIPE_BYTES, RECIPE_VALUES, RECIPE_DEPTH = 64 * KIB, 5_000, 32
"""A YAML recipe's bytes, its values with every alias counted as often as it is used, and how deep they may lie. (PyYAML
reads about 100 KiB in a second.)"""


# --- foreign programs (ONNX, TorchScript), each in a process of its own
PROGRAM_START_S = 8.0
"""Processor seconds that an engine may take to start; PyTorch takes 2."""
PROGRAM_SECONDS, PROGRAM_SECONDS_A_STACK = 2.0, 0.1
"""Processor seconds that a program may take to be read and for its first answer, then for every answer; and more for
each stack of a batch."""
PROGRAM_BYTES_PER_S = 64 * MIB
"""A program may take another second for this many of its bytes to be read."""
PROGRAM_MEMORY = 768 * MIB
"""Memory that a program may take beside four times its bytes."""


# --- safetensors, JSON
HEADER_BYTES, TENSORS = 4 * MIB, 1 << 14
"""The header of a safetensors file, and the tensors that it names: a training of 4 games has 9 KiB and 65."""
DOCUMENT_BYTES = 8 * MIB
"""A stage's JSON file, the state of a pipeline, what a sweep found."""
CURVE_LINE = 16 * KIB
"""Characters of a line of a training's curve; ours have 300."""
SWEEP_TRIALS = 10_000
"""Trials of a sweep."""
VIDEO_PIXELS = 1 << 24
"""Pixels of a frame of a recorded game, which a report shows smaller."""


# --- archives, nets
ARCHIVE_FACTOR, ARCHIVE_EXTRA, ARCHIVE_UNPACKED, ARCHIVE_ENTRIES = 8, 16 * MIB, 256 * MIB, 10_000
"""A zip archive unpacks to at most ARCHIVE_FACTOR times its bytes and ARCHIVE_EXTRA more, and to at most
ARCHIVE_UNPACKED more than its bytes (PyTorch stores its tensors as they are); it has at most so many files."""
AGENT_BYTES = GIB
"""An agent or a network of others, with the files beside it."""
PICKLE_BYTES = 256 * KIB
"""The pickle of a PyTorch file, which lists its tensors: the Nature network's has 1 KiB."""
ENTRY_JSON_BYTES = 8 * MIB
"""What a Stable-Baselines3 archive says of its agent, as JSON: 100 KiB, for most."""
NET_VALUES = 1 << 22
"""Values of a student's input, and of every layer's padded input and output; the paper's largest layer has 2^19."""
NET_NEURONS, NET_PRODUCTS = 1 << 24, 1 << 32
"""Neurons of a student, and the weights that all of them read: what 16 TrueNorth chips have. The paper's largest
student has 2^21 and 2^28."""


def regular_file(path: Path, what: str, remedy: str) -> int:
    """Return the size in bytes of the regular file at ``path``.

    Args:
        path: the file; symbolic links are followed.
        what: what it should be, e.g. ``buffer``.
        remedy: what to give in its place.

    Raises:
        UserError: there is none, or a folder, a pipe, a socket or a device in its place: reading one might never end.
    """
    try:
        status = os.stat(path)
    except ValueError as error:  # a zero byte in the name
        raise UserError(f"{str(path)!r}: not a file's name ({error})", remedy) from error
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such {what}", remedy) from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})", remedy) from error
    if not stat.S_ISREG(status.st_mode):
        kinds = {
            stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket",
            stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
        }  # fmt: skip
        kind = kinds.get(stat.S_IFMT(status.st_mode), "no regular file")
        raise UserError(f"{path}: is {kind}, a regular file is wanted for the {what}", remedy)
    return status.st_size
