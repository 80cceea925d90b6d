"""A batch of one message made the short way is the batch that `encode_batch` makes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pydanube_core.batch import LoneBatches, encode_batch

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
    attributes=st.none() | st.dictionaries(texts, texts, max_size=3),
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
    assert b"".join(lone.encode(payload, sequence, time_ms, key, attributes)) == encode_batch(
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
