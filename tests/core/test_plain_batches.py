"""The short check of the usual batch lets nothing through that the walk through its columns would refuse."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydanube_core.batch import PRODUCER_PART_BYTES, Codec, encode_batch, read_producer_part
from pydanube_core.batch.plain import MAX_PUBLISH_TIME_MS, is_plain
from pydanube_core.batch.validate import validate_batch, walk_columns
from pydanube_core.errors import ClusterError

from tests.core.batches import patched, steady, summed

LIMIT = 1_000_000


@st.composite
def usual(draw: st.DrawFn) -> bytes:
    """What the SDK sends of messages without keys."""
    attributes = None
    if draw(st.booleans()):
        payloads = draw(st.lists(st.binary(max_size=20), min_size=1, max_size=9))
        words = st.text(alphabet="abc-_7", max_size=12)
        each = st.none() | st.dictionaries(words, words, max_size=4)
        attributes = draw(st.none() | st.lists(each, min_size=len(payloads), max_size=len(payloads)))
    else:  # on both sides of the count at which numpy takes over
        payloads = [b"x" * (i % 5) for i in range(draw(st.integers(60, 70)))]
    producer_id = draw(st.integers(0, 2**64 - 1))
    name = draw(st.text(alphabet="abc-_7", max_size=12))
    return encode_batch(
        payloads,
        producer_id=producer_id,
        producer_epoch=draw(st.integers(0, 2**32 - 1)),
        first_sequence=draw(st.integers(0, 2**63 - len(payloads))),
        publish_time_ms=draw(st.integers(0, MAX_PUBLISH_TIME_MS)),
        attributes=attributes,
        producers=((producer_id, name),) if draw(st.booleans()) else (),
        schema=draw(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))),
    )


def short(batch: bytes, *, limit: int = LIMIT) -> bool:
    part = read_producer_part(batch)
    found = is_plain(batch, part, max_message_bytes=limit)
    assert is_plain(memoryview(batch), part, max_message_bytes=limit) == found
    return found


def walk(batch: bytes, *, limit: int = LIMIT) -> bool:
    try:
        walk_columns(batch, read_producer_part(batch), max_message_bytes=limit)
    except ClusterError:
        return False
    return True


@steady
@given(batch=usual())
def test_what_the_sdk_sends_takes_the_short_way(batch: bytes) -> None:
    assert short(batch)
    assert walk(batch)


@settings(steady, max_examples=150)
@given(batch=usual(), data=st.data())
def test_whatever_the_short_way_takes_the_walk_takes(batch: bytes, data: st.DataObject) -> None:
    changed = bytearray(batch)
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(8, len(changed) - 4))
        value = data.draw(st.sampled_from([-1, 0, 1, 2, 4, 5, 8, 16, 0x80, 1 << 31, 1 << 40]))
        match data.draw(st.integers(0, 3)):
            case 0:
                changed[at & ~3 : (at & ~3) + 4] = (value & 0xFFFFFFFF).to_bytes(4, "little")
            case 1:
                changed[at] = value & 0xFF
            case 2:
                changed[at:at] = bytes(8)
            case _:
                del changed[at & ~7 : (at & ~7) + 8]
    if len(changed) < PRODUCER_PART_BYTES:
        return
    try:
        hostile = summed(changed)
        read_producer_part(hostile)
    except ClusterError:
        return
    for limit in (0, 7, LIMIT):
        assert walk(hostile, limit=limit) or not short(hostile, limit=limit)


@pytest.mark.parametrize(
    "attributes", [None, [{"to": "/default/inbox", "ttl": "5"}, None]], ids=["plain", "attributes"]
)
def test_every_byte_behind_the_header_counts(attributes: list[dict[str, str] | None] | None) -> None:
    """One bit at a time, with the checksum made right: nothing is taken here that the walk refuses."""
    batch = encode_batch([b"hello", b"you"], producer_id=3, attributes=attributes, producers=((3, "me"),))
    taken = 0
    for bit in range(8 * 8, 8 * len(batch)):
        changed = bytearray(batch)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            hostile = summed(changed)
            read_producer_part(hostile)
        except ClusterError:
            continue
        taken += short(hostile)
        assert walk(hostile) or not short(hostile), f"bit {bit}"
    assert taken > 8 * len(b"helloyou")  # payload bytes are anybody's


@pytest.mark.parametrize(
    "batch",
    [
        encode_batch([b"x" * 100], codec=Codec.ZSTD),
        encode_batch([b"x"], keys=[b"k"]),
        encode_batch([b"x", b"y"], producers=((1, "a"), (2, "b")), producer_index=[0, 1]),
        encode_batch([b"x"], producers=((1, "né"),)),
        encode_batch([b"x"], attributes=[{"a": "né"}]),
        encode_batch([b"x"], attributes=[{str(i): "" for i in range(65)}]),
        encode_batch([b"x"] * 65, attributes=[{"a": "b"}] * 65),
    ],
    ids=[
        "compressed",
        "keyed",
        "two producers",
        "a name that is not ASCII",
        "an attribute that is not ASCII",
        "many attributes",
        "many messages with attributes",
    ],
)
def test_other_batches_are_walked_through(batch: bytes) -> None:
    assert not short(batch)
    validate_batch(batch, max_message_bytes=LIMIT)


def test_a_batch_that_might_hold_too_large_a_message_is_walked_through() -> None:
    batch = encode_batch([b"x" * 60, b"y" * 60])
    assert short(batch, limit=120)
    assert not short(batch, limit=119)
    assert walk(batch, limit=60)


def test_numbers_out_of_their_range_are_walked_through() -> None:
    batch = encode_batch([b"x", b"y"])
    assert short(patched(batch, 40, "Q", 2**63 - 2))
    assert not short(patched(batch, 40, "Q", 2**63 - 1))
    assert not short(patched(batch, 48, "q", -1))
    assert not short(patched(batch, 48, "q", MAX_PUBLISH_TIME_MS + 1))
    assert not short(patched(batch, 36, "I", 1))
