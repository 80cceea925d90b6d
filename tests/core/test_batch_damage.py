"""No damage to a stored batch goes unnoticed, and no damage does more than raise a typed error."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydanube_core.batch import (
    BROKER_PART_BYTES,
    PRODUCER_PART_BYTES,
    BatchView,
    Codec,
    broker_part,
    encode_batch,
    read_broker_part,
    read_producer_part,
)
from pydanube_core.batch.validate import validate_batch
from pydanube_core.errors import BatchTooLarge, ChecksumMismatch, InvalidArgument

from tests.core.batches import encodings, rows_of, steady, summed

DETECTED = (ChecksumMismatch, InvalidArgument)


def stored_batch(codec: Codec) -> bytes:
    body = encode_batch(
        [b"first " * 6, b"", b"second " * 6],
        keys=[b"k", None, b""],
        attributes=[{"a": "b"}, None, {"c": ""}],
        publish_times_ms=[1000, 990, 1010],
        sequences=[4, 6, 9],
        codec=codec,
    )
    return broker_part(base_offset=10, last_offset=12, epoch=3, append_time_ms=1_000_000) + body


@pytest.mark.parametrize("codec", Codec)
def test_every_flipped_bit_is_detected(codec: Codec) -> None:
    stored = stored_batch(codec)
    BatchView.stored(stored)
    for bit in range(8 * len(stored)):
        damaged = bytearray(stored)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises(DETECTED):
            BatchView.stored(bytes(damaged))


def test_every_truncation_and_every_tail_is_detected() -> None:
    stored = stored_batch(Codec.ZSTD)
    for length in range(len(stored)):
        with pytest.raises(DETECTED):
            BatchView.stored(stored[:length])
    for tail in (b"\0", bytes(8), stored):
        with pytest.raises(DETECTED):
            BatchView.stored(stored + tail)


@steady
@given(arguments=encodings(), data=st.data())
def test_a_changed_byte_is_detected_in_any_batch(arguments: dict[str, Any], data: st.DataObject) -> None:
    batch = bytearray(encode_batch(**arguments))
    at = data.draw(st.integers(0, len(batch) - 1))
    batch[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DETECTED):
        read_producer_part(bytes(batch))


@settings(steady, max_examples=5)
@given(base=st.integers(0, 2**64 - 1), epoch=st.integers(0, 2**64 - 1), resealed=st.booleans())
def test_every_change_of_a_broker_part_is_detected(base: int, epoch: int, resealed: bool) -> None:
    head = broker_part(base_offset=base, last_offset=base, epoch=epoch, append_time_ms=7, resealed=resealed)
    assert len(head) == BROKER_PART_BYTES
    assert read_broker_part(memoryview(head)).base_offset == base
    for bit in range(8 * len(head)):
        damaged = bytearray(head)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises(DETECTED):
            read_broker_part(bytes(damaged))
    for length in range(len(head)):
        with pytest.raises(ChecksumMismatch):
            read_broker_part(head[:length])


@steady
@given(junk=st.binary(max_size=300))
def test_junk_is_refused(junk: bytes) -> None:
    for read in (read_producer_part, read_broker_part, BatchView.stored, BatchView):
        with pytest.raises(DETECTED):
            read(junk)
    with pytest.raises((*DETECTED, BatchTooLarge)):
        validate_batch(junk, max_message_bytes=1000)


@steady
@given(arguments=encodings(), data=st.data())
def test_a_view_of_a_hostile_batch_raises_only_typed_errors(
    arguments: dict[str, Any], data: st.DataObject
) -> None:
    """A client reads what a broker sends without `validate_batch`, so the view must stand on its own."""
    batch = bytearray(encode_batch(**arguments))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(PRODUCER_PART_BYTES // 4, len(batch) // 4 - 1)) * 4
        value = data.draw(st.sampled_from([-1, 0, 1, 3, 1 << 28, (1 << 31) - 1, -(1 << 31)]))
        batch[at : at + 4] = value.to_bytes(4, "little", signed=True)
    with suppress(InvalidArgument):
        assert len(rows_of(summed(batch))) == len(arguments["payloads"])
