"""Recovery of any small journal, damaged anywhere, against a plain model of the rules at the top of `recovery`.

The model knows which records were written where. It walks them one by one and compares bytes: no checksum, no columns.
"""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from pydanube_broker.journal import Disk, RecordKind
from pydanube_broker.journal.checkpoint import CHECKPOINT_BODY, checkpoint_path, write_checkpoint
from pydanube_broker.journal.records import (
    FILE_HEADER_BYTES,
    FLAG_SEGMENT_END,
    HEADER_BYTES,
    SECTOR,
    WITHOUT_TOPIC,
    blank_sectors,
    encode_file_header,
    encode_header,
    record_bytes,
)
from pydanube_broker.journal.recovery import Recovered, SegmentFile, recover
from pydanube_broker.journal.scan import Records
from pydanube_core.batch import broker_part, encode_batch
from pydanube_core.errors import CorruptJournal, Unavailable

from tests.broker.journal.faulty import FaultyDisk
from tests.core.batches import steady

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
SIZE = 8 << 10
ANYWHERE = [
    kind for kind in RecordKind if kind not in (RecordKind.HEAD, RecordKind.CHECKPOINT, RecordKind.MARK)
]
Kept = tuple[RecordKind, int, bytes]  # kind, LSN, body


@dataclass
class Written:
    kind: RecordKind
    lsn: int
    synced: int
    body: bytes
    ends: bool = False

    @property
    def end(self) -> int:
        return self.lsn + record_bytes(len(self.body))


@dataclass
class Segment:
    base: int
    whole: bytearray = field(default_factory=lambda: bytearray(SIZE))
    records: list[Written] = field(default_factory=list)
    head: bytes | None = None  # of a file of its own
    there: bool = True
    head_there: bool = True
    damaged: bytearray = field(default_factory=bytearray)

    def add(self, kind: RecordKind, body: bytes, synced: int, *, ends: bool = False) -> None:
        last = self.records[-1].end if self.records else self.base + FILE_HEADER_BYTES
        crc = 0 if kind is RecordKind.BATCH else crc32(body)
        blank = blank_sectors(last - self.base, HEADER_BYTES, body)
        flags = FLAG_SEGMENT_END if ends else 0
        record = encode_header(kind, last, min(synced, last), 7, len(body), crc, flags, blank) + body
        at = last - self.base
        self.whole[at : at + len(record)] = record
        self.records.append(Written(kind, last, min(synced, last), body, ends))

    def align(self, place: int, synced: int, *, of: int = SECTOR) -> None:
        """Add a record behind which the next one begins at byte `place` of a sector."""
        at = self.records[-1].end - self.base
        body = b"\1" * ((place - at - HEADER_BYTES) % of)
        if at + HEADER_BYTES + len(body) <= SIZE and (of == SIZE or self.fits(body)):
            self.add(RecordKind.CURSOR, body, synced)

    def fits(self, body: bytes) -> bool:
        return self.records[-1].end + record_bytes(len(body)) + HEADER_BYTES <= self.base + SIZE

    def is_same(self, record: Written, *, body: bool) -> bool:
        """Whether the bytes of a record, or of its header, are those that were written."""
        at = record.lsn - self.base
        end = at + HEADER_BYTES + (len(record.body) if body else 0)
        return self.damaged[at:end] == self.whole[at:end]

    def is_torn(self, at: int, record: Written | None) -> bool:
        """Whether the invalid record there is without a sector that was written."""
        if at + HEADER_BYTES > SIZE:
            return True
        cuts = [
            at,
            *(edge for edge in range(0, SIZE, SECTOR) if at < edge < at + HEADER_BYTES),
            at + HEADER_BYTES,
        ]
        if any(not any(self.damaged[a:b]) for a, b in pairwise(cuts)):
            return True
        if record is None or not self.is_same(record, body=False):
            return False
        end = record.end - self.base
        edges = range(-(-(at + HEADER_BYTES) // SECTOR) * SECTOR, end, SECTOR)
        was, now = (
            sum(not any(data[edge : min(edge + SECTOR, end)]) for edge in edges)
            for data in (self.whole, self.damaged)
        )
        return now > was


@dataclass
class Outcome:
    """What a recovery keeps, or the file and place that it refuses."""

    refused: tuple[str, int] | None = None
    head: bytes | None = None
    head_lsn: int = 0
    end: int = 0
    proven: int = 0
    records: int = 0
    torn_bytes: int = 0
    announced: int | None = None
    headless: int | None = None
    replayed: list[Kept] = field(default_factory=list)
    tail: list[Kept] = field(default_factory=list)


class Model:
    def __init__(self, segments: list[Segment]) -> None:
        self.segments = [segment for segment in segments if segment.there]
        self.found = Outcome()

    def outcome(self) -> Outcome:
        found, first, refused = self.found, len(self.segments), None
        if not self.segments:
            return found
        while (older := self._newest_head(first)) is not None:
            first, refused = older, self._walk(older)
            if found.proven > found.head_lsn or first == 0:
                break
        if found.head is None:
            first = 0
            refused = self._walk(0)
            if found.headless is not None:
                refused = f"{found.headless:020d}.head", 0
        elif refused and found.headless is not None:
            refused = f"{found.headless:020d}.head", 0
        if refused is not None:
            return Outcome(refused=refused)
        for record in self._from(first):
            if record.lsn < found.proven:
                found.replayed.append((record.kind, record.lsn, record.body))
            elif record.lsn < found.end and record.kind not in WITHOUT_TOPIC:
                found.tail.append((record.kind, record.lsn, record.body))
        return found

    def _from(self, first: int) -> Iterator[Written]:
        for segment in self.segments[first:]:
            yield from (record for record in segment.records if record.lsn < self.found.end)

    def _newest_head(self, below: int) -> int | None:
        for i in reversed(range(below)):
            segment = self.segments[i]
            if not segment.records or not segment.is_same(segment.records[0], body=True):
                continue
            if segment.head is not None and not segment.head_there:
                self.found.headless = segment.base if self.found.headless is None else self.found.headless
                continue
            self.found.head = segment.records[0].body if segment.head is None else segment.head
            self.found.head_lsn = segment.records[0].lsn
            return i
        return None

    def _walk(self, first: int) -> tuple[str, int] | None:
        """Find the first invalid record and judge it. The result is the refusal."""
        found = self.found
        found.records = found.proven = found.torn_bytes = 0
        found.end = self.segments[first].base + FILE_HEADER_BYTES
        for i, segment in enumerate(self.segments[first:], first):
            if i > first and segment.base != self.segments[i - 1].base + SIZE:
                return f"{self.segments[i - 1].base + SIZE:020d}.journal", 0
            bad: Written | None = None
            address = segment.base + FILE_HEADER_BYTES
            for record in segment.records:
                if not segment.is_same(record, body=True):
                    bad = record
                    break
                found.records += 1
                found.end = address = record.end
                found.proven = max(found.proven, record.synced)
            if bad is None and segment.records and segment.records[-1].ends:
                continue
            return self._judge(i, address, bad, is_first=i == first)
        return f"{self.segments[-1].base + SIZE:020d}.journal", 0

    def _judge(self, i: int, address: int, bad: Written | None, *, is_first: bool) -> tuple[str, int] | None:
        found, segment = self.found, self.segments[i]
        announced = not is_first and address == segment.base + FILE_HEADER_BYTES
        found.announced = segment.base if announced else None
        for other in self.segments[i:]:
            for record in other.records:
                if record.lsn >= address and other.is_same(record, body=False):
                    found.proven = max(found.proven, record.synced)
                    found.torn_bytes += record.end - record.lsn if record.lsn > address else 0
        at = address - segment.base
        if found.proven > address or not segment.is_torn(at, bad):
            return f"{segment.base:020d}.journal", at
        found.torn_bytes += any(segment.damaged[at : at + HEADER_BYTES])
        found.proven = min(found.proven, found.end)
        return None


def write_to(folder: Path, segments: list[Segment]) -> None:
    for segment in segments:
        path = folder / f"{segment.base:020d}.journal"
        if segment.there:
            segment.damaged[:FILE_HEADER_BYTES] = encode_file_header(segment.base, SIZE)
            path.write_bytes(segment.damaged)
        if segment.head is not None:
            (number,) = CHECKPOINT_BODY.unpack(segment.records[0].body)
            # A file with the number of another record is that of an older head.
            number ^= not segment.head_there
            write_checkpoint(
                checkpoint_path(folder, segment.base), segment.base, number, [segment.head], Disk()
            )


def recovered(folder: Path) -> Outcome:
    """The outcome of the real recovery."""
    replayed: list[Kept] = []
    restored: list[bytes] = []
    disk = FaultyDisk()

    def replay(records: Records, raw: bytes, segment: SegmentFile) -> None:
        for i in range(len(records)):
            header = records.header(i)
            at = header.lsn - segment.base + HEADER_BYTES
            assert records.position[i] == header.lsn - segment.base
            replayed.append((header.kind, header.lsn, raw[at : at + header.body_bytes]))

    try:
        found: Recovered = recover(folder, disk, restore=restored.append, replay=replay)
    except CorruptJournal as error:
        assert not restored
        assert not replayed
        assert disk.open_fds == set()
        return Outcome(refused=(str(error.details["segment"]), int(error.details["offset"])))
    assert disk.open_fds == set()
    assert restored == ([] if found.head is None else [found.head])
    return Outcome(
        head=found.head, head_lsn=found.head_lsn, end=found.end, proven=found.proven, records=found.records,
        torn_bytes=found.torn_bytes, announced=found.announced,
        headless=None if found.headless is None else found.headless.base, replayed=replayed,
        tail=[(header.kind, header.lsn, body) for header, body in found.tail],
    )  # fmt: skip


@st.composite
def journals(draw: st.DrawFn) -> list[Segment]:
    """Segments with records of every kind. Each record knows the end of an earlier one as durable, never an older than before."""
    base = draw(st.sampled_from([0, SIZE, 1 << 40]))
    segments: list[Segment] = []
    synced, ends, offset = 0, [base + FILE_HEADER_BYTES], 0
    count = draw(st.integers(1, 4))
    for i in range(count):
        segment = Segment(base + i * SIZE)
        segments.append(segment)
        if draw(st.booleans()):
            segment.add(
                RecordKind.HEAD, draw(st.binary(max_size=40)) + bytes(draw(st.sampled_from([0, 900]))), synced
            )
        else:
            segment.head = draw(st.binary(min_size=1, max_size=40))
            segment.add(RecordKind.CHECKPOINT, CHECKPOINT_BODY.pack(draw(st.integers(0, 1 << 60))), synced)
        ends.append(segment.records[-1].end)
        for kind in draw(
            st.lists(st.sampled_from([*ANYWHERE, RecordKind.BATCH, RecordKind.MARK]), max_size=8)
        ):
            if not draw(st.integers(0, 3)):
                segment.align(
                    draw(st.sampled_from([0, 8, SECTOR - HEADER_BYTES, SECTOR - 40, SECTOR - 8])), synced
                )
            if draw(st.booleans()):
                synced = max(synced, draw(st.sampled_from(ends[-6:])))
            rest = draw(st.sampled_from([b"\0", b"\1"])) * draw(st.sampled_from([0, 0, 300, 1100]))
            payload = draw(st.binary(max_size=20)) + rest
            body = payload
            if kind is RecordKind.MARK:
                body = b""
            elif kind is RecordKind.BATCH:
                part = broker_part(base_offset=offset, last_offset=offset, epoch=1, append_time_ms=offset)
                body, offset = part + encode_batch([payload]), offset + 1
            if not segment.fits(body):
                break
            segment.add(kind, body, synced)
            ends.append(segment.records[-1].end)
        if i < count - 1:
            segment.add(RecordKind.MARK, b"", synced, ends=True)
            ends.append(segment.records[-1].end)
        elif draw(st.booleans()):
            segment.align(SIZE - draw(st.sampled_from([0, 8, HEADER_BYTES - 8])), synced, of=SIZE)
    if draw(st.booleans()):  # the last segment is announced, and nothing of it was written
        segments[-1].records.clear()
        segments[-1].head = None
        segments[-1].whole = bytearray(SIZE)
        if count == 1:
            segments.clear()
    ready = draw(st.integers(0, 2))
    return [*segments, *(Segment(base + (count + i) * SIZE) for i in range(ready))]


@st.composite
def damaged_journals(draw: st.DrawFn) -> list[Segment]:
    segments = draw(journals())
    for segment in segments:
        segment.damaged = bytearray(segment.whole)
    if not segments:
        return segments
    for _ in range(draw(st.integers(0, 3))):
        segment = draw(st.sampled_from(segments))
        used = segment.records[-1].end - segment.base if segment.records else FILE_HEADER_BYTES
        match draw(
            st.sampled_from(["sector", "sector", "rest", "byte", "header", "missing", "head", "head"])
        ):
            case "sector":
                at = draw(st.integers(0, used // SECTOR)) * SECTOR
                segment.damaged[at : at + SECTOR] = bytes(len(segment.damaged[at : at + SECTOR]))
            case "rest":
                at = draw(st.integers(0, used // SECTOR)) * SECTOR
                segment.damaged[at:] = bytes(SIZE - at)
            case "byte":
                at = draw(st.integers(FILE_HEADER_BYTES, min(used + HEADER_BYTES, SIZE) - 1))
                segment.damaged[at] ^= draw(st.integers(1, 255))
            case "header" if segment.records:
                record = draw(st.sampled_from(segment.records))
                segment.damaged[record.lsn - segment.base + draw(st.integers(0, HEADER_BYTES - 1))] ^= 0x5A
            case "missing":
                segment.there = False
            case "head":
                segment.head_there = False
    return segments


@settings(steady, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(segments=damaged_journals())
def test_recovery_of_any_damaged_journal_keeps_what_a_plain_model_keeps(segments: list[Segment]) -> None:
    """What was durable is kept or refused by file and byte, and nothing behind the first invalid record is kept."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        write_to(Path(name), segments)
        expected = Model(segments).outcome()
        found = recovered(Path(name))
        event("refused" if expected.refused else "kept")
        assert found.refused == expected.refused
        assert found == expected


def written(*groups: list[RecordKind], ends: bool = True) -> list[Segment]:
    """A segment per group, with a head that is known as durable, and the end mark of all, or of all but the last, full one."""
    segments = [Segment(i * SIZE) for i in range(len(groups))]
    for i, (segment, kinds) in enumerate(zip(segments, groups, strict=True)):
        if kinds:
            segment.add(RecordKind.HEAD, b"head %d" % i, FILE_HEADER_BYTES)
        for kind in kinds:
            segment.add(kind, b"" if kind is RecordKind.MARK else b"body", segment.records[0].end)
        if kinds and (ends or any(groups[i + 1 :])):
            segment.add(RecordKind.MARK, b"", segment.records[0].end, ends=True)
        segment.damaged = bytearray(segment.whole)
    return segments


@pytest.mark.parametrize("ready", [0, 2])
def test_an_empty_segment_behind_an_end_mark_is_reported_as_announced(fast_path: Path, ready: int) -> None:
    """A start that began there would be read twice after a second crash, so it must not be taken for one that stands ready."""
    segments = written([RecordKind.CURSOR], [RecordKind.MARK, RecordKind.CURSOR], [], *[[]] * ready)
    write_to(fast_path, segments)
    found = recovered(fast_path)
    assert found.announced == 2 * SIZE
    assert found.tail == [(RecordKind.CURSOR, segments[1].records[2].lsn, b"body")]


@pytest.mark.parametrize("ready", [0, 2])
def test_a_segment_with_a_valid_record_is_not_announced(fast_path: Path, ready: int) -> None:
    groups: list[list[RecordKind]] = [
        [RecordKind.CURSOR],
        [RecordKind.MARK, RecordKind.CURSOR],
        *[[]] * ready,
    ]
    write_to(fast_path, written(*groups, ends=False))
    assert recovered(fast_path).announced is None


def test_a_proof_in_a_later_segment_refuses_the_sector_that_was_lost_before_it(fast_path: Path) -> None:
    segments = written([RecordKind.CURSOR] * 12, [RecordKind.MARK], ends=False)
    segments[1].records.clear()
    segments[1].add(RecordKind.HEAD, b"unproven", segments[0].records[-1].end)
    segments[1].damaged = bytearray(segments[1].whole)
    lost = next(record for record in segments[0].records if record.lsn >= SECTOR)
    segments[0].damaged[SECTOR : 2 * SECTOR] = bytes(SECTOR)
    segments[1].damaged[segments[1].records[0].end - SIZE - 8] ^= (
        1  # its body: the head does not count, its claim does
    )
    write_to(fast_path, segments)
    before = [record for record in segments[0].records if record.lsn < lost.lsn][-1]
    first_bad = before if before.lsn + HEADER_BYTES + len(before.body) > SECTOR else lost
    assert recovered(fast_path).refused == (f"{0:020d}.journal", first_bad.lsn)


def test_a_head_that_claims_more_than_its_segment_holds_is_none(fast_path: Path) -> None:
    segments = written([RecordKind.CURSOR], [RecordKind.CURSOR], ends=False)
    room = SIZE - FILE_HEADER_BYTES - HEADER_BYTES
    claim = encode_header(RecordKind.HEAD, SIZE + FILE_HEADER_BYTES, 0, 0, room + 1, 0)
    segments[1].damaged[FILE_HEADER_BYTES : FILE_HEADER_BYTES + HEADER_BYTES] = claim
    write_to(fast_path, segments)
    found = recovered(fast_path)
    assert found.head is None
    assert found.refused == (f"{SIZE:020d}.journal", FILE_HEADER_BYTES)


@pytest.mark.parametrize(("number", "kind"), [(errno.EIO, CorruptJournal), (errno.EMFILE, Unavailable)])
@pytest.mark.parametrize("file", ["journal", "head"])
def test_a_file_that_cannot_be_read_is_named_and_is_no_missing_one(
    fast_path: Path, number: int, kind: type[Exception], file: str
) -> None:
    """An older head instead of one that cannot be opened would take messages back that were acknowledged."""

    class Unreadable(FaultyDisk):
        def open_ro(self, path: Path) -> int:
            if path.name == f"{SIZE:020d}.{file}":
                raise OSError(number, "not now")
            return super().open_ro(path)

    segments = written([RecordKind.CURSOR], [])
    segments[1].head = b"large"
    segments[1].add(RecordKind.CHECKPOINT, CHECKPOINT_BODY.pack(5), 0)
    segments[1].damaged = bytearray(segments[1].whole)
    write_to(fast_path, segments)
    disk = Unreadable()
    with pytest.raises(kind) as caught:
        recover(fast_path, disk, restore=lambda head: None, replay=lambda records, raw, segment: None)
    assert isinstance(caught.value, CorruptJournal | Unavailable)
    assert caught.value.details["segment"] == f"{SIZE:020d}.{file}"
    assert disk.open_fds == set()


@pytest.mark.parametrize("whole_head", [True, False])
def test_a_head_whose_body_was_torn_leaves_the_one_before_it_to_count(
    fast_path: Path, whole_head: bool
) -> None:
    segments = written([RecordKind.CURSOR], [], [])
    segments[1].add(RecordKind.HEAD, b"n" * 900, segments[0].records[0].end)
    segments[1].damaged = bytearray(segments[1].whole)
    if not whole_head:
        segments[1].damaged[SECTOR : 2 * SECTOR] = bytes(SECTOR)
    write_to(fast_path, segments)
    found = recovered(fast_path)
    assert (found.head, found.head_lsn) == (b"head 0", FILE_HEADER_BYTES)
    assert found.tail == [(RecordKind.CURSOR, segments[0].records[1].lsn, b"body")]
    assert found.records == len(segments[0].records) + whole_head
