"""What a file of PyTorch's may ask for: tensors by name, by the opcodes of its pickle, which are read and not run.

PyTorch's reader with ``weights_only`` refuses code, and allocates what a pickle tells it to: ``bytearray(2 * 10**9)``
is 60 bytes of pickle, and every byte may be a list more. So the pickle is looked through first: it is small, and calls
what puts tensors together and nothing else. PyTorch then reads an archive that is written anew from what was looked at.
"""

from __future__ import annotations

import io
import pickletools
import re
import zipfile

from spikestill.common.limits import PICKLE_BYTES

ZIP_MAGIC = b"PK\x03\x04"
ENTRY = re.compile(r"[^/]+/(data\.pkl|version|byteorder|data/[^/]+|\.data/serialization_id|\.\w+)")
GLOBAL = re.compile(
    r"collections OrderedDict|torch\._utils _rebuild_(tensor|tensor_v2|parameter|sparse_tensor|meta_tensor_no_storage)"
    r"|torch\.serialization _get_layout"
    r"|torch(\.cuda)? (Double|Float|Half|BFloat16|Long|Int|Short|Char|Byte|Bool|ComplexDouble|ComplexFloat)Storage"
    r"|torch (Size|device|float(16|32|64)|bfloat16|complex(64|128)|u?int(8|16|32|64)|bool)"
)
PICKLES = 5
"""Pickles that a file from before PyTorch 1.6 begins with: a number, a version, the system, the tensors, their keys."""


class NoPickle(ValueError):  # noqa: N818
    """The content is neither an archive nor a pickle."""


class MoreThanTensors(ValueError):  # noqa: N818
    """Its pickle calls for something else; the message says for what."""


def allowed_file(content: bytes) -> bytes:
    """Return what PyTorch may read of a file that ``torch.save`` wrote: an archive anew, an older file as it is.

    Raises:
        NoPickle: it is none.
        MoreThanTensors: its pickle names what no tensor needs, or is larger than one of tensors.
    """
    if not zipfile.is_zipfile(io.BytesIO(content)):
        if content.startswith(ZIP_MAGIC):
            raise NoPickle("an archive that has no end")
        _check(content, PICKLES)
        return content
    out, pickles = io.BytesIO(), 0
    with zipfile.ZipFile(io.BytesIO(content)) as before, zipfile.ZipFile(out, "w") as after:
        for entry in before.infolist():
            if not ENTRY.fullmatch(entry.filename):
                continue
            if entry.filename.endswith("/data.pkl") and entry.file_size > PICKLE_BYTES:
                raise MoreThanTensors(
                    f"a pickle of {entry.file_size:,} bytes, one of tensors has at most {PICKLE_BYTES:,}"
                )
            held = before.read(entry)
            if entry.filename.endswith("/data.pkl"):
                _check(held, 1)
                pickles += 1
            after.writestr(entry.filename, held)
    if not pickles:
        raise NoPickle("an archive without a pickle")
    return out.getvalue()


def _check(content: bytes, pickles: int) -> None:
    """Look through the first pickles of ``content``.

    Raises:
        NoPickle, MoreThanTensors: as :func:`allowed_file`.
    """
    file = io.BytesIO(content)
    for number in range(pickles):
        try:
            for opcode, argument, place in pickletools.genops(file):
                if place is not None and place > PICKLE_BYTES:
                    raise MoreThanTensors(f"a pickle of more than {PICKLE_BYTES:,} bytes")
                if opcode.name in ("STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4"):
                    raise MoreThanTensors(f"its pickle has the opcode {opcode.name}")
                if opcode.name == "GLOBAL" and not GLOBAL.fullmatch(str(argument)):
                    raise MoreThanTensors(f"its pickle names {str(argument)[:100]!r}")
        except MoreThanTensors:
            raise
        except Exception as error:  # whatever a parser of opcodes stumbles over in a foreign file
            if number == 0:
                raise NoPickle(str(error)) from error
            return  # PyTorch comes no further either
