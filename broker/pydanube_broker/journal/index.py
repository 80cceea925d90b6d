"""The place of each batch of a topic in the journal: by offset and by time.

One `Run` holds the batches of one topic in one segment as four columns. The active segment's runs are arrays in
memory. A sealed segment's runs are in a sidecar file `<segment>.index` that is written once and mapped, so that an
old journal costs no memory. Both are searched by the same binary search. A missing or damaged sidecar is rebuilt
from its segment.

Sidecar, little-endian:

- `DANUBEIX`, u32 version, u32 topics, u64 base LSN, u64 end LSN, u32 crc of the file except itself, u32 0
- per topic: u64 id, u64 entries
- per topic the columns u64 base offset, u64 end offset, i64 append time, u64 position << 32 | body bytes
"""

from __future__ import annotations

import mmap
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

from pydanube_broker.journal.records import HEADER_BYTES, RecordKind
from pydanube_broker.journal.scan import Records

_HEAD: Final = struct.Struct("<8sIIQQII")
_TOPIC: Final = struct.Struct("<QQ")
_MAGIC: Final = b"DANUBEIX"
_VERSION: Final = 1

Buffer = bytes | memoryview


@dataclass(frozen=True, slots=True)
class Entry:
    """One batch: offsets [base, end), and its body at byte `position` of segment `segment`."""

    base: int
    end: int
    append_time_ms: int
    segment: int
    position: int
    body_bytes: int


@dataclass(slots=True, eq=False)
class Run:
    """The batches of one topic in one segment, ascending by offset."""

    segment: int
    bases: Sequence[int]
    ends: Sequence[int]
    times: Sequence[int]
    places: Sequence[int]

    @classmethod
    def empty(cls, segment: int) -> Run:
        return cls(segment, array("Q"), array("Q"), array("q"), array("Q"))

    def append(self, base: int, end: int, time_ms: int, position: int, body_bytes: int) -> None:
        assert isinstance(self.bases, array)
        assert isinstance(self.ends, array)
        assert isinstance(self.times, array)
        assert isinstance(self.places, array)
        self.bases.append(base)
        self.ends.append(end)
        if self.times and self.times[-1] > time_ms:
            self._no_newer_than(time_ms)
        self.times.append(time_ms)
        self.places.append(position << 32 | body_bytes)

    def extend(self, *columns: npt.NDArray[Any]) -> None:
        """Append many: offsets, ends, append times and places."""
        for mine, more in zip((self.bases, self.ends, self.times, self.places), columns, strict=True):
            assert isinstance(mine, array)
            mine.frombytes(more.tobytes())
        times = np.frombuffer(self.times, dtype=np.int64)  # type: ignore[call-overload]
        if bool((times[1:] < times[:-1]).any()):
            lowered = np.minimum.accumulate(times[::-1])[::-1].copy()
            del times  # an array cannot grow while a view of it exists
            self.times = array("q", lowered.tobytes())

    def _no_newer_than(self, time_ms: int) -> None:
        """Lower append times above `time_ms`, from a clock that was ahead, so that times never decrease."""
        assert isinstance(self.times, array)
        at = len(self.times)
        while at and self.times[at - 1] > time_ms:
            at -= 1
            self.times[at] = time_ms

    def __len__(self) -> int:
        return len(self.bases)

    @property
    def first(self) -> int:
        return self.bases[0]

    @property
    def end(self) -> int:
        return self.ends[-1]

    @property
    def last_time_ms(self) -> int:
        return self.times[-1]

    def entry(self, i: int) -> Entry:
        place = self.places[i]
        return Entry(
            self.bases[i], self.ends[i], self.times[i], self.segment, place >> 32, place & 0xFFFFFFFF
        )

    def at_or_after(self, offset: int) -> int:
        """Return the index of the first batch that ends after `offset`. len(self) if none does."""
        return bisect_right(self.ends, offset)

    def at_time(self, time_ms: int) -> int:
        """Return the index of the first batch with an append time ≥ `time_ms`. Append times never decrease."""
        return bisect_left(self.times, time_ms)

    def since(self, position: int) -> Run | None:
        """Copy the batches at or after a position of the segment. Return None if there are none."""
        first = bisect_left(self.places, position << 32)
        if first == len(self):
            return None
        columns = (self.bases, self.ends, self.times, self.places)
        return Run(
            self.segment, *(array(code, column[first:]) for code, column in zip("QQqQ", columns, strict=True))
        )

    @property
    def body_bytes(self) -> int:
        return sum(place & 0xFFFFFFFF for place in self.places)


class SegmentIndex:
    """All runs of one segment."""

    __slots__ = ("_map", "_views", "base_lsn", "end_lsn", "runs")

    def __init__(self, base_lsn: int) -> None:
        self.base_lsn = base_lsn
        self.end_lsn = base_lsn
        self.runs: dict[int, Run] = {}
        self._map: mmap.mmap | None = None
        self._views: list[memoryview] = []

    def add(
        self, topic_id: int, base: int, end: int, time_ms: int, position: int, body_bytes: int
    ) -> Run | None:
        """Add a batch. Return its run if the run is new."""
        run = self.runs.get(topic_id)
        new = run is None
        if run is None:
            run = self.runs[topic_id] = Run.empty(self.base_lsn)
        run.append(base, end, time_ms, position, body_bytes)
        return run if new else None

    def extend(self, records: Records) -> None:
        """Add the batches among these records."""
        chosen = np.flatnonzero(records.kind == RecordKind.BATCH)
        order = chosen[np.argsort(records.topic_id[chosen], kind="stable")]
        if not len(order):
            return
        topics = records.topic_id[order]
        positions = np.array(records.position, dtype=np.uint64)[order] + np.uint64(HEADER_BYTES)
        columns = (
            records.first[order],
            records.last[order] + np.uint64(1),
            records.time_ms[order],
            positions << np.uint64(32) | records.body_bytes[order],
        )
        starts = [0, *(np.flatnonzero(np.diff(topics)) + 1).tolist()]
        for start, end in pairwise([*starts, len(order)]):
            topic_id = int(topics[start])
            run = self.runs.get(topic_id)
            if run is None:
                run = self.runs[topic_id] = Run.empty(self.base_lsn)
            run.extend(*(column[start:end] for column in columns))

    def forget_below(self, topic_id: int, lsn: int) -> None:
        """Remove the batches of a topic below an address, which no longer belong to it."""
        run = self.runs.get(topic_id)
        if run is None or lsn <= self.base_lsn:
            return
        if (rest := run.since(lsn - self.base_lsn)) is None:
            del self.runs[topic_id]
        else:
            self.runs[topic_id] = rest

    def snapshot(self) -> SegmentIndex:
        """Return a copy that shares the columns, for another thread. Neither may be added to afterwards."""
        copy = SegmentIndex(self.base_lsn)
        copy.end_lsn, copy.runs = self.end_lsn, dict(self.runs)
        return copy

    def encode(self) -> list[Buffer]:
        """Return the sidecar's bytes, in pieces that are views of the columns."""
        topics = sorted(self.runs)
        pieces: list[Buffer] = [_TOPIC.pack(topic, len(self.runs[topic])) for topic in topics]
        for topic in topics:
            run = self.runs[topic]
            pieces += (
                memoryview(column).cast("B")  # type: ignore[arg-type]
                for column in (run.bases, run.ends, run.times, run.places)
            )
        head = _HEAD.pack(_MAGIC, _VERSION, len(topics), self.base_lsn, self.end_lsn, 0, 0)
        crc = crc32(head)
        for piece in pieces:
            crc = crc32(piece, crc)
        return [_HEAD.pack(_MAGIC, _VERSION, len(topics), self.base_lsn, self.end_lsn, crc, 0), *pieces]

    def close(self) -> None:
        """Close the mapping. Runs of a mapped segment must not be used afterwards."""
        self.runs = {}
        for view in self._views:
            view.release()
        self._views = []
        if self._map is not None:
            self._map.close()
            self._map = None


def sidecar_path(segment: Path) -> Path:
    return segment.with_suffix(".index")


def write_sidecar(path: Path, pieces: Sequence[Buffer]) -> None:
    """Write a sidecar atomically. It is not synced, because a damaged one is rebuilt."""
    temporary = path.with_name(path.name + ".new")
    with open(temporary, "wb") as file:
        file.writelines(pieces)
    temporary.replace(path)


def load_sidecar(path: Path, base_lsn: int) -> SegmentIndex | None:
    """Map a sidecar. Return None if it is missing, damaged or belongs to another segment."""
    try:
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return None
    whole = memoryview(mapped)
    index = SegmentIndex(base_lsn)
    index._map, index._views = mapped, [whole]
    try:
        magic, version, topics, base, end, crc, zero = _HEAD.unpack_from(whole)
        body = whole[_HEAD.size :]
        index._views.append(body)
        expected = crc32(body, crc32(_HEAD.pack(magic, version, topics, base, end, 0, zero)))
        if (magic, version, base) != (_MAGIC, _VERSION, base_lsn) or crc != expected:
            raise ValueError("not the sidecar of this segment")
        at = _HEAD.size + topics * _TOPIC.size
        for i in range(topics):
            topic, n = _TOPIC.unpack_from(whole, _HEAD.size + i * _TOPIC.size)
            columns = []
            for code in ("Q", "Q", "q", "Q"):
                raw = whole[at : at + 8 * n]
                index._views.append(raw)
                columns.append(raw.cast(code))
                index._views.append(columns[-1])
                at += 8 * n
            index.runs[topic] = Run(base_lsn, *columns)
        if at != len(whole):
            raise ValueError("the sidecar's length is wrong")
    except (struct.error, ValueError, TypeError):
        index._views.reverse()
        index.close()
        return None
    index._views.reverse()  # released innermost first
    index.end_lsn = end
    return index
