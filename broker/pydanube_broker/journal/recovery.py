"""Recovery of a journal: the newest head, the records after it, and whether the end is torn or damaged.

After a power cut, the disk may hold any subset of the sectors written since the last completed sync. The first
invalid record, at address p, has one of two causes (docs/design.md#4-the-journal):

- If any valid record, before or after p, was written when everything below some address > p was already durable, then
  p was durable once and is damaged now: `CORRUPT_JOURNAL`.
- Otherwise p belongs to the last group, which may never have been durable. The record is torn if one of its 512-byte
  sectors was never written (see `records`), and everything after it is dropped. If all its sectors were written, it is
  damaged too.

Segments are complete and synced before they are used. So a power cut cannot shorten a segment, nor remove one that an
end mark announces. If one is short or missing, its file was cut or deleted, and may have held acknowledged messages.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
from pydanube_core.errors import CorruptJournal, FormatTooNew, Unavailable

from pydanube_broker.journal.checkpoint import CHECKPOINT_BODY, checkpoint_path, read_checkpoint
from pydanube_broker.journal.disk import Disk
from pydanube_broker.journal.records import (
    FILE_HEADER_BYTES,
    FORMAT_VERSION,
    HEADER_BYTES,
    MAGIC_BYTES,
    SECTOR,
    SEGMENT_STARTS,
    WITHOUT_TOPIC,
    RecordHeader,
    RecordKind,
    blank_sectors,
    read_file_header,
    read_header,
    record_bytes,
    verify_body,
)
from pydanube_broker.journal.scan import Records, scan


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A segment on disk: `base` is its first LSN, `size` the size in its header."""

    path: Path
    base: int
    size: int

    @property
    def end(self) -> int:
        return self.base + self.size


@dataclass(slots=True)
class Recovered:
    """The result of a recovery. Records between the head and `proven` are durable. `tail` was never acknowledged."""

    segments: list[SegmentFile]
    head: bytes | None = None
    head_lsn: int = 0
    end: int = 0  # where the last valid record ends
    proven: int = 0
    torn_bytes: int = 0
    records: int = 0
    headless: SegmentFile | None = None  # the newest segment whose head file is missing or damaged
    announced: int | None = None  # base of a segment without a valid record that an end mark announces
    tail: list[tuple[RecordHeader, bytes]] = field(default_factory=list)


def list_segments(folder: Path, disk: Disk) -> list[SegmentFile]:
    """Return the segment files by address. Raises `CorruptJournal` if two overlap."""
    found = [_open_segment(path, disk) for path in sorted(folder.iterdir()) if path.suffix == ".journal"]
    found.sort(key=lambda segment: segment.base)
    for before, after in pairwise(found):
        if after.base < before.end:
            raise CorruptJournal(
                f"journal segments {before.path.name} and {after.path.name} overlap",
                segment=after.path.name,
                offset=0,
            )
    return found


def _open_segment(path: Path, disk: Disk) -> SegmentFile:
    try:
        fd = disk.open_ro(path)
        try:
            header = read_file_header(disk.pread(fd, FILE_HEADER_BYTES, 0))
            actual = disk.size(fd)
        finally:
            disk.close(fd)
    except OSError as error:
        raise unreadable(path, 0, error) from error
    if header is None:
        raise CorruptJournal(
            f"journal segment {path.name}: its first 64 bytes are damaged. Restore the file from a backup",
            segment=path.name,
            offset=0,
        )
    version, base, size = header
    if version > FORMAT_VERSION:
        raise FormatTooNew(
            f"journal segment {path.name} has format {version}, this version reads up to {FORMAT_VERSION}: "
            "use the newer version",
            segment=path.name,
            value=version,
        )
    if path.stem != f"{base:020d}":
        raise CorruptJournal(
            f"journal segment {path.name} has the start {base} in its header",
            segment=path.name,
            offset=0,
            value=base,
        )
    if actual < size:
        raise CorruptJournal(
            f"journal segment {path.name} has {actual} bytes and was made with {size}: it was cut, and acknowledged "
            "messages may be lost. Restore the file from a backup. To go on with the rest of it: "
            f"truncate -s {size} {path}",
            segment=path.name,
            offset=actual,
            value=actual,
        )
    return SegmentFile(path, base, size)


def unreadable(path: Path, position: int, error: OSError) -> CorruptJournal | Unavailable:
    """Return the error for a segment that cannot be read."""
    if error.errno in (errno.EIO, errno.ENOENT):
        return CorruptJournal(
            f"journal segment {path.name} cannot be read at byte {position}: {error}. "
            "Restore the file from a backup",
            segment=path.name,
            offset=position,
        )
    return Unavailable(
        f"journal segment {path.name} cannot be opened: {error}", segment=path.name, reason=str(error)
    )


def recover(
    folder: Path,
    disk: Disk,
    *,
    restore: Callable[[bytes], None],
    replay: Callable[[Records, bytes, SegmentFile], None],
) -> Recovered:
    """Read the journal in `folder`.

    Args:
        restore: called once, with the newest valid head's body, before any record.
        replay: called with the proven records after that head, in order, many at a time, and the bytes of their
            segment, which are released afterwards.

    Raises:
        CorruptJournal: durable data is damaged. Nothing was changed on disk.
        FormatTooNew: a file of a later format.
        Unavailable: a file cannot be opened.
    """
    segments = list_segments(folder, disk)
    found = Recovered(segments)
    if not segments:
        return found
    contents = _Contents(disk)
    first = len(segments)
    damage: CorruptJournal | None = None
    while True:
        # Records before an unproven head may be lost. Then the previous head counts, and the walk from there shows
        # whether the apparent damage after the newer head matters.
        older = _newest_head(segments[:first], contents, found)
        if older is None:
            break
        first = older
        damage = _find_end(segments[first:], contents, found)
        if found.proven > found.head_lsn or first == 0:
            break
    if found.head is None:
        if found.headless is not None:
            raise _head_missing(found.headless)
        first = 0
        damage = _find_end(segments, contents, found)
    if damage is not None:
        # If a head is missing, segments before it may rightly be incomplete. So the missing head is reported.
        raise damage if found.headless is None else _head_missing(found.headless)
    if found.head is not None:
        restore(found.head)
    _replay(segments[first:], contents, found, replay)
    return found


class _Contents:
    """Holds one whole segment in memory: one read of 64 MiB is faster than many small ones."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._segment: SegmentFile | None = None
        self._data = b""

    def __call__(self, segment: SegmentFile) -> bytes:
        if self._segment is not segment:
            self._segment, self._data = None, b""  # release one before the next is read
            self._data = self.piece(segment, 0, segment.size)
            self._segment = segment
        return self._data

    def checkpoint(self, segment: SegmentFile, body: bytes) -> bytes | None:
        """Return the head of a CHECKPOINT record. None if no complete one exists."""
        path = checkpoint_path(segment.path.parent, segment.base)
        if len(body) != CHECKPOINT_BODY.size:
            return None
        try:
            (number,) = CHECKPOINT_BODY.unpack(body)
            return read_checkpoint(path, segment.base, number, self._disk)
        except OSError as error:
            raise unreadable(path, 0, error) from error

    def piece(self, segment: SegmentFile, at: int, count: int) -> bytes:
        """Read `count` bytes from byte `at`. A shorter file is an error: it was cut since its size was checked."""
        try:
            fd = self._disk.open_ro(segment.path)
            try:
                data = self._disk.pread(fd, count, at)
            finally:
                self._disk.close(fd)
        except OSError as error:
            raise unreadable(segment.path, at, error) from error
        if len(data) < count:
            raise unreadable(segment.path, at + len(data), OSError(errno.EIO, "it ends there"))
        return data


def _newest_head(segments: list[SegmentFile], contents: _Contents, found: Recovered) -> int | None:
    """Find the newest of these segments that begins with a valid head. Store the head in `found`, return the index."""
    for i in range(len(segments) - 1, -1, -1):
        segment = segments[i]
        start = segment.base + FILE_HEADER_BYTES
        header = read_header(contents.piece(segment, FILE_HEADER_BYTES, HEADER_BYTES), 0, start)
        room = segment.size - FILE_HEADER_BYTES - HEADER_BYTES
        if header is None or header.kind not in SEGMENT_STARTS or header.body_bytes > room:
            continue
        body: bytes | None = contents.piece(segment, FILE_HEADER_BYTES + HEADER_BYTES, header.body_bytes)
        assert body is not None
        if not verify_body(header, body):
            continue
        if header.kind is RecordKind.CHECKPOINT:
            body = contents.checkpoint(segment, body)
            if body is None:
                found.headless = found.headless or segment
                continue
        found.head, found.head_lsn = body, start
        return i
    return None


def _find_end(segments: list[SegmentFile], contents: _Contents, found: Recovered) -> CorruptJournal | None:
    """Find the first invalid record, then search after it for a proof that it was durable once.

    Returns:
        The error if the record is damaged, None if it is torn.
    """
    found.records, found.torn_bytes, found.proven = 0, 0, 0
    found.end = segments[0].base + FILE_HEADER_BYTES
    index, address = 0, found.end
    for index, segment in enumerate(segments):
        if index and segment.base != segments[index - 1].end:
            return _missing(segments[index - 1], found.end)
        address = -1
        for item in scan(contents(segment), segment.base, segment.base + FILE_HEADER_BYTES, bodies=True):
            if isinstance(item, int):
                address = item
                break
            found.records += len(item)
            found.end = item.end
            found.proven = max(found.proven, int(item.synced_lsn.max()))
        if address >= 0:
            break
    if address < 0:
        return _missing(segments[-1], found.end)
    bad = segments[index]
    announced = index > 0 and address == bad.base + FILE_HEADER_BYTES
    found.announced = bad.base if announced else None
    for segment in segments[index:]:
        for header in _valid_headers(contents(segment), segment.base, max(address, segment.base)):
            found.proven = max(found.proven, header.synced_lsn)
            if header.lsn > address:
                found.torn_bytes += record_bytes(header.body_bytes)
    if found.proven > address:
        return _corrupt(bad, address, "it was on stable storage when a later record was written")
    data, at = contents(bad), address - bad.base
    if not _torn(data, bad.base, at):
        return _corrupt(bad, address, "it is whole on disk, but differs from the bytes that were written")
    if not _is_zero(data[at : at + HEADER_BYTES]):
        found.torn_bytes += 1  # a minimum, because without its header the record's length is unknown
    found.proven = min(found.proven, found.end)
    return None


def _valid_headers(raw: bytes, base: int, start: int) -> Iterator[RecordHeader]:
    """Yield every valid header at or after `start`, skipping anything else. Headers contain their own address."""
    at = raw.find(MAGIC_BYTES, start - base)
    while at >= 0:
        if at % 8 == 0:
            header = read_header(raw, at, base + at)
            if header is not None:
                yield header
        at = raw.find(MAGIC_BYTES, at + 1)


def _torn(data: bytes, base: int, at: int) -> bool:
    """Return whether the invalid record at byte `at` is missing a sector that was never written."""
    if at + HEADER_BYTES > len(data):
        return True  # no record begins where its header does not fit
    # A header lies in one sector or in two, and neither part of it is ever all zeros.
    split = -at % SECTOR
    parts = (at, at + split, at + HEADER_BYTES) if 0 < split < HEADER_BYTES else (at, at + HEADER_BYTES)
    if any(_is_zero(data[start:end]) for start, end in pairwise(parts)):
        return True
    header = read_header(data, at, base + at)
    if header is None:
        return False
    end = at + record_bytes(header.body_bytes)
    if end > len(data):
        return False
    return blank_sectors(at, HEADER_BYTES, data[at + HEADER_BYTES : end]) > header.blank_sectors


def _is_zero(piece: bytes) -> bool:
    return piece.count(0) == len(piece)


def _missing(segment: SegmentFile, end: int) -> CorruptJournal:
    return CorruptJournal(
        f"the journal segment behind {segment.path.name}, {segment.end:020d}.journal, is missing. Nothing was "
        "changed. Restore the file from a backup",
        segment=f"{segment.end:020d}.journal",
        offset=0,
        lsn=end,
    )


def _head_missing(segment: SegmentFile) -> CorruptJournal:
    name = checkpoint_path(segment.path.parent, segment.base).name
    return CorruptJournal(
        f"{name}, the state of all topics at the start of {segment.path.name}, is missing or damaged, and no other file has "
        "its contents. Nothing was changed. Restore the file from a backup",
        segment=name,
        offset=0,
        lsn=segment.base,
    )


def _corrupt(segment: SegmentFile, address: int, why: str) -> CorruptJournal:
    return CorruptJournal(
        f"journal segment {segment.path.name} is damaged at byte {address - segment.base} (LSN {address}): {why}. "
        "Nothing was changed. Restore the file from a backup, or start without it: move the journal folder "
        "aside, make a new one, and put an empty file ACCEPT_LOSS into it",
        segment=segment.path.name,
        offset=address - segment.base,
        lsn=address,
    )


def _replay(
    segments: list[SegmentFile],
    contents: _Contents,
    found: Recovered,
    replay: Callable[[Records, bytes, SegmentFile], None],
) -> None:
    for segment in segments:
        if segment.base >= found.end:
            return
        raw = contents(segment)
        # The bodies were verified by `_find_end`. This second read comes from the page cache.
        for item in scan(raw, segment.base, segment.base + FILE_HEADER_BYTES, bodies=False):
            if isinstance(item, int):
                return
            count = int(np.searchsorted(item.lsn, found.end))
            # `proven` is the end of a record
            proven = int(np.searchsorted(item.lsn[:count], found.proven))
            if proven:
                replay(item.head(proven), raw, segment)
            for i in range(proven, count):
                header = item.header(i)
                if header.kind not in WITHOUT_TOPIC:
                    body = item.position[i] + HEADER_BYTES
                    found.tail.append((header, raw[body : body + header.body_bytes]))
            if count < len(item):
                return
