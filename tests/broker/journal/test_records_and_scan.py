"""Headers, blank sectors, and the walk over records: what one says record by record, the other says in columns."""

from __future__ import annotations

import struct
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydanube_broker.journal import RecordHeader, RecordKind
from pydanube_broker.journal.records import (
    FILE_HEADER_BYTES,
    FLAG_SEGMENT_END,
    HEADER_BYTES,
    SECTOR,
    blank_sectors,
    encode_file_header,
    encode_header,
    read_file_header,
    read_header,
    record_bytes,
    verify_body,
)
from pydanube_broker.journal.scan import scan
from pydanube_core.batch import broker_part, encode_batch

U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)


@settings(deadline=None)
@given(
    kind=st.sampled_from(RecordKind),
    lsn=U64,
    behind=U64,
    topic=U64,
    body=st.integers(0, 64 << 20),
    crc=U32,
    flags=st.integers(0, 255),
    blank=U32,
    before=st.binary(max_size=20),
    bit=st.integers(0, HEADER_BYTES * 8 - 1),
)
def test_headers_round_trip_and_no_flipped_bit_goes_unseen(
    kind: RecordKind,
    lsn: int,
    behind: int,
    topic: int,
    body: int,
    crc: int,
    flags: int,
    blank: int,
    before: bytes,
    bit: int,
) -> None:
    synced = min(behind, lsn)
    raw = encode_header(kind, lsn, synced, topic, body, crc, flags, blank)
    assert len(raw) == HEADER_BYTES
    expected = RecordHeader(kind, flags, lsn, synced, topic, body, crc, blank)
    assert read_header(before + raw, len(before), lsn) == expected
    assert read_header(memoryview(before + raw), len(before), lsn) == expected
    assert read_header(raw, 0, lsn ^ 1) is None, "a record that is not where it belongs is not a record"
    assert read_header(raw[:-1], 0, lsn) is None
    damaged = bytearray(raw)
    damaged[bit // 8] ^= 1 << bit % 8
    assert read_header(bytes(damaged), 0, lsn) is None
    for split in range(8, HEADER_BYTES, 8):
        assert any(raw[:split]), "no part of a header is blank, wherever a sector ends"
        assert any(raw[split:])


@settings(deadline=None)
@given(base=U64, size=U64, bit=st.integers(0, FILE_HEADER_BYTES * 8 - 1))
def test_file_headers_round_trip_and_no_flipped_bit_goes_unseen(base: int, size: int, bit: int) -> None:
    raw = encode_file_header(base, size)
    assert len(raw) == FILE_HEADER_BYTES
    assert read_file_header(raw + b"x") == (1, base, size)
    assert read_file_header(raw[:-1]) is None
    damaged = bytearray(raw)
    damaged[bit // 8] ^= 1 << bit % 8
    assert read_file_header(bytes(damaged)) is None


def test_a_claim_of_more_than_was_written_is_no_header() -> None:
    assert read_header(encode_header(RecordKind.MARK, 64, 72, 0, 0, 0), 0, 64) is None
    raw = bytearray(encode_header(RecordKind.MARK, 64, 64, 0, 0, 0))
    raw[2] = 99  # a kind of a later version, rightly summed
    raw[-4:] = struct.pack("<I", crc32(raw[:-4]))
    assert read_header(bytes(raw), 0, 64) is None


PIECES = st.lists(
    st.one_of(st.integers(1, 1600).map(bytes), st.binary(min_size=1, max_size=40), st.just(b"\1" * SECTOR)),
    max_size=12,
).map(b"".join)


@settings(deadline=None)
@given(data=PIECES, at=st.integers(0, 400).map(lambda n: n * 8), before=st.sampled_from([48, 96]))
def test_blank_sectors_are_counted_as_a_reader_finds_them(data: bytes, at: int, before: int) -> None:
    record = b"\xff" * before + data
    record += bytes(-len(record) % 8)
    whole = b"\xff" * at + record
    blank = 0
    for start in range(at // SECTOR * SECTOR, len(whole), SECTOR):
        piece = whole[max(start, at) : start + SECTOR]
        blank += not any(piece)
    assert blank_sectors(at, before, data) == blank
    assert blank_sectors(at, before, memoryview(data)) == blank
    assert blank_sectors(at, before, record[before:]) == blank


@settings(deadline=None)
@given(
    data=PIECES.filter(any),
    at=st.integers(0, 400).map(lambda n: n * 8),
    kept=st.data(),
)
def test_a_lost_sector_that_held_anything_raises_the_count(data: bytes, at: int, kept: st.DataObject) -> None:
    """That is what tells torn from rotten."""
    before = HEADER_BYTES
    noted = blank_sectors(at, before, data)
    whole = bytearray(b"\xff" * (at + before) + data)
    first = (at + before + SECTOR - 1) // SECTOR
    sectors = range(first, (len(whole) + SECTOR - 1) // SECTOR)
    lost = [
        sector for sector in sectors if any(whole[sector * SECTOR :][:SECTOR]) and kept.draw(st.booleans())
    ]
    for sector in lost:
        end = min((sector + 1) * SECTOR, len(whole))
        whole[sector * SECTOR : end] = bytes(end - sector * SECTOR)
    assert blank_sectors(at, before, bytes(whole[at + before :])) == noted + len(lost)


def one_by_one(raw: bytes, base: int, start: int) -> tuple[list[RecordHeader], int | None]:
    """The walk as `records` has it, a record at a time."""
    found: list[RecordHeader] = []
    at = start
    while True:
        header = read_header(raw, at - base, at)
        if header is None:
            return found, at
        body = raw[at - base + HEADER_BYTES :][: header.body_bytes]
        if not verify_body(header, body):
            return found, at
        found.append(header)
        if header.kind is RecordKind.MARK and header.flags & FLAG_SEGMENT_END:
            return found, None
        at += record_bytes(header.body_bytes)


def in_columns(raw: bytes, base: int, start: int) -> tuple[list[RecordHeader], int | None]:
    found: list[RecordHeader] = []
    for item in scan(raw, base, start, bodies=True):
        if isinstance(item, int):
            return found, item
        found += [item.header(i) for i in range(len(item))]
    return found, None


RECORDS = st.lists(
    st.one_of(
        st.tuples(st.just("batch"), st.integers(0, 9), st.integers(1, 3), st.binary(max_size=700)),
        st.tuples(st.just("cursor"), st.integers(0, 9), st.binary(max_size=60)),
        st.tuples(st.sampled_from(["mark", "end"])),
    ),
    max_size=20,
)


def segment_of(items: list[tuple[object, ...]], base: int, size: int) -> bytes:
    raw = bytearray(size)
    at = FILE_HEADER_BYTES
    for i, item in enumerate(items):
        flags, crc, topic, body = 0, 0, 0, b""
        match item:
            case ("batch", int(topic), int(count), bytes(payload)):
                kind = RecordKind.BATCH
                part = broker_part(base_offset=i, last_offset=i + count - 1, epoch=1, append_time_ms=-i)
                body = part + encode_batch([payload] * count)
            case ("cursor", int(topic), bytes(body)):
                kind, crc = RecordKind.CURSOR, crc32(body)
            case ("end",):
                kind, flags = RecordKind.MARK, FLAG_SEGMENT_END
            case _:
                kind = RecordKind.MARK
        record = encode_header(kind, base + at, base, topic, len(body), crc, flags) + body
        raw[at : at + len(record)] = record
        at += record_bytes(len(body))
    return bytes(raw)


@settings(deadline=None)
@given(items=RECORDS, data=st.data(), base=st.sampled_from([0, 4096, 2**40]))
def test_records_in_columns_are_the_records_one_by_one(
    items: list[tuple[object, ...]], data: st.DataObject, base: int
) -> None:
    raw = bytearray(segment_of(items, base, 48 << 10))
    start = base + FILE_HEADER_BYTES
    assert in_columns(bytes(raw), base, start) == one_by_one(bytes(raw), base, start)
    used = len(raw.rstrip(b"\0")) + 64
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, used - 1))
        raw[place] = data.draw(st.integers(0, 255))
    assert in_columns(bytes(raw), base, start) == one_by_one(bytes(raw), base, start)
    short = bytes(raw[: data.draw(st.integers(FILE_HEADER_BYTES, len(raw)).map(lambda n: n & ~7))])
    assert in_columns(short, base, start) == one_by_one(short, base, start)


def test_a_walk_of_many_chunks_misses_nothing() -> None:
    items: list[tuple[object, ...]] = [("cursor", 3, b"x" * (i % 5)) for i in range(9_000)]
    raw = segment_of(items, 0, 2 << 20)
    found, end = in_columns(raw, 0, FILE_HEADER_BYTES)
    assert len(found) == 9_000
    assert (found, end) == one_by_one(raw, 0, FILE_HEADER_BYTES)


@pytest.mark.parametrize("bodies", [True, False])
def test_columns_of_batches_say_where_they_are(bodies: bool) -> None:
    items: list[tuple[object, ...]] = [("batch", 7, 3, b"abc"), ("mark",), ("batch", 8, 1, b"")]
    (records, end) = scan(segment_of(items, 0, 16384), 0, FILE_HEADER_BYTES, bodies=bodies)
    assert not isinstance(records, int)
    assert end == records.end
    assert records.topic_id.tolist() == [7, 0, 8]
    chosen = [0, 2]
    assert records.first[chosen].tolist() == [0, 2]
    assert records.last[chosen].tolist() == [2, 2]
    assert records.time_ms[chosen].tolist() == [0, -2]
