"""What a broker relies on in a batch is checked on receipt, and a refusal says what was wrong."""

from __future__ import annotations

import struct
from typing import Any

import lz4.block
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from pydanube_core.batch import (
    MAX_BATCH_BYTES,
    MAX_BATCH_MESSAGES,
    PRODUCER_PART_BYTES,
    BatchColumn,
    BatchView,
    Codec,
    ProducerPart,
    encode_batch,
    read_producer_part,
)
from pydanube_core.batch.encode import append_padded, seal
from pydanube_core.batch.layout import MAX_INFLATED_BYTES, padded
from pydanube_core.batch.plain import MAX_PUBLISH_TIME_MS
from pydanube_core.batch.select import Cutter, key_slots
from pydanube_core.batch.validate import validate_batch
from pydanube_core.errors import (
    BatchTooLarge,
    ChecksumMismatch,
    ClusterError,
    InvalidArgument,
    MessageTooLarge,
)

from tests.core.batches import encodings, patched, rows_of, steady, summed

LIMIT = 1_000_000
OFFSETS_AT = PRODUCER_PART_BYTES
COLUMNS_AT = 12  # header fields, by byte
RAW_AT, STORED_AT, SEQUENCE_AT, TIME_AT = 16, 20, 40, 48


def check(batch: bytes, *, limit: int = LIMIT, holes: bool = True) -> None:
    validate_batch(batch, max_message_bytes=limit, allow_offset_delta=holes)


def refused(batch: bytes, error: type[ClusterError] = InvalidArgument) -> dict[str, Any]:
    """The details of the refusal; its message must name what they name."""
    with pytest.raises(error) as caught:
        check(batch)
    assert type(caught.value) is error
    assert str(caught.value.details["field"]) in caught.value.message or error is not InvalidArgument
    return caught.value.details


@steady
@given(arguments=encodings())
def test_what_our_encoder_makes_is_accepted(arguments: dict[str, Any]) -> None:
    batch = encode_batch(**arguments)
    part = validate_batch(batch, max_message_bytes=LIMIT, allow_offset_delta=True)
    assert part == read_producer_part(batch)
    check(memoryview(b"!" + batch)[1:])  # type: ignore[arg-type]


def test_the_largest_counts_are_accepted() -> None:
    check(encode_batch([b""] * MAX_BATCH_MESSAGES))
    check(encode_batch([b"x"], first_sequence=2**63 - 1, publish_time_ms=MAX_PUBLISH_TIME_MS))
    check(encode_batch([b"x", b"y"], sequences=[2**63 - 1, 0]))  # nothing is counted up from the first


# -- sizes ---------------------------------------------------------------------------------------------------


def test_a_message_over_the_limit_is_named() -> None:
    batch = encode_batch([b"a" * 100, b"b" * 101, b"c" * 300])
    check(batch, limit=300)
    with pytest.raises(MessageTooLarge) as caught:
        check(batch, limit=100)
    assert caught.value.details == {"field": "payload", "value": 101, "index": 1, "limit": 100}
    assert "message 1" in caught.value.message
    assert "101 bytes" in caught.value.message


def test_the_limit_is_for_the_message_as_it_was_not_as_it_is_stored() -> None:
    batch = encode_batch([b"x", b"y" * 5000], codec=Codec.ZSTD)
    assert len(batch) < 200
    with pytest.raises(MessageTooLarge) as caught:
        check(batch, limit=4999)
    assert caught.value.details["index"] == 1


def test_a_batch_over_the_limit_is_refused_before_it_is_summed() -> None:
    details = refused(bytes(MAX_BATCH_BYTES + 1), BatchTooLarge)
    assert details == {"field": "batch", "value": MAX_BATCH_BYTES + 1, "limit": MAX_BATCH_BYTES}


def test_a_changed_byte_is_a_checksum_mismatch() -> None:
    batch = bytearray(encode_batch([b"hello"]))
    batch[-8] ^= 1
    refused(bytes(batch), ChecksumMismatch)


# -- the header ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "code", "value", "field"),
    [
        (0, "I", 0, "batch"),  # magic
        (4, "H", 2, "batch"),  # version
        (6, "B", 3, "codec"),
        (7, "B", 1, "batch"),  # flags
        (8, "I", 0, "count"),
        (8, "I", MAX_BATCH_MESSAGES + 1, "count"),
        (COLUMNS_AT, "I", 1 << 9 | 1, "columns"),
        (COLUMNS_AT, "I", 0, "columns"),
        (RAW_AT, "I", MAX_INFLATED_BYTES + 1, "raw"),
        (RAW_AT, "I", 5, "payload"),
        (STORED_AT, "I", 5, "stored_bytes"),
        (36, "I", 1, "reserved"),
        (SEQUENCE_AT, "Q", 2**63 - 1, "first_sequence"),
        (SEQUENCE_AT, "Q", 2**64 - 1, "first_sequence"),
        (TIME_AT, "q", -1, "first_publish_time_ms"),
        (TIME_AT, "q", MAX_PUBLISH_TIME_MS + 1, "first_publish_time_ms"),
    ],
)
def test_header_fields_are_checked(at: int, code: str, value: int, field: str) -> None:
    batch = encode_batch([b"ab", b"cd"])
    check(batch)
    with pytest.raises(InvalidArgument) as caught:
        check(patched(batch, at, code, value))
    assert caught.value.details["field"] == field


# -- offset arrays -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offsets", "value", "index"),
    [
        ((1, 2, 4, 6), 1, 0),
        ((-1, 2, 4, 6), -1, 0),
        ((0, 4, 2, 6), 2, 1),
        ((0, -2, 4, 6), -2, 0),
        ((0, 2, 1 << 28, 6), 6, 2),
        ((0, (1 << 31) - 1, -(1 << 31), 6), -(1 << 31), 1),  # int32 differences would wrap to 1
        ((0, 2, 4, 5), 5, None),
        ((0, 2, 4, 7), 7, None),
    ],
)
def test_hostile_payload_offsets(offsets: tuple[int, ...], value: int, index: int | None) -> None:
    batch = patched(encode_batch([b"ab", b"cd", b"ef"]), OFFSETS_AT, "i", *offsets)
    details = refused(batch)
    assert (details["field"], details["value"], details.get("index")) == ("payload", value, index)


def test_offsets_that_wrap_all_the_way_round_are_refused() -> None:
    """Each step is small as an int32 difference, the sum of all is 2^32: what a check of differences alone lets pass."""
    count = 2200
    step = (1 << 32) // count
    walk = [min(i * step, (1 << 32) - 1) for i in range(count)]
    offsets = [x if x < 1 << 31 else x - (1 << 32) for x in walk] + [0]
    batch = patched(encode_batch([b""] * count), OFFSETS_AT, "i", *offsets)
    assert refused(batch)["field"] == "payload"


KEYED = encode_batch([b"", b"", b""], keys=[b"ab", "é".encode(), b"c"])
KEYS_AT = PRODUCER_PART_BYTES + 16
ATTRIBUTED = encode_batch([b""] * 3, attributes=[{"a": "1"}, {}, {"bé": "2", "c": "3"}])


def find(batch: bytes, needle: bytes) -> int:
    assert batch.count(needle) == 1
    return batch.index(needle)


@pytest.mark.parametrize(
    ("batch", "at", "code", "values", "field", "index"),
    [
        pytest.param(KEYED, KEYS_AT, "B", [0b1111], "key", None, id="validity beyond the count"),
        pytest.param(KEYED, KEYS_AT, "B", [0b011], "key", 2, id="key bytes without a key"),
        pytest.param(KEYED, KEYS_AT + 1, "B", [1], "key", None, id="padding of the validity bitmap"),
        pytest.param(KEYED, KEYS_AT + 8, "i", [0, 2, 1, 5], "key", 1, id="falling key offsets"),
        pytest.param(KEYED, KEYS_AT + 8, "i", [0, 2, 3, 5], "key", 1, id="a code point over two keys"),
        pytest.param(KEYED, KEYS_AT + 8, "i", [0, 3, 3, 5], "key", 0, id="a code point over three keys"),
        pytest.param(KEYED, find(KEYED, b"ab\xc3"), "B", [0xFF], "key", 0, id="not UTF-8"),
        pytest.param(KEYED, find(KEYED, b"\xa9c"), "B", [0x41], "key", 1, id="half a code point"),
        pytest.param(ATTRIBUTED, KEYS_AT, "i", [0, 2, 1, 3], "attributes", 1, id="falling entries"),
        pytest.param(ATTRIBUTED, KEYS_AT, "i", [0, 1, 1, 2], "attributes.key", None, id="fewer entries"),
        pytest.param(
            ATTRIBUTED, KEYS_AT, "i", [0, 1, 1, 1 << 28], "attributes.key", None, id="too many entries"
        ),
        pytest.param(ATTRIBUTED, KEYS_AT, "i", [0, 1, 1, -1], "attributes", 2, id="negative entries"),
        pytest.param(
            ATTRIBUTED, find(ATTRIBUTED, b"b\xc3"), "B", [0xC3], "attributes.key", 2, id="attribute key"
        ),
        pytest.param(
            ATTRIBUTED, find(ATTRIBUTED, b"123"), "B", [0x31, 0x80], "attributes.value", 2, id="value"
        ),
    ],
)
def test_hostile_text_columns(
    batch: bytes, at: int, code: str, values: list[int], field: str, index: int | None
) -> None:
    check(batch)
    details = refused(patched(batch, at, code, *values))
    assert (details["field"], details.get("index")) == (field, index)


def column(batch: bytes, which: BatchColumn) -> int:
    at = BatchView(batch).column_start(which)
    assert at is not None
    return at


TIMED = encode_batch([b""] * 3, publish_times_ms=[1000, 1001, 999])
NAMED = encode_batch([b""] * 3, producers=[(1, "ab"), (2, "é")], producer_index=[0, 1, 0])
NUMBERED = encode_batch([b""] * 3, sequences=[5, 7, 9])
SCHEMED = encode_batch([b""] * 3, schemas=[(1, 1), (2, 1), (3, 9)], schema_index=[0, 2, 1])
HOLED = encode_batch([b""] * 3, offset_deltas=[0, 5, 9])
PRODUCERS_AT, SCHEMAS_AT = column(NAMED, BatchColumn.PRODUCERS), column(SCHEMED, BatchColumn.SCHEMAS)
INDEX_AT = column(NAMED, BatchColumn.PRODUCER_INDEX)


@pytest.mark.parametrize(
    ("batch", "at", "code", "values", "field", "value", "index"),
    [
        (TIMED, column(TIMED, BatchColumn.PUBLISH_TIME), "i", [0, 1, -1001], "publish_time", -1001, 2),
        (NAMED, PRODUCERS_AT, "I", [0], "producers", 0, None),
        (NAMED, PRODUCERS_AT, "I", [4], "producers", 4, None),
        (NAMED, PRODUCERS_AT + 4, "I", [1], "reserved", "01000000", None),
        (NAMED, find(NAMED, b"ab\xc3"), "B", [0xFF], "producers", "ff62", 0),
        (NAMED, INDEX_AT, "i", [0, 2, 0], "producer_index", 2, 1),
        (NAMED, INDEX_AT, "i", [0, 1, -1], "producer_index", -1, 2),
        (NAMED, COLUMNS_AT, "I", [BatchColumn.PAYLOAD | BatchColumn.PRODUCERS], "columns", 17, None),
        (NUMBERED, column(NUMBERED, BatchColumn.SEQUENCE), "q", [5, -7], "sequence", -7, 1),
        (NUMBERED, column(NUMBERED, BatchColumn.SEQUENCE), "q", [6], "sequence", 6, 0),
        (SCHEMED, SCHEMAS_AT, "I", [0], "schemas", 0, None),
        (SCHEMED, SCHEMAS_AT, "I", [1 << 31], "schemas", 1 << 31, None),
        (SCHEMED, SCHEMAS_AT + 4, "I", [9], "reserved", "09000000", None),
        (SCHEMED, SCHEMAS_AT + 8 + 24 + 16, "i", [0, 3], "schema_index", 3, 1),
        (SCHEMED, SCHEMAS_AT + 8 + 24 + 12, "I", [7], "schemas", "07000000", None),
        (HOLED, column(HOLED, BatchColumn.OFFSET_DELTA), "I", [1], "offset_delta", 1, 0),
        (HOLED, column(HOLED, BatchColumn.OFFSET_DELTA), "I", [0, 5, 5], "offset_delta", 5, 2),
        (HOLED, column(HOLED, BatchColumn.OFFSET_DELTA), "I", [0, 5, 3], "offset_delta", 3, 2),
        (HOLED, column(HOLED, BatchColumn.OFFSET_DELTA), "I", [0, 5, 1 << 31], "offset_delta", 1 << 31, 2),
    ],
)
def test_hostile_number_columns(
    batch: bytes, at: int, code: str, values: list[int], field: str, value: object, index: int | None
) -> None:
    check(batch)
    details = refused(patched(batch, at, code, *values))
    assert (details["field"], details["value"], details.get("index")) == (field, value, index)


def test_a_producer_index_needs_a_table() -> None:
    bare = bytearray(encode_batch([b"", b""], sequences=[0, 1])[:-16])
    bare += struct.pack("<ii", 0, 0)
    assert (
        refused(patched(bytes(bare), COLUMNS_AT, "I", 1 | BatchColumn.PRODUCER_INDEX))["field"] == "columns"
    )


def test_holes_are_the_brokers() -> None:
    with pytest.raises(InvalidArgument) as caught:
        validate_batch(HOLED, max_message_bytes=LIMIT)
    assert caught.value.details["field"] == "columns"
    check(HOLED)


@pytest.mark.parametrize("batch", [KEYED, ATTRIBUTED, TIMED, NAMED, NUMBERED, SCHEMED, HOLED])
def test_columns_end_where_the_batch_ends(batch: bytes) -> None:
    for change in (batch + bytes(8), batch[:-8], batch + b"\0"):
        assert refused(summed(change))["field"]
    without = patched(batch, COLUMNS_AT, "I", int(BatchColumn.PAYLOAD))
    assert refused(without)["field"] == "batch"
    for bit in BatchColumn:
        columns = read_producer_part(batch).columns
        if not columns & bit:
            refused(patched(batch, COLUMNS_AT, "I", columns | bit))


def test_padding_is_zero() -> None:
    batch = encode_batch([b"abc"])
    for at in range(len(batch) - 5, len(batch)):
        assert refused(patched(batch, at, "B", 1))["field"] == "payload"


# -- compressed payloads -------------------------------------------------------------------------------------


def compressed(stored: bytes, raw_bytes: int, codec: Codec) -> bytes:
    parts: list[bytes] = []
    append_padded(parts, struct.pack("<ii", 0, raw_bytes))
    append_padded(parts, stored)
    return seal(parts, ProducerPart(codec, 1, 1, raw_bytes, len(stored), 1, 1, 0, 0, 0, 0))


RAW = b"0123456789" * 100
LZ4 = lz4.block.compress(RAW, store_size=False)
ZSTD = zstandard.ZstdCompressor().compress(RAW)
UNSIZED = zstandard.ZstdCompressor(write_content_size=False).compress(RAW)
# a frame header that asks for a window of 2^27 bytes and has no size, and one raw block with one byte
WIDE = b"\x28\xb5\x2f\xfd" + bytes([0, (27 - 10) << 3]) + b"\x09\x00\x00x"


def test_compressed_payloads_are_taken() -> None:
    for stored, codec in ((LZ4, Codec.LZ4), (ZSTD, Codec.ZSTD), (UNSIZED, Codec.ZSTD)):
        batch = compressed(stored, len(RAW), codec)
        check(batch)
        assert BatchView(batch).payloads() == [RAW]
    empty = compressed(b"", 0, Codec.ZSTD)
    check(empty)
    assert BatchView(empty).payloads() == [b""]
    narrow = WIDE[:5] + bytes([(20 - 10) << 3]) + WIDE[6:]
    check(compressed(narrow, 1, Codec.ZSTD))


@pytest.mark.parametrize(
    ("stored", "raw_bytes", "codec"),
    [
        pytest.param(LZ4, 999, Codec.LZ4, id="lz4 inflates to more"),
        pytest.param(LZ4, 1001, Codec.LZ4, id="lz4 inflates to less"),
        pytest.param(LZ4[:-1], 1000, Codec.LZ4, id="lz4 cut short"),
        pytest.param(LZ4 + b"\0", 1000, Codec.LZ4, id="lz4 with a tail"),
        pytest.param(b"", 5, Codec.LZ4, id="lz4 of nothing"),
        pytest.param(LZ4, 0, Codec.LZ4, id="lz4 where nothing should be"),
        pytest.param(ZSTD, 999, Codec.ZSTD, id="zstd inflates to more"),
        pytest.param(ZSTD, 1001, Codec.ZSTD, id="zstd inflates to less"),
        pytest.param(UNSIZED, 999, Codec.ZSTD, id="zstd without size inflates to more"),
        pytest.param(UNSIZED, 1001, Codec.ZSTD, id="zstd without size inflates to less"),
        pytest.param(ZSTD[:-1], 1000, Codec.ZSTD, id="zstd cut short"),
        pytest.param(ZSTD + b"\0", 1000, Codec.ZSTD, id="zstd with a tail"),
        pytest.param(ZSTD + ZSTD, 2000, Codec.ZSTD, id="two zstd frames"),
        pytest.param(b"", 5, Codec.ZSTD, id="zstd of nothing"),
        pytest.param(ZSTD, 0, Codec.ZSTD, id="zstd where nothing should be"),
        pytest.param(b"\x50\x2a\x4d\x18" + bytes(4), 5, Codec.ZSTD, id="a zstd frame to skip"),
        pytest.param(WIDE, 1, Codec.ZSTD, id="a zstd window of 128 MiB"),
        pytest.param(LZ4, 1000, Codec.ZSTD, id="the other codec"),
    ],
)
def test_payloads_that_do_not_inflate_are_refused(stored: bytes, raw_bytes: int, codec: Codec) -> None:
    batch = compressed(stored, raw_bytes, codec)
    details = refused(batch)
    assert (details["field"], details["value"]) == ("payload", codec.name.lower())
    with pytest.raises(InvalidArgument):
        BatchView(batch).payloads()


@pytest.mark.parametrize("claimed", [1000, MAX_INFLATED_BYTES])
def test_bombs_are_refused_without_inflating_them(claimed: int) -> None:
    zeros = bytes(200 << 20)
    bombs = [
        (zstandard.ZstdCompressor().compress(zeros), Codec.ZSTD),
        (zstandard.ZstdCompressor(write_content_size=False).compress(zeros), Codec.ZSTD),
        (lz4.block.compress(zeros, store_size=False), Codec.LZ4),
    ]
    for stored, codec in bombs:
        assert len(stored) < 1 << 20
        with pytest.raises(InvalidArgument) as caught:
            check(compressed(stored, claimed, codec), limit=1 << 30)
        assert caught.value.details["field"] == "payload"


# -- any bytes at all ----------------------------------------------------------------------------------------

INTERESTING = [-1, 0, 1, 2, 3, 7, 8, 0x80, 0xC3A9, 1 << 28, (1 << 31) - 1, -(1 << 31)]


@st.composite
def mutants(draw: st.DrawFn) -> bytes:
    """A batch with some of its numbers, bytes and edges changed, and the checksum made right."""
    batch = bytearray(encode_batch(**draw(encodings(max_messages=6))))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(4, max(4, len(batch) - 4)))
        match draw(st.integers(0, 5)):
            case 0 | 1:
                at &= ~3
                batch[at : at + 4] = draw(st.sampled_from(INTERESTING)).to_bytes(4, "little", signed=True)
            case 2:
                batch[at] = draw(st.integers(0, 255))
            case 3:
                batch[at : at + 1] = bytes([batch[at] ^ 1 << draw(st.integers(0, 7))])
            case 4:
                batch[at:at] = bytes(8)
            case 5:
                del batch[at & ~7 : (at & ~7) + 8]
    return summed(batch)


@settings(steady, max_examples=400)
@given(batch=mutants(), limit=st.sampled_from([0, 10, LIMIT]))
def test_any_bytes_are_refused_by_a_typed_error_or_can_be_used(batch: bytes, limit: int) -> None:
    try:
        check(batch, limit=limit)
    except ClusterError as error:
        assert isinstance(error, (InvalidArgument, MessageTooLarge, ChecksumMismatch))  # noqa: PT017
        return
    rows = rows_of(batch)
    assert all(len(row.payload) <= limit for row in rows)
    assert all(0 <= row.sequence < 2**63 and 0 <= row.publish_time_ms <= MAX_PUBLISH_TIME_MS for row in rows)
    assert len(key_slots(batch)) == len(Cutter(batch).sizes()) == len(rows)
    every_other = list(range(0, len(rows), 2))
    cut, first, _ = Cutter(batch).select(every_other)
    assert rows_of(cut) == [rows[i].moved(first) for i in every_other]
    check(cut)
    check(Cutter(batch).slice(len(rows) // 2, len(rows))[0])


@steady
@given(arguments=encodings(max_messages=4), junk=st.binary(max_size=64))
def test_any_body_behind_a_true_header(arguments: dict[str, Any], junk: bytes) -> None:
    batch = encode_batch(**arguments)
    body = junk + bytes(padded(len(junk)) - len(junk))
    try:
        check(summed(batch[:PRODUCER_PART_BYTES] + body))
    except ClusterError as error:
        assert isinstance(error, InvalidArgument)  # noqa: PT017
