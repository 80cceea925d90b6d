"""A batch of one message made the short way is the batch that `encode_batch` makes."""

from __future__ import annotations

import struct
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st
from pydanube_core.batch import (
    PRODUCER_PART_BYTES,
    BatchView,
    LoneBatches,
    encode_batch,
    read_producer_part,
)
from pydanube_core.errors import InvalidArgument

from tests.core.batches import texts

_U32, _U64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)


@given(
    payload=st.one_of(st.binary(max_size=40), st.binary(min_size=1000, max_size=1100)),
    producer_id=_U64,
    epoch=_U32,
    name=st.text(max_size=20),
    schema=st.tuples(_U64, _U32),
    sequence=_U64,
    time_ms=st.integers(-(1 << 63), (1 << 63) - 1),
    key=st.none() | st.binary(max_size=20),
    attributes=st.none() | st.dictionaries(texts, texts, max_size=10),
)
def test_both_ways_give_the_same_bytes(
    payload: bytes,
    producer_id: int,
    epoch: int,
    name: str,
    schema: tuple[int, int],
    sequence: int,
    time_ms: int,
    key: bytes | None,
    attributes: dict[str, str] | None,
) -> None:
    lone = LoneBatches(producer_id=producer_id, producer_epoch=epoch, name=name, schema=schema)
    batch = b"".join(lone.encode(payload, sequence, time_ms, key, attributes))
    assert BatchView(batch).attributes() == ([attributes] if attributes else None)
    assert batch == encode_batch(
        [payload],
        producer_id=producer_id,
        producer_epoch=epoch,
        first_sequence=sequence,
        publish_time_ms=time_ms,
        keys=None if key is None else [key],
        attributes=[attributes] if attributes else None,
        producers=((producer_id, name),),
        schema=schema,
    )


@given(
    attributes=st.dictionaries(st.text("ab", max_size=3), st.text("12", max_size=3), min_size=1, max_size=3),
    at=st.integers(0, 1 << 16),
    word=st.integers(-3, 9) | st.integers(-(1 << 31), (1 << 31) - 1),
)
def test_attributes_in_disorder_are_read_as_far_as_they_go_or_refused(
    attributes: dict[str, str], at: int, word: int
) -> None:
    batch = bytearray(encode_batch([b""], attributes=[attributes]))
    at = PRODUCER_PART_BYTES + 8 + at % ((len(batch) - PRODUCER_PART_BYTES - 8) // 4) * 4
    struct.pack_into("<i", batch, at, word)
    view = BatchView(batch, part=read_producer_part(batch, verify=False))
    with suppress(InvalidArgument):
        (found,) = view.attributes() or ({},)
        assert sum(len(name) + len(value) for name, value in found.items()) <= len(batch)
