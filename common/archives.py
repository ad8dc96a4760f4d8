"""Zip archives of strangers (Stable-Baselines3, PyTorch, TorchScript), checked whole before anything reads them."""

from __future__ import annotations

import io
import zipfile
import zlib
from pathlib import Path

from spikestill.common.errors import MALFORMED, UserError
from spikestill.common.limits import ARCHIVE_ENTRIES, ARCHIVE_EXTRA, ARCHIVE_FACTOR, ARCHIVE_UNPACKED

BLOCK = 1 << 20


def check_archive(path: Path, content: bytes) -> None:
    """Check a zip archive's sizes, then every entry against its CRC-32; other files pass.

    PyTorch reads entries without looking at their CRC.

    Raises:
        UserError: an entry is damaged, encrypted or there twice, or the whole unpacks to more than its size allows.
    """
    remedy = "copy it or save it again"
    try:
        if not zipfile.is_zipfile(io.BytesIO(content)):
            return
    except zipfile.BadZipFile as error:
        raise UserError(f"{path}: a damaged archive: {error}", remedy) from error
    most = min(ARCHIVE_FACTOR * len(content) + ARCHIVE_EXTRA, len(content) + ARCHIVE_UNPACKED)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
            if len(entries) > ARCHIVE_ENTRIES:
                raise UserError(
                    f"{path}: an archive of {len(entries):,} files, at most {ARCHIVE_ENTRIES:,}", remedy
                )
            whole = sum(entry.file_size for entry in entries)
            if whole > most:
                raise UserError(
                    f"{path}: an archive of {len(content):,} bytes that unpacks to {whole:,}, at most {most:,}",
                    remedy,
                )
            names = [entry.filename for entry in entries]
            if len(set(names)) != len(names):
                raise UserError(f"{path}: an archive that has a file twice", remedy)
            for entry in entries:
                with archive.open(entry) as file:
                    while file.read(BLOCK):
                        pass
    except UserError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, *MALFORMED) as error:
        raise UserError(f"{path}: a damaged archive: {error}", remedy) from error
