"""What goes into a batch comes out of it, whatever its columns and codec."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_core.batch import (
    BATCH_TARGET_BYTES,
    MAX_BATCH_BYTES,
    MAX_BATCH_MESSAGES,
    BatchColumn,
    BatchView,
    Codec,
    broker_part,
    encode_batch,
    parse_codec,
    read_broker_part,
    read_producer_part,
)
from pydanube_core.batch.layout import MAX_INFLATED_BYTES
from pydanube_core.errors import BatchTooLarge, InvalidArgument

from tests.core.batches import encodings, rows_given, rows_of, steady


@steady
@given(arguments=encodings())
def test_rows_come_back_as_they_were_given(arguments: dict[str, Any]) -> None:
    batch = encode_batch(**arguments)
    assert len(batch) % 8 == 0
    assert rows_of(batch) == rows_given(arguments)
    assert rows_of(memoryview(b"." + batch)[1:]) == rows_given(
        arguments
    )  # where gRPC hands it over: unaligned


@steady
@given(arguments=encodings(), base=st.integers(0, 2**62))
def test_the_header_says_who_sent_it(arguments: dict[str, Any], base: int) -> None:
    part = read_producer_part(encode_batch(**arguments))
    assert part.count == len(arguments["payloads"])
    assert (part.producer_id, part.producer_epoch) == (arguments["producer_id"], arguments["producer_epoch"])
    assert (part.schema_id, part.schema_version) == arguments["schema"]
    assert part.first_sequence == rows_given(arguments)[0].sequence
    assert part.raw_bytes == sum(map(len, arguments["payloads"]))
    assert bool(part.columns & BatchColumn.OFFSET_DELTA) == ("offset_deltas" in arguments)


@steady
@given(
    arguments=encodings(), base=st.integers(0, 2**62), epoch=st.integers(0, 2**64 - 1), resealed=st.booleans()
)
def test_a_stored_batch_knows_its_offsets(
    arguments: dict[str, Any], base: int, epoch: int, resealed: bool
) -> None:
    rows = rows_given(arguments)
    last = base + rows[-1].delta
    head = broker_part(base_offset=base, last_offset=last, epoch=epoch, append_time_ms=-5, resealed=resealed)
    stored = head + encode_batch(**arguments)
    view = BatchView.stored(stored)
    assert list(view.offsets()) == [base + row.delta for row in rows]
    assert view.append_time_ms == -5
    part = read_broker_part(stored)
    assert (part.base_offset, part.last_offset, part.epoch, part.resealed) == (base, last, epoch, resealed)


def test_an_empty_key_is_not_a_missing_key() -> None:
    assert BatchView(encode_batch([b"a", b"b"], keys=[b"", None])).keys() == [b"", None]
    assert BatchView(encode_batch([b"a", b"b"])).keys() is None


@pytest.mark.parametrize("count", [1, 7, 8, 9, 63, 64, 65, 1000])
def test_validity_bits_fit_any_count(count: int) -> None:
    keys = [None if i % 3 else b"%d" % i for i in range(count)]
    assert BatchView(encode_batch([b""] * count, keys=keys)).keys() == keys
    full = [b"k"] * count
    assert BatchView(encode_batch([b""] * count, keys=full)).keys() == full


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_compression_shrinks_what_repeats_and_leaves_what_does_not(codec: Codec) -> None:
    repeating = encode_batch([b"the same words " * 10] * 50, codec=codec)
    assert read_producer_part(repeating).codec is codec
    assert len(repeating) < 1000
    short = encode_batch([b"x"], codec=codec)
    assert read_producer_part(short).codec is Codec.NONE
    assert BatchView(short).payloads() == [b"x"]


def test_the_largest_batches_are_taken_and_larger_ones_refused() -> None:
    assert len(encode_batch([b""] * MAX_BATCH_MESSAGES)) < BATCH_TARGET_BYTES
    with pytest.raises(InvalidArgument) as refused:
        encode_batch([b""] * (MAX_BATCH_MESSAGES + 1))
    assert refused.value.details == {"field": "payloads", "value": MAX_BATCH_MESSAGES + 1}
    with pytest.raises(InvalidArgument):
        encode_batch([])
    assert len(encode_batch([bytes(4_000_000)])) < MAX_BATCH_BYTES  # the largest message a policy allows
    with pytest.raises(BatchTooLarge) as too_large:
        encode_batch([bytes(MAX_BATCH_BYTES)])
    assert too_large.value.details["limit"] == MAX_BATCH_BYTES
    with pytest.raises(BatchTooLarge) as bomb:
        encode_batch([bytes(MAX_INFLATED_BYTES), b"x"], codec=Codec.ZSTD)
    assert bomb.value.details["limit"] == MAX_INFLATED_BYTES


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("keys", {"keys": [b"k"]}),
        ("attributes", {"attributes": [None]}),
        ("publish_times_ms", {"publish_times_ms": [1, 2, 3]}),
        ("publish_times_ms", {"publish_times_ms": [0, 1 << 31]}),
        ("sequences", {"sequences": [1]}),
        ("sequences", {"sequences": [0, 1 << 63]}),
        ("producer_index", {"producers": [(1, "a"), (2, "b")], "producer_index": [0]}),
        ("schema_index", {"schemas": [(1, 1)], "schema_index": [0]}),
        ("offset_deltas", {"offset_deltas": [0, -1]}),
        ("batch", {"publish_time_ms": 1 << 63}),
        ("batch", {"first_sequence": -1}),
    ],
)
def test_arguments_that_do_not_fit_are_named(field: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        encode_batch([b"a", b"b"], **arguments)
    assert refused.value.details["field"] == field


def test_codec_names() -> None:
    assert [parse_codec(name) for name in ("none", "lz4", "zstd")] == [Codec.NONE, Codec.LZ4, Codec.ZSTD]
    with pytest.raises(InvalidArgument) as refused:
        parse_codec("gzip")
    assert refused.value.details == {"field": "compression", "value": "gzip"}
