"""Heads too large for a segment: each in a file of its own, so that their size never decides whether a broker starts.

A segment begins with a head in one record, or with a `CHECKPOINT` record whose body is a random number. In the second
case the head is in the file `<base>.head` under that number, or missing: it is written in the background, and only when
the journal has grown by the head's size. Recovery takes the newest head that is complete and proven, and reads the
segments after it. Older segments and heads are removed only after a newer head is durable and proven to be.

File, little-endian: `DANUBECP`, u32 version, u32 0, u64 base LSN, u64 number, u64 bytes, u32 crc of the body, u32 crc of
the header, body. The body is that of a head's record. The file is complete and synced before it gets its name.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final
from zlib import crc32

from pydanube_broker.journal.disk import Disk
from pydanube_broker.journal.file_worker import FileWorker
from pydanube_broker.journal.records import FILE_HEADER_BYTES

log = logging.getLogger("pydanube.journal")

CHECKPOINT_BODY: Final = struct.Struct("<Q")  # body of the record: the number in its file
INLINE_BYTES: Final = 4 << 20  # a smaller head is written with the records: a few milliseconds of the disk
HEAD_SUFFIX: Final = ".head"
_HEADER: Final = struct.Struct("<8sIIQQQII")
_MAGIC: Final = b"DANUBECP"
_VERSION: Final = 1
_PIECES: Final = 512  # buffers per write call. The system's maximum is 1024


class Checkpoints:
    """Writes large heads to files, and tracks the newest that a start can use. Single user: the journal."""

    def __init__(self, folder: Path, disk: Disk, worker: FileWorker) -> None:
        self.base = 0  # of the segment with the newest durable head: it and later segments must stay
        self._folder = folder
        self._disk = disk
        self._worker = worker
        self._begun: int | None = None  # address of the newest head that was begun
        self._written: dict[int, bool] = {}  # base → whether its head is whole
        self._job: asyncio.Future[BaseException | None] | None = None
        #: base and number of the newest complete head with a file of its own, None if a newer one is in a record
        self.in_file: tuple[int, int] | None = None
        #: called with base, number and content of each head whose file is complete
        self.on_written: Callable[[int, int, Sequence[bytes]], None] | None = None

    def due(self, base: int, size: int) -> bool:
        """Return whether the journal has grown by `size` since the newest head, and no head is being written."""
        return self._job is None and (self._begun is None or base - self._begun >= size)

    def in_record(self, base: int) -> None:
        """Note that the segment at `base` begins with its head."""
        self._begun = base
        self._written[base] = True
        self.in_file = None

    def write(self, base: int, number: int, head: Sequence[bytes]) -> None:
        """Write a head, the state at this moment, to its file in the background."""
        self._begun = base
        self._written[base] = False
        path = checkpoint_path(self._folder, base)
        self._job = asyncio.get_running_loop().create_future()

        def then(job: Future[None]) -> None:
            done, self._job = self._job, None
            error = None if job.cancelled() else job.exception()
            if error is None:
                if base in self._written:  # otherwise a newer one is durable already
                    self._written[base] = True
                    if base == self._begun:
                        self.in_file = base, number
                    if self.on_written is not None:
                        self.on_written(base, number, head)
            else:  # the next segment tries again
                self._written.pop(base, None)
                self._begun = self.base
                log.warning("journal_head_not_written", extra={"error": str(error)})
            if done is not None and not done.done():
                done.set_result(error)

        self._worker.run(lambda: write_checkpoint(path, base, number, head, self._disk), then)

    async def until_written(self) -> BaseException | None:
        """Wait until the head in progress is written. Return the error if that failed."""
        return None if self._job is None else await asyncio.shield(self._job)

    def advance(self, durable: int) -> None:
        """Advance to the newest complete head whose segment's first record is durable, and remove the files of older heads."""
        for base in sorted(self._written, reverse=True):
            if self._written[base] and durable > base + FILE_HEADER_BYTES:
                self._written = {other: done for other, done in self._written.items() if other > base}
                self.base = base
                self._worker.run(self._remove_older, lambda job: None)
                return

    def _remove_older(self) -> None:
        for path in self._folder.glob(f"*{HEAD_SUFFIX}"):
            if path.stem.isdigit() and int(path.stem) < self.base:
                with contextlib.suppress(OSError):  # the next head or the next start tries again
                    self._disk.unlink(path)


def checkpoint_path(folder: Path, base: int) -> Path:
    return folder / f"{base:020d}{HEAD_SUFFIX}"


def new_number() -> int:
    return secrets.randbits(64)


def write_checkpoint(path: Path, base: int, number: int, pieces: Sequence[bytes], disk: Disk) -> None:
    """Write and sync the file, atomically under its name. For a worker thread."""
    crc = size = 0
    for piece in pieces:
        crc = crc32(piece, crc)
        size += len(piece)
    header = _HEADER.pack(_MAGIC, _VERSION, 0, base, number, size, crc, 0)[:-4]
    header += crc32(header).to_bytes(4, "little")
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{number:x}.new")
    try:
        fd = disk.create(temporary)
        try:
            whole, at = (header, *pieces), 0
            for start in range(0, len(whole), _PIECES):
                group = whole[start : start + _PIECES]
                disk.pwritev(fd, group, at)
                at += sum(map(len, group))
            disk.datasync(fd)
        finally:
            disk.close(fd)
        disk.rename(temporary, path)
        disk.sync_dir(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            disk.unlink(temporary)
        raise


def read_checkpoint(path: Path, base: int, number: int, disk: Disk) -> bytes | None:
    """Return the head in that file. None if it is missing, damaged, or belongs to another record.

    Raises `OSError`: the file cannot be read.
    """
    try:
        fd = disk.open_ro(path)
    except FileNotFoundError:
        return None
    try:
        header = disk.pread(fd, _HEADER.size, 0)
        if len(header) < _HEADER.size:
            return None
        magic, version, _, own_base, own_number, size, crc, own = _HEADER.unpack(header)
        if magic != _MAGIC or version != _VERSION or crc32(header[:-4]) != own:
            return None
        if (own_base, own_number) != (base, number):
            return None
        body = disk.pread(fd, size, _HEADER.size)
    finally:
        disk.close(fd)
    return body if len(body) == size and crc32(body) == crc else None
