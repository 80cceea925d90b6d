"""Copies of a replay keep what a message is, and say which one it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.journal import CachedBatch
from pydanube_broker.subscription.copies import MAX_REASON_BYTES, Wanted, dead_letter_batches
from pydanube_broker.topics.replay import copies_of
from pydanube_core.batch import (
    BATCH_TARGET_BYTES,
    MAX_BATCH_BYTES,
    BatchView,
    broker_part,
    encode_batch,
)
from pydanube_core.batch.validate import validate_batch
from pydanube_core.names import REPLAYED_FROM

from tests.core.batches import steady


def stored(base: int, payloads: list[bytes], **more: object) -> CachedBatch:
    data = encode_batch(payloads, producer_id=7, publish_time_ms=1000, **more)  # type: ignore[arg-type]
    end = base + len(payloads)
    head = broker_part(base_offset=base, last_offset=end - 1, epoch=1, append_time_ms=2000)
    return CachedBatch(base, end, len(payloads), 2000, len(head) + len(data), (head, data))


def test_a_copy_keeps_payload_key_attributes_time_producer_and_schema() -> None:
    batch = stored(
        10,
        [b"a", b"b", b"c"],
        keys=[b"k", None, b""],
        attributes=[{"x": "1"}, None, {REPLAYED_FROM: "/default/older@3"}],
        schema=(5, 2),
    )
    (data,) = copies_of(batch, 0, 100, "/default/t")
    view = BatchView(data)
    assert view.payloads() == [b"a", b"b", b"c"]
    assert view.keys() == [b"k", None, b""]
    assert view.attributes() == [
        {"x": "1", REPLAYED_FROM: "/default/t@10"},
        {REPLAYED_FROM: "/default/t@11"},
        {REPLAYED_FROM: "/default/t@12"},
    ]
    assert view.publish_times_ms() == [1000, 1000, 1000]
    assert view.producers() == [(7, "")]
    part = validate_batch(data, max_message_bytes=1000)
    assert (part.schema_id, part.schema_version) == (5, 2)
    assert part.producer_id == 0, "it is the broker's own: no producer's sequence is in it"


@steady
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=60),
    bounds=st.tuples(st.integers(0, 90), st.integers(0, 90)),
)
def test_any_range_is_copied_once_and_in_order(sizes: list[int], bounds: tuple[int, int]) -> None:
    start, end = sorted(bounds)
    payloads = [b"%d" % i + b"x" * size for i, size in enumerate(sizes)]
    found = [
        payload
        for data in copies_of(stored(20, payloads), start, end, "/d/t")
        for payload in BatchView(data).payloads()
    ]
    assert found == [payload for i, payload in enumerate(payloads) if start <= 20 + i < end]


def test_a_full_batch_of_large_messages_becomes_batches_within_the_limit() -> None:
    payloads = [b"y" * 1000] * 4000
    found = copies_of(stored(0, payloads), 0, 4000, "/default/" + "t" * 200)
    assert len(found) > 1
    assert all(len(data) < MAX_BATCH_BYTES for data in found)
    assert max(sum(map(len, BatchView(data).payloads())) for data in found) <= BATCH_TARGET_BYTES


@pytest.mark.parametrize(
    ("count", "own"), [(12_000, {}), (700, {"a": "x" * 5000})], ids=["many messages", "large attributes"]
)
def test_all_of_a_full_batch_fits_with_what_is_added_to_each(count: int, own: dict[str, str]) -> None:
    """Only payloads were counted: dead letters of small messages came to more than a batch takes, and blocked for good."""
    batch = stored(0, [b"m"] * count, attributes=[own] * count)
    letters = list(
        dead_letter_batches(batch, [Wanted(0, count, {"x-failure-reason": "n" * MAX_REASON_BYTES})])
    )
    assert [pair for ranges, _ in letters for pair in ranges][-1][1] == count
    assert sum(len(BatchView(data).payloads()) for _, data in letters) == count
    copies = copies_of(batch, 0, count, "/default/" + "t" * 200)
    assert sum(len(BatchView(data).payloads()) for data in copies) == count
    assert all(len(data) < 2 * BATCH_TARGET_BYTES for data in (*copies, *(data for _, data in letters)))
