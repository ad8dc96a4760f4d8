"""A file that changes only as a whole: between two commits the disk holds the state of the last one.

A write behind the committed end goes to the file at once, where nobody looks before the next commit. A
write below it (HDF5's indices and headers) waits in memory. A commit first flushes the appended bytes,
then writes the waiting pages with a checksum to ``<file>.journal``, then copies them into the file and
removes the journal. Whatever instant a kill or a power cut picks, the file is as it was before that
commit, or the journal is whole and brings it to the state after: redo logging (Mohan 1992).

Journal: magic, then little-endian uint32 count and uint64 file size, then ``count`` times a uint64 page
number and PAGE bytes, then the CRC-32 of all that precedes as uint32.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from spikestill.common.errors import UserError
from spikestill.common.file_lock import LET_GO_S, take_lock
from spikestill.common.limits import regular_file

PAGE = 4096
MAGIC = b"SPKJRNL1"
HEAD = struct.Struct("<IQ")
NUMBER = struct.Struct("<Q")
CHECKSUM = struct.Struct("<I")


def journal_path(path: Path) -> Path:
    """Return where the journal of ``path`` lies while a commit is under way."""
    return path.with_name(path.name + ".journal")


def recover(path: Path) -> bool:
    """Finish a commit that was cut short after its journal was whole; return True if there was one.

    Raises:
        UserError: another process is writing the file, or it may not be written.
    """
    journal = journal_path(path)
    if not journal.exists():
        return False
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError as error:
        raise UserError(
            f"{path}: was cut off while it was flushed, and cannot be repaired: {error.strerror}",
            "make the file and its folder writable",
        ) from error
    try:
        lock(descriptor, path)
        return _finish_commit(descriptor, journal)
    finally:
        os.close(descriptor)


def _finish_commit(descriptor: int, journal: Path) -> bool:
    """Apply the journal to the locked file where it is whole, and remove it; return True where it was."""
    if not journal.exists():
        return False
    pages = read_journal(journal, os.fstat(descriptor).st_size)
    if pages is not None:
        _apply(descriptor, pages)
    journal.unlink()
    return pages is not None


def lock(descriptor: int, path: Path) -> None:
    """Take the lock that a writer holds.

    Raises:
        UserError: another process has it.
    """
    try:
        take_lock(descriptor, "exclusive", LET_GO_S)
    except BlockingIOError as error:
        raise in_use(path) from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[None]:
    """Hold the writer's lock of the file at ``path``, if there is one, while another takes its place.

    A commit that was cut short is finished first: its journal must not be applied to the new file, and the old one
    stays whole where the new one cannot be written.

    Raises:
        UserError: another process writes it.
    """
    descriptor = os.open(path, os.O_RDWR) if path.exists() else None
    try:
        if descriptor is not None:
            lock(descriptor, path)
            _finish_commit(descriptor, journal_path(path))
        else:
            journal_path(path).unlink(missing_ok=True)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def in_use(path: Path) -> UserError:
    """Return the error for a file that another process writes or reads."""
    return UserError(
        f"{path}: another process has it open", "wait until that has ended, or name another file"
    )


def read_journal(journal: Path, file_size: int) -> dict[int, bytes] | None:
    """Return page number to content, or None where the journal is not whole.

    A commit's journal holds pages below the end that the file had before, each once: what says otherwise is no journal.

    Args:
        journal: its path.
        file_size: bytes of the file that it belongs to.
    """
    most = len(MAGIC) + HEAD.size + CHECKSUM.size + (file_size // PAGE + 1) * (NUMBER.size + PAGE)
    if journal.is_symlink() or regular_file(journal, "journal", "remove it") > most:
        return None
    content = journal.read_bytes()
    start = len(MAGIC) + HEAD.size
    if len(content) < start + CHECKSUM.size or not content.startswith(MAGIC):
        return None
    count, size = HEAD.unpack_from(content, len(MAGIC))
    end = start + count * (NUMBER.size + PAGE)
    if len(content) != end + CHECKSUM.size or CHECKSUM.unpack_from(content, end)[0] != zlib.crc32(
        content[:end]
    ):
        return None
    if size > file_size:
        return None
    pages: dict[int, bytes] = {}
    for offset in range(start, end, NUMBER.size + PAGE):
        number = NUMBER.unpack_from(content, offset)[0]
        if number * PAGE >= size or number in pages:
            return None
        # The last page may reach behind the end that it was committed with; what lies there is not its own.
        pages[number] = content[offset + NUMBER.size : offset + NUMBER.size + PAGE][: size - number * PAGE]
    return pages


def _apply(descriptor: int, pages: dict[int, bytes]) -> None:
    for number, content in pages.items():
        _write_all(descriptor, content, number * PAGE)
    os.fsync(descriptor)


def _write_all(descriptor: int, content: bytes | memoryview, offset: int) -> None:
    view = memoryview(content)
    while len(view):
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


class JournaledFile:
    """A file object for h5py whose content reaches its readers by :meth:`commit` alone.

    After a failed write all later ones are dropped, so that HDF5 can be closed; the file keeps its last
    commit, and :meth:`commit` raises.

    Attributes:
        path: the file.
        failure: the error of the first write that failed, None so far.

    Args:
        path: the file, which must exist; it is recovered first.

    Raises:
        UserError: another process writes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        recover(self.path)
        self._descriptor = os.open(self.path, os.O_RDWR)
        try:
            lock(self._descriptor, self.path)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._committed = self._size = os.fstat(self._descriptor).st_size
        self._position = 0
        self._pages: dict[int, bytearray] = {}
        self._journaled = False
        self.failure: OSError | None = None

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set and return the position."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def truncate(self, size: int | None = None) -> int:
        """Set the length; below the committed end it changes in memory only."""
        self._size = self._position if size is None else size
        with self._noting():
            os.ftruncate(self._descriptor, max(self._size, self._committed))
        return self._size

    def readinto(self, buffer: memoryview) -> int:
        """Read into ``buffer`` from the position; return the number of bytes."""
        view = memoryview(buffer).cast("B")
        start = self._position
        length = max(0, min(len(view), self._size - start))
        read = 0
        while read < length:
            got = os.preadv(self._descriptor, [view[read:length]], start + read)
            if got == 0:
                view[read:length] = bytes(length - read)
                break
            read += got
        for number, low, high in self._spans(start, min(start + length, self._committed)):
            if number in self._pages:
                page = self._pages[number]
                view[low - start : high - start] = page[low - number * PAGE : high - number * PAGE]
        self._position = start + length
        return length

    def read(self, size: int = -1) -> bytes:
        """Return up to ``size`` bytes from the position; all that follow where it is negative."""
        content = bytearray(max(0, self._size - self._position) if size < 0 else size)
        return bytes(content[: self.readinto(memoryview(content))])

    def write(self, data: memoryview | bytes) -> int:
        """Write ``data`` at the position: behind the committed end at once, below it at the next commit.

        Nothing is raised through HDF5's C code, which could not pass it on; see :attr:`failure`.
        """
        view = memoryview(data).cast("B")
        start, end = self._position, self._position + len(view)
        if self.failure is None:
            for number, low, high in self._spans(start, min(end, self._committed)):
                page = self._page(number)
                page[low - number * PAGE : high - number * PAGE] = view[low - start : high - start]
            behind = max(start, self._committed)
            if end > behind:
                with self._noting():
                    _write_all(self._descriptor, view[behind - start :], behind)
        self._position = end
        self._size = max(self._size, end)
        return len(view)

    def flush(self) -> None:
        """Do nothing: only :meth:`commit` makes writes last."""

    def commit(self) -> None:
        """Make all writes so far last, all together.

        Raises:
            OSError: the disk is full; the last commit stands.
        """
        if self.failure is not None:
            raise self.failure
        try:
            if self._size > self._committed:
                # Holes are filled now, so that no later step can meet a full disk.
                os.posix_fallocate(self._descriptor, self._committed, self._size - self._committed)
            os.fsync(self._descriptor)
            if self._pages:
                # From here on a journal may say that the file ends behind the last commit: close() cuts nothing off.
                self._journaled = True
                self._write_journal()
        except OSError as error:
            self.failure = error
            raise
        if self._pages:
            _apply(self._descriptor, {number: bytes(page) for number, page in self._trimmed()})
            journal_path(self.path).unlink()
        self._pages.clear()
        self._committed = max(self._committed, self._size)
        self._journaled = False

    def close(self) -> None:
        """Drop what was not committed and close the file; its next reader finishes a commit that was interrupted."""
        if not self._journaled:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._committed)
        os.close(self._descriptor)

    def _write_journal(self) -> None:
        body = bytearray(MAGIC + HEAD.pack(len(self._pages), self._committed))
        for number, page in self._pages.items():
            body += NUMBER.pack(number) + page
        journal = journal_path(self.path)
        try:
            with open(journal, "wb") as file:
                file.write(body + CHECKSUM.pack(zlib.crc32(body)))
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            journal.unlink(missing_ok=True)
            self._journaled = False
            raise
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _trimmed(self) -> Iterator[tuple[int, bytearray]]:
        for number, page in self._pages.items():
            yield number, page[: self._committed - number * PAGE]

    def _page(self, number: int) -> bytearray:
        if number not in self._pages:
            content = os.pread(self._descriptor, min(PAGE, self._committed - number * PAGE), number * PAGE)
            self._pages[number] = bytearray(content.ljust(PAGE, b"\0"))
        return self._pages[number]

    @staticmethod
    def _spans(start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield (page, first byte, end byte) of the pages that start..end covers."""
        while start < end:
            number = start // PAGE
            yield number, start, min(end, (number + 1) * PAGE)
            start = (number + 1) * PAGE

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.failure = self.failure or error
