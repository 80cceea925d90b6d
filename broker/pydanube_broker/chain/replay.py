"""Rebuild a journal folder from a chain, so that the recovery of journals can read it.

Groups are written at their original positions, and a head that had a file of its own is written to a file. Dropped segments
are left out, and so are segments whose first pieces were deleted. The folder is synced at the end. A replay after an
interrupted one removes its files and starts from the beginning.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio.to_thread
from pydanube_core.errors import CorruptObject

from pydanube_broker.chain.piece import PIECE_BYTES, Drop, Group, Head, Item, Safe, Start
from pydanube_broker.chain.reading import pieces
from pydanube_broker.chain.store import ChainStore
from pydanube_broker.journal.checkpoint import checkpoint_path, write_checkpoint
from pydanube_broker.journal.disk import Disk
from pydanube_broker.journal.records import (
    FILE_HEADER_BYTES,
    FLAG_SEGMENT_END,
    HEADER_BYTES,
    SECTOR,
    RecordKind,
    encode_file_header,
    read_header,
)

_SUFFIX: Final = ".journal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The result of a replay. `safe_lsn`: the owner last reported that its disk held everything below it."""

    pieces: int
    segments: int
    stored_lsn: int
    safe_lsn: int


async def replay(
    store: ChainStore,
    cluster: str,
    journal: int,
    from_number: int,
    until: int,
    folder: Path,
    *,
    disk: Disk | None = None,
) -> Replayed:
    """Write the pieces `[from_number, until)` of a chain into `folder`, which is created if needed.

    Args:
        from_number: as recorded in the metadata, never the lowest name that is listed.
        until: number of the fence, or of the end.

    Raises:
        CorruptObject: a piece is damaged or missing. The folder is not usable then.
        StoreUnavailable: the store cannot be read.
        OSError: the folder cannot be written.
    """
    rebuilding = _Folder(folder, disk or Disk())
    stored_lsn = count = size = 0
    taken: list[Item] = []
    with contextlib.closing(rebuilding):
        await anyio.to_thread.run_sync(rebuilding.begin)
        async for header, items in pieces(store, cluster, journal, from_number, until):
            taken += items
            stored_lsn, count, size = header.stored_lsn, count + 1, size + header.body_bytes
            if size >= PIECE_BYTES:  # small pieces share a thread's turn
                await anyio.to_thread.run_sync(rebuilding.take, taken)
                taken, size = [], 0
        await anyio.to_thread.run_sync(rebuilding.take, taken)
        await anyio.to_thread.run_sync(rebuilding.finish)
    return Replayed(
        pieces=count,
        segments=len(rebuilding.segments),
        stored_lsn=stored_lsn,
        safe_lsn=rebuilding.safe_lsn,
    )


@dataclass(slots=True)
class _Segment:
    fd: int
    size: int
    start: int  # the first address that the chain has
    end: int


@dataclass(slots=True)
class _LargeHead:
    number: int
    size: int
    parts: dict[int, bytes] = field(default_factory=dict)


class _Folder:
    """The folder under construction. Blocking. Not safe for concurrent use."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self.segments: dict[int, _Segment] = {}
        self.safe_lsn = 0
        self._folder = folder
        self._disk = disk
        self._heads: dict[int, _LargeHead] = {}
        self._floor = 0  # segments below are dropped

    def begin(self) -> None:
        """Create the folder, and remove the files of an interrupted replay."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in list(self._folder.iterdir()):
            if path.is_file():
                self._disk.unlink(path)

    def take(self, items: list[Item]) -> None:
        for item in items:
            match item:
                case Group():
                    self._write(item)
                case Head():
                    head = self._heads.get(item.base)
                    if head is None or head.number != item.number:
                        head = self._heads[item.base] = _LargeHead(item.number, item.size)
                    head.parts[item.position] = item.part
                case Drop():
                    self._drop_below(item.base)
                case Safe():
                    self.safe_lsn = max(self.safe_lsn, item.lsn)
                case Start():
                    pass

    def _write(self, group: Group) -> None:
        segment = self.segments.get(group.base)
        if segment is None:
            segment = self._make(group.base, group.segment_bytes, group.lsn)
        if group.lsn > segment.end:
            raise CorruptObject(
                f"the chain has records at {group.lsn} and none between {segment.end} and there",
                cause="chain",
            )
        self._disk.pwritev(segment.fd, [group.records], group.lsn - group.base)
        segment.end = max(segment.end, group.end)

    def _make(self, base: int, size: int, start: int) -> _Segment:
        fd = self._disk.create(self._path(base))
        segment = self.segments[base] = _Segment(fd, size, start, start)
        # A sparse file of the length in its header, because recovery treats a shorter file as truncated.
        self._disk.pwritev(fd, [b"\0"], size - 1)
        self._disk.pwritev(fd, [encode_file_header(base, size)], 0)
        return segment

    def _drop_below(self, base: int) -> None:
        self._floor = max(self._floor, base)
        for old in [old for old in self.segments if old < self._floor]:
            self._remove(old)
        self._heads = {at: head for at, head in self._heads.items() if at >= self._floor}

    def _remove(self, base: int) -> None:
        self._disk.close(self.segments.pop(base).fd)
        self._disk.unlink(self._path(base))

    def finish(self) -> None:
        """Remove incomplete segments, write the large heads, and sync everything."""
        for base, segment in list(self.segments.items()):
            if segment.start > base + FILE_HEADER_BYTES:
                self._remove(base)
            elif self._announces(base, segment) and (behind := base + segment.size) not in self.segments:
                # The mark announces a next segment, and recovery treats a missing one as a loss.
                self._make(behind, segment.size, behind + FILE_HEADER_BYTES)
        for base, head in self._heads.items():
            parts = [head.parts[at] for at in sorted(head.parts)]
            if base in self.segments and sum(map(len, parts)) == head.size:
                write_checkpoint(checkpoint_path(self._folder, base), base, head.number, parts, self._disk)
        if self.segments:
            self._shorten(max(self.segments))
        for segment in self.segments.values():
            self._disk.datasync(segment.fd)
        self._disk.sync_dir(self._folder)

    def _shorten(self, base: int) -> None:
        """Cut the last segment behind its records and a sector of zeros, because recovery reads whole segments."""
        segment = self.segments[base]
        size = (segment.end - base + 2 * SECTOR - 1) & ~(SECTOR - 1)
        if size < segment.size:
            self._disk.truncate(segment.fd, size)
            self._disk.pwritev(segment.fd, [encode_file_header(base, size)], 0)
            segment.size = size

    def _announces(self, base: int, segment: _Segment) -> bool:
        """Return whether the last record announces another segment."""
        if segment.end - segment.start < HEADER_BYTES:
            return False
        at = segment.end - HEADER_BYTES
        last = read_header(self._disk.pread(segment.fd, HEADER_BYTES, at - base), 0, at)
        return last is not None and last.kind is RecordKind.MARK and bool(last.flags & FLAG_SEGMENT_END)

    def _path(self, base: int) -> Path:
        return self._folder / f"{base:020d}{_SUFFIX}"

    def close(self) -> None:
        for segment in self.segments.values():
            self._disk.close(segment.fd)
