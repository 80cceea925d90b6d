"""`send_many` of Arrow columns: what arrives is the same as of a list, in batches no larger than a producer's."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pydanube.sync import Client
from pydanube.testing import InMemoryCluster
from pydanube_core.errors import ClosedResource, InvalidArgument, MessageTooLarge, PayloadInvalid

PAYLOADS = [b"%d" % number * (number % 7) for number in range(3000)]
KEYS = [f"k{number % 5}" for number in range(3000)]


def stored(client: Client, topic: str) -> list[tuple[bytes, str | None]]:
    with client.reader(topic, stop="latest") as reader:
        return [(message.payload, message.key) for message in reader]


@pytest.mark.parametrize(
    ("payloads", "keys"),
    [
        (pa.array(PAYLOADS), pa.array(KEYS)),
        (pa.array(PAYLOADS, pa.large_binary()), pa.array(KEYS, pa.large_string())),
        (pa.array([p.decode() for p in PAYLOADS]), pa.array([*KEYS, "beyond"])),
        (pa.array([b"of others", *PAYLOADS])[1:], pa.array(["of", "others", *KEYS])[2:]),
        (pa.chunked_array([PAYLOADS[:7], [], PAYLOADS[7:]]), pa.chunked_array([KEYS[:2000], KEYS[2000:]])),
        (pa.array(PAYLOADS), KEYS),  # keys that are no column
    ],
)
def test_columns_of_each_kind_arrive_as_their_values(
    memory: InMemoryCluster, payloads: Any, keys: Any
) -> None:
    with memory.connect_sync() as client:
        with client.producer("t", batch_bytes=4096) as producer:
            summary = producer.send_many(payloads, keys=keys)
            statistics = producer.statistics()
        assert stored(client, "t") == list(zip(PAYLOADS, KEYS, strict=True))
    assert summary.count == statistics.acknowledged_messages == len(PAYLOADS)
    taken = sum(map(len, PAYLOADS)) + sum(map(len, KEYS)) + 16 * len(PAYLOADS)
    assert statistics.sent_bytes == taken  # the window is charged as for single messages
    assert statistics.written_batches >= taken / 4096


def test_keys_of_some_messages_and_of_none(memory: InMemoryCluster) -> None:
    with memory.connect_sync() as client, client.producer("t") as producer:
        producer.send_many(pa.array([b"a", b"b", b""]), keys=pa.array(["k", None, ""]))
        producer.send_many(pa.array([b"c"]), keys=pa.array([None], pa.string()))
        producer.send_many(pa.array([], pa.binary()), keys=pa.array([], pa.string()))
        producer.send(b"d")
        assert stored(client, "t") == [(b"a", "k"), (b"b", None), (b"", ""), (b"c", None), (b"d", None)]


def test_columns_go_to_the_partitions_of_their_keys(memory: InMemoryCluster) -> None:
    with memory.connect_sync() as client:
        for topic, columns in (
            ("lists", (PAYLOADS, KEYS)),
            ("columns", (pa.array(PAYLOADS), pa.array(KEYS))),
        ):
            with client.producer(topic, partitions=3) as producer:
                producer.send_many(columns[0], keys=columns[1])
        for partition in range(3):
            found = stored(client, f"lists-part-{partition}")
            assert found == stored(client, f"columns-part-{partition}")
            assert found


def test_a_window_smaller_than_a_batch_holds_for_columns_too(memory: InMemoryCluster) -> None:
    with memory.connect_sync() as client:
        with client.producer("t", window_messages=10) as producer:
            assert producer.send_many(pa.array(PAYLOADS)).count == len(PAYLOADS)
            assert producer.statistics().written_batches >= len(PAYLOADS) / 10
        assert [payload for payload, _ in stored(client, "t")] == PAYLOADS


@pytest.mark.parametrize(
    ("payloads", "keys", "why"),
    [
        (pa.array([1, 2]), None, "messages are a column of binary or string, not of int64"),
        (pa.array([b"a"]), pa.array([b"k"]), "keys are a column of string, not of binary"),
        (pa.array([b"a", None]), None, "a payload is null and has no key"),
        (
            pa.chunked_array([[b"a"], [b"b", None]]),
            pa.array(["k", "l", None]),
            "a payload is null and has no key",
        ),
        (pa.array([b"a", b"b"]), pa.array(["k"]), "fewer keys than messages"),
    ],
)
def test_columns_that_cannot_be_sent_are_refused_before_any_is(
    memory: InMemoryCluster, payloads: Any, keys: Any, why: str
) -> None:
    with memory.connect_sync() as client, client.producer("t") as producer:
        with pytest.raises(InvalidArgument, match=why):
            producer.send_many(payloads, keys=keys)
        assert producer.statistics().sent_messages == 0


def test_a_message_larger_than_the_topic_takes_is_named_and_those_before_it_are_stored(
    memory: InMemoryCluster,
) -> None:
    with memory.connect_sync() as client:
        with client.producer("t") as producer:
            with pytest.raises(MessageTooLarge):
                producer.send_many(pa.array([b"before", b"x" * 5_000_000]))
            producer.send_many(pa.array([b"x" * 2_000_000]))  # larger than a batch aims at
        assert [len(payload) for payload, _ in stored(client, "t")] == [6, 2_000_000]


def test_columns_after_the_block_are_refused(memory: InMemoryCluster) -> None:
    with memory.connect_sync() as client:
        with client.producer("t") as producer:
            pass
        with pytest.raises(ClosedResource):
            producer.send_many(pa.array([b"late"]))


def test_columns_outlive_a_connection_that_is_lost(memory: InMemoryCluster) -> None:
    """Whatever was under way is sent again, byte by byte the same, and stored once."""
    with memory.connect_sync() as client:
        with client.producer("t", batch_bytes=1024) as producer:
            for _ in range(3):
                memory.cut_before_answers(2)
                producer.send_many(pa.array(PAYLOADS), keys=pa.array(KEYS))
            assert producer.statistics().resent_batches > 0
        assert stored(client, "t") == list(zip(PAYLOADS, KEYS, strict=True)) * 3


def test_columns_behind_a_batch_that_is_refused_are_stored(memory: InMemoryCluster) -> None:
    """They were encoded already, and leave again in a new session."""
    with memory.connect_sync() as client:
        with client.producer("t", batch_bytes=1024) as producer:
            memory.refuse_publishes(PayloadInvalid("not this one"))
            with pytest.raises(PayloadInvalid) as failure:
                producer.send_many(pa.array(PAYLOADS), keys=pa.array(KEYS))
        found = stored(client, "t")
        assert len(found) == failure.value.details["acknowledged"]
        assert found == list(zip(PAYLOADS, KEYS, strict=True))[-len(found) :]
        assert len(PAYLOADS) - 200 < len(found) < len(PAYLOADS)
